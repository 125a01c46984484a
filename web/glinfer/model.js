/** A model in the browser: an exported plan with its weights, and a sequence of tokens. */

import { textsOf } from "../texts.js";
import { commonLength } from "./beginning.js";
import { driverOf } from "./cached.js";
import { Conversation } from "./chat.js";
import { checkSpeculation, RunTimes } from "./drafts.js";
import { checkOptions, checkTokens, GlinferError, optionsOf } from "./errors.js";
import { continuation, REPLY_OPTIONS, replyParts } from "./generate.js";
import { computingCanvas, openContext } from "./limits.js";
import { checksumsOf, loadParts, tableOf } from "./loading.js";
import { argmax } from "./sampler.js";
import { fetchSource, folderAddress } from "./source.js";
import { TextureChecker } from "./verify.js";

/** @typedef {import("./loading.js").LoadOptions} LoadOptions */
/** @typedef {import("./tokenizer.js").AnyTokenizer} AnyTokenizer */
/** @typedef {import("./chat.js").ChatForm} ChatForm */
/** @typedef {import("./replay.js").Replay} Replay */
/** @typedef {import("./sampler.js").Sampler} Sampler */
/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./generate.js").Options} Options */
/** @typedef {import("./verify.js").TextureReport} TextureReport */

const KEPT_LOGITS = 4;

/**
 * Loads an exported model that continues texts; ../embedding/embed.js loads those that embed them.
 * @param {string|URL} base the address of the exported folder.
 * @param {LoadOptions & {canvas?: HTMLCanvasElement|OffscreenCanvas, source?: ReturnType<typeof fetchSource>}} given see
 *   loading.js; `canvas`: the one whose context computes; `source`: where the files come from instead.
 * @returns {Promise<Model>}
 * @throws {GlinferError} the browser lacks something, a file is missing or damaged, or an option is invalid.
 */
export async function load(base, given = {}) {
  const { canvas = computingCanvas(), source: from, ...options } = optionsOf(given);
  checkSpeculation(options.speculate ?? null);
  const address = folderAddress(base);
  const source = from ?? fetchSource(address);
  const { replay, tables, texts } = await loadParts(openContext(canvas), source, address, textsFor, options);
  return new Model(replay, tables, texts, source, options);
}

/**
 * The tokenizer and the chat form of a model, see ../texts.js.
 * @param {object} plan
 * @param {object|null} tokenizer tokenizer.json.
 * @returns {{tokenizer: AnyTokenizer|null, form: ChatForm|null, why: string}}
 * @throws {GlinferError} the model does not continue texts.
 */
export function textsFor(plan, tokenizer) {
  if (plan.driver !== "encode") return textsOf(plan.model, tokenizer);
  throw new GlinferError("this site has an embedding model; expected a model that generates text");
}

/**
 * A reply. `ids` has all its tokens, with thoughts and the token that ended it; of `drafted` tokens `accepted` were
 * right.
 * @typedef {{text: string, thinking: string, finishReason: "stop"|"length"|"context"|"aborted", promptTokens: number,
 *   tokens: number, ids: number[], drafted: number, accepted: number}} Reply
 */

