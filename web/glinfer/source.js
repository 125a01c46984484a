/**
 * The files of an exported model. In a single-file page embedded.js makes fetch find them there.
 */

import { GlinferError, shown } from "./errors.js";

/** Bytes of a part of a large file, the unit of requests and of the cache. */
export const PART = 8 << 20;
/** Most parts that are requested or in use. */
export const AT_ONCE = 4;

/**
 * Where files come from. All raise a GlinferError where there is no such file, but `optional` gives null.
 * @typedef {object} Source
 * @property {(path: string) => Promise<string>} text the text of a small file.
 * @property {(path: string) => Promise<string|null>} optional the same of a file that may be absent.
 * @property {(path: string) => AsyncIterable<Uint8Array>} pieces the bytes of a file in order, in pieces of any size, of the file's
 *   current version.
 * @property {(path: string, bytes: number) => AsyncIterable<Uint8Array>} parts the bytes of a large file, of which the size
 *   is known, in order and `PART` at a time. No more than a few parts are held at once.
 */

/**
 * Gives the parts of one file: `part(index)` is `PART` bytes, or what is left. They are asked for in order, `AT_ONCE` of
 * them at most before the first is done with.
 * @typedef {{part: (index: number) => Promise<Uint8Array>, close: () => Promise<void>}} Parts
 */

/**
 * The address of an exported folder, or of plan.json or a page in it, against which the names of its files are resolved.
 * @param {string|URL} base the folder's, with or without "/" at its end.
 * @returns {URL}
 * @throws {GlinferError} it is none.
 */
export function folderAddress(base) {
  const given = base?.["href"] ?? base;
  try {
    if (typeof given !== "string") throw new TypeError();
    const address = new URL(given, globalThis.location?.href);
    if (!/(\/|\.html?|\.json)$/.test(address.pathname)) address.pathname += "/";
    return new URL(address, new URL(".", address)); // which throws where files have no addresses below it, as in localhost:8000/site/
  } catch {
    throw new GlinferError(`${shown(given)} is not the address of a folder; expected one such as "site/" or "https://example.org/site/"`);
  }
}

/**
 * The files below an address.
 * @param {string|URL} base the address of plan.json, or of a page beside it.
 * @returns {Source & {open: (path: string, bytes: number) => Parts}}
 */
export function fetchSource(base) {
  /** @type {(path: string, options?: RequestInit) => Promise<Response>} */
  const get = async (path, options) => {
    try {
      return await fetch(new URL(path, base), options);
    } catch {
      const { href, origin, protocol } = new URL(path, base);
      if (origin !== (globalThis.location?.origin ?? origin)) {
        throw new GlinferError(`${href} could not be loaded; check the address, and that its server lets other sites read it (CORS)`);
      }
      const advice = protocol === "file:" ? "serve the folder with: glinfer serve-web" : "check the connection, and reload the page";
      throw new GlinferError(`${path} could not be loaded; ${advice}`);
    }
  };
  const found = (path, response) => {
    if (!response.ok) throw new GlinferError(`${new URL(path, base)} could not be loaded: the server answered ${response.status}`);
    return response;
  };
  const open = (path, bytes) => new FetchedParts((options) => get(path, options).then((answer) => found(path, answer)), path, bytes);
  return {
    text: async (path) => found(path, await get(path, { cache: "no-cache" })).text(),
    optional: async (path) => {
      const response = await get(path, { cache: "no-cache" });
      return response.status === 404 ? null : found(path, response).text();
    },
    pieces: (path) => piecesOf(async () => found(path, await get(path, { cache: "no-cache" })), path),
    parts: (path, bytes) => inOrder(open(path, bytes), bytes),
    open,
  };
}

/**
 * All parts of a file in order; a few are requested ahead.
 * @param {Parts} parts
 * @param {number} bytes of the file.
 * @yields {Uint8Array}
 */
export async function* inOrder(parts, bytes) {
  const count = Math.ceil(bytes / PART);
  const ahead = [];
  let asked = 0;
  try {
    for (let index = 0; index < count; index++) {
      while (asked < Math.min(count, index + AT_ONCE)) {
        const part = parts.part(asked++);
        part.catch(() => {}); // the error is raised when the part is read
        ahead.push(part);
      }
      yield await ahead.shift();
    }
  } finally {
    await Promise.allSettled(ahead);
    await parts.close();
  }
}

