/** A model in the browser: an exported plan with its weights, and the sequence of tokens that it holds. */

import { textsOf } from "../texts.js";
import { driverOf } from "./cached.js";
import { Conversation } from "./chat.js";
import { GlinferError } from "./errors.js";
import { continuation, replyParts } from "./generate.js";
import { missing, openContext } from "./limits.js";
import { collectShaders } from "./program.js";
import { Replay } from "./replay.js";
import { parseSafetensors } from "./safetensors.js";
import { argmax } from "./sampler.js";
import { fetchSource } from "./source.js";
import { TextureChecker } from "./verify.js";

const KEPT_LOGITS = 4;
const VERSION = 2;

/**
 * Reads a plan.
 * @param {string} text of plan.json.
 * @returns {object}
 * @throws {GlinferError} it is no plan of a version that this runtime knows.
 */
export function parsePlan(text) {
  let plan;
  try {
    plan = JSON.parse(text);
  } catch (error) {
    throw new GlinferError(`plan.json is no JSON (${error.message}); export the model again`);
  }
  if (plan.format !== "glinfer-web" || plan.version !== VERSION) {
    const found = `${plan.format} version ${plan.version}; expected glinfer-web version ${VERSION}`;
    throw new GlinferError(`plan.json is ${found}; export the model again, and take the runtime of that export`);
  }
  return plan;
}

/**
 * Loads the files of an exported model, once the browser is known to run it.
 * @param {WebGL2RenderingContext|null} gl
 * @param {Source} source see source.js.
 * @param {{minimum?: boolean, onPlan?: (plan: object) => void, onProgress?: (text: string) => void}} options see
 *   `loadModel`.
 * @returns {Promise<{plan: object, shaders: Map<string, string>, weights: ArrayBuffer, tokenizer: object|null}>}
 * @throws {GlinferError} the browser lacks something, or a file is missing or damaged.
 */
export async function loadParts(gl, source, { minimum = false, onPlan, onProgress = () => {} } = {}) {
  onProgress("Loading the plan…");
  const plan = parsePlan(await source.text("plan.json"));
  onPlan?.(plan);
  const lacks = missing(gl, plan.requires, { minimum });
  if (lacks.length) throw new GlinferError(lacks.join(" "));
  const names = plan.programs.flatMap(({ fragment, vertex }) => [fragment, vertex]);
  const [shaders, weights, tokenizer] = await Promise.all([
    collectShaders(names, (name) => source.text(`shaders/${name}`)),
    source.bytes("weights.safetensors", (text) => onProgress(`Loading the weights… ${text}`)),
    plan.model.tokenizer === false ? null : source.optional("tokenizer.json"),
  ]);
  onProgress("Compiling the shaders…");
  await new Promise((resolve) => setTimeout(resolve)); // let the page show that
  return { plan, shaders, weights, tokenizer: tokenizer === null ? null : JSON.parse(tokenizer) };
}

/**
 * The tensors of weights.safetensors, and copies of its tables.
 * @param {ArrayBuffer} weights
 * @returns {{tensors: Map<string, Tensor>, copyOf: (name: string, dtype: string) => Int32Array|Uint32Array}}
 */
export function tablesOf(weights) {
  const tensors = parseSafetensors(weights);
  const copyOf = (name, dtype) => {
    const tensor = tensors.get(name);
    if (tensor?.dtype !== dtype) throw new GlinferError(`the weights have no ${name}; export the model again`);
    return tensor.data.slice();
  };
  return { tensors, copyOf };
}

/**
 * Loads an exported model that continues texts; ../embedding/embed.js loads those that embed them.
 * @param {WebGL2RenderingContext|null} gl
 * @param {Source} source see source.js.
 * @param {{minimum?: boolean, onPlan?: (plan: object) => void, onProgress?: (text: string) => void}} options
 *   `minimum`: allow no more than WebGL2 promises; `onPlan` is told the plan before anything else is loaded.
 * @returns {Promise<Model>}
 * @throws {GlinferError} the browser lacks something, or a file is missing or damaged.
 */
export async function loadModel(gl, source, options = {}) {
  const { plan, shaders, weights, tokenizer } = await loadParts(gl, source, options);
  if (plan.driver === "encode") throw new GlinferError("this site embeds texts; expected one of a model that continues them");
  return new Model(gl, plan, shaders, weights, textsOf(plan.model, tokenizer), source);
}

/**
 * Loads an exported model that continues texts, for a script of your own.
 * @param {string|URL} base the address of the exported folder.
 * @param {{canvas?: HTMLCanvasElement|OffscreenCanvas, minimum?: boolean, onPlan?: (plan: object) => void,
 *   onProgress?: (text: string) => void}} options see `loadModel`; `canvas`: the one whose context computes.
 * @returns {Promise<Model>}
 * @throws {GlinferError} as `loadModel`.
 */
