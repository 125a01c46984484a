/**
 * Conversations as token ids, so that no message can forge a control token: Gab's chat form, those of Jinja templates
 * (../text/template.js), and plain continuation for models without one. The browser's side of glinfer/text/chat.py.
 *
 * @typedef {{message: string, ids: number[], reply: number[], text?: string}} Turn a user's message with its ids, and the
 *   ids of the reply, or its text where it was given as one.
 *
 * @typedef {{role: string, content: string}} Message of a conversation: the system's, the user's or the assistant's.
 *
 * @typedef {object} ChatForm the chat form of a model.
 * @property {Set<number>} stopIds tokens that end a reply.
 * @property {number|null} think the token that begins the model's thoughts.
 * @property {number|null} answer the token between the model's thoughts and its answer.
 * @property {(ids: number[]) => boolean} [beginsThoughts] whether a prompt ends with the mark that begins thoughts.
 * @property {(think: boolean) => {push: (id: number) => [string, number][], finish: () => [string, number][]}|null} [marked] what
 *   sorts a reply with marks.
 * @property {boolean} takesSystem whether a conversation may begin with a system prompt.
 * @property {(message: string) => number[]} encodeMessage ids of one message.
 * @property {(turns: Turn[], newest: Turn, system: string) => number[]} prompt everything up to where the model writes.
 */

import { GlinferError, shown } from "./errors.js";

/** @typedef {import("./tokenizer.js").Tokenizer} Tokenizer */
/** @typedef {import("./tokenizer.js").AnyTokenizer} AnyTokenizer */

/**
 * Returns a valid message.
 * @param {string} message
 * @returns {string}
 * @throws {GlinferError} it is not a string, or empty.
 */
export function checkMessage(message) {
  if (typeof message !== "string") throw new GlinferError(`the message is ${shown(message)}; expected a string`);
  if (!message) throw new GlinferError("the message is empty; write at least one character");
  return message;
}

/** Gab's form: `<|user|>MESSAGE<|end|><|assistant|>REPLY<|end|>`; see `ChatForm`. */
export class GabForm {
  takesSystem = false;

  /**
   * @param {Tokenizer} tokenizer
   * @param {{user: number, assistant: number, end: number, think: number|null}} chat `model.chat` of the plan.
   * @param {number[]} stopIds further tokens that end a reply.
   */
  constructor(tokenizer, { user, assistant, end, think }, stopIds = []) {
    this.tokenizer = tokenizer;
    this.user = user;
    this.assistant = assistant;
    this.end = end;
    this.think = think;
    this.stopIds = new Set([...stopIds, end, user]);
    this.answer = tokenizer.control.get("</think>") ?? assistant;
  }

  encodeMessage(message) {
    return this.tokenizer.encode(checkMessage(message), { allowSpecial: false });
  }

  prompt(turns, newest, system = "") {
    if (system) throw new GlinferError("this model's chat form does not support a system prompt; leave it out");
    return [...turns.flatMap((turn) => [...this.opening(turn.ids), ...this.replyOf(turn), this.end]), ...this.opening(newest.ids)];
  }

  opening(ids) {
    return [this.user, ...ids, this.end, this.assistant];
  }

  replyOf({ reply, text }) {
    if (text === undefined) return reply;
    return text ? this.encodeMessage(text) : [];
  }
}

/** The turns so far, and prompts made from as many of the newest as fit the context. */
export class Conversation {
  /**
   * @param {AnyTokenizer} tokenizer
   * @param {ChatForm|null} form null continues each message as plain text.
   * @param {number} context most tokens that the model holds.
   * @param {number[]} stopIds tokens that end a text that is continued.
   */
  constructor(tokenizer, form, context, stopIds = []) {
    this.tokenizer = tokenizer;
    this.form = form;
    this.context = context;
    this.stopIds = form?.stopIds ?? new Set(stopIds);
    this.turns = [];
    this.open = null;
  }