/** Parts by range requests, or from the whole file where the server does not support them. */
class FetchedParts {
  /**
   * @param {(options: RequestInit) => Promise<Response>} get asks for the file.
   * @param {string} path
   * @param {number} bytes of the file, as the plan says.
   */
  constructor(get, path, bytes) {
    this.get = get;
    this.path = path;
    this.bytes = bytes;
    /** @type {string|null|undefined} */
    this.version = undefined; // the server's version of the file, from the first answer
    /** @type {Promise<Response>|null} */
    this.first = null; // the first answer, which says how this server gives parts
    /** @type {Reader|null} */
    this.whole = null;
    /** @type {Promise<unknown>} */
    this.turn = Promise.resolve(); // one part after another out of the whole file
  }

  /** See `Parts`. */
  async part(index) {
    const first = index * PART;
    const length = Math.min(PART, this.bytes - first);
    if (this.first) await this.first.catch(() => {});
    if (!this.whole) {
      const headers = { Range: `bytes=${first}-${first + length - 1}` };
      // The browser's own cache would keep the parts a second time.
      const asked = this.get({ headers, cache: "no-store" });
      this.first ??= asked;
      const response = await asked;
      if (response.status === 206) return this.ranged(response, length);
      if (this.whole) await response.body?.cancel();
      else this.whole = new Reader(piecesOf(async () => response, this.path), (why) => this.broken(why));
    }
    const taken = this.turn.then(async () => {
      await this.whole.skipTo(first);
      const bytes = await this.whole.take(length);
      if (first + length === this.bytes && !(await this.whole.ended())) throw this.changed();
      return bytes;
    });
    this.turn = taken.catch(() => {});
    return taken;
  }

  async ranged(response, length) {
    const [, total] = /\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "") ?? [];
    const version = response.headers.get("ETag") ?? response.headers.get("Last-Modified");
    if (this.version === undefined) this.version = version;
    if ((total !== undefined && Number(total) !== this.bytes) || version !== this.version) {
      await response.body?.cancel();
      throw this.changed();
    }
    const bytes = new Uint8Array(await response.arrayBuffer().catch(() => new ArrayBuffer(0)));
    if (bytes.length !== length) throw this.broken("the connection was lost");
    return bytes;
  }

  changed() {
    return new GlinferError(`${this.path} is not the file that plan.json was written with; reload the page, or export the model again`);
  }

  broken(why) {
    return new GlinferError(`${this.path} could not be loaded: ${why}; check the connection, and reload the page`);
  }

  /** Ends the transfer, wherever it is. */
  async close() {
    await this.whole?.close();
  }
}

async function* piecesOf(open, path) {
  const reader = (await open()).body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw new GlinferError(`${path} could not be loaded: the connection was lost; check it, and try again`);
      });
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // the rest is not needed, or the connection is closed
  }
}

/** Reads any number of bytes from pieces of any size. */
export class Reader {
  /**
   * @param {AsyncIterable<Uint8Array>} pieces
   * @param {(why: string) => Error} wrong makes the error where the pieces are too short or too long.
   */
  constructor(pieces, wrong) {
    this.pieces = pieces[Symbol.asyncIterator]();
    this.wrong = wrong;
    this.piece = new Uint8Array(0);
    this.at = 0;
  }

  /**
   * The next bytes.
   * @param {number} length
   * @param {ArrayBuffer} [into] is overwritten from its beginning; without it they get a buffer of their own.
   * @returns {Promise<Uint8Array>}
   */
  async take(length, into) {
    const bytes = new Uint8Array(into ?? new ArrayBuffer(length), 0, length);
    await this.each(length, (piece, filled) => bytes.set(piece, filled));
    return bytes;
  }

  /**
   * Skips to an offset in the file.
   * @param {number} offset
   */
  async skipTo(offset) {
    if (offset < this.at) throw this.wrong("its tensors are in another order");
    await this.each(offset - this.at, () => {});
  }

  /**
   * Whether nothing follows.
   * @returns {Promise<boolean>}
   */
  async ended() {
    while (!this.piece.length) {
      const { done, value } = await this.pieces.next();
      if (done) return true;
      this.piece = value;
    }
    return false;
  }

  async each(length, use) {
    for (let filled = 0; filled < length; ) {
      if (await this.ended()) throw this.wrong(`it ends after ${this.at} bytes`);
      const part = this.piece.subarray(0, length - filled);
      use(part, filled);
      this.piece = this.piece.subarray(part.length);
      filled += part.length;
      this.at += part.length;
    }
  }

  /** Discards the rest. */
  async close() {
    await this.pieces.return?.();
  }
}

/**
 * The bytes that base64 stands for.
 * @param {string} base64
 * @returns {Uint8Array}
 */
export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
