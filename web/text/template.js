/**
 * The chat form of a Jinja template, in which no message can forge a control token. The browser's side of
 * glinfer/text/templates.py, and of `TemplateChat` in glinfer/text/chat.py.
 *
 * Texts of JavaScript cannot tell their origin, so a mark (a character that nobody uses) does: around each message and in
 * each control token that it spells. If the template makes another text then, it looks at ends or lengths of messages. In
 * that case the marks stand before the control tokens of the template instead, and the messages are as they were.
 */

import { checkMessage } from "../glinfer/chat.js";
import { GlinferError } from "../glinfer/errors.js";
import { Jinja } from "./jinja.js";
import { MarkedReply, endsWith, marksOf } from "./marks.js";
import { strip } from "./spaces.js";

/** @typedef {import("./library.js").LibraryTokenizer} LibraryTokenizer */

const FIRST_MARK = 0xf0000; // of Unicode's private use: no vocabulary has a meaning for them
const LAST_MARK = 0xffffd;

/** A model's form, as `chat` of plan.json has it; see `ChatForm` in ../glinfer/chat.js. */
export class TemplateForm {
  think = null;
  answer = null;

  /**
   * @param {LibraryTokenizer} tokenizer
   * @param {{template: string, tokens: Record<string, string>, stop_ids: number[], system: boolean,
   *   probes: {messages: object[], ids: number[]|null}[], clock: number[]}} chat `tokens`: what the template can name;
   *   `probes`: conversations with Python's ids, null where it refuses them; `clock`: when that was, from the year to the minute.
   * @throws {GlinferError} the template cannot be rendered here, or not as in Python.
   */
  constructor(tokenizer, { template, tokens, stop_ids: stopIds, system, probes, clock }) {
    this.tokenizer = tokenizer;
    this.tokens = tokens;
    this.source = template;
    this.takesSystem = system;
    this.stopIds = new Set(stopIds);
    this.marks = marksOf(template);
    const names = Array.from(tokenizer.control.keys()).filter((name) => Array.from(name).length > 1);
    const longest = names.sort((one, other) => Array.from(other).length - Array.from(one).length);
    const escaped = longest.map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|") || "(?!)";
    this.escaped = escaped;
    this.names = new RegExp(`(${escaped})`, "gu");
    this.inside = new RegExp(`(?=(?:${escaped}))(.)`, "gsu");
    try {
      this.program = new Jinja(template);
    } catch (error) {
      throw new GlinferError(`this model's chat template cannot be read here (${error.message})`);
    }
    const [year, month, ...rest] = clock;
    const then = new Date(year, month - 1, ...rest);
    for (const { messages, ids } of probes) {
      let found = null;
      let why = "other tokens than in Python";
      try {
        found = this.ids(messages, then);
      } catch (error) {
        why = error.message;
      }
      if (found?.join() !== ids?.join()) throw new GlinferError(`this model's chat template cannot be rendered here (${why})`);
    }
  }

  /** See `ChatForm`. */
  beginsThoughts(ids) {
    return this.marks !== null && endsWith(ids, this.marks.opening, this.tokenizer);
  }

  /** See `ChatForm`. */
  marked(think) {
    return this.marks && new MarkedReply(this.marks, think, this.tokenizer);
  }

  /** See `ChatForm`. */
  encodeMessage(message) {
    return this.tokenizer.encode(checkMessage(message), { allowSpecial: false });
  }

  /** See `ChatForm`. */
  prompt(turns, newest, system = "") {
    const past = turns.flatMap((turn) => [
      { role: "user", content: turn.message },
      { role: "assistant", content: turn.text ?? this.tokenizer.decode(turn.reply) },
    ]);
    const first = system ? [{ role: "system", content: system }] : [];
    const messages = [...first, ...past, { role: "user", content: newest.message }];
    try {
      return this.ids(messages);
    } catch (error) {
      if (error instanceof GlinferError) throw error;
      throw new GlinferError(`the model's chat template refuses this conversation: ${error.message}`);
    }
  }

  /**
   * Token ids of a conversation, and of what opens the reply to it.
   * @param {{role: string, content: string}[]} messages
   * @param {Date} now
   * @returns {number[]}
   * @throws {Error} the template refuses them.
   */
  ids(messages, now = new Date()) {
    const used = new Set([this.source, ...messages.flatMap((message) => Object.entries(message).flat())].flatMap((text) => Array.from(text)));
    let code = FIRST_MARK;
    while (used.has(String.fromCodePoint(code)) && code < LAST_MARK) code++;
    const mark = String.fromCodePoint(code);
    const split = (text) => text.replace(this.inside, (letter) => letter + mark);
    const marked = messages.map(({ role, content }) => {
      const inner = strip(content);
      const start = content.indexOf(inner);
      const whole = inner && content.slice(0, start) + mark + split(inner) + mark + content.slice(start + inner.length);
      return { role: split(role), content: whole || content };
    });
    const whole = this.render(messages, now);
    const plain = (text) => text.replaceAll(mark, "");
    let [text, names] = [this.render(marked, now), this.names];
    if (plain(text) !== whole) {
      const before = (constant) => constant.replace(this.names, (name) => mark + name);
      const tokens = Object.fromEntries(Object.entries(this.tokens).map(([name, token]) => [name, before(token)]));
      text = this.render(messages, now, new Jinja(this.source, before), tokens);
      if (plain(text) !== whole) throw new GlinferError("this model's chat template looks at its own control tokens");
      names = new RegExp(`${mark}(${this.escaped})`, "gu");
    }
    const pieces = text.split(names);
    return this.tokenizer.encodeMixed(pieces.map((piece, index) => (index % 2 ? this.tokenizer.control.get(piece) : plain(piece))));
  }

  /** The text of a conversation, and of what opens the reply to it. */
  render(messages, now = new Date(), program = this.program, tokens = this.tokens) {
    const given = { ...tokens, messages, add_generation_prompt: true, tools: null, documents: null };
    return program.render(given, now);
  }
}
