/**
 * The tokenizer and the chat form that a GGUF file's metadata describes, as the site's tokenizer.json and `model` of plan.json
 * have them. The browser's side of glinfer/text/tokenizers/gguf.py and glinfer/export/texts.py, for byte-level BPE and
 * SentencePiece's BPE and Unigram. WordPiece is missing: only models that embed texts have it.
 */

import { GlinferError } from "../glinfer/errors.js";
import { Jinja } from "../text/jinja.js";
import { ALPHABET } from "../text/steps.js";
import { quoted, Unread } from "./gguf.js";

const PREFIX = "tokenizer.ggml.";
const [UNKNOWN, CONTROL, USER_DEFINED, BYTE] = [2, 3, 4, 6]; // types of tokens
const KINDS = {
  gpt2: ["BPE of bytes", byteLevel],
  llama: ["SentencePiece's BPE", pieceLevel],
  gemma4: ["SentencePiece's BPE with merges", pieceLevel],
  t5: ["SentencePiece's Unigram", scored],
};
const USUAL_IDS = { llama: { bos: 1, eos: 2, unknown: 0 }, t5: { eos: 1, unknown: 2 } };
const PIECES = ["llama", "gemma4"]; // kinds with bytes as tokens
const NAMED = ["bos", "eos", "eot", "eom", "unknown"];
const MERGES = [4, 1 << 16]; // for each token, and for all
const FALLBACK = /^<0x([0-9A-F]{2})>$/i;
const SYSTEM = "Be kind.";

/** The lists and settings of a vocabulary, checked. */
class Vocabulary {
  constructor({ source, metadata }, { vocabulary, limits }) {
    this.source = source;
    this.metadata = metadata;
    this.known = vocabulary;
    const kind = this.value("model");
    if (typeof kind !== "string" || !Object.hasOwn(KINDS, kind)) {
      const found = [undefined, "none", "no_vocab"].includes(kind) ? "no tokenizer" : `a tokenizer of kind ${quoted(kind)}`;
      const words = Object.entries(KINDS).map(([name, [each]]) => `'${name}' (${each})`);
      throw this.error(`found ${found}; expected one of the kinds ${words.join(", ")}`);
    }
    this.kind = kind;
    this.tokens = this.list("tokens", "string").map((text, token) => text || `[EMPTY_${token}]`);
    if (!this.tokens.length) throw this.error("its vocabulary is empty");
    if (this.tokens.some((text) => text.length > 2 * limits.token_characters)) {
      throw this.error(`a token exceeds the limit of ${limits.token_characters} characters`);
    }
    if (this.tokens.reduce((sum, text) => sum + text.length, 0) > 2 * limits.vocabulary_characters) {
      throw this.error(`its tokens have more than ${limits.vocabulary_characters} characters together; expected fewer`);
    }
    this.ids = new Map();
    this.twice = new Set();
    for (const [token, text] of this.tokens.entries()) {
      if (this.ids.has(text)) this.twice.add(token);
      else this.ids.set(text, token);
    }
    this.typed = this.value("token_type") !== undefined;
    this.types = this.typed ? this.list("token_type", "number", this.tokens.length) : [];
    this.named = new Map();
    for (const name of NAMED) {
      const found = this.value(`${name}_token_id`) ?? USUAL_IDS[kind]?.[name];
      if (found !== undefined && !Number.isInteger(found)) throw this.error(`${PREFIX}${name}_token_id is ${quoted(found)}; expected a token id`);
      if (found >= 0 && found < this.tokens.length) this.named.set(name, found); // in some files an id outside means none
    }
    const all = Array.from(this.tokens.keys());
    const isNamed = new Set(this.named.values());
    this.control = all.filter((token) => this.types[token] === CONTROL || this.types[token] === UNKNOWN || isNamed.has(token));
    this.isControl = new Set(this.control);
    this.defined = all.filter((token) => this.types[token] === USER_DEFINED && !this.isControl.has(token));
  }

  value(name) {
    return this.metadata.get(PREFIX + name);
  }

  error(found) {
    return new GlinferError(`${this.source}: ${found}; use token ids with this model`);
  }

  list(name, type, count = undefined) {
    const found = this.value(name);
    if (!Array.isArray(found) || found.some((each) => typeof each !== type)) {
      const what = found === undefined ? "missing" : found instanceof Unread ? found.words : "of another type";
      throw this.error(`${PREFIX}${name} is ${what}; expected a list of ${type}s`);
    }
    if (count !== undefined && found.length !== count) throw this.error(`${PREFIX}${name} has ${found.length} elements for ${count} tokens`);
    return found;
  }

