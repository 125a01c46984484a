/**
 * Texts as the token ids of models that embed them, with the special tokens and the cuts of glinfer/text/encoder.py.
 */

import { GlinferError } from "../glinfer/errors.js";
import { Pipeline } from "../text/library.js";

/** Texts to token ids. */
export class WordTokenizer {
  /**
   * @param {object} json tokenizer.json.
   * @param {object} texts `embedding` of plan.json.
   * @throws {GlinferError} the library does not know such a tokenizer, or finds other tokens than Python's.
   */
  constructor(json, texts) {
    const { characters, before, after, most_tokens: most, lower, probes } = texts;
    Object.assign(this, { before, after, most, lower });
    try {
      this.library = new Pipeline(json, characters);
    } catch (error) {
      throw new GlinferError(`this model's tokenizer cannot be read here (${error.message}); export another model`);
    }
    const other = probes.find(([text, ids]) => this.encode(text).join() !== ids.join());
    if (other) {
      const text = JSON.stringify(other[0]);
      throw new GlinferError(`this browser finds other tokens than Python in ${text}; this model cannot embed texts here`);
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
    if (/\p{Surrogate}/u.test(text)) {
      throw new GlinferError("the text has half a surrogate pair, which is no character; take it out");
    }
    const read = this.lower ? text.toLowerCase() : text;
    return this.library.ids(read);
  }
}
