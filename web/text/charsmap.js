/** SentencePiece's tables of what characters become (`Precompiled` in tokenizer.json), read as spm_precompiled of Rust reads them. */

import { bytesOf } from "../glinfer/source.js";

const LONGEST = 6; // bytes; a character of several code points and of fewer bytes may be in a table as a whole

/** A table: a trie of UTF-8 texts in a double array, and the texts that stand for them. */
export class CharacterMap {
  /** @param {string} base64 `precompiled_charsmap`: the length of the trie (u32), the trie, texts with a zero behind each. */
  constructor(base64) {
    const data = bytesOf(base64);
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    const size = view.getUint32(0, true);
    this.units = Uint32Array.from({ length: size / 4 }, (_, unit) => view.getUint32(4 + 4 * unit, true));
    this.texts = data.subarray(4 + size);
    this.segments = new Intl.Segmenter("en", { granularity: "grapheme" });
    this.encoder = new TextEncoder();
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  }

  /**
   * A text with its characters replaced.
   * @param {string} text
   * @returns {string}
   */
  normalize(text) {
    let found = "";
    for (const { segment } of this.segments.segment(text)) {
      const whole = this.encoder.encode(segment);
      const replaced = whole.length < LONGEST ? this.replacement(whole) : null;
      found += replaced ?? Array.from(segment, (each) => this.replacement(this.encoder.encode(each)) ?? each).join("");
    }
    return found;
  }

  /** What the shortest text of the table that begins these bytes becomes, or null where there is none. */
  replacement(bytes) {
    const { units } = this;
    let node = 0;
    let unit = units[node];
    node ^= offset(unit);
    for (const byte of bytes) {
      if (byte === 0) return null;
      node ^= byte;
      unit = units[node];
      if ((unit & 0x800000ff) >>> 0 !== byte) return null;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) {
        const start = units[node] & 0x7fffffff;
        const end = this.texts.indexOf(0, start);
        return this.decoder.decode(this.texts.subarray(start, end < 0 ? undefined : end));
      }
    }
    return null;
  }
}

function offset(unit) {
  return (unit >>> 10) << ((unit & 0x200) >>> 6);
}
