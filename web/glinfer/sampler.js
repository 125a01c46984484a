/** Chooses the next token from a row of logits, by the rules of glinfer/engine/sampler.py. */

import { GlinferError, checkOptions, shown } from "./errors.js";
import { gumbelAt, noiseKey } from "./noise.js";

/** The names of a sampler's options. */
export const SAMPLING = ["temperature", "topK", "topP", "minP", "repetitionPenalty", "seed"];
const MIN_TEMPERATURE = 1e-4;
const MIN_INVERSE = 1e-20; // of 1 / temperature: below it even unlisted logits have a weight
const MAX_TOP_K = 2 ** 24; // no vocabulary is larger
const BELOW_ONE = 1 - 2 ** -24; // the largest float32 below 1
const LARGEST = 2 ** 128 - 2 ** 104; // the largest float32
const MOST_NOISE = 17; // more than any token's

/**
 * The index of the largest number, the first of equal ones.
 * @param {ArrayLike<number>} numbers
 * @returns {number}
 * @throws {GlinferError} one of them is NaN, or all are 0: the model's output is broken.
 */
export function argmax(numbers) {
  let best = 0;
  for (let index = 0; index < numbers.length; index++) {
    if (Number.isNaN(numbers[index])) throw new GlinferError("the model's output is broken: a logit is not a number");
    if (numbers[index] > numbers[best]) best = index;
  }
  const zeros = numbers[best] === 0 && Array.prototype.every.call(numbers, (number) => number === 0);
  if (zeros) throw new GlinferError("the model's output is broken: all logits are 0");
  return best;
}

/** Draws tokens one by one; equal seeds and logits give equal tokens, in Python too. */
export class Sampler {
  /**
   * @param {{temperature?: number, topK?: number, topP?: number, minP?: number, repetitionPenalty?: number,
   *   seed?: number|bigint|null}} options `temperature` 0 is greedy decoding; `topK` 0, `topP` 1 and `minP` 0 keep
   *   all tokens; `repetitionPenalty` above 1 makes tokens of the context less likely; `seed` null uses fresh randomness.
   * @throws {GlinferError} an option is out of range.
   */
  constructor(options = {}) {
    const { temperature = 1, topK = 0, topP = 1, minP = 0, repetitionPenalty = 1, seed = null } = checkOptions(options, SAMPLING);
    if (!isWithin(temperature, 0, Number.MAX_VALUE)) throw bad("temperature", temperature, "a number of at least 0");
    if (!Number.isInteger(topK) || topK < 0) throw bad("top-k", topK, "an integer of at least 0 (0 is off)");
    if (!isWithin(topP, 0, 1)) throw bad("top-p", topP, "a number from 0 to 1 (1 is off)");
    if (!isWithin(minP, 0, 1)) throw bad("min-p", minP, "a number from 0 to 1 (0 is off)");
    if (!isWithin(repetitionPenalty, Number.MIN_VALUE, Number.MAX_VALUE)) {
      throw bad("repetition penalty", repetitionPenalty, "a number above 0 (1 is off)");
    }
    if (seed !== null && !((typeof seed === "bigint" || Number.isSafeInteger(seed)) && seed >= 0)) {
      throw bad("seed", seed, "an integer of at least 0; above 2^53 a BigInt");
    }
    this.temperature = temperature;
    this.topK = topK;
    this.topP = topP;
    this.minP = minP;
    this.repetitionPenalty = repetitionPenalty;
    this.seed = seed ?? crypto.getRandomValues(new BigUint64Array(1))[0];
    this.step = 0;
  }

  /** Whether decoding is greedy. */
  get greedy() {
    return this.temperature < MIN_TEMPERATURE;
  }

  /** The factor of the logits in a draw, a float32 number; 1 for greedy decoding. */
  get inverseTemperature() {
    return this.greedy ? 1 : Math.fround(1 / this.temperature);
  }

