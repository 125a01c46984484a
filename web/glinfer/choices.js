/** Reads back what a choice of tokens needs: candidates, and rows of logits. */

import { GlinferError } from "./errors.js";
import { positionOf } from "./layouts.js";

/** @typedef {import("./replay.js").Replay} Replay */

const BLOCK_EDGE = 4;
const NO_SCORE = Math.fround(-3.4e38); // of a candidate where no logit was a number

/**
 * The tokens chosen at `count` positions, or by `count` rows of a run: each the best of 16 candidates in a square of texels.
 * @param {Replay} replay
 * @param {number} texture index of the candidates.
 * @param {number} first the first position, or row.
 * @param {number} count
 * @returns {(() => number|null)[]} each returns its token, or null where the choice needs the whole row of logits.
 */
export function choicesOf(replay, texture, first, count) {
  const { columns } = replay.plan.textures[texture].layout;
  const found = [];
  while (found.length < count) {
    const [line, column] = [Math.floor((first + found.length) / columns), (first + found.length) % columns];
    const blocks = Math.min(count - found.length, columns - column);
    const width = BLOCK_EDGE * blocks;
    const texels = /** @type {Float32Array} */ (replay.read(texture, width, BLOCK_EDGE, BLOCK_EDGE * line, BLOCK_EDGE * column));
    for (let block = 0; block < blocks; block++) found.push(() => bestCandidate(texels, width, block));
  }
  replay.spoil(texture); // a draw that the driver drops leaves it
  return found;
}

/**
 * The id of the best candidate of a block of candidates (score, id, unsure, whether its logit is 0); of equal scores the lowest id.
 * @param {Float32Array} texels lines of blocks side by side.
 * @param {number} width texels in a line.
 * @param {number} block number of the block.
 * @returns {number|null} null where the best one is unsure and the choice needs the whole row of logits.
 * @throws {GlinferError} no logit is a number, or all are 0.
 */
export function bestCandidate(texels, width, block) {
  let [best, id, unsure] = [NO_SCORE, Infinity, 0];
  let [zeros, zeroScores] = [true, true];
  for (let texel = 0; texel < BLOCK_EDGE * BLOCK_EDGE; texel++) {
    const at = 4 * (Math.floor(texel / BLOCK_EDGE) * width + BLOCK_EDGE * block + (texel % BLOCK_EDGE));
    const [score, token, doubt, zero] = texels.subarray(at, at + 4);
    zeros &&= zero === 1 || score === NO_SCORE;
    zeroScores &&= score === 0;
    if (score > best) [best, id, unsure] = [score, token, doubt];
    else if (score === best) [id, unsure] = [id === Infinity ? id : Math.min(id, token), Math.max(unsure, doubt)];
  }
  if (unsure > 0) return null;
  if (id !== Infinity && (zeros || zeroScores)) throw new GlinferError("the model's output is broken: all logits are 0");
  if (id === Infinity) throw new GlinferError("the model's output is broken: a logit is not a number");
  return id;
}

/**
 * The logits of one slot of a texture in blocks.
 * @param {Replay} replay
 * @param {number} texture
 * @param {number} slot
 * @returns {Float32Array} one for each token.
 */
export function logitsOf(replay, texture, slot) {
  const { layout } = replay.plan.textures[texture];
  const [first, last] = [0, layout.cols - 1].map((col) => Math.floor(positionOf(layout, slot, col).y / BLOCK_EDGE));
  const [top, height] = [BLOCK_EDGE * first, BLOCK_EDGE * (last - first + 1)];
  const texels = replay.read(texture, layout.width, height, top);
  return Float32Array.from({ length: layout.cols }, (_, col) => {
    const { x, y, channel } = positionOf(layout, slot, col);
    return texels[4 * ((y - top) * layout.width + x) + channel];
  });
}