  flag(name, usual) {
    const found = this.value(name) ?? usual;
    if (typeof found !== "boolean") throw this.error(`${PREFIX}${name} is ${quoted(found)}; expected true or false`);
    return found;
  }

  isByte(token) {
    return this.typed ? this.types[token] === BYTE : PIECES.includes(this.kind) && FALLBACK.test(this.tokens[token]);
  }

  /** Whether a space precedes every text. */
  get beginsWithSpace() {
    return this.kind !== "gpt2" && this.flag("add_space_prefix", this.kind !== "gemma4");
  }

  /** The ids before and after a text. */
  get around() {
    const begins = this.flag("add_bos_token", PIECES.includes(this.kind) || this.known.begin_with_bos.includes(this.value("pre")));
    const ids = (wanted, name) => (wanted && this.named.has(name) ? [this.named.get(name)] : []);
    return [ids(begins, "bos"), ids(this.flag("add_eos_token", this.kind === "t5"), "eos")];
  }

  /** The ids that end a text: those that the file names, and control tokens with well-known spellings. */
  get stops() {
    const { ends, ends_a_message: message, ends_a_reply: reply } = this.known;
    const texts = new Set(this.control.map((token) => this.tokens[token]));
    const several = reply.every((text) => texts.has(text)); // the end of one message does not end such a reply
    const found = this.control.filter((token) => ends.includes(this.tokens[token]) && !(several && this.tokens[token] === message));
    const named = ["eos", "eot", "eom"].filter((name) => this.named.has(name)).map((name) => this.named.get(name));
    return [...new Set([...named, ...found])];
  }
}

/** The merges that the file lists, checked against its tokens. */
function listedMerges(vocabulary) {
  const { ids } = vocabulary;
  return vocabulary.list("merges", "string").map((text, number) => {
    const border = text.indexOf(" ", 1); // a space at the beginning belongs to the left token
    const pair = border > 0 ? [text.slice(0, border), text.slice(border + 1)] : [text, ""];
    const lacks = [...pair, pair.join("")].find((each) => !ids.has(each));
    if (lacks !== undefined) {
      const [left, right] = pair.map(quoted);
      throw vocabulary.error(`its merges do not match its tokens: merge ${number} is of ${left} and ${right}, but no token is ${quoted(lacks)}`);
    }
    return pair;
  });
}

/** Byte-level BPE within words. */
function byteLevel(vocabulary) {
  const { known } = vocabulary;
  const name = vocabulary.value("pre") ?? "default";
  if (typeof name !== "string" || !Object.hasOwn(known.expressions, name)) {
    throw vocabulary.error(`its pre-tokenizer is not supported (${PREFIX}pre is ${quoted(name)})`);
  }
  const merges = listedMerges(vocabulary);
  const cuts = known.expressions[name].map((expression) => ({ type: "Split", pattern: { Regex: expression }, behavior: "Isolated", invert: false }));
  return {
    normalizer: known.composed.includes(name) ? { type: "NFC" } : null,
    pre_tokenizer: { type: "Sequence", pretokenizers: [...cuts, { type: "ByteLevel", add_prefix_space: false, use_regex: false }] },
    model: { type: "BPE", merges, ignore_merges: known.whole_words.includes(name), byte_fallback: false, unk_token: null },
  };
}

/** SentencePiece's BPE: whole texts with ▁ for spaces, and bytes for characters without a token. */
function pieceLevel(vocabulary) {
  const { tokens, kind } = vocabulary;
  const scores = vocabulary.value("scores") === undefined ? tokens.map(() => 0) : scoresOf(vocabulary);
  const ids = new Map([...vocabulary.ids].filter(([, token]) => !vocabulary.isControl.has(token) && !vocabulary.isByte(token)));
  const unknown = vocabulary.named.get("unknown");
  return {
    normalizer: spaces(vocabulary, vocabulary.flag("remove_extra_whitespaces", false)),
    pre_tokenizer: kind === "gemma4" ? { type: "Split", pattern: { Regex: "\\n+" }, behavior: "Isolated", invert: false } : null,
    model: {
      type: "BPE",
      merges: kind === "gemma4" ? listedMerges(vocabulary) : mergesOf(vocabulary, ids, scores),
      byte_fallback: true,
      fuse_unk: true,
      unk_token: unknown === undefined ? null : tokens[unknown],
    },
  };
}

