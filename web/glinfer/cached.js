/**
 * How a plan is driven: what each run is given, and what of a sequence is computed already. The browser's side of
 * glinfer/engine/cached.py, and of `RecomputeSession` in decode.py.
 */

import { choicesOf, logitsOf, shortlistsOf } from "./choices.js";
import { GlinferError } from "./errors.js";
import { choiceFeed, rowsFeed, SLOT_TOKENS, TableTexels } from "./rows.js";
import { sampleShortlist } from "./shortlist.js";

/** @typedef {import("./replay.js").Replay} Replay */
/** @typedef {import("./sampler.js").Sampler} Sampler */
/** @typedef {import("./textures.js").Texture} Texture */

/**
 * What drives a plan; see `CachedDriver`. Where `lists` is false and `chooses` never true, tokens are chosen from logits alone.
 * @typedef {object} Driver
 * @property {number} context how many tokens a sequence has at most.
 * @property {number} [cached] how many of the first tokens are in the caches, where there are any.
 * @property {boolean} [long] whether those have turned by the second set of angles.
 * @property {boolean} lists
 * @property {(length: number) => void} forget
 * @property {(ids: number[]) => Generator<void>} catchUp
 * @property {(ids: number[], watch?: {draw: number, seen: () => void}|null, draws?: number) => void} runHead
 * @property {(sampler: Sampler) => boolean} chooses
 * @property {(ids: number[], most: number, sampler: Sampler) => number[]} [choose]
 * @property {(ids: number[], sampler: Sampler, watch: {draw: number, seen: () => void}|null) => number|null} [chooseListed]
 * @property {{most: number}|null} drafted null where `accept` and `expectDrafts` may not be asked.
 * @property {(ids: number[], draft: number[], sampler: Sampler) => number[]|null} [accept]
 * @property {() => void} [expectDrafts]
 */

/**
 * A driver of a plan.
 * @param {object} plan plan.json.
 * @param {Replay} replay
 * @returns {Driver}
 * @throws {GlinferError} the plan has another driver.
 */
export function driverOf(plan, replay) {
  if (plan.driver === "fast") return new CachedDriver(plan, replay);
  if (plan.driver === "reference") return new WholeDriver(plan, replay);
  throw new GlinferError(`the plan's driver is ${plan.driver}; expected fast or reference; export the model again`);
}

/** A plan with caches: a token a run, and prompts in pieces by the companion `rows`, where the plan has it. */
export class CachedDriver {
  /**
   * @param {object} plan plan.json.
   * @param {Replay} replay
   */
  constructor(plan, replay) {
    this.plan = plan;
    this.replay = replay;
    this.context = plan.model.config.max_position_embeddings;
    this.body = plan.draws.length - plan.head_draws; // draws of a token of which nothing is asked
    this.values = { noise: 0, inverse_temperature: 1, noise_key: 0 };
    this.cached = 0; // how many of the first tokens are in the caches
    this.long = false; // whether those have turned by the second set of angles, where the model has two
    this.handedOver = 0; // after how many tokens the stream of the last one lies ready for its last layer; 0: none
    this.tables = {}; // of companions
    for (const [name, { table }] of Object.entries(plan.companions)) {
      this.tables[name] = new TableTexels(plan.textures[table].layout);
    }
    this.rows = plan.companions.rows ?? null;
    this.lists = Object.hasOwn(plan.companions, "shortlist"); // whether `chooseListed` may be asked
    this.drafted = plan.companions.drafted ?? null; // what `accept` runs; null where it cannot be asked
  }

  /**
   * Forgets what was computed for tokens from `length` on.
   * @param {number} length
   */
  forget(length) {
    this.cached = Math.min(this.cached, length);
    this.handedOver = 0;
  }

  /**
   * Runs the tokens that were not run yet, but for the last, which is left half done behind a piece. Leaving the loop
   * early is harmless.
   * @param {number[]} ids all tokens that are held.
   * @yields {void} after each run.
   */
  *catchUp(ids) {
    this.turnBy(ids.length);
    if (this.rows && Math.min(ids.length, this.context) - this.cached >= this.rows.least) {
      this.handedOver = 0;
      while (this.cached < Math.min(ids.length, this.context)) {
        this.runPiece(ids);
        yield;
      }
      this.handedOver = this.cached;
    }
    while (this.cached < ids.length - 1) {
      this.run(ids[this.cached], this.cached, { last: this.body });
      this.cached += 1;
      yield;
    }
  }

