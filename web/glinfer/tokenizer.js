/**
 * Gab's byte-level BPE: no pre-tokeniser, merges in file order over the whole text. The browser's side of
 * glinfer/text/tokenizer.py.
 */

import { checkOptions, checkText, GlinferError } from "./errors.js";
import { MinHeap } from "./heap.js";
import { bytesOf } from "./source.js";

const CONTROL = /<\|[a-z_]+\|>/;
const MOST_IDS = 2 ** 24;
const MOST_BYTES = 2 ** 28;

/**
 * Text to token ids and back, of any kind.
 * @typedef {object} AnyTokenizer
 * @property {(text: string, options?: {allowSpecial?: boolean}) => number[]} encode see `Tokenizer`.
 * @property {(ids: Iterable<number>) => string} decode
 * @property {() => {push: (id: number) => string, finish: () => string}} stream
 * @property {Map<string, number>} control
 * @property {Set<number>} controlIds
 */

/** Text to token ids and back. */
export class Tokenizer {
  /**
   * @param {{kind: string, merges: [number, number, number][], pieces: string[], control: Record<string, number>}} data
   *   tokenizer.json: pairs and their results, earliest first; the bytes of each id in base64; control tokens.
   * @throws {GlinferError} it is another kind of tokenizer.
   */
  constructor(data) {
    if (data?.kind !== "bpe1") throw new GlinferError(`found a tokenizer of kind ${data?.kind}; expected bpe1`);
    this.pieces = data.pieces.map(bytesOf);
    this.control = new Map(Object.entries(data.control));
    this.controlIds = new Set(this.control.values());
    const spelt = [...this.control.keys()].map((text) => latin(new TextEncoder().encode(text)));
    const isControl = (piece) => CONTROL.test(piece) || spelt.some((text) => piece.includes(text));
    this.all = new Map();
    this.plain = new Map();
    data.merges.forEach(([left, right, merged], rank) => {
      const key = left * MOST_IDS + right;
      this.all.set(key, { rank, merged });
      if (!isControl(latin(this.pieces[merged]))) this.plain.set(key, { rank, merged });
    });
  }

  /**
   * Token ids of a text. Without `allowSpecial` none is a control token, or a longer token that contains one: such text
   * becomes ordinary pieces.
   * @param {string} text
   * @param {{allowSpecial?: boolean}} options
   * @returns {number[]}
   * @throws {GlinferError} the text has half a surrogate pair, which UTF-8 cannot express.
   */
  encode(text, options = {}) {
    const { allowSpecial = true } = checkOptions(options, ["allowSpecial"]);
    checkText(text);
    const bytes = new TextEncoder().encode(text);
    if (bytes.length > MOST_BYTES) throw new GlinferError(`the text has ${bytes.length} bytes, which is too long`);
    return merge(bytes, allowSpecial ? this.all : this.plain);
  }

  /**
   * The text of some ids, with U+FFFD for bytes that are not UTF-8.
   * @param {Iterable<number>} ids
   * @returns {string}
   */
  decode(ids) {
    const stream = this.stream();
    let text = "";
    for (const id of ids) text += stream.push(id);
    return text + stream.finish();
  }

  /**
   * Decodes tokens one by one: a character that is split across tokens waits for its last byte.
   * @returns {{push: (id: number) => string, finish: () => string}}
   */
  stream() {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const push = (id) => {
      if (!Object.hasOwn(this.pieces, id)) {
        throw new GlinferError(`token ${id} is outside the vocabulary; expected 0 to ${this.pieces.length - 1}`);
      }
      return decoder.decode(this.pieces[id], { stream: true });
    };
    return { push, finish: () => decoder.decode() };
  }
}

/** Used where a model has no tokenizer: a text is token ids, separated by anything except digits. */
export class IdTokenizer {
  /** There are no control tokens. */
  constructor() {
    this.control = new Map();
    this.controlIds = new Set();
  }

  /**
   * The ids in a text.
   * @param {string} text
   * @returns {number[]}
   * @throws {GlinferError} the text has no ids.
   */
  encode(text) {
    const ids = (text.match(/\d+/g) ?? []).map(Number);
    if (!ids.length) throw new GlinferError("this model has no tokenizer here; write token ids, such as 12 7 300");
    return ids;
  }

  /**
   * Tokens as numbers; see `Tokenizer.stream`.
   * @returns {{push: (id: number) => string, finish: () => string}}
   */
  stream() {
    return { push: (id) => ` ${id}`, finish: () => "" };
  }
}

/** Applies the merges: always the earliest in the file, leftmost first. */
function merge(bytes, merges) {
  const count = bytes.length;
  const ids = Int32Array.from(bytes); // id of the piece that begins at an index; -1 inside of one
  const next = Int32Array.from(bytes, (_, index) => index + 1);
  const previous = Int32Array.from(bytes, (_, index) => index - 1);
  const pairAt = (index) =>
    index < 0 || next[index] >= count ? undefined : merges.get(ids[index] * MOST_IDS + ids[next[index]]);
  // Rank and index in one number, so that equal ranks come out leftmost first.
  const heap = new MinHeap();
  const offer = (index) => {
    const pair = pairAt(index);
    if (pair) heap.push(pair.rank * MOST_BYTES + index);
  };
  for (let index = 0; index < count; index++) offer(index);
  while (heap.size) {
    const top = heap.pop();
    const index = top % MOST_BYTES;
    const pair = ids[index] < 0 ? undefined : pairAt(index);
    if (pair?.rank !== Math.floor(top / MOST_BYTES)) continue; // merged away since it was offered
    const eaten = next[index];
    ids[index] = pair.merged;
    ids[eaten] = -1;
    next[index] = next[eaten];
    if (next[index] < count) previous[next[index]] = index;
    offer(previous[index]);
    offer(index);
  }
  return Array.from(ids).filter((id) => id >= 0);
}

/** One character for each byte. */
function latin(bytes) {
  return Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
}
