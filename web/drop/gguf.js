/**
 * The header of a GGUF file: metadata, and the offsets of its tensors. The browser's side of glinfer/formats/gguf/file.py, with
 * the same checks and sentences: every length is compared with the file's size, and every count with a limit, before it is
 * used.
 */

import { GlinferError } from "../glinfer/errors.js";

const HEADER = 24; // bytes before the metadata
const START = 4 << 20; // bytes that are read first; more where the header is longer
const [SMALLEST_VALUE, SMALLEST_TENSOR] = [13, 24]; // bytes of an entry
const [STRING, ARRAY] = [8, 9];
const NUMBERS = {
  0: [1, "getUint8"], 1: [1, "getInt8"], 2: [2, "getUint16"], 3: [2, "getInt16"], 4: [4, "getUint32"], 5: [4, "getInt32"],
  6: [4, "getFloat32"], 7: [1, "getUint8"], 10: [8, "getBigUint64"], 11: [8, "getBigInt64"], 12: [8, "getFloat64"],
}; // prettier-ignore
const BOOL = 7;
const MOST_ALIGNMENT = 2 ** 20;
const DAMAGED = "the file is damaged, get it again";

/** A value that was skipped; `words` say why. */
export class Unread {
  constructor(words) {
    this.words = words;
  }
}

/**
 * @typedef {{name: string, type: string, shape: number[], file: import("./file.js").GgufBytes, begin: number, end: number}} GgufTensor
 *   `shape`: outermost first.
 * @typedef {{source: string, metadata: Map<string, any>, tensors: Map<string, GgufTensor>, header: Uint8Array}} GgufHeader
 *   `header`: its bytes.
 */

/**
 * Reads and checks the header of a file.
 * @param {import("./file.js").GgufBytes} file
 * @param {object} tables `drop` of the site's plan.json: versions, types of tensors, limits.
 * @returns {Promise<GgufHeader>}
 * @throws {GlinferError} the file is not GGUF, or its header is damaged or beyond a limit.
 */
export async function readHeader(file, tables) {
  for (let size = START; ; size *= 4) {
    const bytes = await file.read(0, Math.min(size, file.bytes));
    const reader = new HeaderReader(bytes, file, tables);
    try {
      return reader.contents();
    } catch (error) {
      if (!(error instanceof TooShort) || bytes.length >= file.bytes) throw error;
      const most = tables.limits.header_bytes;
      if (bytes.length > most) throw new GlinferError(`${file.name}: its header has ${bytes.length} bytes or more, which exceeds the limit of ${most}`);
    }
  }
}

/** The header goes on after the bytes that were read. */
class TooShort extends GlinferError {}

/** A value as Python's messages quote it, shortened if it is long. */
export function quoted(value) {
  if (value instanceof Unread) return value.words;
  if (Array.isArray(value)) return `[${value.slice(0, MOST_ELEMENTS).map(quoted).join(", ")}${value.length > MOST_ELEMENTS ? ", ..." : ""}]`;
  if (typeof value !== "string") return typeof value === "boolean" ? (value ? "True" : "False") : String(value);
  const whole = inQuotes(value.slice(0, MOST_LETTERS));
  if (whole.length <= MOST_LETTERS) return whole;
  const [first, last] = [Math.floor((MOST_LETTERS - 3) / 2), Math.ceil((MOST_LETTERS - 3) / 2)];
  const ends = inQuotes(value.slice(0, first) + value.slice(Math.max(0, value.length - last)));
  return `${ends.slice(0, first)}...${ends.slice(-last)}`;
}

const [MOST_LETTERS, MOST_ELEMENTS] = [120, 6];

function inQuotes(text) {
  const escaped = text.replace(/[\p{C}\p{Z}\\]/gu, (each) => (each === " " ? each : (NAMES[each] ?? numbered(each.codePointAt(0)))));
  return text.includes("'") && !text.includes('"') ? `"${escaped}"` : `'${escaped.replaceAll("'", "\\'")}'`;
}

const NAMES = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\" };

function numbered(code) {
  const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
}

/** Reads a header front to back. */
class HeaderReader {
  constructor(bytes, file, { versions, types, limits }) {
    Object.assign(this, { bytes, file, size: file.bytes, versions, types, limits, source: file.name });
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    this.at = HEADER;
    this.elements = 0;
    this.skipped = 0;
  }

