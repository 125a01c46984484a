/** The inputs of a run that embeds texts: the browser's side of `encode_feed` in glinfer/lower/feed.py. No GL. */

import { BASE, LAST, LEARNED, POSITION, TOKEN } from "../glinfer/rows.js";

/** @typedef {import("../glinfer/rows.js").TableTexels} TableTexels */

/**
 * The texts of each run: longest first, so that a run has texts of similar length.
 * @param {number[]} lengths tokens of each text.
 * @param {{rows: () => number, texts: number, targets: number}} size the rows and texts that the next run may have, and the
 *   rows of a pass.
 * @returns {Generator<number[]>} indices of texts.
 */
export function* runsOf(lengths, { rows, texts, targets }) {
  let [run, used] = [[], 0];
  const order = Array.from(lengths.keys()).sort((one, other) => lengths[other] - lengths[one] || one - other);
  for (const index of order) {
    const needed = rowsOf(lengths[index], targets);
    if (run.length && (used + needed > rows() || run.length === texts)) {
      yield run;
      [run, used] = [[], 0];
    }
    run.push(index);
    used += needed;
  }
  if (run.length) yield run;
}

/** Rows of a text of `tokens` tokens, rounded up to whole slots. */
function rowsOf(tokens, targets) {
  return targets * Math.ceil(tokens / targets);
}

/**
 * Fills in texts, each from a slot of rows of its own on.
 * @param {{rows: TableTexels, texts: TableTexels}} tables
 * @param {{ids: number[], types?: number[], skipped: number}[]} encoded the tokens of each text, their types (0 if left
 *   out), and how many of the first do not count.
 * @param {{targets: number, positions: number, pooling: string}} how `positions`: learned ones, 0 where they are rotary.
 * @returns {Record<string, number>} the inputs of the run.
 */
export function encodeFeed({ rows, texts }, encoded, { targets, positions, pooling }) {
  let [first, longest] = [0, 0];
  texts.texels.fill(0);
  encoded.forEach(({ ids, types = [], skipped }, index) => {
    const last = ids.length - 1;
    const padded = rowsOf(ids.length, targets);
    for (let row = 0; row < padded; row++) {
      const held = row <= last;
      /** @type {[number, number][]} */
      const words = [[TOKEN, held ? ids[row] : 0], [POSITION, row], [BASE, first]];
      const type = types[row] ?? 0;
      rows.set(first + row, [...words, [LEARNED, held ? type * (positions || 1) + (positions && row) : 0], [LAST, last]]);
    }
    const counted = { cls: [0, 0], lasttoken: [last, last] }[pooling] ?? [Math.min(skipped, last), last];
    texts.set(index, [[BASE, first], [POSITION, counted[0]], [LAST, counted[1]]]);
    first += padded;
    longest = Math.max(longest, ids.length);
  });
  return { rows: first, longest, strip_first: 0, texts: encoded.length };
}
