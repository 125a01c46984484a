/** A model in the browser: an exported plan with its weights, and the sequence of tokens that it holds. */

import { textsOf } from "../texts.js";
import { Conversation } from "./chat.js";
import { GlinferError } from "./errors.js";
import { continuation, replyParts } from "./generate.js";
import { computingCanvas, openContext } from "./limits.js";
import { checksumsOf, loadParts, tableOf } from "./loading.js";
import { argmax } from "./sampler.js";
import { fetchSource } from "./source.js";
import { TextureChecker } from "./verify.js";

/** @typedef {import("./loading.js").LoadOptions} LoadOptions */
/** @typedef {import("./tokenizer.js").AnyTokenizer} AnyTokenizer */
/** @typedef {import("./chat.js").ChatForm} ChatForm */
/** @typedef {import("./replay.js").Replay} Replay */
/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./generate.js").Options} Options */
/** @typedef {import("./verify.js").TextureReport} TextureReport */

const SLOT_TOKENS = 64;
const KEPT_LOGITS = 4;

/**
 * Loads an exported model that continues texts; ../embedding/embed.js loads those that embed them.
 * @param {string|URL} base the address of the exported folder.
 * @param {LoadOptions & {canvas?: HTMLCanvasElement|OffscreenCanvas}} options see loading.js; `canvas`: the one whose
 *   context computes.
 * @returns {Promise<Model>}
 * @throws {GlinferError} the browser lacks something, or a file is missing or damaged.
 */
export async function load(base, { canvas = computingCanvas(), ...options } = {}) {
  const address = new URL(base, globalThis.location?.href);
  const source = fetchSource(address);
  const { replay, tables, texts } = await loadParts(openContext(canvas), source, address, textsFor, options);
  return new Model(replay, tables, texts, source);
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
  throw new GlinferError("this site embeds texts; expected one of a model that continues them");
}

/**
 * A reply. `ids` are those of its tokens, with thoughts and the token that ended it.
 * @typedef {{text: string, thinking: string, finishReason: "stop"|"length"|"context"|"aborted", promptTokens: number,
 *   tokens: number, ids: number[]}} Reply
 */

/** Tokens held by a model, and what it says of the next one. */
export class Model {
  /**
   * @param {Replay} replay the bound plan.
   * @param {Map<string, Int32Array|Uint32Array>} tables logits_order and line_checksums.
   * @param {{tokenizer: AnyTokenizer|null, form: ChatForm|null, why: string}} texts see ../texts.js.
   * @param {Source|null} source where the files came from, for `verifyTextures`.
   */
  constructor(replay, tables, { tokenizer, form, why }, source = null) {
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
    this.dropped = 0;
    this.cached = 0; // how many of the first tokens are in the caches
    this.long = false; // whether those have turned by the second set of angles, where the model has two
    this.known = null; // the logits of the next token, once they were asked for
    this.writing = false; // whether a stream is not at its end
  }

  /** How many tokens the model holds at most. */
  get context() {
    return this.driver.context;
  }

  /** How many different tokens there are. */
  get vocabulary() {
    return this.order.length;
  }

  /** Draw calls issued so far. */
  get drawsIssued() {
    return this.replay.drawsIssued;
  }

  /**
   * Appends tokens, and runs all of them but the last, which waits until something is asked of it. Where the context
   * is full the oldest half is dropped, and the rest runs again from position 0.
   * @param {number[]} ids
   * @throws {GlinferError} an id is no token of the vocabulary.
   */
  prefill(ids) {
    for (const id of ids) {
      if (!Number.isInteger(id) || id < 0 || id >= this.vocabulary) {
        throw new GlinferError(`found the token ${id}; expected whole numbers from 0 to ${this.vocabulary - 1}`);
      }
    }
    for (const id of ids) {
      if (this.ids.length >= this.context) this.dropOldest();
      this.known = null;
      this.ids.push(id);
    }
    this.catchUp();
  }

  /**
   * Appends one token.
   * @param {number} id
   */
  step(id) {
    this.prefill([id]);
  }

  /**
   * Forgets the last tokens; all of them leave an empty sequence.
   * @param {number} count how many.
   * @throws {GlinferError} so many are not held.
   */
  rewind(count) {
    if (!Number.isInteger(count) || count < 0 || count > this.ids.length) {
      throw new GlinferError(`cannot rewind by ${count} tokens; the model holds ${this.ids.length}`);
    }
    if (count === 0) return;
    this.ids.length -= count;
    this.cached = Math.min(this.cached, this.ids.length);
    this.known = null;
  }

  /**
   * What the model says of the next token; computed once.
   * @param {{draw: number, seen: () => void}|null} watch see `Replay.run`.
   * @returns {Float32Array} one logit for each token, a copy.
   * @throws {GlinferError} no token is held.
   */
  logits(watch = null) {
    if (!this.ids.length) throw new GlinferError("the model holds no tokens; give it at least one");
    if (this.known === null) {
      this.catchUp();
      this.driver.run(this.ids, this.ids.length - 1, undefined, watch);
      this.cached = this.ids.length;
      const { texture, width, height } = this.plan.logits;
      const texels = this.replay.read(texture, width, height);
      this.known = Float32Array.from(this.order, (place) => texels[place]);
    }
    return this.known.slice();
  }