  /** Takes the angles of a text of so many tokens; keys that have turned by others are computed again. */
  turnBy(tokens) {
    const { long_after: longest = 0 } = this.plan.model;
    const long = longest > 0 && tokens > longest;
    if (long !== this.long) this.forget(0);
    this.long = long;
  }

  /** How many of the next `count` lengths of a text of `held` tokens turn by the same angles; at least 1. */
  alike(held, count) {
    const { long_after: longest = 0 } = this.plan.model;
    return longest > 0 && held <= longest ? Math.min(count, longest - held + 1) : count;
  }

  /** Runs the next tokens into the caches, as many as a run takes. */
  runPiece(ids) {
    const { rows, cached: first } = this;
    const piece = ids.slice(first, Math.min(ids.length, this.context, first + rows.most));
    this.runCompanion("rows", rowsFeed(this.tables.rows, piece, first, { targets: rows.targets, long: this.long }));
    this.cached += piece.length;
  }

  /** Runs a companion with the table that was filled in for it. */
  runCompanion(name, values) {
    const { replay, plan, tables } = this;
    replay.companion(name); // one that is there on demand has no textures before
    replay.textures[plan.companions[name].table].upload(tables[name].texels);
    replay.run(values, { companion: name });
  }

  /**
   * Runs a token, -1 for the one that the run before chose; of one that is half done only the rest.
   * @param {number} token
   * @param {number} position
   * @param {{last?: number, watch?: {draw: number, seen: () => void}|null}} options see `Replay.run`.
   */
  run(token, position, { last, watch = null } = {}) {
    const halfDone = this.handedOver === position + 1 && !watch;
    this.handedOver = 0;
    const second = this.long ? this.context : 0;
    const score_slots = Math.ceil((position + 1) / SLOT_TOKENS);
    Object.assign(this.values, { token, position, score_slots, angles: position + second });
    this.replay.run(this.values, { first: halfDone ? this.rows.tail : 0, last, watch });
  }

  /**
   * Computes the logits of the next token.
   * @param {number[]} ids
   * @param {{draw: number, seen: () => void}|null} [watch] see `Replay.run`.
   * @param {number} [draws] so many of the plan, all if left out.
   */
  runHead(ids, watch, draws) {
    const last = ids.length - 1;
    this.run(ids[last], last, { watch, last: draws });
    this.cached = ids.length;
  }

  /**
   * Chooses the next token from a shortlist of its logits.
   * @param {number[]} ids all tokens that are held, of which all but the last are in the caches.
   * @param {Sampler} sampler goes on by a step where there is a choice.
   * @param {{draw: number, seen: () => void}|null} watch see `Replay.run`.
   * @returns {number|null} null where the choice takes all logits, which lie in their texture.
   */
  chooseListed(ids, sampler, watch) {
    const { plan, replay } = this;
    this.runHead(ids, watch, plan.draws.length - plan.head_draws + 1);
    this.runCompanion("shortlist", choiceFeed(this.tables.shortlist, sampler));
    const [list] = shortlistsOf(replay, plan.companions.shortlist, 1);
    return sampleShortlist(sampler, list, ids);
  }

  /** Whether the plan itself can choose the token: from all tokens, by their logits alone. */
  chooses(sampler) {
    return sampler.repetitionPenalty === 1 && (sampler.greedy || !sampler.filters(this.plan.model.config.vocab_size));
  }

  /**
   * Chooses tokens without reading anything back in between.
   * @param {number[]} ids all tokens that are held, of which all but the last are in the caches.
   * @param {number} most how many at most; the context has room for them.
   * @param {Sampler} sampler goes on by a step for each.
   * @returns {number[]} one or more.
   * @throws {GlinferError} the model's output is broken.
   */
  choose(ids, most, sampler) {
    const first = ids.length - 1;
    const count = this.alike(ids.length, most);
    const { step } = sampler;
    Object.assign(this.values, { noise: sampler.greedy ? 0 : 1, inverse_temperature: sampler.inverseTemperature });
    try {
      for (let number = 0; number < count; number++) {
        this.values.noise_key = sampler.greedy ? 0 : sampler.noiseKey();
        this.run(number ? -1 : ids[first], first + number);
        sampler.step += 1;
      }
      const chosen = choicesOf(this.replay, this.plan.picks, first, count).map((choice) => choice());
      this.cached = first + count;
      return chosen;
    } catch (error) {
      sampler.step = step; // nothing was chosen
      this.forget(0);
      throw error;
    }
  }

