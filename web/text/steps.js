/**
 * The steps of a tokenizer.json, with the results of Python's library. Patterns and models are those of
 * @huggingface/tokenizers; this file implements where its results differ: spaces and digits of all of Unicode, ways to split,
 * words that begin a text, characters that a vocabulary lacks.
 */

import { BPE, SplitPreTokenizer, Unigram, WordPiece } from "../libraries/tokenizers.js";
import { CharacterMap } from "./charsmap.js";

const SPACE = /\p{White_Space}/gu;
const GPT2_WORDS = new RegExp(
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+|" +
    "\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+",
  "gu",
);
const WORDS = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\p{White_Space}]+/gu;
const PUNCTUATION = "\\p{P}\\u0021-\\u002F\\u003A-\\u0040\\u005B-\\u0060\\u007B-\\u007E";
const IDEOGRAPH =
  /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu;
/** The character that stands for each byte in a byte-level vocabulary. */
export const ALPHABET = byteLetters();

/**
 * Characters that BERT's normalizer and pre-tokenizer know, as Python's tables have them: insides of classes.
 * @typedef {{removed: string, marks: string, punctuation: string}} Characters
 * @typedef {{text: string, first: boolean}} Word `first`: it begins the whole text.
 */

/**
 * What a normalizer makes of a text.
 * @param {object|null} step `normalizer` of tokenizer.json.
 * @param {Characters|null} characters
 * @returns {(text: string) => string}
 * @throws {Error} the step is not known here.
 */
export function normalizerOf(step, characters = null) {
  switch (step?.type) {
    case undefined:
      return (text) => text;
    case "Sequence": {
      const steps = step.normalizers.map((each) => normalizerOf(each));
      return (text) => steps.reduce((found, normalize) => normalize(found), text);
    }
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return (text) => text.normalize(step.type);
    case "Lowercase":
      return lowered;
    case "StripAccents":
      return (text) => text.replace(/\p{M}/gu, "");
    case "Strip":
      return (text) => {
        const start = step.strip_left ? text.replace(/^\p{White_Space}+/u, "") : text;
        return step.strip_right ? start.replace(/\p{White_Space}+$/u, "") : start;
      };
    case "Replace": {
      const pattern = patternOf(step.pattern);
      return (text) => text.replace(pattern, () => step.content);
    }
    case "Prepend":
      return (text) => text && step.prepend + text;
    case "Precompiled": {
      const map = new CharacterMap(step.precompiled_charsmap);
      return (text) => map.normalize(text);
    }
    case "BertNormalizer":
      return bertNormalizer(step, characters);
    default:
      throw new Error(`its normalizer has ${step.type}`);
  }
}

function bertNormalizer(step, characters) {
  if (!characters) throw new Error("its normalizer has BertNormalizer among others");
  const removed = new RegExp(`[${characters.removed}\\p{Co}]`, "gu");
  const marks = new RegExp(`[${characters.marks}]`, "gu");
  const { clean_text: cleans, handle_chinese_chars: parts, lowercase, strip_accents: strips } = step;
  return (text) => {
    let found = cleans ? text.replace(removed, "").replace(SPACE, " ") : text;
    if (parts) found = found.replace(IDEOGRAPH, " $& ");
    if (strips ?? lowercase) found = found.normalize("NFD").replace(marks, "");
    return lowercase ? lowered(found) : found;
  };
}

/** Each character by itself, so that a Σ at the end of a word is one like any other. */
function lowered(text) {
  return Array.from(text, (each) => each.toLowerCase()).join("");
}

/**
 * How a pre-tokenizer cuts words into words.
 * @param {object|null} step `pre_tokenizer` of tokenizer.json.
 * @param {Characters|null} characters
 * @returns {(words: Word[]) => Word[]}
 * @throws {Error} the step is not known here.
 */
export function cutterOf(step, characters = null) {
  switch (step?.type) {
    case undefined:
      return (words) => words;
    case "Sequence": {
      const steps = step.pretokenizers.map((each) => cutterOf(each));
      return (words) => steps.reduce((found, cut) => cut(found), words);
    }
    case "Split":
      return splitting(patternOf(step.pattern), step.behavior, step.invert);
    case "ByteLevel": {
      const cut = step.use_regex ?? true ? splitting(GPT2_WORDS, "Isolated") : (words) => words;
      const spaced = (text) => (step.add_prefix_space && !text.startsWith(" ") ? ` ${text}` : text);
      return (words) => cut(words.map(({ text, first }) => ({ text: spaced(text), first }))).map(inBytes);
    }
    case "Digits":
      return splitting(/\p{N}/gu, step.individual_digits ? "Isolated" : "Contiguous");
    case "Metaspace":
      return metaspace(step);
    case "Whitespace":
      return splitting(WORDS, "Removed", true);
    case "WhitespaceSplit":
      return splitting(SPACE, "Removed");
    case "CharDelimiterSplit":
      return splitting(patternOf({ String: step.delimiter }), "Removed");
    case "Punctuation":
      return splitting(new RegExp(`[${PUNCTUATION}]`, "gu"), step.behavior ?? "Isolated");
    case "FixedLength":
      return splitting(new RegExp(`[^]{1,${step.length}}`, "gu"), "Isolated");
    case "BertPreTokenizer": {
      const spaces = splitting(SPACE, "Removed");
      const signs = splitting(new RegExp(`[${characters?.punctuation ?? PUNCTUATION}]`, "gu"), "Isolated");
      return (words) => signs(spaces(words));
    }
    default:
      throw new Error(`its pre_tokenizer has ${step.type}`);
  }
}

