/**
 * The inputs of a run over many rows: the browser's side of glinfer/kernels/fused/rows.py, where each word of the table is
 * explained, and of `chunk_feed` in glinfer/lower/feed.py. No GL.
 */

/** @typedef {import("./sampler.js").Sampler} Sampler */

/** The columns of words in a row of the table. */
export const [TOKEN, POSITION, BASE, LEARNED, NOISE_KEY, INVERSE_TEMPERATURE, NOISE, LAST] = [0, 1, 2, 3, 4, 5, 6, 7];
const [DRAWN, LONG] = [1, 2]; // of the word NOISE: a token is drawn; the row has the second set of angles
const [TOP_K, TOP_P, MIN_P, SOURCE] = [TOKEN, POSITION, BASE, LAST]; // of a choice: its filters, and the row of logits

/** The texels of a table of rows with 8 words each, in two texels a row. */
export class TableTexels {
  /**
   * @param {{stack: number, row_texels: number, width: number, height: number, rows: number}} layout of plan.json.
   * @param {Iterable<number>|null} texels its contents; zeros if left out.
   */
  constructor(layout, texels = null) {
    this.layout = layout;
    this.texels = texels ? Uint32Array.from(texels) : new Uint32Array(4 * layout.width * layout.height);
  }

  /**
   * Writes words of a row.
   * @param {number} row
   * @param {number[][]} words each with its column before it.
   */
  set(row, words) {
    const start = this.start(row);
    for (const [column, value] of words) this.texels[start + column] = value;
  }

  /**
   * A word of a row.
   * @param {number} row
   * @param {number} column
   * @returns {number}
   */
  at(row, column) {
    return this.texels[this.start(row) + column];
  }

  start(row) {
    const { stack, row_texels: texels, width } = this.layout;
    return 4 * ((row % stack) * width + texels * Math.floor(row / stack));
  }
}

/**
 * Fills in tokens that follow each other in a sequence, from `position` on. Padding rows continue the positions; their
 * results and cache slots are ignored.
 * @param {TableTexels} table
 * @param {number[]} ids
 * @param {number} position of the first of them.
 * @param {{targets: number, long?: boolean, sampler?: Sampler|null}} how `targets`: rows of a slot; `long`: whether they use
 *   the second set of angles; `sampler`: chooses the token after each row, from its current step on.
 * @returns {Record<string, number>} the inputs of the run.
 */
export function rowsFeed(table, ids, position, { targets, long = false, sampler = null }) {
  const padded = targets * Math.ceil(ids.length / targets);
  const set = long ? LONG : 0;
  const same = [[BASE, 0], [NOISE, set], [LAST, position + ids.length - 1]];
  for (let row = 0; row < table.layout.rows; row++) {
    table.set(row, row < padded ? [[TOKEN, ids[row] ?? 0], [POSITION, position + row], ...same] : same);
  }
  for (let row = 0; sampler && row < ids.length; row++) setChoice(table, row, sampler, set);
  return { rows: ids.length, longest: position + padded, strip_first: position };
}

/**
 * Fills in how tokens are chosen one after the other, as `Choice.write` in glinfer/engine/run/choice.py.
 * @param {TableTexels} table
 * @param {number[]} sources the row of logits of each.
 * @param {Sampler} sampler chooses the first of them at this step.
 */
export function fillChoices(table, sources, sampler) {
  const [topK, topP, minP] = sampler.filterWords;
  for (const [row, source] of sources.entries()) {
    setChoice(table, row, sampler, 0);
    table.set(row, [[TOP_K, topK], [TOP_P, topP], [MIN_P, minP], [SOURCE, source]]);
  }
}

/** Sets how the token after a row is chosen: by the sampler's noise `row` steps ahead; `bits` are further bits of NOISE. */
function setChoice(table, row, sampler, bits) {
  const [scale] = new Uint32Array(Float32Array.of(sampler.inverseTemperature).buffer);
  const drawn = sampler.greedy ? [[NOISE, bits], [NOISE_KEY, 0]] : [[NOISE, bits | DRAWN], [NOISE_KEY, sampler.noiseKey(row)]];
  table.set(row, [...drawn, [INVERSE_TEMPERATURE, scale]]);
}
