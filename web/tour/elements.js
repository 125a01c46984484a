/** Where elements of matrices are in textures, also of weights and caches, beyond what ../glinfer/layouts.js needs. */

import { elementOf, positionOf } from "../glinfer/layouts.js";

const BLOCK_EDGE = 4;
const BLOCK_FLOATS = 64;

/** @typedef {import("../glinfer/layouts.js").Layout} Layout */

/**
 * The index of an element among the numbers of a texture, line by line.
 * @param {Layout} layout
 * @param {number} row
 * @param {number} col
 * @returns {{x: number, y: number, channel: number}|null} null for a layout that is not known.
 */
export function elementPosition(layout, row, col) {
  const { kind, width, line } = layout;
  const inLine = (texel, channel) => ({ x: texel % width, y: Math.floor(texel / width), channel });
  switch (kind) {
    case "matrix":
    case "flat":
      return positionOf(layout, row, col);
    case "block":
      return blockPosition(layout, row, col);
    case "table":
      return { x: Math.floor(row / layout.stack) * layout.row_texels + (col >> 2), y: row % layout.stack, channel: col & 3 };
    case "constants":
      return inLine(line * Math.floor(row / BLOCK_FLOATS) + 16 * col + ((row % BLOCK_FLOATS) >> 2), row & 3);
    case "words": {
      // A line has half a block of 64 outputs, four in each texel, and the words of 16 inputs.
      const words = 4 * layout.texels;
      const half = (row >> 5) * (layout.lines_per_block / 2) + Math.floor(col / words);
      return inLine(half * line + 8 * (col % words) + ((row & 31) >> 2), row & 3);
    }
    default:
      return null;
  }
}

/** The same for blocks; some at the end of a row are kept once for `every` rows. */
function blockPosition(layout, row, col) {
  const { rows, blocks, aside, every, columns, height } = layout;
  const beyond = Math.floor(col / BLOCK_FLOATS) - (blocks - aside);
  if (!aside || beyond < 0) return positionOf(layout, row, col);
  const copies = Math.ceil(rows / every);
  const index = beyond * copies + Math.floor(row / every);
  const first = height - BLOCK_EDGE * Math.ceil((aside * copies) / columns);
  const inside = positionOf({ ...layout, tiles: 1, columns: 1, slot_step: 1, block_step: 1 }, 0, col % BLOCK_FLOATS);
  return { x: BLOCK_EDGE * (index % columns) + inside.x, y: first + BLOCK_EDGE * Math.floor(index / columns) + inside.y, channel: inside.channel };
}

/**
 * Finds the elements of a texture by their texels.
 * @param {Layout} layout
 * @param {number[]} rows the rows in use, which are looked for; only for blocks.
 * @returns {(x: number, y: number, channel: number) => {row: number, col: number|null}|null}
 */
export function elementFinder(layout, rows) {
  if (layout.kind !== "block") return (x, y, channel) => elementOf(layout, x, y, channel);
  const found = new Map();
  for (const row of rows) {
    for (let col = 0; col < layout.cols; col++) {
      const { x, y, channel } = blockPosition(layout, row, col);
      found.set((y * layout.width + x) * 4 + channel, { row, col });
    }
  }
  return (x, y, channel) => found.get((y * layout.width + x) * 4 + channel) ?? null;
}