export async function load(base, { canvas = new OffscreenCanvas(1, 1), ...options } = {}) {
  return loadModel(openContext(canvas), fetchSource(new URL(base, globalThis.location?.href)), options);
}

/** Tokens held by a model, and what it says of the next one. */
export class Model {
  /**
   * @param {WebGL2RenderingContext} gl
   * @param {object} plan from `parsePlan`.
   * @param {Map<string, string>} shaders the text of each shader file.
   * @param {ArrayBuffer} weights weights.safetensors.
   * @param {{tokenizer: Tokenizer|null, form: ChatForm|null, why: string}} texts see ../texts.js.
   * @param {Source|null} source where the files came from, for `verifyTextures`.
   */
  constructor(gl, plan, shaders, weights, { tokenizer, form, why }, source = null) {
    const { tensors, copyOf } = tablesOf(weights);
    Object.assign(this, { plan, tokenizer, form, why });
    this.order = copyOf("logits_order", "I32");
    const checksums = copyOf("line_checksums", "U32");
    this.replay = new Replay(gl, plan, shaders, tensors);
    this.checker = new TextureChecker(this.replay, checksums, source);
    this.driver = driverOf(plan, this.replay);
    this.ids = [];
    this.dropped = 0;
    this.known = null; // the logits of the next token, once they were asked for
    this.ahead = 0; // tokens that a stream has chosen and not given, those that it has taken back too
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

  /** How many tokens can be chosen before the context is full; at least 1. */
  get room() {
    const held = this.ids.length <= this.context ? this.ids.length : Math.floor(this.context / 2) + 1;
    return this.context + 1 - held;
  }

  /**
   * Appends tokens, and runs all of them but the last, which waits until something is asked of it. Where the context
   * is full the oldest half is dropped, and the rest runs again from position 0.
   * @param {ArrayLike<number>} ids
   * @throws {GlinferError} an id is no token of the vocabulary.
   */
  prefill(ids) {
    this.append(ids);
    this.catchUp();
  }

  /** Appends tokens as `prefill` does, and leaves it to later to run them. */
  append(ids) {
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
  }

  /**
   * Holds exactly these tokens, once the loop is at its end: what is the same at the beginning is not run again. The
   * browser's side of `hold` in glinfer/engine/decode.py.
   * @param {number[]} ids
   * @yields {void} after each run, of a piece of them or of one.
   * @throws {GlinferError} an id is no token of the vocabulary.
   */
  *hold(ids) {
    let common = 0;
    while (common < ids.length && this.ids[common] === ids[common]) common++;
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
    this.driver.forget(this.ids.length);
    this.known = null;
  }

  /**
   * What the model says of the next token; computed once.
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
    return Float32Array.from(this.order, (place) => texels[place]);
  }

  /**
   * Chooses and appends tokens: several without a readback in between where the plan can choose by itself, and otherwise
   * one, from a shortlist of the logits as long as that tells it. They are those that `sampler.sample` chooses from `logits`.
   * @param {number} most how many at most.
   * @param {Sampler} sampler
   * @param {{draw: number, seen: () => void}|null} watch of the first token, see `Replay.run`; one token is chosen then.
   * @returns {number[]}
   * @throws {GlinferError} no token is held, or the model's output is broken.
   */
  choose(most, sampler, watch = null) {
    this.requireTokens();
    const { driver, ids } = this;
    let chosen;
    if (this.known === null && !watch && driver.chooses(sampler)) {
      this.catchUp();
      chosen = driver.choose(ids, Math.min(most, this.room), sampler);
    } else {
      let listed = null;
      if (this.known === null && driver.lists) {
        this.catchUp();
        listed = driver.chooseListed(ids, sampler, watch);
        if (listed === null) this.known = this.readLogits();
      }
      chosen = [listed ?? sampler.sample(this.logits(watch), ids)];
    }
    this.known = null;
    ids.push(...chosen);
    return chosen;
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
   * @returns {Promise<{text: string, thinking: string, finishReason: "stop"|"length"|"context"|"aborted", promptTokens: number,
   *   tokens: number, ids: number[]}>} `ids`: those of the reply, with thoughts and the token that ended it.
   */
  async chat(messages, options = {}) {
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

  /** Refuses an empty sequence, and makes room for the newest token. */
  requireTokens() {
    if (!this.ids.length) throw new GlinferError("the model holds no tokens; give it at least one");
    this.makeRoom();
  }

  /** A token that was only chosen needs no place: there is one more than the context then, until something is run. */
  makeRoom() {
    if (this.ids.length > this.context) this.dropOldest();
  }

  dropOldest() {
    const count = Math.floor((this.context + 1) / 2);
    this.known = null;
    this.driver.forget(0);
    this.ids.splice(0, count);
    this.dropped += count;
  }

  catchUp() {
    const work = this.driver.catchUp(this.ids);
    while (!work.next().done);
  }

  /** Releases everything that lies in graphics memory. */
  release() {
    this.replay.release();
  }
}
