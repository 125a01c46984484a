/**
 * Drives a plan: sets the inputs of each run, and tracks which tokens are computed. The browser's side of
 * glinfer/engine/run/cached.py, and of `RecomputeSession` in decode.py.
 */

import { choicesOf, logitsOf } from "./choices.js";
import { GlinferError } from "./errors.js";
import { fillChoices, rowsFeed, TableTexels } from "./rows.js";

/** @typedef {import("./replay.js").Replay} Replay */
/** @typedef {import("./sampler.js").Sampler} Sampler */
/** @typedef {import("./textures.js").Texture} Texture */

/**
 * The driver of a plan; see `CachedDriver`. Where `chooses` is false, tokens are chosen from logits alone.
 * @typedef {object} Driver
 * @property {number} context most tokens of a sequence.
 * @property {number} [cached] how many of the first tokens are in the caches, where there are any.
 * @property {boolean} [long] whether their keys are rotated by the second set of angles.
 * @property {(length: number) => void} forget
 * @property {(ids: number[]) => Generator<void>} catchUp
 * @property {(ids: number[], watch?: {draw: number, seen: () => void}|null) => void} runHead
 * @property {(sampler: Sampler) => boolean} chooses
 * @property {(ids: number[], most: number, sampler: Sampler, watch?: {draw: number, seen: () => void}|null) => number[]} [choose]
 * @property {{most: number}|null} drafted null where `accept` and `expectDrafts` must not be called.
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
    this.body = plan.draws.length - plan.head_draws; // draws of a token without its logits
    this.inputs = { noise: 0, inverse_temperature: 1, noise_key: 0 };
    this.cached = 0; // how many of the first tokens are in the caches
    this.reached = 0; // how many of the first tokens runs have reached, refused drafts included
    this.long = false; // whether their keys are rotated by the second set of angles, where the model has two
    this.handedOver = 0; // the number of tokens after which the last one waits for its last layer; 0: none
    this.tables = {}; // of companions
    for (const [name, { table }] of Object.entries(plan.companions)) {
      this.tables[name] = new TableTexels(plan.textures[table].layout);
    }
    this.rows = plan.companions.rows ?? null;
    this.runLength = 1; // tokens chosen with filters between two readbacks: few after an unsure choice
    this.drafted = plan.companions.drafted ?? null; // the plan that `accept` runs; null where there is none
  }

  /**
   * Forgets what was computed for tokens from `length` on.
   * @param {number} length
   */
  forget(length) {
    const { rewinds = Infinity } = this.plan.model; // caches that keep only the newest tokens cannot go further back
    const cached = Math.min(this.cached, length);
    this.cached = this.reached - cached > rewinds ? 0 : cached;
    this.handedOver = 0;
  }

  /** Notes that a run writes `count` tokens from `first` on; a text begins with token 0. */
  reach(first, count) {
    this.reached = Math.max(first ? this.reached : 0, first + count);
  }

  /**
   * Runs the tokens that were not run yet, except the last, which a piece leaves before its last layer. Leaving the loop
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

  /** Selects the rotary angles for a text of `tokens` tokens; keys rotated by other angles are computed again. */
  turnBy(tokens) {
    const { long_after: longest = 0 } = this.plan.model;
    const long = longest > 0 && tokens > longest;
    if (long !== this.long) this.forget(0);
    this.long = long;
  }

  /** How many of the next `count` lengths of a text of `held` tokens use the same angles; at least 1. */
  alike(held, count) {
    const { long_after: longest = 0 } = this.plan.model;
    return longest > 0 && held <= longest ? Math.min(count, longest - held + 1) : count;
  }

  /** Runs the next tokens into the caches, as many as a run takes. */
  runPiece(ids) {
    const { rows, cached: first } = this;
    const piece = ids.slice(first, Math.min(ids.length, this.context, first + this.replay.rowsOf("rows")));
    const inputs = rowsFeed(this.tables.rows, piece, first, { targets: rows.targets, long: this.long });
    this.upload("rows");
    this.reach(first, piece.length);
    this.replay.run(inputs, { companion: "rows" });
    this.cached += piece.length;
  }

  /** Uploads the filled table of a companion. */
  upload(name) {
    const { replay, plan, tables } = this;
    replay.companion(name); // a companion loaded on demand gets its textures here
    replay.textures[plan.companions[name].table].upload(tables[name].texels);
  }

  /**
   * Runs a token, -1 for the one that the run before chose; of a half-done token only the rest.
   * @param {number} token
   * @param {number} position
   * @param {{last?: number, watch?: {draw: number, seen: () => void}|null, read?: boolean}} options see `Replay.run`.
   */
  run(token, position, { last, watch = null, read = true } = {}) {
    const halfDone = this.handedOver === position + 1 && !watch;
    this.handedOver = 0;
    this.reach(position, 1);
    Object.assign(this.inputs, { token, position, long: Number(this.long) });
    this.replay.run(this.inputs, { first: halfDone ? this.rows.tail : 0, last, watch, read });
  }

  /**
   * Computes the logits of the next token.
   * @param {number[]} ids
   * @param {{draw: number, seen: () => void}|null} [watch] see `Replay.run`.
   */
  runHead(ids, watch) {
    const last = ids.length - 1;
    this.run(ids[last], last, { watch });
    this.cached = ids.length;
  }

  /** Whether passes over the logits alone can choose the token. */
  chooses(sampler) {
    return sampler.gpuChooses && (sampler.greedy || this.replay.form.keys);
  }

  /**
   * Chooses tokens without reading anything back in between.
   * @param {number[]} ids all tokens that are held, of which all but the last are in the caches.
   * @param {number} most most tokens; they fit into the context.
   * @param {Sampler} sampler advances by one step for each.
   * @param {{draw: number, seen: () => void}|null} watch of one token, see `Replay.run`.
   * @returns {number[]} empty where the first token needs all logits, which are in their texture then.
   * @throws {GlinferError} the model's output is broken.
   */
  choose(ids, most, sampler, watch = null) {
    const { replay, plan } = this;
    const { filters } = sampler;
    const first = ids.length - 1;
    // A half-done last token of a prompt cannot run again with the same bits, should its choice be unsure.
    const longest = this.handedOver ? 1 : Math.min(this.runLength, plan.model.rewinds ?? this.runLength);
    const count = this.alike(ids.length, filters ? Math.min(most, longest) : most);
    Object.assign(this.inputs, { noise: sampler.greedy ? 0 : 1, inverse_temperature: sampler.inverseTemperature });
    try {
      if (filters) {
        fillChoices(this.tables.choice, Array(count).fill(0), sampler);
        this.upload("choice");
      }
      for (let number = 0; number < count; number++) {
        this.inputs.noise_key = sampler.greedy ? 0 : sampler.noiseKey(number);
        const [last, read] = [filters ? plan.draws.length - 1 : undefined, number === count - 1];
        this.run(number ? -1 : ids[first], first + number, { last, watch, read });
        if (filters) replay.run({ rows: 1, row: number, slot: first + number }, { companion: "choice", read });
      }
      const chosen = [];
      for (const choice of choicesOf(replay, plan.picks, first, count)) {
        const token = choice();
        if (token === null) break;
        chosen.push(token);
      }
      sampler.step += chosen.length;
      this.cached = first + Math.min(chosen.length + 1, count);
      if (filters) this.runLength = chosen.length < count ? 1 : Math.min(2 * this.runLength, this.tables.choice.layout.rows);
      if (!chosen.length && count > 1) this.runHead(ids); // the logits are those of a later token
      return chosen;
    } catch (error) {
      this.forget(0);
      throw error;
    }
  }

  /**
   * Checks drafted tokens in one run over the newest token and the drafts after it. Cache entries after the first wrong
   * draft are overwritten later. The browser's side of `_accept` in glinfer/engine/run/cached.py.
   * @param {number[]} ids all tokens that are held, of which all but the last are in the caches.
   * @param {number[]} draft drafts of the next tokens, at most what fits into the context.
   * @param {Sampler} sampler advances by one step for each token.
   * @returns {number[]|null} the drafts up to the first wrong one, and its replacement; null where none can be run:
   *   the last token of a prompt is half done already.
   * @throws {GlinferError} the model's output is broken.
   */
  accept(ids, draft, sampler) {
    const { drafted, tables, replay } = this;
    const drafts = draft.slice(0, this.alike(ids.length, drafted.most) - 1);
    if (this.handedOver === ids.length || !drafts.length) return null;
    const [first, { step, filters }] = [ids.length - 1, sampler];
    const chooses = this.chooses(sampler);
    const rows = [ids[first], ...drafts];
    const how = { targets: drafted.targets, long: this.long, sampler };
    const inputs = rowsFeed(tables.drafted, rows, first, how);
    this.upload("drafted");
    this.reach(first, rows.length);
    replay.run(inputs, { companion: "drafted", last: chooses && !filters ? undefined : drafted.draws.length - 1 });
    const chosen = [];
    try {
      if (chooses && filters) {
        fillChoices(tables.drafted_choice, [...rows.keys()], sampler);
        this.upload("drafted_choice");
        replay.run({ rows: rows.length, row: 0, slot: 0 }, { companion: "drafted_choice" });
      }
      const choices = chooses ? choicesOf(replay, drafted.picks, 0, rows.length) : [];
      for (const [row, expected] of [...drafts, null].entries()) {
        let token = choices[row]?.() ?? null;
        if (token === null) token = sampler.sample(this.draftedLogits(row), [...ids, ...chosen]);
        else sampler.step += 1;
        chosen.push(token);
        if (token !== expected) break;
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

  /** The logits of a row of drafts. */
  draftedLogits(row) {
    const { targets, logits } = this.drafted;
    return logitsOf(this.replay, logits[row % targets], Math.floor(row / targets));
  }

  /** Starts to compile for drafts, so that `accept` need not wait. */
  expectDrafts() {
    for (const name of ["drafted", "drafted_choice"]) {
      if (this.plan.companions[name]) this.replay.begin(this.plan.companions[name].draws);
    }
  }
}

/** A plan without caches, which runs the whole sequence for each token. */
class WholeDriver {
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

  /** No token is run ahead. */
  *catchUp() {}

  /** See `CachedDriver`; all draws are run. */
  runHead(ids, watch) {
    this.column.fill(0).set(ids);
    this.input.uploadColumn(this.column);
    this.replay.run({ rows: ids.length }, { watch });
  }

  /** The plan leaves the choice to the sampler. */
  chooses() {
    return false;
  }

  drafted = null;
}