  contents() {
    const [tensorCount, valueCount] = this.counts();
    const metadata = new Map();
    for (let number = 1; number <= valueCount; number++) {
      const key = this.name(`piece of metadata ${number} of ${valueCount}`);
      if (metadata.has(key)) this.refuse("the metadata", `has ${quoted(key)} twice; ${DAMAGED}`);
      metadata.set(key, this.value(`metadata ${quoted(key)}`));
    }
    const entries = [];
    for (let number = 1; number <= tensorCount; number++) entries.push(this.tensor(`tensor ${number} of ${tensorCount}`));
    const alignment = metadata.get("general.alignment") ?? 32;
    if (!Number.isInteger(alignment) || alignment < 1 || alignment > MOST_ALIGNMENT || alignment & (alignment - 1)) {
      this.refuse(`general.alignment is ${quoted(alignment)}`, "which is not supported; expected a power of two, as 32", ", ");
    }
    const start = Math.ceil(this.at / alignment) * alignment;
    const tensors = new Map();
    for (const entry of entries) {
      if (tensors.has(entry.name)) this.refuse(`tensor ${quoted(entry.name)}`, `appears twice; ${DAMAGED}`);
      tensors.set(entry.name, this.placed(entry, start));
    }
    return { source: this.source, metadata, tensors, header: this.bytes.subarray(0, this.at) };
  }

