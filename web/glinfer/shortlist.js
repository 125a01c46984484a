/**
 * Sampling from a shortlist: the token that the whole row of logits would give, if the shortlist determines it. The
 * browser's side of glinfer/engine/shortlist.py, which says why that is so, and of `Shortlist` in
 * glinfer/ops/fused/shortlist.py.
 */

import { gumbelAt } from "./noise.js";

/** @typedef {import("./sampler.js").Sampler} Sampler */

const TOKENS_PER_PIECE = 4;
const STEPS = 4096; // two of them share a float32
const NO_SCORE = Math.fround(-3.4e38);
// Relative errors of the weights that a GPU adds up, and of sums of a vocabulary's weights in double precision.
const [MASS_ERROR, SUM_ERROR] = [1e-4, 1e-9];
// By how much the scores of one token differ between renderers: the noise itself, and rounding for each unit.
const [NOISE_ERROR, ROUNDING] = [1e-5, 1e-6];
const MIN_INVERSE = 1e-20; // below, logits that are never listed have a weight
const VANISHING = 1e-290; // weights below may vanish when they are divided by the sum of all
const MOST_PIECES = 16; // that are searched for a higher score
const TINY = 2 ** -126;

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
const largestOf = (numbers) => numbers.reduce((most, each) => Math.max(most, each), -Infinity);

/** The shortlist of one row: the likeliest tokens of each piece of the vocabulary, and bounds on all others. */
export class Shortlist {
  /**
   * @param {number} vocabulary tokens of the whole row.
   * @param {Float32Array} best [pieces × 4], the largest logits of each piece, largest first.
   * @param {Float32Array} facts [pieces × 4], as shaders/shortlist.frag describes them.
   */
  constructor(vocabulary, best, facts) {
    this.vocabulary = vocabulary;
    this.best = best;
    this.facts = facts;
    this.pieces = best.length / TOKENS_PER_PIECE; // token t is in piece t % pieces
  }

  /** Whether no logit is NaN or infinite, and at least one can be compared. */
  get sound() {
    const most = largestOf(this.best);
    return this.column(2).every((rest) => rest >= 0) && most > NO_SCORE && most < Infinity;
  }

  /** One of the four facts of each piece. */
  column(place) {
    return Array.from({ length: this.pieces }, (_, piece) => this.facts[TOKENS_PER_PIECE * piece + place]);
  }

  /** The largest logit that an unlisted token of each piece may have. */
  get bounds() {
    const all = this.vocabulary <= TOKENS_PER_PIECE * this.pieces; // that can be compared are on the list
    return Array.from({ length: this.pieces }, (_, piece) => (all ? NO_SCORE : this.best[TOKENS_PER_PIECE * (piece + 1) - 1]));
  }

  /** The tokens on the list and their logits. */
  get tokens() {
    const found = { ids: [], scores: [] };
    this.best.forEach((logit, place) => {
      if (!(logit > NO_SCORE)) return;
      const piece = Math.floor(place / TOKENS_PER_PIECE);
      const packed = this.facts[TOKENS_PER_PIECE * piece + ((place >> 1) & 1)];
      const step = place & 1 ? Math.floor(packed / STEPS) : packed % STEPS;
      found.ids.push(step * this.pieces + piece);
      found.scores.push(logit);
    });
    return found;
  }
}

/**
 * The token that `sampler.sample` would choose from the whole row of logits, if its shortlist determines it.
 * @param {Sampler} sampler goes on to the next step if the token can be told, and stays otherwise.
 * @param {Shortlist} found made with the noise of this step.
 * @param {ArrayLike<number>} history as for `Sampler.sample`.
 * @returns {number|null} null where the whole row has to be read.
 */
export function sampleShortlist(sampler, found, history = []) {
  if (!found.sound || sampler.inverseTemperature < MIN_INVERSE) return null;
  const token = new Listed(sampler, found, history).choice();
  if (token !== null) sampler.step += 1;
  return token;
}

/** The tokens of a shortlist after penalties, and bounds for all others. */
class Listed {
  constructor(sampler, found, history) {
    const { ids, scores } = found.tokens;
    this.sampler = sampler;
    this.found = found;
    this.ids = ids;
    this.scores = scores;
    this.key = null; // of the noise, once it is asked for
    this.plain = this.bounds = found.bounds;
    this.seen = []; // tokens of the context that are not on the list
    this.lowers = sampler.repetitionPenalty < 1;
    if (sampler.repetitionPenalty === 1) return;
    const seen = new Set(history);
    this.ids.forEach((id, place) => {
      if (seen.delete(id)) this.scores[place] = sampler.penalty(this.scores[place]);
    });
    this.seen = [...seen];
    // A penalty below 1 raises logits; those of tokens that are not on the list no further than to this.
    this.bounds = this.plain.map((bound) => Math.max(bound, sampler.penalty(bound)));
  }

