/** Attention weights as pictures, read back from the textures in which they were computed. */

import { linesOf, positionOf } from "./layouts.js";
import { evaluate } from "./values.js";

/** @typedef {import("./model.js").Model} Model */

const BLOCK_FLOATS = 64;
const MOST_ROWS = 256;
const MASKED = -1e29;

/**
 * The label of a picture: `h.2.attn.scores` is that of block 2, `h.0.attn.head.1.probs` of block 0, head 1.
 * @param {string} name of an entry of `plan.pictures`.
 * @returns {string}
 */
export function pictureName(name) {
  const found = /^h\.(\d+)\.attn(?:\.head\.(\d+))?\./.exec(name);
  if (!found) return name;
  const block = `block ${found[1]}`;
  return found[2] === undefined ? block : `${block}, head ${found[2]}`;
}

/**
 * Attention weights read out of one texture after its draw: a row for each head (or each query), a column for each
 * token that is looked at.
 * @param {Model} model in the middle of a run; see `watch` of `Model.logits`.
 * @param {{texture: number, draw: number, size: (number|string)[], layout: object, heads: number, sinks: number|undefined}} picture of `plan.pictures`.
 * @returns {{rows: number, cols: number, weights: Float32Array}} weights from 0 to 1, [rows × cols].
 */
export function readAttention(model, picture) {
  const tokens = model.ids.length;
  const found = picture.layout.kind === "block" ? inBlocks : picture.heads ? ofLastQuery : ofQueries;
  const attention = found(model.replay, picture, tokens);
  if (model.plan.draws[picture.draw].kind === "attn.scores") {
    const { rows, cols, weights } = attention;
    const sinks = picture.sinks === undefined ? null : model.replay.read(picture.sinks, Math.ceil(rows / 4), 1);
    for (let row = 0; row < rows; row++) softmax(weights.subarray(row * cols, (row + 1) * cols), sinks?.[row]);
  }
  return attention;
}

/** A slot has 64 tokens of every head. */
function inBlocks(replay, { texture, layout }, tokens) {
  const texels = replay.read(texture, layout.width, linesOf(layout, Math.ceil(tokens / BLOCK_FLOATS)));
  return gathered(Math.min(layout.cols / BLOCK_FLOATS, MOST_ROWS), tokens, (row, col) => {
    const at = positionOf(layout, Math.floor(col / BLOCK_FLOATS), row * BLOCK_FLOATS + (col % BLOCK_FLOATS));
    return texels[(at.y * layout.width + at.x) * 4 + at.channel];
  });
}

/** One head alone, with a row for each query. */
function ofQueries(replay, { texture, layout, size }, tokens) {
  const [rows, cols] = size.map((extent) => evaluate(extent, { rows: tokens }));
  const shown = Math.min(rows, MOST_ROWS);
  const texels = replay.read(texture, layout.width, linesOf(layout, shown));
  return gathered(shown, Math.min(tokens, cols), (row, col) => {
    const { x, y, channel } = positionOf(layout, row, col);
    return texels[(y * layout.width + x) * 4 + channel];
  });
}

/** The heads are stacked, each with a row for every query; the row of the last query is used. */
function ofLastQuery(replay, { texture, layout, heads }, tokens) {
  const queries = layout.rows / heads;
  const rows = Array.from({ length: Math.min(heads, MOST_ROWS) }, (_, head) => {
    const row = head * queries + tokens - 1;
    const first = positionOf(layout, row, 0).y;
    const lines = positionOf(layout, row, tokens - 1).y - first + 1;
    return { row, first, texels: replay.read(texture, layout.width, lines, first) };
  });
  return gathered(rows.length, tokens, (head, col) => {
    const { row, first, texels } = rows[head];
    const { x, y, channel } = positionOf(layout, row, col);
    return texels[((y - first) * layout.width + x) * 4 + channel];
  });
}

function gathered(rows, cols, at) {
  return { rows, cols, weights: Float32Array.from({ length: rows * cols }, (_, index) => at(Math.floor(index / cols), index % cols)) };
}

/** Softmax of a head's scores and its sink, if any: a logit that takes weight and has no token. */
function softmax(row, sink = -Infinity) {
  const largest = row.reduce((most, score) => Math.max(most, score), sink);
  let total = Math.exp(sink - largest);
  row.forEach((score, index) => (total += row[index] = score > MASKED ? Math.exp(score - largest) : 0));
  row.forEach((weight, index) => (row[index] = total > 0 ? weight / total : 0));
}

/**
 * Paints attention weights, a pixel each; the page scales the canvas. The largest weight of each line is opaque, others
 * are more transparent.
 * @param {HTMLCanvasElement} canvas
 * @param {{rows: number, cols: number, weights: Float32Array}} attention
 * @param {[number, number, number]} colour red, green and blue, to 255.
 */
export function paintAttention(canvas, { rows, cols, weights }, colour) {
  canvas.width = cols;
  canvas.height = rows;
  const image = new ImageData(cols, rows);
  for (let row = 0; row < rows; row++) {
    const line = weights.subarray(row * cols, (row + 1) * cols);
    const largest = line.reduce((most, weight) => Math.max(most, weight), 1e-9);
    line.forEach((weight, col) => {
      image.data.set([...colour, 255 * Math.sqrt(weight / largest)], 4 * (row * cols + col));
    });
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