  /**
   * Continues a prompt piece by piece, as `model.stream` in Python: text for a text, ids for an array of ids. Leaving the
   * loop ends it.
   * @param {string|number[]} prompt
   * @param {Options} options see generate.js; `maxTokens` is 128 where it is left out.
   * @yields {string|number}
   * @throws {GlinferError} the prompt or an option cannot be, or another stream of this model is not at its end.
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
    const reply = { text: "", thinking: "", finishReason: "length", promptTokens: 0, tokens: 0, ids: [] };
    for await (const { kind, text, id, finishReason, promptTokens } of this.replyTo(messages, options)) {
      if (kind === "answer") reply.text += text;
      if (kind === "thinking") reply.thinking += text;
      if (id !== null) reply.ids.push(id);
      Object.assign(reply, { finishReason, promptTokens, tokens: reply.ids.length });
    }
    return reply;
  }

  /** The parts of a reply, see `replyParts` in generate.js. */
  replyTo(messages, { maxTokens = 512, ...options }) {
    if (!this.form) throw new GlinferError(`this model cannot chat${this.why && `: ${this.why}`}; use stream`);
    const conversation = new Conversation(this.tokenizer, this.form, this.context);
    const { system, message } = conversation.restore(messages);
    const prompt = conversation.prompt(message, 1, { system, drop: false });
    return replyParts(this, conversation, prompt, { maxTokens, ...options });
  }

  /**
   * Forgets everything, and chooses the likeliest token again and again: what a test compares.
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
   * Compares the textures that the draws sample with the exported files, bit for bit. The sequence stays as it is, and
   * goes on as if nothing had been compared.
   * @param {{share?: number}} options `share`: 1 compares all with the files, which are loaded again; a share of 0.01
   *   compares the checksums of the next hundredth of all lines of texels, so that 100 calls see everything.
   * @returns {Promise<TextureReport>} see verify.js.
   * @throws {GlinferError} the files are gone or were changed, or the share is out of range.
   */
  verifyTextures({ share = 1 } = {}) {
    return this.checker.verify(share);
  }

  dropOldest() {
    const count = Math.floor((this.context + 1) / 2);
    this.known = null;
    this.cached = 0;
    this.ids.splice(0, count);
    this.dropped += count;
  }

  catchUp() {
    if (!this.driver.caches) return;
    const long = isLong(this.plan, this.ids.length);
    if (long !== this.long) this.cached = 0; // all keys turn as in one run over the whole text
    this.long = long;
    const last = this.plan.draws.length - this.plan.head_draws;
    for (; this.cached < this.ids.length - 1; this.cached++) this.driver.run(this.ids, this.cached, last);
  }

  /** Releases everything that lies in graphics memory. */
  release() {
    this.replay.release();
  }
}

/**
 * Whether a text of so many tokens turns by the second set of angles, where a model has two.
 * @param {object} plan
 * @param {number} tokens
 * @returns {boolean}
 */
function isLong(plan, tokens) {
  const { long_after: longest = 0 } = plan.model;
  return longest > 0 && tokens > longest;
}

/** The run value of plans with two sets of angles: the row of their table for the token at `position`, if there is one. */
function anglesOf(plan, tokens, position) {
  if (!plan.model.long_after) return {};
  const second = isLong(plan, tokens) ? plan.model.config.max_position_embeddings : 0;
  return { angles: position + second };
}

/** What one run is given, by plan: `run(ids, position, last, watch)` runs the token at a position, or all up to it. */
function driverOf(plan, replay) {
  const { config } = plan.model;
  const context = config.max_position_embeddings;
  switch (plan.driver) {
    case "fast": {
      const values = { noise: 0, inverse_temperature: 1, noise_key: 0 };
      const run = (ids, at, last, watch) => {
        Object.assign(values, { position: at, token: ids[at], score_slots: Math.ceil((at + 1) / SLOT_TOKENS) });
        Object.assign(values, anglesOf(plan, ids.length, at));
        replay.run(values, { last, watch });
      };
      return { caches: true, context, run };
    }
    case "reference": {
      const input = replay.textures[plan.input];
      const column = new Int32Array(input.spec.layout.rows);
      const run = (ids, at, last, watch) => {
        column.fill(0).set(ids);
        input.uploadColumn(column);
        replay.run({ rows: at + 1, last_row: at, ...anglesOf(plan, at + 1, 0) }, { last, watch });
      };
      return { caches: false, context, run };
    }
    default:
      throw new GlinferError(`the plan's driver is ${plan.driver}; expected fast or reference; export the model again`);
  }
}