/** SentencePiece's Unigram: the segmentation of a text with the largest sum of scores. */
function scored(vocabulary) {
  const { tokens, twice, named } = vocabulary;
  const scores = scoresOf(vocabulary);
  if (!named.has("unknown")) throw vocabulary.error("it has no unknown token, which Unigram needs");
  // Of several tokens with the same text the first counts; no normalised text has a space.
  const vocab = tokens.map((text, token) => [twice.has(token) ? ` ${token} ` : text, scores[token]]);
  return {
    normalizer: spaces(vocabulary, vocabulary.flag("remove_extra_whitespaces", true)),
    pre_tokenizer: null,
    model: { type: "Unigram", vocab, unk_id: named.get("unknown"), byte_fallback: tokens.some((_, token) => vocabulary.isByte(token)) },
  };
}

function scoresOf(vocabulary) {
  const found = vocabulary.list("scores", "number", vocabulary.tokens.length);
  if (!found.every(Number.isFinite)) throw vocabulary.error(`${PREFIX}scores has a number that is not finite; expected finite numbers`);
  return found;
}

/** SentencePiece's normalisation: a table of characters, then ▁ for each space; `merged`: one for several, and none at the ends. */
function spaces(vocabulary, merged) {
  const charsmap = vocabulary.value("precompiled_charsmap");
  const replace = (pattern, content) => ({ type: "Replace", pattern, content });
  const steps = charsmap?.length === 0 || charsmap === undefined ? [] : [{ type: "Precompiled", precompiled_charsmap: tableOf(vocabulary, charsmap) }];
  if (merged) steps.push(replace({ Regex: "(?<![\\s\\S]) +| +(?![\\s\\S])" }, "")); // at the ends of the text, not of lines
  if (vocabulary.beginsWithSpace) steps.push({ type: "Prepend", prepend: "▁" });
  return { type: "Sequence", normalizers: [...steps, replace(merged ? { Regex: " +" } : { String: " " }, "▁")] };
}

