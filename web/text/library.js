/**
 * Tokenizers of Hugging Face and of GGUF files, with the ids of Python's library. The browser's side of
 * glinfer/text/tokenizers/ and of the added tokens in the Rust library `tokenizers`.
 */

import { checkOptions, checkText, GlinferError } from "../glinfer/errors.js";
import { bytesOf } from "../glinfer/source.js";
import { stripEnd, stripStart } from "./spaces.js";
import { cutterOf, modelOf, normalizerOf } from "./steps.js";

const WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
const ENDS_WITH_WORD = new RegExp(`${WORD}$`, "u");
const STARTS_WITH_WORD = new RegExp(`^${WORD}`, "u");

/** A tokenizer.json: added tokens first, then normalizer, pre-tokenizer and model over what is left between them. */
export class Pipeline {
  /**
   * @param {object} json tokenizer.json; its post-processor is not looked at.
   * @param {import("./steps.js").Characters|null} characters see steps.js.
   * @param {boolean} plain whether special tokens are ordinary text.
   * @throws {Error} it has a step that is not known here.
   */
  constructor(json, characters = null, plain = false) {
    const kinds = [json.normalizer?.type, json.pre_tokenizer?.type];
    const own = kinds.join() === "BertNormalizer,BertPreTokenizer" ? characters : null;
    this.normalize = normalizerOf(json.normalizer, own);
    this.cut = cutterOf(json.pre_tokenizer, own);
    this.model = modelOf(json.model);
    this.plain = plain;
    const normalized = json.added_tokens.filter((token) => token.normalized);
    this.early = matcherOf(json.added_tokens.filter((token) => !token.normalized).map((token) => [token.content, token]));
    this.late = matcherOf(normalized.map((token) => [this.normalize(token.content), token]));
  }

  /** The ids of a text, with nothing put around it. */
  ids(text) {
    return this.found(text, this.early, 0).flatMap(({ id, text: part, at }) => {
      if (id !== null) return [id];
      return this.found(this.normalize(part), this.late, at).flatMap((piece) =>
        piece.id === null ? this.idsOf(piece) : [piece.id],
      );
    });
  }

  idsOf({ text, at }) {
    return this.cut([{ text, first: at === 0 }]).flatMap((word) => this.model(word.text));
  }

  /** A text cut at added tokens, each with the spaces that it takes; where its parts lie, counted from `start`. */
  found(text, { pattern, tokens }, start) {
    const parts = [];
    let at = 0;
    const between = (end) => at < end && parts.push({ id: null, text: text.slice(at, end), at: start + at });
    for (const { 0: match, index } of text.matchAll(pattern)) {
      const token = tokens.get(match);
      if (this.plain && token.special) continue;
      let [first, end] = [index, index + match.length];
      if (token.single_word && (ENDS_WITH_WORD.test(text.slice(0, first)) || STARTS_WITH_WORD.test(text.slice(end)))) continue;
      if (token.lstrip) first = Math.max(at, trimmedEnd(text.slice(0, first)).length);
      if (token.rstrip) end += text.slice(end).length - trimmedStart(text.slice(end)).length;
      between(first);
      parts.push({ id: token.id, text: match, at: start + first });
      at = end;
    }
    between(text.length);
    return parts;
  }
}

/** The longest of several texts at the earliest index. */
function matcherOf(entries) {
  const texts = entries.map(([text]) => text).filter((text) => text);
  const escaped = texts
    .sort((one, other) => other.length - one.length)
    .map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  return { pattern: new RegExp(escaped.join("|") || "(?!)", "gu"), tokens: new Map(entries) };
}

function trimmedStart(text) {
  return text.replace(/^\p{White_Space}+/u, "");
}

function trimmedEnd(text) {
  return text.replace(/\p{White_Space}+$/u, "");
}

/**
 * A tokenizer.json whose vocabulary has no special tokens, as `HfModel._without_special` of
 * glinfer/text/tokenizers/huggingface.py makes it: they get names that no text has. A single character keeps its own.
 * @param {object} json
 * @param {Record<string, number>} control ids of the special tokens by their texts.
 * @returns {object}
 */
function withoutSpecial(json, control) {
  const names = new Map(
    Object.entries(control)
      .filter(([text]) => Array.from(text).length > 1)
      .map(([text, id]) => [text, ` ${id} `]),
  );
  const named = (text) => names.get(text) ?? text;
  const added = json.added_tokens.map((token) => ({ ...token, content: named(token.content) }));
  const model = { ...json.model };
  if (Array.isArray(model.vocab)) {
    model.vocab = model.vocab.map(([piece, score]) => [named(piece), score]);
  } else {
    model.vocab = { ...model.vocab };
    const renamed = [...names].filter(([text]) => Object.hasOwn(model.vocab, text)).map(([text, name]) => [name, model.vocab[text]]);
    for (const text of names.keys()) delete model.vocab[text];
    for (const [name, id] of renamed) model.vocab[name] = id;
    const begins = new Set(Array.from(names.keys(), (text) => text[0])); // of tens of thousands of merges few can be any of them
    const spells = ([left, right]) =>
      (begins.has(left[0]) && (names.has(left) || names.has(left + right))) || (begins.has(right[0]) && names.has(right));
    model.merges &&= model.merges.filter((merge) => !spells(merge));
    model.unk_token &&= named(model.unk_token);
  }
  return { ...json, added_tokens: added, model };
}

