/**
 * Conversations as token ids, so that no message can forge a control token: Gab's chat form, and plain continuation
 * for models without one. The browser's side of glinfer/text/chat.py.
 */

import { GlinferError } from "./errors.js";

/** Gab's form: `<|user|>MESSAGE<|end|><|assistant|>REPLY<|end|>`, as many of the newest turns as fit. */
export class Conversation {
  /**
   * @param {Tokenizer} tokenizer
   * @param {{user: number, assistant: number, end: number, think: number|null}|null} chat `model.chat` of the plan;
   *   null continues each message as plain text.
   * @param {number} context how many tokens the model holds.
   * @param {number[]} stopIds tokens that end a reply.
   */
  constructor(tokenizer, chat, context, stopIds = []) {
    Object.assign(this, { tokenizer, chat, context });
    this.stopIds = new Set(chat ? [...stopIds, chat.end, chat.user] : stopIds);
    this.answerId = tokenizer.control.get("</think>") ?? chat?.assistant;
    this.turns = [];
    this.open = null;
  }

  /**
   * The ids to run for a message: past turns, the message, and the token that opens the reply. The oldest turns are
   * left out, whole, until the ids and the reply fit the context.
   * @param {string} message
   * @param {number} reserve how many tokens the reply may take.
   * @returns {number[]}
   * @throws {GlinferError} the message is empty, or alone it does not fit.
   */
  prompt(message, reserve = 0) {
    if (!message) throw new GlinferError("the message is empty; write at least one character");
    const ids = this.tokenizer.encode(message, { allowSpecial: false });
    if (!this.chat) return ids;
    const room = this.context - reserve;
    for (let dropped = 0; dropped <= this.turns.length; dropped++) {
      const past = this.turns.slice(dropped).flatMap((turn) => [...this.opening(turn.ids), ...turn.reply, this.chat.end]);
      const whole = [...past, ...this.opening(ids)];
      if (whole.length <= room) {
        this.open = { ids, dropped };
        return whole;
      }
    }
    throw new GlinferError(
      `the message takes ${ids.length + 3} tokens and ${reserve} are reserved for the reply, but the context holds ` +
        `${this.context}; shorten the message or ask for a shorter reply`,
    );
  }

  opening(ids) {
    return [this.chat.user, ...ids, this.chat.end, this.chat.assistant];
  }

  /**
   * Completes the turn that `prompt` opened, without control tokens and without what the model was thinking.
   * @param {number[]} ids the tokens that the model wrote.
   */
  addReply(ids) {
    if (!this.chat || !this.open) return;
    const splitter = this.splitter();
    const reply = ids.filter((id) => splitter(id) === "answer");
    this.turns = [...this.turns.slice(this.open.dropped), { ids: this.open.ids, reply }];
    this.open = null;
  }

  /**
   * Says of each token of a reply, as it comes, what it is: "answer", "thinking", "control" (not to be shown) or
   * "end".
   * @returns {(id: number) => string}
   */
  splitter() {
    let kind = "answer";
    let done = false;
    return (id) => {
      done ||= this.stopIds.has(id);
      if (done) return "end";
      if (this.chat && id === this.chat.think) kind = "thinking";
      else if (id === this.answerId) kind = "answer";
      return this.tokenizer.controlIds.has(id) ? "control" : kind;
    };
  }

  /** Forgets all turns. */
  reset() {
    this.turns = [];
    this.open = null;
  }
}
