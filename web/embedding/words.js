/**
 * Texts as the token ids of models that embed them: @huggingface/tokenizers, with the special tokens and the cuts of
 * glinfer/text/encoder.py, and BERT's characters as Python's tokenizers has them.
 */

import { GlinferError } from "../glinfer/errors.js";
import { BertNormalizer, BertPreTokenizer, Tokenizer } from "../libraries/tokenizers.js";

/** BERT's blocks of ideographs, around which words end. */
const IDEOGRAPH =
  /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu;

/** The normalizer where the library differs from Python's: characters of two units, a Σ at a word's end, new Unicode. */
class Normalizer extends BertNormalizer {
  /**
   * @param {object} config `normalizer` of tokenizer.json.
   * @param {{removed: string, marks: string}} characters insides of classes of characters.
   */
  constructor(config, { removed, marks }) {
    super(config);
    this.removed = new RegExp(`[${removed}\\p{Co}]`, "gu");
    this.marks = new RegExp(`[${marks}]`, "gu");
  }

  normalize(text) {
    const { clean_text: cleans, handle_chinese_chars: parts, lowercase, strip_accents: strips } = this.config;
    let found = cleans ? text.replace(this.removed, "").replace(/\s/gu, " ") : text;
    if (parts) found = found.replace(IDEOGRAPH, " $& ");
    if (strips ?? lowercase) found = found.normalize("NFD").replace(this.marks, "");
    return lowercase ? Array.from(found, (each) => each.toLowerCase()).join("") : found;
  }
}

/** The pre-tokenizer with punctuation as Python's has it. */
class PreTokenizer extends BertPreTokenizer {
  /** @param {string} punctuation the inside of a class of characters. */
  constructor(punctuation) {
    super();
    this.pattern = new RegExp(`[^\\s${punctuation}]+|[${punctuation}]`, "gu");
  }
}

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
      this.library = new Tokenizer(json, {});
    } catch (error) {
      throw new GlinferError(`this model's tokenizer cannot be read here (${error.message}); export another model`);
    }
    if (characters) {
      this.library.normalizer = new Normalizer(json.normalizer, characters);
      this.library.pre_tokenizer = new PreTokenizer(characters.punctuation);
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
    return this.library.encode(read, { add_special_tokens: false }).ids;
  }
}
