/** Chooses the next token from a row of logits, by the rules of glinfer/engine/sampler.py. */

import { GlinferError } from "./errors.js";
import { gumbelAt, noiseKey } from "./noise.js";

const MIN_TEMPERATURE = 1e-4;

/**
 * The place of the largest number, the first of equal ones.
 * @param {ArrayLike<number>} numbers
 * @returns {number}
 * @throws {GlinferError} one of them is no number: the model's output is broken.
 */
export function argmax(numbers) {
  let best = 0;
  for (let index = 0; index < numbers.length; index++) {
    if (Number.isNaN(numbers[index])) throw new GlinferError("the model's output is broken: a logit is not a number");
    if (numbers[index] > numbers[best]) best = index;
  }
  return best;
}

/** Draws tokens one by one; equal seeds and logits give equal tokens, in Python too. */
export class Sampler {
  /**
   * @param {{temperature?: number, topK?: number, topP?: number, seed?: number|bigint|null}} options `temperature` 0
   *   takes the likeliest token; `topK` 0 and `topP` 1 keep all tokens; `seed` null takes fresh randomness.
   * @throws {GlinferError} an option is out of range.
   */
  constructor({ temperature = 1, topK = 0, topP = 1, seed = null } = {}) {
    if (!(temperature >= 0 && temperature < Infinity)) throw bad("temperature", temperature, "a number of at least 0");
    if (!Number.isInteger(topK) || topK < 0) throw bad("top-k", topK, "a whole number of at least 0 (0 is off)");
    if (!(topP >= 0 && topP <= 1)) throw bad("top-p", topP, "a number from 0 to 1 (1 is off)");
    if (seed !== null && !((typeof seed === "bigint" || Number.isSafeInteger(seed)) && seed >= 0)) {
      throw bad("seed", seed, "a whole number of at least 0");
    }
    Object.assign(this, { temperature, topK, topP });
    this.seed = seed ?? crypto.getRandomValues(new BigUint64Array(1))[0];
    this.step = 0;
  }

  /** Whether the likeliest token is always taken. */
  get greedy() {
    return this.temperature < MIN_TEMPERATURE;
  }

  /**
   * The next token's id; goes on to the next step.
   * @param {Float32Array} logits one for each token.
   * @returns {number}
   * @throws {GlinferError} a logit is not a number.
   */
  sample(logits) {
    const best = argmax(logits);
    const key = noiseKey(this.seed, this.step++);
    if (this.greedy) return best;
    const scale = Math.fround(1 / this.temperature);
    let chosen = best;
    let highest = -Infinity;
    for (const token of this.kept(logits, logits[best])) {
      const score = Math.fround(Math.fround(Math.fround(logits[token]) * scale) + gumbelAt(key, token));
      if (score > highest) [chosen, highest] = [token, score];
    }
    return chosen;
  }

  /** The tokens that the filters leave, lowest id first. */
  kept(logits, largest) {
    let tokens = Array.from(logits, (_, token) => token);
    const filtered = (this.topK > 0 && this.topK < logits.length) || this.topP < 1;
    if (!filtered) return tokens;
    tokens.sort((one, other) => logits[other] - logits[one] || one - other);
    if (this.topK) tokens = tokens.slice(0, this.topK);
    if (this.topP < 1) {
      let total = 0;
      const mass = tokens.map((token) => (total += Math.exp((logits[token] - largest) / this.temperature)));
      const enough = mass.findIndex((sum) => sum >= this.topP * total);
      tokens = tokens.slice(0, enough + 1);
    }
    return tokens.sort((one, other) => one - other);
  }
}

function bad(name, value, expected) {
  return new GlinferError(`${name} is ${value}; expected ${expected}`);
}