  /**
   * Chooses tokens of which guesses are there, all in one run of the newest token and the guesses behind it; what is in the
   * caches behind the first wrong one is overwritten later. The browser's side of `_accept` in glinfer/engine/cached.py.
   * @param {number[]} ids all tokens that are held, of which all but the last are in the caches.
   * @param {number[]} draft guesses of the next ones, no more than the context has room for.
   * @param {Sampler} sampler goes on by a step for each token.
   * @returns {number[]|null} the guesses up to the first wrong one, and the token in its place; null where none can be run:
   *   the last token of a prompt is half done already.
   * @throws {GlinferError} the model's output is broken.
   */
  accept(ids, draft, sampler) {
    const { drafted, tables } = this;
    const guesses = draft.slice(0, this.alike(ids.length, drafted.most) - 1);
    if (this.handedOver === ids.length || !guesses.length) return null;
    const [first, { step }] = [ids.length - 1, sampler];
    const rows = [ids[first], ...guesses];
    const how = { targets: drafted.targets, long: this.long, sampler };
    this.runCompanion("drafted", rowsFeed(tables.drafted, rows, first, how));
    const chosen = [];
    try {
      const choose = this.chooses(sampler) ? this.picked(rows.length, sampler) : this.listed(ids, rows.length, sampler);
      for (const guess of [...guesses, null]) {
        chosen.push(choose(chosen));
        if (chosen.at(-1) !== guess) break;
      }
    } catch (error) {
      sampler.step = step; // nothing was chosen
      this.forget(0);
      throw error;
    }
    this.cached = first + chosen.length;
    this.handedOver = 0;
    return chosen;
  }

  /** Gives the tokens behind the rows of guesses one by one, as the plan has chosen them. */
  picked(rows, sampler) {
    const choices = choicesOf(this.replay, this.drafted.picks, 0, rows);
    return ({ length: row }) => {
      const token = choices[row]();
      sampler.step += 1;
      return token;
    };
  }

  /** The same from shortlists, where the plan has them, and from all logits of a row where they leave the choice open. */
  listed(ids, rows, sampler) {
    const { plan, replay, tables, drafted } = this;
    let lists = null;
    if (this.lists) {
      this.runCompanion("drafted_shortlist", choiceFeed(tables.drafted_shortlist, sampler, rows));
      lists = shortlistsOf(replay, plan.companions.drafted_shortlist, rows);
    }
    return (chosen) => {
      const [row, history] = [chosen.length, [...ids, ...chosen]];
      const token = lists && sampleShortlist(sampler, lists[row], history);
      if (token !== null) return token;
      const [slot, target] = [Math.floor(row / drafted.targets), row % drafted.targets];
      return sampler.sample(logitsOf(replay, drafted.logits[target], slot), history);
    };
  }

  /** Begins to get ready for guesses, so that `accept` need not wait for a compiler. */
  expectDrafts() {
    for (const name of ["drafted", "drafted_shortlist"]) {
      if (this.plan.companions[name]) this.replay.begin(this.plan.companions[name].draws);
    }
  }
}

/** A plan without caches, which runs the whole sequence for each token. */
export class WholeDriver {
  /**
   * @param {object} plan plan.json.
   * @param {Replay} replay
   */
  constructor(plan, replay) {
    this.plan = plan;
    this.replay = replay;
    this.context = plan.model.config.max_position_embeddings;
    this.input = replay.textures[plan.input];
    this.column = new Int32Array(this.input.spec.layout.rows);
  }

  /** Nothing is kept. */
  forget() {}

  /** Nothing runs ahead. */
  *catchUp() {}

  /** See `CachedDriver`; all draws are run. */
  runHead(ids, watch) {
    const { long_after: longest = 0 } = this.plan.model;
    this.column.fill(0).set(ids);
    this.input.uploadColumn(this.column);
    const angles = longest > 0 && ids.length > longest ? this.context : 0; // the first row of the set in use
    this.replay.run({ rows: ids.length, last_row: ids.length - 1, angles }, { watch });
  }

  /** The plan leaves the choice to the sampler. */
  chooses() {
    return false;
  }

  lists = false;
  drafted = null;
}
