/** The layout of matrices in textures: the browser's side of glinfer/gl/layouts. Plain numbers, no GL. */

const BLOCK_EDGE = 4;
const BLOCK_FLOATS = 64;

/**
 * The layout of a [rows, cols] matrix in a texture; see the layouts of plan.json.
 * @typedef {{kind: string, rows: number, cols: number, width: number, height: number, wrapped?: boolean,
 *   row_texels?: number, blocks?: number, columns?: number, tiles?: number, pitch?: number, slot_step?: number,
 *   block_step?: number, aside?: number, every?: number, stack?: number, line?: number, lines_per_block?: number,
 *   texels?: number, paired?: [number, number]}} Layout
 */

/**
 * The texel and the channel of one element; in blocks of one that every slot has.
 * @param {Layout} layout
 * @param {number} row
 * @param {number} col
 * @returns {{x: number, y: number, channel: number}}
 */
export function positionOf(layout, row, col) {
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
 * How many lines of texels hold the first rows.
 * @param {Layout} layout
 * @param {number} rows
 * @returns {number}
 */
export function linesOf(layout, rows) {
  const { y } = positionOf(layout, rows - 1, layout.cols - 1);
  return layout.kind === "block" ? BLOCK_EDGE * (Math.floor(y / BLOCK_EDGE) + 1) : y + 1;
}

/**
 * The element of a weight in one channel of a texel, the inverse of `positionOf`; null for padding, and for an unknown
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
  const index = slot * layout.slot_step + Math.floor(block / layout.tiles) * layout.block_step;
  return {
    x: (block % layout.tiles) * layout.pitch + BLOCK_EDGE * (index % layout.columns),
    y: BLOCK_EDGE * Math.floor(index / layout.columns),
  };
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
  const [width, kept] = [BLOCK_EDGE * slots, layout.blocks - layout.aside];
  if (lines === 1) return [[0, 0, width, BLOCK_EDGE * kept]];
  return Array.from({ length: kept }, (_, block) => [0, BLOCK_EDGE * lines * block, width, BLOCK_EDGE]);
}
