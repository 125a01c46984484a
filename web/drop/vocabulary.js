/**
 * The tokenizer and the chat form that a GGUF file's metadata describes, as the site's tokenizer.json and `model` of plan.json
 * have them. The browser's side of glinfer/text/tokenizers/gguf.py and glinfer/export/texts.py, for byte-level BPE and
 * SentencePiece's BPE.
 */

import { GlinferError } from "../glinfer/errors.js";
import { Jinja } from "../text/jinja.js";
import { ALPHABET } from "../text/steps.js";
import { quoted, Unread } from "./gguf.js";

const PREFIX = "tokenizer.ggml.";
const [UNKNOWN, CONTROL, USER_DEFINED, BYTE] = [2, 3, 4, 6]; // types of tokens
const KINDS = { gpt2: "BPE of bytes", llama: "SentencePiece's BPE" };
const USUAL_IDS = { llama: { bos: 1, eos: 2, unknown: 0 } };
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
      const words = Object.entries(KINDS).map(([name, each]) => `'${name}' (${each})`);
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
    return this.typed ? this.types[token] === BYTE : this.kind === "llama" && FALLBACK.test(this.tokens[token]);
  }

  /** The ids before and after a text. */
  get around() {
    const begins = this.flag("add_bos_token", this.kind === "llama" || this.known.begin_with_bos.includes(this.value("pre")));
    const ids = (wanted, name) => (wanted && this.named.has(name) ? [this.named.get(name)] : []);
    return [ids(begins, "bos"), ids(this.flag("add_eos_token", false), "eos")];
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

/** Byte-level BPE within words. */
function byteLevel(vocabulary) {
  const { known, ids } = vocabulary;
  const name = vocabulary.value("pre") ?? "default";
  if (typeof name !== "string" || !Object.hasOwn(known.expressions, name)) {
    throw vocabulary.error(`its pre-tokenizer is not supported (${PREFIX}pre is ${quoted(name)})`);
  }
  const merges = vocabulary.list("merges", "string").map((text, number) => {
    const border = text.indexOf(" ", 1); // a space at the beginning belongs to the left token
    const pair = border > 0 ? [text.slice(0, border), text.slice(border + 1)] : [text, ""];
    const lacks = [...pair, pair.join("")].find((each) => !ids.has(each));
    if (lacks !== undefined) {
      const [left, right] = pair.map(quoted);
      throw vocabulary.error(`its merges do not match its tokens: merge ${number} is of ${left} and ${right}, but no token is ${quoted(lacks)}`);
    }
    return pair;
  });
  const cuts = known.expressions[name].map((expression) => ({ type: "Split", pattern: { Regex: expression }, behavior: "Isolated", invert: false }));
  return {
    normalizer: known.composed.includes(name) ? { type: "NFC" } : null,
    pre_tokenizer: { type: "Sequence", pretokenizers: [...cuts, { type: "ByteLevel", add_prefix_space: false, use_regex: false }] },
    model: { type: "BPE", merges, ignore_merges: known.whole_words.includes(name), byte_fallback: false, unk_token: null },
  };
}

/** SentencePiece's BPE: whole texts with ▁ for spaces, and bytes for characters without a token. */
function pieceLevel(vocabulary) {
  if (vocabulary.value("precompiled_charsmap") !== undefined || vocabulary.flag("remove_extra_whitespaces", false)) {
    throw vocabulary.error("its tokenizer changes characters or spaces, which is not supported here");
  }
  const { tokens } = vocabulary;
  const scores = vocabulary.value("scores") === undefined ? tokens.map(() => 0) : vocabulary.list("scores", "number", tokens.length);
  if (!scores.every(Number.isFinite)) throw vocabulary.error(`${PREFIX}scores has a number that is not finite; expected finite numbers`);
  const ids = new Map([...vocabulary.ids].filter(([, token]) => !vocabulary.isControl.has(token) && !vocabulary.isByte(token)));
  const prepends = vocabulary.flag("add_space_prefix", true) ? [{ type: "Prepend", prepend: "▁" }] : [];
  const unknown = vocabulary.named.get("unknown");
  return {
    normalizer: { type: "Sequence", normalizers: [...prepends, { type: "Replace", pattern: { String: " " }, content: "▁" }] },
    pre_tokenizer: null,
    model: {
      type: "BPE",
      merges: mergesOf(vocabulary, ids, scores),
      byte_fallback: true,
      fuse_unk: true,
      unk_token: unknown === undefined ? null : tokens[unknown],
    },
  };
}

/** Every split of a token into two other tokens, the token with the best score first, then the longest parts. */
function mergesOf(vocabulary, ids, scores) {
  const most = MERGES[0] * ids.size + MERGES[1];
  const lengths = vocabulary.tokens.map((text) => Array.from(text).length);
  const found = [];
  for (const [text, token] of ids) {
    for (let place = 1; place < text.length; place++) {
      const left = ids.get(text.slice(0, place));
      const right = left === undefined ? undefined : ids.get(text.slice(place));
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
    if (vocabulary.kind === "llama") return encoder.encode(text.replaceAll("▁", " "));
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
  const library = (kind === "llama" ? pieceLevel : byteLevel)(vocabulary);
  library.model.vocab = Object.fromEntries(vocabulary.ids);
  library.added_tokens = [...control.map(added(true)), ...defined.map(added(false))];
  return {
    kind: "library",
    library,
    characters: null,
    pieces: piecesOf(vocabulary),
    control: Object.fromEntries(control.filter((token) => !twice.has(token)).map((token) => [tokens[token], token])),
    prefix: Number(kind === "llama" && vocabulary.flag("add_space_prefix", true)),
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
    name: header.source.replace(/\.gguf$/i, ""),
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
