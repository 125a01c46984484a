/**
 * The layout of matrices in textures, and the cells that a draw covers: the browser's side of glinfer/gl/{layout,flat,blocks}.py
 * and of the Draw in glinfer/gl/replay.py. Plain numbers, no GL.
 */

import { GlinferError } from "./errors.js";

const BLOCK_EDGE = 4;
const BLOCK_FLOATS = 64;
const MOST_COVERED = 1.1;

/** The uniforms of a draw in cells, in the order of `Cells.uniforms`. */
export const CELL_UNIFORMS = ["cell_edge", "cells_across", "cells_each"];

/**
 * The place of a [rows, cols] matrix in a texture; see the layouts of plan.json.
 * @typedef {{kind: string, rows: number, cols: number, width: number, height: number, wrapped?: boolean,
 *   row_texels?: number, blocks?: number, columns?: number, tiles?: number, pitch?: number, slot_step?: number,
 *   block_step?: number, aside?: number, every?: number, stack?: number, line?: number, lines_per_block?: number,
 *   texels?: number, paired?: [number, number]}} Layout
 */

/**
 * A number, or the name of one that changes from run to run.
 * @param {number|string} extent
 * @param {Record<string, number>} values
 * @returns {number}
 */
export function sizeOf(extent, values) {
  return typeof extent === "number" ? extent : values[extent];
}

/**
 * Blocks of one tile from its first to the last of some slots, without those that a cache keeps aside.
 * @param {Layout} layout in blocks.
 * @param {number} rows how many slots.
 * @returns {number}
 */
export function placesOf(layout, rows) {
  const each = Math.ceil(keptBlocks(layout) / layout.tiles);
  return (rows - 1) * layout.slot_step + (each - 1) * layout.block_step + 1;
}

/** Blocks of a slot that are kept of every slot; of the last ones, `aside`, there is one for every few slots. */
function keptBlocks(layout) {
  return layout.blocks - layout.aside;
}

/** Lines of texels for the blocks that every slot of a layout has; the blocks kept aside follow them. */
function keptHeight(layout) {
  return BLOCK_EDGE * Math.ceil(placesOf(layout, layout.rows) / layout.columns);
}

/**
 * Width and height in texels of a rectangle at the origin that holds [0:rows, 0:cols].
 * @param {Layout} layout
 * @param {number} rows
 * @param {number} cols
 * @returns {[number, number]}
 * @throws {GlinferError} the matrix has no such part.
 */
export function region(layout, rows, cols) {
  if (!(rows >= 1 && rows <= layout.rows && cols >= 1 && cols <= layout.cols)) {
    const most = `${layout.rows}×${layout.cols}`;
    throw new GlinferError(`found a part of ${rows}×${cols} elements; expected 1×1 to ${most}`);
  }
  switch (layout.kind) {
    case "matrix":
      return layout.wrapped ? [layout.width, Math.ceil((rows * layout.cols) / layout.width)] : [cols, rows];
    case "flat":
      return [layout.width, Math.ceil((rows * layout.row_texels) / layout.width)];
    case "block":
      if (layout.aside) return [layout.width, layout.height];
      return [layout.width, BLOCK_EDGE * Math.ceil(placesOf(layout, rows) / layout.columns)];
    default:
      throw new GlinferError(`the layout ${layout.kind} has no known parts`);
  }
}

/**
 * The texel and the channel of one element.
 * @param {Layout} layout
 * @param {number} row
 * @param {number} col
 * @returns {{x: number, y: number, channel: number}}
 */
export function placeOf(layout, row, col) {
  if (layout.kind === "matrix") {
    if (!layout.wrapped) return { x: col, y: row, channel: 0 };
    const element = row * layout.cols + col;
    return { x: element % layout.width, y: Math.floor(element / layout.width), channel: 0 };
  }
  if (layout.kind === "flat") {
    const texel = row * layout.row_texels + (col >> 2);
    return { x: texel % layout.width, y: Math.floor(texel / layout.width), channel: col & 3 };
  }
  const { x, y } = blockOrigin(layout, row, Math.floor(col / BLOCK_FLOATS));
  // Inside a block floats run quad by quad, left to right, upwards.
  const lane = (col % BLOCK_FLOATS) >> 2;
  const [quad, member] = [lane >> 2, lane & 3];
  return { x: x + 2 * (quad & 1) + (member & 1), y: y + 2 * (quad >> 1) + (member >> 1), channel: col & 3 };
}

