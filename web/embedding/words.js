/**
 * Texts as the token ids of models that embed them, with the special tokens and the cuts of glinfer/text/encoder.py.
 */

import { checkText, GlinferError } from "../glinfer/errors.js";
import { Pipeline } from "../text/library.js";

/** Texts to token ids. */
export class WordTokenizer {
  /**
   * @param {object} json tokenizer.json.
   * @param {object} texts `embedding` of plan.json.
   * @throws {GlinferError} the library does not know such a tokenizer, or finds other tokens than Python's.
   */
  constructor(json, texts) {
    const { characters, before, after, most_tokens: most, lower, probes, ranks } = texts;
    this.before = before;
    this.after = after;
    this.most = most;
    this.lower = lower;
    this.ranks = ranks;
    try {
      this.library = new Pipeline(json, characters);
    } catch (error) {
      throw new GlinferError(`this model's tokenizer cannot be read here (${error.message}); export another model`);
    }
    const isOther = ([query, text, ids, types]) => {
      const found = this.encodePair(query, text);
      return found.ids.join() !== ids.join() || found.types.join() !== types.join();
    };
    const other = probes.find(([text, ids]) => this.encode(text).join() !== ids.join()) ?? ranks?.probes.find(isOther);
    if (other) {
      const text = JSON.stringify(other[0]);
      throw new GlinferError(`this browser tokenizes ${text} differently from Python; this model cannot embed texts here`);
    }
  }

  /**
   * The ids of a text with the special tokens around them, cut at its end to the tokens that the model takes.
   * @param {string} text
   * @returns {number[]}
   * @throws {GlinferError} the text has half a surrogate pair.
   */
  encode(text) {
    const room = this.most - this.before.length - this.after.length;
    return [...this.before, ...this.pieces(text).slice(0, room), ...this.after];
  }

  /**
   * The ids and types of a query followed by a text, cut as by Python's `TextEncoder`: the longer one first, or only the
   * text where the model has a form.
   * @param {string} query
   * @param {string} text
   * @returns {{ids: number[], types: number[]}}
   * @throws {GlinferError} a text has half a surrogate pair, or the query leaves no room.
   */
  encodePair(query, text) {
    const { form, before, between, after, types } = this.ranks;
    if (form) return this.framed(form, query, text);
    const [first, second] = [this.pieces(query), this.pieces(text)];
    const room = this.most - before.length - between.length - after.length;
    const [ofFirst, ofSecond] = roomOf(first.length, second.length, room);
    const typed = (ids, type) => ids.map((id) => [id, type]);
    const marked = [
      ...before,
      ...typed(first.slice(0, ofFirst), types[0]),
      ...between,
      ...typed(second.slice(0, ofSecond), types[1]),
      ...after,
    ];
    return { ids: marked.map(([id]) => id), types: marked.map(([, type]) => type) };
  }

  framed(form, query, text) {
    const mark = form.indexOf("{text}");
    const parts = [form.slice(0, mark), form.slice(mark + "{text}".length)];
    const [start, end] = parts.map((part) => part.replaceAll("{query}", () => this.read(query)));
    const behind = this.library.ids(end);
    const room = this.most - behind.length;
    const taken = this.library.ids(start).length;
    if (taken >= room) {
      throw new GlinferError(`the query and the prompt around it have ${taken + behind.length} tokens; expected fewer than ${this.most}`);
    }
    const ids = [...this.library.ids(start + this.read(text)).slice(0, room), ...behind];
    return { ids, types: ids.map(() => 0) };
  }

  /**
   * Whether all tokens of a text are embedded.
   * @param {string} text
   * @returns {boolean}
   */
  fits(text) {
    return this.before.length + this.pieces(text).length + this.after.length <= this.most;
  }

  /** How many tokens of a text behind a prompt are the prompt's, those before it included. */
  lengthOf(prompt) {
    return this.encode(prompt).length - this.after.length;
  }

  pieces(text) {
    return this.library.ids(this.read(text));
  }

  /** A text as it is encoded. */
  read(text) {
    checkText(text);
    return this.lower ? text.toLowerCase() : text;
  }
}

/** How many tokens of two texts stay, of which the longer one is cut first; as Rust's `LongestFirst`. */
function roomOf(first, second, room) {
  if (first + second <= room) return [first, second];
  let short = Math.min(first, second);
  let long = Math.max(short, room - short);
  if (short + long > room) [short, long] = [Math.floor(room / 2), Math.floor(room / 2) + (room % 2)];
  return first > second ? [long, short] : [short, long];
}
