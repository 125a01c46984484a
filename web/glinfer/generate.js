/**
 * Generates token by token, with pauses in which the page can respond.
 *
 * @typedef {{maxTokens?: number, temperature?: number, topK?: number, topP?: number, minP?: number, repetitionPenalty?: number,
 *   seed?: number|bigint|null, stopIds?: number[], signal?: AbortSignal, speculate?: "ngram"|null, keep?: number}} Options how
 *   a text is continued. The sampler's options (see sampler.js) default to those of the model's files; `signal`
 *   ends the text at the next token; with `speculate` one run checks several tokens where the text repeats itself,
 *   as long as that is faster, and the text stays the same; `keep`: number of first tokens that stay when the context
 *   is full, -1 for the whole prompt.
 */

import { checkSpeculation, Ngrams, Speculation } from "./drafts.js";
import { GlinferError, checkOptions, checkTokens, shown } from "./errors.js";
import { Sampler, SAMPLING } from "./sampler.js";
import { LOST } from "./textures.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./chat.js").Conversation} Conversation */

/** The names of `Options`, except `stopIds`. */
export const REPLY_OPTIONS = ["maxTokens", ...SAMPLING, "speculate", "keep", "signal"];
const LONGEST_BUSY = 24; // milliseconds
const POLL = 4; // milliseconds between two checks whether the driver is done
const MOST_AHEAD = 8; // tokens that are chosen between two readbacks

/** Lets the page handle pending events; unlike a timer this is quick in a background tab, too. */
function breathe() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** Waits a few milliseconds; in a hidden page, where timers may take a minute, only until pending events are handled. */
export function shortly() {
  return globalThis.document?.hidden ? breathe() : new Promise((resolve) => setTimeout(resolve, POLL));
}

/**
 * Makes a function to await repeatedly during long work: now and then it lets the page handle events.
 * @returns {() => Promise<void>}
 */
export function pauses() {
  let since = performance.now();
  return async () => {
    if (performance.now() - since < LONGEST_BUSY) return;
    await breathe();
    since = performance.now();
  };
}

/**
 * Runs a prompt and yields the tokens that follow it. Tokens that the model holds already are not run again.
 * @param {Model} model
 * @param {Sampler} sampler
 * @param {{prompt: number[], count: number, stops: (id: number) => boolean, signal: AbortSignal,
 *   watch?: () => {draw: number, seen: () => void}|null, speculate?: string|null, keep?: number}} options `count`: most tokens to generate;
 *   `stops`: whether a token ends the text; it is yielded last, and later tokens are taken back; `signal` ends the text at
 *   the next token; `watch` is called before each token, see `Replay.run`; `speculate`: how tokens are drafted; `keep`: see above.
 * @yields {number} a token id.
 */
export async function* generate(model, sampler, { prompt, count, stops, signal, watch = () => null, speculate = null, keep = 0 }) {
  if (prompt.length > model.context) throw new GlinferError(`the prompt has ${prompt.length} tokens; this model's context holds ${model.context}; shorten it`);
  model.keep = checkKeep(keep, prompt.length, model.context);
  const pause = pauses();
  const speculation = speculate === null ? null : new Speculation(new Ngrams(), model.runTimes);
  if (speculation) model.driver.expectDrafts();
  // Only one run is issued ahead of the one that is computed, so that an abort takes effect soon.
  for (let [work, before] = [model.hold(prompt), null]; !work.next().done; ) {
    const now = model.replay.finished();
    await before;
    if (signal.aborted) return;
    before = now;
  }
  let waiting = [];
  let held = 0;
  let size = 1; // tokens that keep the page busy for an acceptable time
  try {
    for (let made = 0; made < count && !signal.aborted; made++) {
      if (!waiting.length) {
        const [start, { drafted }] = [performance.now(), model];
        const seen = watch();
        if (speculation && !seen) {
          const ready = model.settle() && made > 0;
          waiting = speculation.choose(model, sampler, { most: Math.min(count - made, model.room), chunk: size, ready });
        } else {
          waiting = model.choose(Math.min(size, count - made), sampler, seen);
        }
        held = model.ids.length;
        model.ahead += waiting.length;
        const each = (performance.now() - start) / waiting.length;
        if (model.drafted === drafted) size = Math.max(1, Math.min(MOST_AHEAD, Math.floor(LONGEST_BUSY / each)));
      }
      const id = waiting.shift();
      model.ahead -= 1;
      yield id;
      if (stops(id)) return;
      await pause();
    }
  } finally {
    if (model.ids.length === held) model.rewind(waiting.length); // else the model's tokens were changed meanwhile
  }
}

/**
 * Continues a prompt; see `Model.stream`.
 * @param {Model} model
 * @param {string|number[]} prompt
 * @param {Options} given
 * @yields {string|number}
 */
