/**
 * A model in another thread, with the methods of `Model`. They return promises, except for the plain facts that are known
 * from the beginning.
 */

import { checkOptions, checkTokens, GlinferError } from "./errors.js";
import { computingCanvas, lossOf } from "./limits.js";
import { LOAD_OPTIONS } from "./loading.js";
import { folderAddress } from "./source.js";
import { direct, serveWorker, startWorker } from "./threads.js";

const OF_TOKENS = ["prefill", "step", "rewind", "logits"]; // a stream holds tokens that it has not yielded yet

/** The end that has the model; its methods are called through a link, see threads.js. */
class ModelHost {
  /** @param {(base: string, options: object) => Promise<object>} load gives the model. */
  constructor(load) {
    this.load = load;
    this.model = null;
    this.canvas = computingCanvas();
  }

  untilLost() {
    return lossOf(this.canvas);
  }

  async open(base, options) {
    const model = (this.model = await this.load(base, { canvas: this.canvas, ...options }));
    const { plan, why = "", form } = model;
    const facts = { plan, why, form: form ? { takesSystem: form.takesSystem } : null, tokenizes: Boolean(model.tokenizer) };
    return { ...facts, context: model.context ?? null, vocabulary: model.vocabulary ?? null, dimensions: model.dimensions ?? null };
  }

  stream(prompt, options) {
    return this.having("stream").stream(prompt, options);
  }

  streamChat(messages, options) {
    return this.having("streamChat").streamChat(messages, options);
  }

  /** Calls a method that the model has. */
  do(name, ...given) {
    if (this.model.writing && OF_TOKENS.includes(name)) throw new GlinferError(`this model is generating a text; leave its loop, or abort it, before ${name}`);
    return this.having(name)[name](...given);
  }

  encode(text, options) {
    return this.tokenizing().encode(text, checkOptions(options, ["allowSpecial"]));
  }

  decode(ids) {
    const tokenizer = this.tokenizing();
    checkTokens(ids, this.model.vocabulary ?? this.model.plan.model.config.vocab_size);
    return tokenizer.decode(ids);
  }

  figures() {
    const { ids, drawsIssued: draws, drafted = 0, accepted = 0 } = this.model;
    return { held: ids?.length ?? 0, draws, drafted, accepted };
  }

  having(name) {
    if (typeof this.model[name] === "function") return this.model;
    const does = this.model.plan.driver === "encode" ? "embeds texts" : "continues texts";
    throw new GlinferError(`this model ${does}, and has no ${name}`);
  }

  tokenizing() {
    const { tokenizer, why } = this.model;
    if (tokenizer) return tokenizer;
    throw new GlinferError(`this model came without a tokenizer${why ? `: ${why}` : ""}; use token ids`);
  }
}

/** A model that may be in another thread; made by `loadThrough`. */
export class RemoteModel {
  /**
   * @param {import("./threads.js").Link} link
   * @param {{plan: object, why: string, form: {takesSystem: boolean}|null, tokenizes: boolean, context: number|null,
   *   vocabulary: number|null, dimensions: number|null}} facts
   * @param {boolean} threaded
   */
  constructor(link, facts, threaded) {
    this.link = link;
    /** @type {Record<string, any>} plan.json. */
    this.plan = facts.plan;
    /** Why the site supports less than its model, as part of a sentence; empty if it supports all. */
    this.why = facts.why;
    /** Null where the model does not chat; `takesSystem`: whether it supports a system prompt. */
    this.form = facts.form;
    /** Whether prompts can be texts, besides token ids. */
    this.tokenizes = facts.tokenizes;
    /** The most tokens that the model holds; null where it embeds texts. */
    this.context = facts.context;
    /** The size of the vocabulary; null where it embeds texts. */
    this.vocabulary = facts.vocabulary;
    /** The length of a full vector; null where it continues texts. */
    this.dimensions = facts.dimensions;
    /** Whether the model is in a worker. */
    this.threaded = threaded;
  }

  /**
   * Continues a prompt piece by piece, see `Model.stream` in model.js.
   * @param {string} prompt
   * @param {import("./generate.js").Options} [options]
   * @returns {AsyncGenerator<string, void, void>}
   */
  stream(prompt, options = {}) {
    return this.link.iterate("stream", prompt, options);
  }

  /**
   * Continues token ids, as ids; see `Model.stream` in model.js.
   * @param {number[]} prompt
   * @param {import("./generate.js").Options} [options]
   * @returns {AsyncGenerator<number, void, void>}
   */
  streamIds(prompt, options = {}) {
    return this.link.iterate("stream", prompt, options);
  }

  /**
   * Replies to a conversation piece by piece, see `Model.streamChat` in model.js.
   * @param {string|import("./chat.js").Message[]} messages
   * @param {import("./generate.js").Options} [options]
   * @returns {AsyncGenerator<string, void, void>}
   */
  streamChat(messages, options = {}) {
    return this.link.iterate("streamChat", messages, options);
  }