  /**
   * The ids to run for a message: past turns, the message, and what opens the reply. The oldest turns are left out,
   * whole, until the ids and the reply fit the context.
   * @param {string} message
   * @param {number} reserve tokens left for the reply.
   * @param {{system?: string, drop?: boolean}} options `system`: a system prompt; without `drop` no turn is left out.
   * @returns {number[]}
   * @throws {GlinferError} the message is empty or too long alone, or the form refuses it.
   */
  prompt(message, reserve = 0, { system = "", drop = true } = {}) {
    const { form, context } = this;
    checkMessage(message);
    if (!form) return this.tokenizer.encode(message);
    const newest = { message, ids: form.encodeMessage(message), reply: [] };
    const room = context - reserve;
    let ids = [];
    for (let dropped = 0; dropped <= (drop ? this.turns.length : 0); dropped++) {
      const past = this.turns.slice(dropped);
      ids = form.prompt(past, newest, system);
      if (ids.length <= room) {
        this.open = { newest, past, think: form.beginsThoughts?.(ids) ?? false };
        return ids;
      }
    }
    const [what, mend] = drop || !this.turns.length ? ["message takes", "shorten the message or ask for a shorter reply"] : ["messages take", "leave the oldest ones out"];
    throw new GlinferError(
      `the ${what} ${ids.length} tokens and the reply at least ${reserve}, but the context holds ${context}; ${mend}`,
    );
  }

  /**
   * Completes the turn that `prompt` opened, without control tokens and thoughts.
   * @param {number[]} ids the tokens that the model wrote.
   */
  addReply(ids) {
    if (!this.form || !this.open) return;
    const splitter = this.splitter();
    const shown = [...ids, null].flatMap((id) => splitter(id));
    const reply = shown.filter(([kind]) => kind === "answer").map(([, id]) => id);
    this.turns = [...this.open.past, { ...this.open.newest, reply }];
    this.open = null;
  }

  /**
   * Replaces all turns by those of a conversation, up to its last message, which is the user's.
   * @param {string|{role: string, content: string}[]} messages a user's message; or messages, of which the first may be
   *   the system's, and those after it are the user's and the assistant's in turn.
   * @returns {{system: string, message: string}} the system prompt, and the last message.
   * @throws {GlinferError} a message is missing or out of turn.
   */
  restore(messages) {
    const { system, texts } = checkMessages(messages);
    const turns = [];
    for (let index = 0; index + 1 < texts.length; index += 2) {
      const ids = this.form.encodeMessage(texts[index]);
      turns.push({ message: texts[index], ids, reply: [], text: texts[index + 1] });
    }
    this.turns = turns;
    this.open = null;
    return { system, message: texts.at(-1) };
  }

  /**
   * Sorts the tokens of a reply, one by one, and null at its end: the tokens to show that are now certain, each after
   * its kind, "answer" or "thinking".
   * @returns {(id: number|null) => [string, number][]}
   */
  splitter() {
    const { form } = this;
    const marked = form?.marked?.(this.open?.think ?? false);
    let [kind, done] = ["answer", false];
    return (id) => {
      done ||= id === null || this.stopIds.has(id);
      if (marked) return done ? marked.finish() : marked.push(id);
      if (done) return [];
      if (id === form?.think) kind = "thinking";
      else if (id === form?.answer) kind = "answer";
      return this.tokenizer.controlIds.has(id) ? [] : [[kind, id]];
    };
  }

  /** Forgets all turns. */
  reset() {
    this.turns = [];
    this.open = null;
  }
}

/** The system prompt of a conversation, and the texts of its turns, of which the last is the user's. */
function checkMessages(messages) {
  const given = typeof messages === "string" ? [{ role: "user", content: messages }] : messages;
  if (!Array.isArray(given)) throw new GlinferError(`messages is ${shown(given)}; expected a string, or an array of role and content`);
  let system = "";
  const texts = [];
  for (const [index, message] of given.entries()) {
    const { role, content } = message ?? {};
    if (typeof content !== "string") throw new GlinferError(`message ${index} has the content ${shown(content)}; expected a string`);
    const expected = texts.length % 2 ? "assistant" : "user";
    if (role === "system" && index === 0) system = content;
    else if (role === expected) texts.push(content);
    else throw new GlinferError(`message ${index} has the role ${shown(role)}; expected ${index ? expected : "system or user"} there`);
  }
  if (!texts.length) throw new GlinferError("there is no user message; expected at least one");
  if (texts.length % 2 === 0) throw new GlinferError("the last message is the assistant's; expected the user's, to reply to");
  return { system, texts };
}