/** A table of characters in base64. */
function tableOf(vocabulary, charsmap) {
  const key = `${PREFIX}precompiled_charsmap`;
  const isByte = (each) => Number.isInteger(each) && each >= -128 && each < 256;
  if (!Array.isArray(charsmap) || !charsmap.every(isByte)) throw vocabulary.error(`${key} is ${quoted(charsmap)}; expected a list of bytes`);
  const bytes = Uint8Array.from(charsmap);
  const size = bytes.length < 4 ? -1 : new DataView(bytes.buffer).getUint32(0, true);
  if (size < 4 || size % 4 || size > bytes.length - 4) throw vocabulary.error(`${key} is damaged`);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

/** Every split of a token into two other tokens, the token with the best score first, then the longest parts. */
function mergesOf(vocabulary, ids, scores) {
  const most = MERGES[0] * ids.size + MERGES[1];
  const lengths = vocabulary.tokens.map((text) => Array.from(text).length);
  const found = [];
  for (const [text, token] of ids) {
    for (let cut = 1; cut < text.length; cut++) {
      const left = ids.get(text.slice(0, cut));
      const right = left === undefined ? undefined : ids.get(text.slice(cut));
      if (right !== undefined) found.push([scores[token], left, right]);
    }
    if (found.length > most) throw vocabulary.error(`its ${ids.size} tokens can be made of each other in more than ${most} ways; expected fewer`);
  }
  found.sort(([one, left, right], [other, left2, right2]) => other - one || lengths[left2] - lengths[left] || lengths[right2] - lengths[right]);
  return found.map(([, left, right]) => [vocabulary.tokens[left], vocabulary.tokens[right]]);
}

/** The bytes of each token, in base64. */
function piecesOf(vocabulary) {
  const encoder = new TextEncoder();
  const alphabet = new Map(ALPHABET.map((letter, byte) => [letter, byte]));
  const asTheyAre = new Set([...vocabulary.control, ...vocabulary.defined]);
  const bytesOf = (text, token) => {
    const byte = vocabulary.isByte(token) && FALLBACK.exec(text);
    if (byte) return [Number.parseInt(byte[1], 16)];
    if (asTheyAre.has(token)) return encoder.encode(text);
    if (vocabulary.kind !== "gpt2") return encoder.encode(text.replaceAll("▁", " "));
    const bytes = Array.from(text, (letter) => alphabet.get(letter));
    return bytes.includes(undefined) ? encoder.encode(text) : bytes; // such a token is plain text
  };
  return vocabulary.tokens.map((text, token) => btoa(String.fromCharCode(...bytesOf(text, token))));
}

/** The contents of tokenizer.json. */
function tokenizerOf(vocabulary) {
  const { tokens, control, defined, twice, kind } = vocabulary;
  const [before, after] = vocabulary.around;
  const added = (special) => (token) => ({
    id: vocabulary.ids.get(tokens[token]),
    content: tokens[token],
    special,
    normalized: false,
    single_word: false,
    lstrip: false,
    rstrip: false,
  });
  const library = KINDS[kind][1](vocabulary);
  library.model.vocab ??= Object.fromEntries(vocabulary.ids);
  library.added_tokens = [...control.map(added(true)), ...defined.map(added(false))];
  return {
    kind: "library",
    library,
    characters: null,
    pieces: piecesOf(vocabulary),
    control: Object.fromEntries(control.filter((token) => !twice.has(token)).map((token) => [tokens[token], token])),
    prefix: Number(vocabulary.beginsWithSpace),
    before,
    after,
    probes: [], // there are no ids of Python's
  };
}

/** The chat form, or null; and why there is none where the file has a template. */
function chatOf({ metadata }, vocabulary) {
  const template = metadata.get("tokenizer.chat_template");
  if (template === undefined) return { chat: null, why: null };
  if (typeof template !== "string") return { chat: null, why: "the file's chat template is not a text" };
  const names = ["bos", "eos"].filter((name) => vocabulary.named.has(name));
  const tokens = Object.fromEntries(names.map((name) => [`${name}_token`, vocabulary.tokens[vocabulary.named.get(name)]]));
  const now = new Date();
  const clock = [now.getFullYear(), now.getMonth() + 1, now.getDate(), now.getHours(), now.getMinutes()];
  let system = false;
  try {
    const messages = [{ role: "system", content: SYSTEM }, { role: "user", content: "Hello" }];
    const given = { ...tokens, messages, add_generation_prompt: true, tools: null, documents: null };
    system = new Jinja(template).render(given, now).includes(SYSTEM);
  } catch {
    // the template takes no system prompt; one that cannot be read here is reported where it is used
  }
  return { chat: { template, tokens, stop_ids: vocabulary.stops, system, probes: [], clock }, why: null };
}

/** The sampling options that a file names, those that it leaves out being off; the usual ones where it names none. */
function samplingOf({ metadata }, { names, usual, neutral }) {
  const named = Object.entries(names).map(([option, key]) => [option, metadata.get(key)]);
  const found = Object.fromEntries(named.filter(([, value]) => typeof value === "number" && value >= 0));
  const chooses = Object.keys(found).some((option) => option !== "repetition_penalty");
  for (const [option, value] of Object.entries(found)) {
    const decimal = Number(value.toPrecision(7)); // files have float32
    if (Math.fround(decimal) === value) found[option] = decimal;
  }
  return { ...(chooses ? neutral : usual), ...found };
}

/**
 * What a file says of texts.
 * @param {import("./gguf.js").GgufHeader} header
 * @param {object} tables `drop` of the site's plan.json.
 * @returns {{tokenizer: object|null, about: object}} the contents of tokenizer.json, null where the page takes token ids; and
 *   entries for `model` of plan.json.
 */
export function textsOfFile(header, tables) {
  const licence = header.metadata.get("general.license.name") ?? header.metadata.get("general.license");
  const about = {
    name: header.source.replace(/(-\d{5}-of-\d{5})?\.gguf$/i, ""),
    licence: typeof licence === "string" ? licence : "",
    generation: samplingOf(header, tables.sampling),
    tokenizer: false,
    stop_ids: [],
    before: [],
    chat: null,
    why: null,
    examples: [],
  };
  try {
    const vocabulary = new Vocabulary(header, tables);
    const tokenizer = tokenizerOf(vocabulary);
    const { chat, why } = chatOf(header, vocabulary);
    const examples = tables.examples[chat ? "chat" : "text"];
    return { tokenizer, about: { ...about, tokenizer: true, stop_ids: vocabulary.stops, before: tokenizer.before, chat, why, examples } };
  } catch (error) {
    if (!(error instanceof GlinferError)) throw error;
    return { tokenizer: null, about: { ...about, why: error.message } };
  }
}