/**
 * The element of a weight in one channel of a texel, the inverse of `placeOf`; null for padding, and for an unknown
 * layout. A word of several weights has the column of the word; `col` is null where the
 * bits of a weight are spread over words.
 * @param {Layout} layout
 * @param {number} x
 * @param {number} y
 * @param {number} channel
 * @returns {{row: number, col: number|null}|null}
 */
export function elementOf(layout, x, y, channel) {
  const found = elementAt(layout, y * layout.width + x, channel);
  return found && found.row < layout.rows && found.col < layout.cols ? found : null;
}

/** The same for a texel by its number; in products a block has 64 outputs, four of them in each texel. */
function elementAt(layout, texel, channel) {
  const line = Math.floor(texel / layout.line);
  const inside = texel % layout.line;
  switch (layout.kind) {
    case "matrix":
      return { row: Math.floor(texel / layout.cols), col: texel % layout.cols };
    case "flat":
      return { row: Math.floor(texel / layout.row_texels), col: 4 * (texel % layout.row_texels) + channel };
    case "table": {
      const [x, y] = [texel % layout.width, Math.floor(texel / layout.width)];
      const row = Math.floor(x / layout.row_texels) * layout.stack + y;
      return { row, col: 4 * (x % layout.row_texels) + channel };
    }
    case "words": {
      const { row, step } = halfBlock(layout, line);
      const piece = Math.floor(inside / 8); // of 4 inputs of a step of 16, one word of each
      return { row: row + 4 * (inside % 8) + channel, col: 4 * layout.texels * step + piece };
    }
    case "constants":
      return { row: BLOCK_FLOATS * line + 4 * (inside % 16) + channel, col: Math.floor(inside / 16) };
    case "groups": {
      const [first, end] = layout.paired;
      const word = Math.floor(inside / 8);
      const output = word >= first && word < end ? 2 * (channel & 1) : channel; // of two the first
      return { row: halfBlock(layout, line).row + 4 * (inside % 8) + output, col: null };
    }
    default:
      return null;
  }
}

/** The first output of a line of a product, which has half a block of them, and the number of its inputs' step. */
function halfBlock(layout, line) {
  const steps = layout.lines_per_block / 2;
  return { row: (BLOCK_FLOATS / 2) * Math.floor(line / steps), step: line % steps };
}

/** The first texel of a block of a slot. */
function blockOrigin(layout, slot, block) {
  const kept = keptBlocks(layout);
  if (block >= kept) {
    const place = (block - kept) * Math.ceil(layout.rows / layout.every) + Math.floor(slot / layout.every);
    const y = keptHeight(layout) + BLOCK_EDGE * Math.floor(place / layout.columns);
    return { x: BLOCK_EDGE * (place % layout.columns), y };
  }
  const place = slot * layout.slot_step + Math.floor(block / layout.tiles) * layout.block_step;
  return {
    x: (block % layout.tiles) * layout.pitch + BLOCK_EDGE * (place % layout.columns),
    y: BLOCK_EDGE * Math.floor(place / layout.columns),
  };
}

/**
 * Rectangles [x, y, width, height] in texels that hold one slot of a cache that has every block of all slots in one line.
 * @param {Layout} layout
 * @param {number} slot
 */
export function slotRectangles(layout, slot) {
  const column = [BLOCK_EDGE * slot, 0, BLOCK_EDGE, BLOCK_EDGE * keptBlocks(layout)];
  return layout.aside ? [column, [0, keptHeight(layout), BLOCK_EDGE * layout.aside, BLOCK_EDGE]] : [column];
}

/**
 * Rectangles [x, y, width, height] in texels, at the left edge, that hold the first slots of a cache, without blocks aside.
 * @param {Layout} layout
 * @param {number} slots
 * @returns {[number, number, number, number][]|null} null where those slots are not adjacent.
 */