  /**
   * Replies to a conversation, see `Model.chat` in model.js.
   * @param {string|import("./chat.js").Message[]} messages
   * @param {import("./generate.js").Options} [options]
   * @returns {Promise<import("./model.js").Reply>}
   */
  chat(messages, options = {}) {
    return this.link.call("do", "chat", messages, options);
  }

  /**
   * The vectors of texts, see `EmbeddingModel.embed` in ../embedding/embed.js.
   * @param {(string|number[])[]} texts
   * @param {{promptName?: string, prompt?: string, dimensions?: number, normalize?: boolean, signal?: AbortSignal,
   *   onProgress?: (done: number, all: number) => void}} [options]
   * @returns {Promise<Float32Array[]>}
   */
  embed(texts, options = {}) {
    return this.link.call("do", "embed", texts, options);
  }

  /**
   * Texts with their scores for a query, best first; see `EmbeddingModel.rerank` in ../embedding/embed.js.
   * @param {string} query
   * @param {string[]} texts
   * @param {{signal?: AbortSignal, onProgress?: (done: number, all: number) => void}} [options]
   * @returns {Promise<{index: number, score: number}[]>}
   */
  rerank(query, texts, options = {}) {
    return this.link.call("do", "rerank", query, texts, options);
  }

  /**
   * Token ids of a text.
   * @param {string} text
   * @param {{allowSpecial?: boolean}} [options] without `allowSpecial` no id is a control token's.
   * @returns {Promise<number[]>}
   */
  encode(text, options = {}) {
    return this.link.call("encode", text, options);
  }

  /**
   * The text of token ids.
   * @param {number[]} ids
   * @returns {Promise<string>}
   */
  decode(ids) {
    return this.link.call("decode", ids);
  }

  /**
   * Appends tokens, see `Model.prefill` in model.js.
   * @param {number[]} ids
   * @returns {Promise<void>}
   */
  prefill(ids) {
    return this.link.call("do", "prefill", ids);
  }

  /**
   * Appends one token.
   * @param {number} id
   * @returns {Promise<void>}
   */
  step(id) {
    return this.link.call("do", "step", id);
  }

  /**
   * Forgets the last tokens.
   * @param {number} count
   * @returns {Promise<void>}
   */
  rewind(count) {
    return this.link.call("do", "rewind", count);
  }

  /**
   * The logits of the next token, one for each token of the vocabulary.
   * @returns {Promise<Float32Array>}
   */
  logits() {
    return this.link.call("do", "logits");
  }

  /**
   * Compares textures with the exported files, see `Model.verifyTextures` in model.js.
   * @param {{share?: number}} [options]
   * @returns {Promise<import("./verify.js").TextureReport>}
   */
  verifyTextures(options = {}) {
    return this.link.call("do", "verifyTextures", options);
  }

  /**
   * Tokens held, draw calls issued so far, tokens drafted, and drafts that were right.
   * @returns {Promise<{held: number, draws: number, drafted: number, accepted: number}>}
   */
  figures() {
    return this.link.call("figures");
  }

  /**
   * Releases the model, and ends its worker.
   * @returns {Promise<void>}
   */
  async release() {
    await this.link.call("do", "release").catch(() => {});
    this.link.close();
  }
}

/**
 * Loads a model in a worker, or in this thread where there is none that can compute.
 * @param {string|URL} base the address of the exported folder.
 * @param {{load: (base: string, options: object) => Promise<object>, start: (address: URL) => Worker}} how `load`: gives
 *   the model in this thread; `start`: makes a worker that calls `hostModels` with the same function.
 * @param {import("./loading.js").LoadOptions & {worker?: boolean, onLost?: () => void}} [options] `worker: false` computes
 *   in this thread; `onLost` is called when the browser takes the graphics context away.
 * @returns {Promise<RemoteModel>}
 * @throws {GlinferError} the browser lacks something, or a file is missing or damaged.
 */
export async function loadThrough(base, { load, start }, options = {}) {
  const { worker = true, onLost = () => {}, ...loading } = checkOptions(options, ["worker", "onLost", ...LOAD_OPTIONS]);
  const address = folderAddress(base);
  const remote = worker ? await startWorker(() => start(address)) : null;
  const link = remote ?? direct(new ModelHost(load));
  link.call("untilLost").then(onLost, () => {});
  try {
    return new RemoteModel(link, await link.call("open", address.href, loading), remote !== null);
  } catch (error) {
    link.close();
    throw error;
  }
}

/**
 * Lets the page of this worker load a model.
 * @param {(base: string, options: object) => Promise<object>} load gives it.
 */
export function hostModels(load) {
  serveWorker(new ModelHost(load));
}
