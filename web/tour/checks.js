/** What the page checks: OpenGL's errors, the bits of weights, and numbers of each draw against float64. */

import { explain } from "./explain.js";
import { pendingError } from "../glinfer/textures.js";

const TOLERANCE = 1e-4; // of the largest number of the target
const SAMPLES = 12; // numbers of a draw
const MASKED = -1e29;

/** The largest number of some texels, masks aside. */
function largestOf(values) {
  return values.reduce((most, value) => (value > MASKED && Math.abs(value) > most ? Math.abs(value) : most), 0);
}

/**
 * Computes samples of each draw again in float64, from what the draw should have read.
 * @param {import("./recording.js").Recording} recording
 * @param {(id: number) => string} wordOf
 * @returns {{numbers: number, wrong: {draw: number, row: number, col: number}|null}} `wrong`: the first that is not equal.
 */
export function checkDraws(recording, wordOf) {
  let numbers = 0;
  for (const [draw, { outputs: [target] }] of recording.steps.entries()) {
    const { texture, width, height, values } = target;
    const { layout } = recording.plan.textures[texture];
    const newest = layout.rows === recording.model.context ? recording.ids.length - 1 : 0; // the row of a plan for one token
    const largest = largestOf(values);
    for (let sample = 0; sample < SAMPLES; sample++) {
      const at = sample * 7919 + draw * 31;
      const [row, col] = layout.kind === "matrix" ? [Math.floor(at / width) % height, at % width] : [newest, at % layout.cols];
      const found = explain(recording, draw, row, col, wordOf);
      if (!found) break;
      numbers++;
      const error = Math.abs(found.found - found.exact);
      if (!(error <= TOLERANCE * Math.max(largest, Math.abs(found.exact)))) return { numbers, wrong: { draw, row, col } };
    }
  }
  return { numbers, wrong: null };
}

/**
 * The first draw whose target differs from that of another run.
 * @param {import("./recording.js").Recording} one
 * @param {import("./recording.js").Recording} other
 * @returns {number} -1 where none does.
 */
export function firstDifference(one, other) {
  return one.steps.findIndex(({ outputs }, draw) => {
    const [before, after] = [outputs[0].values, other.steps[draw].outputs[0].values];
    return before.length !== after.length || before.some((value, index) => !Object.is(value, after[index]));
  });
}

/**
 * The likeliest words that follow, whatever the driver says about the draws.
 * @param {import("../glinfer/model.js").Model} model
 * @param {number[]} ids
 * @param {number} count
 * @returns {number[]} fewer where the output has no numbers any more.
 */
export function continuation(model, ids, count) {
  const { replay } = model;
  const { check } = replay;
  replay.check = () => pendingError(replay.gl);
  try {
    return model.greedy(ids, Math.min(count, model.context - ids.length)).ids;
  } catch {
    return [];
  } finally {
    replay.check = check;
  }
}