function metaspace({ replacement, prepend_scheme: scheme = "always", split = true }) {
  const cut = split ? splitting(patternOf({ String: replacement }), "MergedWithNext") : (words) => words;
  return (words) =>
    cut(
      words.map(({ text, first }) => {
        const marked = text.replaceAll(" ", () => replacement);
        const begins = scheme === "always" || (scheme === "first" && first);
        return { text: begins && !marked.startsWith(replacement) ? replacement + marked : marked, first };
      }),
    );
}

/** The characters that stand for the bytes of a word. */
function inBytes({ text, first }) {
  return { text: Array.from(new TextEncoder().encode(text), (byte) => ALPHABET[byte]).join(""), first };
}

function byteLetters() {
  const shown = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let more = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(shown(byte) ? byte : more++));
}

function patternOf({ String: text = undefined, Regex: expression = undefined }) {
  const pattern = expression === undefined ? { String: text } : { Regex: folded(expression) };
  return new SplitPreTokenizer({ pattern, invert: true }).pattern;
}

/** An expression whose letters of either case match ſ and the sign of Kelvin too, as Oniguruma's do. */
function folded(expression) {
  const alike = { s: "[sſ]", S: "[sſ]", k: "[k\u212a]", K: "[k\u212a]" };
  return expression.replace(/\(\?i:([^()[\]\\]*)\)/g, (_, inside) => `(?i:${inside.replace(/[sk]/gi, (letter) => alike[letter])})`);
}

/** Cuts at the matches of a pattern; behaviours are those of Rust's `SplitDelimiterBehavior`. */
function splitting(pattern, behavior, inverts = false) {
  return (words) =>
    words.flatMap((word) => {
      const spans = spansOf(word.text, pattern, inverts);
      return joined(spans, behavior)
        .filter(([start, end]) => start < end)
        .map(([start, end]) => ({ text: word.text.slice(start, end), first: word.first && start === 0 }));
    });
}

/** A text as spans, [start, end, whether it is a delimiter]. */
function spansOf(text, pattern, inverts) {
  const spans = [];
  let at = 0;
  for (const { 0: match, index } of text.matchAll(pattern)) {
    if (at < index) spans.push([at, index, inverts]);
    at = index + match.length;
    spans.push([index, at, !inverts]);
  }
  if (at < text.length) spans.push([at, text.length, inverts]);
  return spans;
}

function joined(spans, behavior) {
  switch (behavior) {
    case "Removed":
      return spans.filter(([, , delimits]) => !delimits);
    case "Isolated":
      return spans;
    case "Contiguous":
      return merged(spans, (delimits, before) => delimits === before);
    case "MergedWithPrevious":
      return merged(spans, (delimits, before) => delimits && before === false);
    case "MergedWithNext": {
      const mirrored = (each) => each.map(([start, end, delimits]) => [-end, -start, delimits]).reverse();
      return mirrored(merged(mirrored(spans), (delimits, before) => delimits && before === false));
    }
    default:
      throw new Error(`its pre_tokenizer splits by ${behavior}`);
  }
}

/** Spans of which some join the one before. */
function merged(spans, joins) {
  const found = [];
  let before = null;
  for (const [start, end, delimits] of spans) {
    if (joins(delimits, before)) found.at(-1)[1] = end;
    else found.push([start, end, delimits]);
    before = delimits;
  }
  return found;
}

/**
 * How a model makes token ids of a word.
 * @param {object} model `model` of tokenizer.json.
 * @returns {(word: string) => number[]}
 * @throws {Error} the model is not known here.
 */
export function modelOf(model) {
  const kinds = { BPE, Unigram, WordPiece };
  if (!Object.hasOwn(kinds, model.type)) throw new Error(`its model is ${model.type}`);
  const found = new kinds[model.type](model);
  const { tokens_to_ids: ids } = found;
  const bytes = model.byte_fallback ? byteTokens(ids) : null;
  const unknown = found.unk_token_id;
  // Where there is nothing to stand for a character, Python's library takes it out before it merges.
  const drops = model.type === "BPE" && !model.byte_fallback && (model.unk_token ?? null) === null;
  return (word) => {
    const known = drops && !(model.ignore_merges && ids.has(word)) ? Array.from(word).filter((each) => ids.has(each)).join("") : word;
    return found([known]).flatMap((token) => {
      const id = ids.get(token);
      if (id !== undefined) return [id];
      return (model.type === "Unigram" && bytes && Array.from(new TextEncoder().encode(token), (byte) => bytes[byte])) || [unknown];
    });
  };
}

/** The ids of all bytes, or null where one is missing. */
function byteTokens(ids) {
  const found = Array.from({ length: 256 }, (_, byte) => ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`));
  return found.includes(undefined) ? null : found;
}