export async function* continuation(model, prompt, given) {
  const { maxTokens = 128, stopIds, signal, speculate, keep, ...sampling } = checkOptions(given, [...REPLY_OPTIONS, "stopIds"]);
  const ofIds = Array.isArray(prompt);
  if (!ofIds && !model.tokenizer) throw new GlinferError("this model came without a tokenizer; give an array of token ids");
  if (stopIds && !Array.isArray(stopIds)) throw new GlinferError(`stopIds is ${shown(stopIds)}; expected an array of token ids`);
  if (stopIds) checkTokens(stopIds, model.vocabulary);
  const ends = new Set(stopIds ?? (ofIds ? [] : model.plan.model.stop_ids));
  const text = ofIds ? null : model.tokenizer.stream();
  const options = { prompt: ofIds ? prompt : model.tokenizer.encode(prompt), count: checkCount(maxTokens), stops: (id) => ends.has(id), signal, speculate, keep };
  if (!options.prompt.length) throw new GlinferError("the prompt has no tokens; expected at least one");
  for await (const id of alone(model, samplerOf(model, sampling), options)) {
    if (ofIds) {
      yield id;
    } else if (!ends.has(id)) {
      const piece = text.push(id);
      if (piece) yield piece;
    }
  }
  const rest = text?.finish();
  if (rest) yield rest;
}

/**
 * Replies to a conversation. The reply ends where the context is full.
 * @param {Model} model
 * @param {Conversation} conversation whose `prompt` it is; without a form, the text continues in a full context.
 * @param {number[]} prompt
 * @param {Options & {watch?: () => {draw: number, seen: () => void}|null}} options see `generate` for `watch`.
 * @yields {{kind: string, text: string, id: number|null, finishReason: string, promptTokens: number}} the kind of each
 *   text that is final by then, "control" if there is none; `id` is null in all parts of a token but the last, and in those at the end.
 *   `finishReason` is the reason if the reply ends here.
 */
export async function* replyParts(model, conversation, prompt, { maxTokens, signal, watch, speculate, keep, ...sampling }) {
  const room = conversation.form ? model.context - prompt.length : Infinity;
  const count = Math.min(checkCount(maxTokens), room);
  const splitter = conversation.splitter();
  const { tokenizer } = conversation;
  const streams = { answer: tokenizer.stream(), thinking: tokenizer.stream() };
  const stops = (id) => conversation.stopIds.has(id);
  let [made, last, space] = [0, "answer", ""]; // white space that may end the thoughts is not shown
  let finishReason = "aborted";
  const part = (kind, text, id) => ({ kind, text, id, finishReason, promptTokens: prompt.length });
  const textsOf = (shown) =>
    shown.flatMap(([kind, id]) => {
      // A character does not continue in a part of another kind.
      const before = kind === last ? [] : [[last, streams[last].finish()]];
      if (kind !== last) [last, space] = [kind, ""];
      let text = streams[kind].push(id);
      if (kind === "thinking") {
        const whole = space + text;
        text = whole.trimEnd();
        space = whole.slice(text.length);
      }
      return [...before, [kind, text]];
    });
  for await (const id of alone(model, samplerOf(model, sampling), { prompt, count, stops, signal, watch, speculate, keep })) {
    made += 1;
    if (stops(id)) finishReason = "stop";
    else if (made === count) finishReason = room < maxTokens ? "context" : "length";
    const texts = textsOf(splitter(id));
    const [kind, text] = texts.pop() ?? ["control", ""];
    for (const [before, piece] of texts) yield part(before, piece, null);
    yield part(kind, text, id);
  }
  for (const [kind, text] of textsOf(splitter(null))) yield part(kind, text, null);
  yield part(last, streams[last].finish(), null);
}

/** `generate`, unless another text of this model is still running; `speculate` defaults to the model's, `signal` may be null. */
async function* alone(model, sampler, options) {
  const { speculate = model.speculate } = options;
  const signal = options.signal ?? new AbortController().signal;
  if (checkSpeculation(speculate) !== null) model.requireDrafts();
  if (model.writing) throw new GlinferError("this model is still generating another text; leave its loop, or abort it");
  model.writing = true;
  try {
    yield* generate(model, sampler, { ...options, signal, speculate });
  } catch (error) {
    await shortly(); // the browser reports a lost context only after texels were read from it, as zeros
    throw model.replay.gl.isContextLost() ? new GlinferError(LOST) : error;
  } finally {
    model.writing = false;
  }
}

/** A sampler; missing and undefined options are the model's own settings. */
function samplerOf(model, given) {
  const { temperature, top_k: topK, top_p: topP, min_p: minP, repetition_penalty: repetitionPenalty } = model.plan.model.generation;
  const own = { temperature, topK, topP, minP, repetitionPenalty, seed: null };
  return new Sampler({ ...own, ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) });
}

function checkCount(count) {
  if (Number.isInteger(count) && count >= 1) return count;
  throw new GlinferError(`maxTokens is ${shown(count)}; expected an integer of at least 1`);
}

function checkKeep(keep, prompt, context) {
  const count = keep === -1 ? prompt : keep;
  if (!Number.isInteger(count) || count < 0) throw new GlinferError(`keep is ${shown(keep)}; expected an integer of at least 0, or -1 for the prompt`);
  if (count >= context) throw new GlinferError(`keep is ${count} tokens; the context holds ${context}; expected fewer`);
  return count;
}