export function firstSlots(layout, slots) {
  const lines = layout.block_step / layout.columns; // of blocks, that one block of all slots takes
  if (layout.kind !== "block" || layout.tiles !== 1 || layout.slot_step !== 1 || !Number.isInteger(lines) || slots > layout.columns) return null;
  const [width, kept] = [BLOCK_EDGE * slots, keptBlocks(layout)];
  if (lines === 1) return [[0, 0, width, BLOCK_EDGE * kept]];
  return Array.from({ length: kept }, (_, block) => [0, BLOCK_EDGE * lines * block, width, BLOCK_EDGE]);
}

/** Squares of `edge` blocks a side that cover the first slots of a layout in blocks. */
export class Cells {
  /**
   * @param {number} edge blocks a side.
   * @param {number} across cells side by side in a tile.
   * @param {number} each cells in one tile.
   * @param {number} count cells in all.
   */
  constructor(edge, across, each, count) {
    this.edge = edge;
    this.across = across;
    this.each = each;
    this.count = count;
  }

  /**
   * The largest cells that cover little more than the blocks of the first slots.
   * @param {Layout} layout in blocks.
   * @param {number} slots
   * @param {number} largest blocks a side, a power of two.
   * @returns {Cells}
   */
  static of(layout, slots, largest) {
    const places = placesOf(layout, slots);
    const columns = Math.min(layout.columns, places);
    const lines = Math.ceil(places / layout.columns);
    // Without the places after the last block of a slot, which small cells leave out.
    const blocks = keptBlocks(layout);
    const needed = (columns * lines * blocks) / (layout.tiles * Math.ceil(blocks / layout.tiles));
    for (let edge = largest; ; edge = Math.floor(edge / 2)) {
      const across = Math.ceil(columns / edge);
      const up = Math.ceil(lines / edge);
      const little = across * up * edge * edge <= MOST_COVERED * needed;
      const alone = layout.tiles === 1 || across * edge <= layout.columns; // no block of the next tile is drawn twice
      // A point whose centre is outside of the target is not drawn.
      const half = Math.floor((BLOCK_EDGE * edge) / 2);
      const right = (layout.tiles - 1) * layout.pitch + BLOCK_EDGE * (across - 1) * edge + half;
      const top = BLOCK_EDGE * (up - 1) * edge + half;
      if (edge === 1 || (little && alone && right < layout.width && top < layout.height)) {
        return new Cells(edge, across, across * up, layout.tiles * across * up);
      }
    }
  }

  /** The values of CELL_UNIFORMS. */
  get uniforms() {
    return [this.edge, this.across, this.each];
  }
}

/**
 * (x, y, width, height) in texels that a draw writes in one run.
 * @param {object} draw of plan.json.
 * @param {Layout} target the layout of the texture that it renders to.
 * @param {Record<string, number>} values of the run.
 * @returns {[number, number, number, number]}
 */
export function viewport(draw, target, values) {
  if (draw.cover === "strip") {
    return [BLOCK_EDGE * values.strip_first, 0, BLOCK_EDGE * sizeOf(draw.size[0], values), keptHeight(target)];
  }
  if (draw.cover !== "triangle") return [0, 0, target.width, target.height];
  const [rows, cols] = draw.size.map((extent) => sizeOf(extent, values));
  return [0, 0, ...region(draw.layout ?? target, rows, cols)];
}

/**
 * How many vertices a draw has in one run.
 * @param {object} draw of plan.json.
 * @param {Layout} target the layout of the texture that it renders to.
 * @param {Record<string, number>} values of the run.
 * @param {Cells|null} cells how it is covered, where `draw.largest_cell` is not 0.
 * @returns {number}
 */
export function vertexCount(draw, target, values, cells) {
  if (draw.cover === "triangle" || draw.cover === "strip") return 3;
  if (draw.cover === "scatter") return sizeOf(draw.points, values);
  const each = draw.cover === "points" ? 1 : 6;
  return each * (cells ? cells.count : target.blocks * sizeOf(draw.size[0], values));
}