/** Text to token ids and back; see `Tokenizer` in ../glinfer/tokenizer.js. */
export class LibraryTokenizer {
  /**
   * @param {object} data the site's tokenizer.json: that of the library, the bytes of each id in base64, control tokens,
   *   the tokens around a text, and texts with their ids, with which a tokenizer is tried out before it is used.
   * @param {"plain"|"whole"} first the pipeline that is tried out at once: that of messages, or that of whole texts.
   * @throws {GlinferError} it is of a kind that is not known here, or finds other ids than Python's.
   */
  constructor(data, first = "plain") {
    const { library, characters, pieces, control, prefix, before, after, probes } = data;
    this.library = library;
    this.characters = characters;
    this.prefix = prefix;
    this.before = before;
    this.after = after;
    this.probes = probes;
    this.pieces = pieces; // in base64: few of them are ever asked for
    this.control = new Map(Object.entries(control));
    this.controlIds = new Set(this.control.values());
    const takes = (side) => new Set(library.added_tokens.filter((token) => token.special && token[side]).map(({ id }) => id));
    this.takesLeft = takes("lstrip");
    this.takesRight = takes("rstrip");
    this.made = new Map();
    this.pipeline(first);
  }

  /** The pipeline of all texts, of texts without special tokens, or of those behind a control token. */
  pipeline(name) {
    if (!this.made.has(name)) {
      const never = JSON.stringify(this.library.pre_tokenizer)?.includes('"prepend_scheme":"first"') ?? false;
      if (name === "later" && !never) return this.pipeline("plain");
      const plain = name !== "whole";
      let json = this.library;
      if (plain) json = withoutSpecial(json, Object.fromEntries(this.control));
      if (name === "later") json = { ...json, pre_tokenizer: neverPrepending(json.pre_tokenizer) };
      let made;
      try {
        made = new Pipeline(json, this.characters, plain);
      } catch (error) {
        throw new GlinferError(`this model's tokenizer cannot be read here (${error.message}); give token ids`);
      }
      const other = this.probes.find((probe) => probe[name] && made.ids(probe.text).join() !== probe[name].join());
      if (other) {
        throw new GlinferError(`this browser tokenizes ${JSON.stringify(other.text)} differently from Python; give token ids`);
      }
      this.made.set(name, made);
    }
    return this.made.get(name);
  }

  /**
   * Token ids of a text. Without `allowSpecial` none is a control token's, and nothing is put around the text.
   * @param {string} text
   * @param {{allowSpecial?: boolean}} options
   * @returns {number[]}
   * @throws {GlinferError} the text has half a surrogate pair, which UTF-8 cannot express.
   */
  encode(text, options = {}) {
    const { allowSpecial = true } = checkOptions(options, ["allowSpecial"]);
    checkText(text);
    const ids = this.pipeline(allowSpecial ? "whole" : "plain").ids(text);
    return allowSpecial ? [...this.before, ...ids, ...this.after] : ids;
  }

  /**
   * Token ids of a text in which control tokens stand as ids; texts side by side are one text. The browser's side of
   * `Tokenizer.encode_mixed`.
   * @param {(string|number)[]} parts
   * @returns {number[]}
   * @throws {GlinferError} as `encode`.
   */
  encodeMixed(parts) {
    const ids = [];
    let last = null;
    let text = "";
    for (const part of [...parts, null]) {
      if (typeof part === "string") {
        text += part;
        continue;
      }
      if (this.takesRight.has(last)) text = stripStart(text);
      if (this.takesLeft.has(part)) text = stripEnd(text);
      checkText(text);
      if (text) ids.push(...this.pipeline(last === null ? "plain" : "later").ids(text));
      if (part !== null) ids.push(part);
      [last, text] = [part, ""];
    }
    return ids;
  }

  /**
   * The text of some ids, with U+FFFD for bytes that are no UTF-8, and without the space that is put before a text.
   * @param {Iterable<number>} ids
   * @returns {string}
   */
  decode(ids) {
    const stream = this.stream();
    let text = "";
    for (const id of ids) text += stream.push(id);
    text += stream.finish();
    const spaces = /^ */.exec(text)[0].length;
    return text.slice(Math.min(this.prefix, spaces));
  }

  /**
   * Turns tokens into text as they come: a character that is split across tokens waits for its last byte.
   * @returns {{push: (id: number) => string, finish: () => string}}
   */
  stream() {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    // A model may have more rows than there are tokens: the others have no bytes.
    const push = (id) => (this.pieces[id] ? decoder.decode(bytesOf(this.pieces[id]), { stream: true }) : "");
    return { push, finish: () => decoder.decode() };
  }
}

function neverPrepending(step) {
  return JSON.parse(JSON.stringify(step).replaceAll('"prepend_scheme":"first"', '"prepend_scheme":"never"'));
}
