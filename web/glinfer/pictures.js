/** What attention looks at, as a picture: read back out of the textures in which it was computed. */

import { placeOf, region, sizeOf } from "./layouts.js";

const BLOCK_FLOATS = 64;
const MOST_ROWS = 256;
const MASKED = -1e29;

/**
 * What people call a picture: `h.2.attn.scores` is that of block 3, `h.0.attn.head.1.probs` of block 1, head 2.
 * @param {string} name of an entry of `plan.pictures`.
 * @returns {string}
 */
export function pictureName(name) {
  const found = /^h\.(\d+)\.attn(?:\.head\.(\d+))?\./.exec(name);
  if (!found) return name;
  const block = `block ${Number(found[1]) + 1}`;
  return found[2] === undefined ? block : `${block}, head ${Number(found[2]) + 1}`;
}

/**
 * Attention weights read out of one texture after its draw: a row for each head (or each query), a column for each
 * token that is looked at.
 * @param {Model} model in the middle of a run; see `watch` of `Model.logits`.
 * @param {{texture: number, draw: number}} picture of `plan.pictures`.
 * @returns {{rows: number, cols: number, weights: Float32Array}} weights from 0 to 1, [rows × cols].
 */
export function readAttention(model, picture) {
  const tokens = model.ids.length;
  const draw = model.plan.draws[picture.draw];
  const texture = model.plan.textures[picture.texture];
  const inBlocks = texture.layout.kind === "block";
  const layout = inBlocks ? texture.layout : draw.layout;
  const used = { rows: tokens, last_row: tokens - 1, score_slots: Math.ceil(tokens / BLOCK_FLOATS) };
  // In blocks a slot has 64 tokens of every head.
  const height = inBlocks ? layout.cols / BLOCK_FLOATS : sizeOf(draw.size[0], used);
  const rows = Math.min(height, MOST_ROWS);
  const cols = inBlocks ? tokens : Math.min(tokens, sizeOf(draw.size[1], used));
  const [width, lines] = region(layout, inBlocks ? used.score_slots : rows, layout.cols);
  const texels = model.replay.read(picture.texture, width, lines);
  const place = (row, col) =>
    inBlocks
      ? placeOf(layout, Math.floor(col / BLOCK_FLOATS), row * BLOCK_FLOATS + (col % BLOCK_FLOATS))
      : placeOf(layout, row, col);
  const weights = new Float32Array(rows * cols);
  for (let row = 0; row < rows; row++) {
    for (let col = 0; col < cols; col++) {
      const { x, y, channel } = place(row, col);
      weights[row * cols + col] = texels[(y * width + x) * 4 + channel];
    }
    if (draw.kind === "attn.scores") softmax(weights.subarray(row * cols, (row + 1) * cols));
  }
  return { rows, cols, weights };
}

function softmax(row) {
  const largest = row.reduce((most, score) => Math.max(most, score), -Infinity);
  let total = 0;
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