  /**
   * The number that names the noise of this step.
   * @param {number} ahead of a later step: how many steps later.
   */
  noiseKey(ahead = 0) {
    return noiseKey(this.seed, this.step + ahead);
  }

  /** Whether some tokens may be left out of a draw. */
  get filters() {
    return !this.greedy && (this.topK > 0 || this.topP < 1 || this.minP > 0);
  }

  /** The filters as inputs of the passes: top-k, 0 for all, and the bits of top-p and min-p as float32 numbers. */
  get filterWords() {
    const [topK, topP, minP] = this.filters ? [this.topK, this.topP, this.minP] : [0, 1, 0];
    const reals = Float32Array.of(topP === 1 ? 1 : Math.min(topP, BELOW_ONE), minP);
    return [topK < MAX_TOP_K ? topK : 0, ...new Uint32Array(reals.buffer)];
  }

  /** Whether passes over the logits alone can choose the token. */
  get gpuChooses() {
    return this.repetitionPenalty === 1 && !(this.filters && this.inverseTemperature < MIN_INVERSE);
  }

  /**
   * The logit of a token that is in the context; infinite ones stay, and others do not become infinite.
   * @param {number} logit
   * @returns {number}
   */
  penalty(logit) {
    if (!Number.isFinite(logit)) return logit;
    const factor = Math.fround(Math.min(LARGEST, logit > 0 ? 1 / this.repetitionPenalty : this.repetitionPenalty));
    return Math.max(-LARGEST, Math.min(LARGEST, logit * factor));
  }

  /**
   * The next token's id; advances to the next step.
   * @param {Float32Array} unpenalised logits, one for each token.
   * @param {ArrayLike<number>} history ids of the tokens in the context, which the repetition penalty looks at.
   * @returns {number}
   * @throws {GlinferError} a logit is not a number.
   */
  sample(unpenalised, history = []) {
    const logits = this.penalised(unpenalised, history);
    const best = argmax(logits);
    const key = this.noiseKey();
    this.step += 1;
    if (this.greedy) return best;
    const scale = this.inverseTemperature;
    let chosen = best;
    let highest = -Infinity;
    for (const token of this.kept(logits, logits[best])) {
      const scaled = Math.fround(logits[token] * scale);
      if (Math.fround(scaled + MOST_NOISE) <= highest) continue;
      const score = Math.fround(scaled + gumbelAt(key, token));
      if (score > highest) [chosen, highest] = [token, score];
    }
    return chosen;
  }

  /** The logits after the repetition penalty, which counts each token of the history once. */
  penalised(logits, history) {
    if (this.repetitionPenalty === 1 || !history.length) return logits;
    const scores = logits.slice();
    for (const token of new Set(history)) scores[token] = this.penalty(scores[token]);
    return scores;
  }

  /** The tokens that the filters leave, lowest id first. */
  kept(logits, largest) {
    const weightOf = (logit) => Math.exp((logit - largest) / this.temperature);
    let [edge, level] = [-Infinity, logits.length]; // larger logits stay, and the first `level` that equal it
    if (this.topK || this.topP < 1) {
      const ranked = logits.slice().sort().reverse();
      let count = Math.min(this.topK || ranked.length, ranked.length);
      if (this.topP < 1) {
        let total = 0;
        const sums = Float64Array.from(ranked.subarray(0, count), (logit) => (total += weightOf(logit)));
        count = sums.findIndex((sum) => sum >= this.topP * total) + 1;
      }
      edge = ranked[count - 1];
      level = count - ranked.indexOf(edge);
    }
    return Array.from(logits.keys()).filter((token) => {
      const logit = logits[token];
      return (logit > edge || (logit === edge && level-- > 0)) && (this.minP === 0 || weightOf(logit) >= this.minP);
    });
  }
}

function isWithin(value, least, most) {
  return typeof value === "number" && value >= least && value <= most;
}

function bad(name, value, expected) {
  return new GlinferError(`${name} is ${shown(value)}; expected ${expected}`);
}