/** A sequence of tokens, and the model's logits of the next one. */
export class Model {
  /**
   * @param {Replay} replay the bound plan.
   * @param {Map<string, Int32Array|Uint32Array>} tables logits_order and line_checksums.
   * @param {{tokenizer: AnyTokenizer|null, form: ChatForm|null, why: string}} texts see ../texts.js.
   * @param {Source|null} source where the files came from, for `verifyTextures`.
   * @param {{speculate?: string|null}} options default of `speculate`, see generate.js.
   */
  constructor(replay, tables, { tokenizer, form, why }, source = null, { speculate = null } = {}) {
    const { plan } = replay;
    this.plan = plan;
    this.replay = replay;
    this.tokenizer = tokenizer;
    this.form = form;
    this.why = why;
    this.order = tableOf(tables, "logits_order");
    this.checker = new TextureChecker(replay, checksumsOf(tables), source);
    this.driver = driverOf(plan, this.replay);
    this.ids = [];
    this.before = plan.model.before ?? []; // the tokens that the tokenizer puts before every text; they are never dropped
    this.keep = 0; // how many of the first tokens are never dropped
    this.dropped = 0;
    this.known = null; // the logits of the next token, once computed
    this.ahead = 0; // tokens that a stream has chosen but not yielded, including those taken back
    this.writing = false; // whether a stream is running
    this.speculate = checkSpeculation(speculate);
    this.runTimes = new RunTimes(); // times of this model's runs, which decide how many tokens are drafted
    this.drafted = 0; // drafts that `accept` has run so far
    this.accepted = 0; // those of them that were chosen
  }

  /** The most tokens that the model holds. */
  get context() {
    return this.driver.context;
  }

  /** The size of the vocabulary. */
  get vocabulary() {
    return this.order.length;
  }

  /** Draw calls issued so far. */
  get drawsIssued() {
    return this.replay.drawsIssued;
  }

  /** Whether drafts can be checked, see `accept`. */
  get drafts() {
    return this.driver.drafted !== null;
  }

  /** How many tokens can be chosen before the context is full; at least 1. */
  get room() {
    const dropped = this.ids.length > this.context ? this.oldest.count : 0;
    return this.context + 1 - this.ids.length + dropped;
  }

  /**
   * Appends tokens and runs all but the last, which runs when a result is needed. Where the context
   * is full the oldest half is dropped, and the rest runs again from position 0; `before` and `keep` say what stays.
   * @param {number[]} ids
   * @throws {GlinferError} an id is outside the vocabulary.
   */
  prefill(ids) {
    this.append(ids);
    this.catchUp();
  }

  /** Appends tokens as `prefill` does, and runs them later. */
  append(ids) {
    checkTokens(ids, this.vocabulary);
    for (const id of ids) {
      if (this.ids.length >= this.context) this.dropOldest();
      this.known = null;
      this.ids.push(id);
    }
  }

  /**
   * Holds exactly these tokens once the loop has ended; a common beginning is not run again. The
   * browser's side of `hold` in glinfer/engine/run/decode.py.
   * @param {number[]} ids
   * @yields {void} after each run, of a piece of them or of one.
   * @throws {GlinferError} an id is outside the vocabulary.
   */
  *hold(ids) {
    const common = commonLength(this.ids, ids);
    this.rewind(this.ids.length - common);
    this.append(ids.slice(common));
    this.makeRoom();
    yield* this.driver.catchUp(this.ids);
  }

  /**
   * Appends one token.
   * @param {number} id
   */
  step(id) {
    this.prefill([id]);
  }

  /**
   * Removes the last tokens; with all of them the sequence is empty.
   * @param {number} count how many.
   * @throws {GlinferError} the model holds fewer.
   */
  rewind(count) {
    if (!Number.isInteger(count) || count < 0 || count > this.ids.length) {
      throw new GlinferError(`cannot rewind by ${count} tokens; the model holds ${this.ids.length}`);
    }
    if (count === 0) return;
    this.ids.length -= count;
    this.driver.forget(this.ids.length);
    this.known = null;
  }

  /**
   * The logits of the next token; computed once.
   * @param {{draw: number, seen: () => void}|null} watch see `Replay.run`.
   * @returns {Float32Array} one logit for each token, a copy.
   * @throws {GlinferError} no token is held.
   */
  logits(watch = null) {
    this.requireTokens();
    if (this.known === null) {
      this.catchUp();
      this.driver.runHead(this.ids, watch);
      this.known = this.readLogits();
    }
    return this.known.slice();
  }

  readLogits() {
    const { texture, width, height } = this.plan.logits;
    const texels = this.replay.read(texture, width, height);
    return Float32Array.from(this.order, (index) => texels[index]);
  }