  counts() {
    const { view, size, source } = this;
    if (view.byteLength < HEADER) throw new GlinferError(`${source}: found ${size} bytes; expected a GGUF file, whose header alone has ${HEADER}`);
    const magic = Array.from(this.bytes.subarray(0, 4), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    if (magic !== "47 47 55 46") throw new GlinferError(`${source}: found first bytes ${magic}; expected 47 47 55 46 (GGUF)`);
    const version = view.getUint32(4, true);
    if (version && (version & 0xffff) === 0) {
      throw new GlinferError(`${source}: this GGUF file is big-endian, which is not supported; get it in the usual byte order`);
    }
    if (!this.versions.includes(version)) {
      const known = this.versions.join(" or ");
      throw new GlinferError(`${source}: found GGUF version ${version}, which is not supported; expected ${known}; get another conversion`);
    }
    const [tensors, values] = [view.getBigUint64(8, true), view.getBigUint64(16, true)];
    const promised = `${source}: its header promises ${tensors} tensors and ${values} pieces of metadata`;
    if (tensors * BigInt(SMALLEST_TENSOR) + values * BigInt(SMALLEST_VALUE) > size) {
      throw new GlinferError(`${promised}, too many for ${size} bytes; ${DAMAGED}`);
    }
    if (tensors > this.limits.entries || values > this.limits.entries) {
      throw new GlinferError(`${promised}, which exceeds the limit of ${this.limits.entries} of each`);
    }
    return [Number(tensors), Number(values)];
  }

  placed({ name, shape, type, offset }, start) {
    const where = `tensor ${quoted(name)}`;
    const known = this.types[type];
    if (!known) return { name, type: `type ${type}`, shape: shape.map(Number), file: this.file, begin: 0, end: 0 }; // refused where it is needed
    const [kind, weights, nbytes] = known;
    const row = shape.at(-1);
    if (BigInt(row) % BigInt(weights)) {
      this.refuse(where, `is ${kind} with rows of ${row} weights; expected whole blocks of ${weights}; ${DAMAGED}`);
    }
    const count = shape.reduce((product, edge) => product * BigInt(edge), 1n);
    const begin = BigInt(start) + BigInt(offset);
    const end = begin + (count / BigInt(weights)) * BigInt(nbytes);
    if (end > this.size) {
      this.refuse(where, `is at bytes ${begin} to ${end}, but the file has ${this.size}; it is truncated, get it again`);
    }
    return { name, type: kind, shape: shape.map(Number), file: this.file, begin: Number(begin), end: Number(end) };
  }

  refuse(what, words, between = " ") {
    throw new GlinferError(`${this.source}: ${what}${between}${words}`);
  }

  /** Passes over bytes, and returns where they begin; lengths may be BigInts. */
  take(length, what) {
    const first = this.at;
    const end = typeof length === "bigint" ? BigInt(first) + length : first + length;
    if (end > this.bytes.length) {
      throw new TooShort(`${this.source}: ${what} ends at byte ${end}, but the file has ${this.bytes.length}: it is truncated; ${DAMAGED}`);
    }
    this.at = Number(end);
    return first;
  }

  whole(bytes, what) {
    const at = this.take(bytes, what);
    if (bytes === 4) return this.view.getUint32(at, true);
    const number = this.view.getBigUint64(at, true);
    return number <= Number.MAX_SAFE_INTEGER ? Number(number) : number;
  }

  name(what) {
    const length = this.whole(8, what);
    const begin = this.take(length, what);
    if (length > this.limits.name_bytes) this.refuse(what, `has a name of ${length} bytes, which exceeds the limit of ${this.limits.name_bytes}`);
    try {
      return this.text.decode(this.bytes.subarray(begin, this.at));
    } catch {
      return this.refuse(what, `has a name that is not UTF-8; ${DAMAGED}`);
    }
  }

  /** A value; one that is not supported or too large is skipped. */
  value(what) {
    let kind = this.whole(4, what);
    if (kind !== ARRAY) {
      const found = this.values(kind, 1, what);
      return found instanceof Unread ? found : found[0];
    }
    kind = this.whole(4, what);
    const count = this.whole(8, what);
    if (kind === ARRAY) {
      this.skip(kind, count, what);
      return new Unread("an array of arrays (not supported)");
    }
    if (typeof count === "bigint" || this.elements + count > this.limits.elements) {
      this.skip(kind, count, what);
      return new Unread(`an array of ${count} elements (exceeds the limit of ${this.limits.elements} in a file)`);
    }
    this.elements += count;
    return this.values(kind, count, what);
  }

  /** Skips an array; nested ones without recursion, so that their depth does no harm. */
  skip(kind, count, what) {
    const open = [[kind, count]];
    while (open.length) {
      const [each, left] = open.pop();
      if (each !== STRING && each !== ARRAY) {
        this.numbers(each, left, what);
        continue;
      }
      this.skipped += each === STRING ? Number(left) : left > 0 ? 8 : 0;
      if (this.skipped > this.limits.skipped) this.refuse(what, `has more than ${this.limits.skipped} elements, which exceeds the limit`);
      if (each === STRING) {
        for (let number = 0; number < left; number++) this.take(this.whole(8, what), what);
      } else if (left > 0) {
        open.push([each, typeof left === "bigint" ? left - 1n : left - 1]);
        open.push([this.whole(4, what), this.whole(8, what)]);
      }
    }
  }

  /** Passes over numbers, and returns how to read them. */
  numbers(kind, count, what) {
    const [bytes, method] = NUMBERS[kind] ?? this.refuse(what, `has values of type ${kind}, which is not supported; get another conversion`);
    const begin = this.take(typeof count === "bigint" ? count * BigInt(bytes) : count * bytes, what);
    return { begin, bytes, method };
  }

  values(kind, count, what) {
    if (kind === STRING) return this.strings(count, what);
    const { begin, bytes, method } = this.numbers(kind, count, what);
    return Array.from({ length: count }, (_, index) => {
      const found = this.view[method](begin + index * bytes, true);
      return kind === BOOL ? found !== 0 : Number(found);
    });
  }

  strings(count, what) {
    const found = [];
    let unread = null;
    for (let number = 0; number < count; number++) {
      const length = this.whole(8, what);
      const begin = this.take(length, what);
      if (length > this.limits.string_bytes) {
        unread = new Unread(`a string of ${length} bytes (exceeds the limit of ${this.limits.string_bytes})`);
        continue;
      }
      try {
        found.push(this.text.decode(this.bytes.subarray(begin, this.at)));
      } catch {
        unread = new Unread(`a string that is not UTF-8 (${DAMAGED})`);
      }
    }
    return unread ?? found;
  }

  tensor(what) {
    const name = this.name(what);
    const count = this.whole(4, what);
    const { dimensions } = this.limits;
    if (count < 1 || count > dimensions) {
      this.refuse(`tensor ${quoted(name)}`, `has ${count} dimensions, which is not supported; expected 1 to ${dimensions}`);
    }
    const shape = Array.from({ length: count }, () => this.whole(8, what)).reverse();
    if (shape.some((edge) => edge < 1)) {
      this.refuse(`tensor ${quoted(name)}`, `has shape ${quoted(shape)}, which is not supported; expected no dimension of 0`);
    }
    return { name, shape, type: this.whole(4, what), offset: this.whole(8, what) };
  }
}