  choice() {
    const { sampler, found, ids, scores } = this;
    const bound = largestOf(this.bounds);
    let known = Array.from(ids.keys()).filter((place) => scores[place] > bound);
    if (!known.length) return null;
    if (sampler.greedy) return this.lowest(known, largestOf(scores), scores);
    let below = [];
    if (sampler.ranks(found.vocabulary)) {
      known.sort((one, other) => scores[other] - scores[one] || ids[one] - ids[other]);
      below = Array.from(ids.keys()).filter((place) => !(scores[place] > bound));
    } else {
      known = Array.from(ids.keys()); // whether a token is kept does not depend on those before it
    }
    const kept = this.filtered(known, bound, below);
    const drawn = known.map((place, rank) => (kept.possible(rank) ? this.perturbed(scores[place], ids[place]) : -Infinity));
    const best = largestOf(drawn);
    if (!Number.isFinite(best)) return null;
    const id = this.lowest(known, best, drawn, true);
    const winner = known.findIndex((place) => ids[place] === id);
    if (!kept.certain(winner) || kept.weights[winner] < VANISHING) return null;
    return kept.others && !this.beatsOthers(best, below) ? null : id;
  }

  /** The lowest id of the known tokens with this number; numbers are by place, or by rank among the known. */
  lowest(known, number, numbers, ranked = false) {
    const equal = known.filter((place, rank) => numbers[ranked ? rank : place] === number);
    return equal.reduce((least, place) => Math.min(least, this.ids[place]), Infinity);
  }

  /**
   * Temperature, top-k, top-p and min-p, told of the known tokens, likeliest first where ranks matter, and of all others no
   * more than bounds: `filtered` in glinfer/engine/sampler.py.
   */
  filtered(known, bound, below) {
    const { sampler, found, scores } = this;
    const { temperature, topK, topP, minP } = sampler;
    const { vocabulary } = found;
    const largest = largestOf(known.map((place) => scores[place]));
    const weights = known.map((place) => Math.exp((scores[place] - largest) / temperature));
    const edge = Math.exp((bound - largest) / temperature);
    const passes = (end) => (rank) => rank < end && weights[rank] >= minP;
    let [least, most] = [known.length, known.length];
    let others = known.length < vocabulary;
    if (sampler.ranks(vocabulary)) {
      const top = topK > 0 && topK < vocabulary ? topK : vocabulary;
      const ranked = Math.min(known.length, top);
      least = most = ranked;
      others = ranked < top;
      if (topP < 1) {
        let total = 0;
        const sums = weights.slice(0, ranked).map((weight) => (total += weight));
        let [low, high] = [total, total];
        if (others) {
          const [under, over] = this.mass(below, largest);
          low = (low + (top === vocabulary ? under : 0)) * (1 - SUM_ERROR);
          high = (high + Math.min(over, (top - ranked) * edge)) * (1 + SUM_ERROR);
        }
        const reaching = (mass) => {
          const place = sums.findIndex((each) => each >= topP * mass);
          return (place < 0 ? ranked : place) + 1;
        };
        [least, most] = [reaching(low), reaching(high)];
        others &&= most > ranked;
        [least, most] = [Math.min(least, ranked), Math.min(most, ranked)];
      }
    }
    others &&= edge >= minP * (1 - SUM_ERROR);
    return { weights, certain: passes(least), possible: passes(most), others };
  }

  /** Bounds for the weight of all tokens that are not above the bounds; `below` are those of the list among them. */
  mass(below, largest) {
    const { temperature } = this.sampler;
    const { found, plain, seen } = this;
    const edges = plain.map((bound) => Math.exp((bound - largest) / temperature));
    const rest = found.column(2);
    const all = sum(rest.map((each, piece) => each * edges[piece]));
    let [low, high] = [all * (1 - MASS_ERROR), all * (1 + MASS_ERROR) + found.pieces * TINY];
    if (seen.length) {
      // Each may have any weight up to its piece's bound, before the penalty and after it.
      const count = plain.map(() => 0);
      for (const id of seen) count[id % found.pieces] += 1;
      low -= sum(count.map((each, piece) => Math.min(each, rest[piece] * (1 + MASS_ERROR)) * edges[piece]));
      if (this.lowers) high += sum(count.map((each, piece) => each * Math.exp((this.bounds[piece] - largest) / temperature)));
    }
    const known = sum(below.map((place) => Math.exp((this.scores[place] - largest) / temperature)));
    return [Math.max(0, low) + known, high + known];
  }

  /** Whether a drawn score beats those of all tokens that are not above the bounds. */
  beatsOthers(best, below) {
    const { found, ids, scores, bounds } = this;
    if (below.some((place) => this.perturbed(scores[place], ids[place]) >= best)) return false;
    const margin = NOISE_ERROR + ROUNDING * (Math.abs(best) + 20);
    const near = Array.from(found.column(3).entries()).filter(([, drawn]) => drawn >= best - margin);
    if (near.length > MOST_PIECES) return false;
    // The largest score of such a piece may be one of the list's, before its penalty, or that of a token which was
    // dropped. So each of its other tokens is tried, with the largest logit that it may have.
    const others = new Set();
    for (const [piece] of near) for (let id = piece; id < found.vocabulary; id += found.pieces) others.add(id);
    for (const id of ids) others.delete(id);
    if (this.lowers) this.seen.forEach((id) => others.add(id));
    return [...others].every((id) => this.perturbed(bounds[id % found.pieces], id) < best);
  }

  /** A score over the temperature, with the noise of this step, in float32. */
  perturbed(score, id) {
    const { sampler } = this;
    this.key ??= sampler.noiseKey();
    const limit = 3.4028234663852886e38;
    const logit = Math.fround(Math.max(-limit, Math.min(limit, score)));
    return Math.fround(Math.fround(logit * sampler.inverseTemperature) + gumbelAt(this.key, id));
  }
}