  /**
   * Chooses and appends tokens: several without a readback in between where passes can choose them, otherwise one, from
   * all logits. `sampler.sample` would choose the same from `logits`.
   * @param {number} most how many at most.
   * @param {Sampler} sampler
   * @param {{draw: number, seen: () => void}|null} watch of the first token, see `Replay.run`; one token is chosen then.
   * @returns {number[]}
   * @throws {GlinferError} no token is held, or the model's output is broken.
   */
  choose(most, sampler, watch = null) {
    this.requireTokens();
    const { driver, ids } = this;
    let chosen = [];
    if (this.known === null && driver.chooses(sampler)) {
      this.catchUp();
      chosen = driver.choose(ids, watch ? 1 : Math.min(most, this.room), sampler, watch);
      if (!chosen.length) this.known = this.readLogits();
    }
    if (!chosen.length) chosen = [sampler.sample(this.logits(watch), ids)];
    this.known = null;
    ids.push(...chosen);
    return chosen;
  }

  /**
   * Chooses and appends tokens as `choose` does, several in one run where they were drafted, as `session.accept` in Python.
   * @param {number[]} draft drafts of the next tokens; those beyond the context are left out, and directly after a prompt
   *   all of them.
   * @param {Sampler} sampler
   * @returns {number[]} the drafts up to the first that was not chosen, and its replacement.
   * @throws {GlinferError} no token is held, a draft is not a token, the site has no plan that checks drafts, or the model's output is broken.
   */
  accept(draft, sampler) {
    checkTokens(draft, this.vocabulary);
    this.requireDrafts();
    this.settle();
    const drafts = draft.slice(0, this.room - 1);
    const chosen = this.driver.accept(this.ids, drafts, sampler);
    if (chosen === null) return this.choose(1, sampler);
    this.drafted += drafts.length;
    this.accepted += chosen.length - 1;
    this.known = null;
    this.ids.push(...chosen);
    return chosen;
  }

  /** Raises an error where the site has no plan that checks drafts. */
  requireDrafts() {
    if (this.drafts) return;
    const why = this.plan.driver === "fast" ? "has no plan for drafts" : "computes all tokens again each time";
    throw new GlinferError(`this site ${why}; leave speculate out, or export the model again with the plan fast`);
  }

  /**
   * Makes room for the newest token, and runs all tokens but the last.
   * @returns {boolean} whether there was nothing to run.
   * @throws {GlinferError} no token is held.
   */
  settle() {
    this.requireTokens();
    const before = this.drawsIssued;
    this.catchUp();
    return this.drawsIssued === before;
  }

  /**
   * Continues a prompt piece by piece, as `model.stream` in Python: text for a text, ids for an array of ids. Leaving the
   * loop ends it.
   * @param {string|number[]} prompt
   * @param {Options} options see generate.js; `maxTokens` is 128 where it is left out.
   * @yields {string|number}
   * @throws {GlinferError} the prompt or an option is invalid, or another stream of this model is running.
   */
  stream(prompt, options = {}) {
    return continuation(this, prompt, options);
  }

  /**
   * Replies to a conversation piece by piece, as `model.stream_chat` in Python; thoughts before the answer are left out.
   * @param {string|{role: string, content: string}[]} messages a user's message, or the whole conversation.
   * @param {Options} options see generate.js; `maxTokens` is 512 where it is left out.
   * @yields {string}
   * @throws {GlinferError} the model does not chat, messages out of turn or too long for the context, or as `stream`.
   */
  async *streamChat(messages, options = {}) {
    for await (const { kind, text } of this.replyTo(messages, options)) if (kind === "answer" && text) yield text;
  }

  /**
   * Replies to a conversation, as `model.chat` in Python; arguments and errors are those of `streamChat`.
   * @returns {Promise<Reply>}
   */
  async chat(messages, options = {}) {
    /** @type {Reply} */
    const reply = { text: "", thinking: "", finishReason: "length", promptTokens: 0, tokens: 0, ids: [], drafted: 0, accepted: 0 };
    const { drafted, accepted } = this;
    for await (const { kind, text, id, finishReason, promptTokens } of this.replyTo(messages, options)) {
      if (kind === "answer") reply.text += text;
      if (kind === "thinking") reply.thinking += text;
      if (id !== null) reply.ids.push(id);
      Object.assign(reply, { finishReason, promptTokens, tokens: reply.ids.length });
    }
    reply.drafted = this.drafted - drafted;
    reply.accepted = this.accepted - accepted;
    return reply;
  }

  /** The parts of a reply, see `replyParts` in generate.js. */
  replyTo(messages, given) {
    const { maxTokens = 512, ...options } = checkOptions(given, REPLY_OPTIONS);
    if (!this.form) throw new GlinferError(`this model cannot chat${this.why && `: ${this.why}`}; use stream`);
    const conversation = new Conversation(this.tokenizer, this.form, this.context);
    const { system, message } = conversation.restore(messages);
    const prompt = conversation.prompt(message, 1, { system, drop: false });
    return replyParts(this, conversation, prompt, { maxTokens, ...options });
  }

  /**
   * Clears the sequence and decodes greedily; for tests.
   * @param {number[]} ids the prompt.
   * @param {number} count how many tokens.
   * @returns {{ids: number[], drawsPerToken: number, logitsOfFirst: Float32Array[]}} the tokens, the draws of the last
   *   one, and the logits of the first few.
   */
  greedy(ids, count) {
    this.rewind(this.ids.length);
    this.prefill(ids);
    const chosen = [];
    const logitsOfFirst = [];
    let drawsPerToken = 0;
    while (chosen.length < count) {
      const before = this.drawsIssued;
      const logits = this.logits();
      drawsPerToken = this.drawsIssued - before;
      if (logitsOfFirst.length < KEPT_LOGITS) logitsOfFirst.push(logits);
      chosen.push(argmax(logits));
      this.step(chosen.at(-1));
    }
    return { ids: chosen, drawsPerToken, logitsOfFirst };
  }

  /**
   * Compares the textures that the draws sample with the exported files, bit for bit. The sequence does not
   * change.
   * @param {{share?: number}} options `share`: 1 compares all with the files, which are loaded again; a share of 0.01
   *   compares the checksums of the next hundredth of all lines of texels, so that 100 calls see everything.
   * @returns {Promise<TextureReport>} see verify.js.
   * @throws {GlinferError} the files are gone or were changed, or the share is out of range.
   */
  async verifyTextures(options = {}) {
    const { share = 1 } = checkOptions(options, ["share"]);
    return this.checker.verify(share);
  }

  /** Raises an error on an empty sequence, and makes room for the newest token. */
  requireTokens() {
    if (!this.ids.length) throw new GlinferError("the model has no tokens; give it at least one");
    this.makeRoom();
  }

  /** A chosen token needs no cache slot until the next run, so the sequence may exceed the context by one. */
  makeRoom() {
    if (this.ids.length > this.context) this.dropOldest();
  }

  /** The first of the tokens that a full context drops, and their number; as `room_made` in glinfer/engine/ids.py. */
  get oldest() {
    const before = this.before.slice(0, this.context - 1);
    const from = Math.max(this.keep, before.every((id, index) => this.ids[index] === id) ? before.length : 0);
    return { from, count: Math.floor((this.context - from + 1) / 2) };
  }

  dropOldest() {
    const { from, count } = this.oldest;
    this.known = null;
    this.driver.forget(0);
    this.ids.splice(from, count);
    this.dropped += count;
  }

  catchUp() {
    for (const work = this.driver.catchUp(this.ids); !work.next().done; );
  }

  /** Releases all graphics memory. */
  release() {
    this.replay.release();
  }
}
