/** The bytes of a GGUF file that is on this computer, or at an address whose server gives parts of files. */

import { GlinferError } from "../glinfer/errors.js";

const WINDOW = 8 << 20; // bytes of one request
const WINDOWS = 4; // that are held

/**
 * @typedef {object} GgufBytes
 * @property {string} name of the file, for messages.
 * @property {number} bytes
 * @property {string} version changes with the file's content.
 * @property {boolean} local whether reading takes no download.
 * @property {(begin: number, end: number) => Promise<Uint8Array>} read some bytes.
 */

/**
 * Opens a file.
 * @param {File|string} given the file, or its address; pages of files on Hugging Face stand for the files.
 * @returns {Promise<GgufBytes>}
 * @throws {GlinferError} there is no such file, or its server gives no parts of it.
 */
export async function openBytes(given) {
  if (typeof given !== "string") return ofFile(given);
  let address;
  try {
    address = new URL(given.trim());
  } catch {
    throw new GlinferError(`${given} is not an address; expected one that begins with https:`);
  }
  if (address.hostname === "huggingface.co") address.pathname = address.pathname.replace("/blob/", "/resolve/");
  return new RemoteFile(address).opened();
}

function ofFile(file) {
  const read = async (begin, end) => {
    try {
      return new Uint8Array(await file.slice(begin, end).arrayBuffer());
    } catch (error) {
      throw new GlinferError(`${file.name} cannot be read: ${error.message}; choose the file again`);
    }
  };
  return { name: file.name, bytes: file.size, version: `${file.name} ${file.size} ${file.lastModified}`, local: true, read };
}

/** A file at an address, read in windows; the next one is requested ahead, since most reading goes forwards. */
class RemoteFile {
  local = false;

  constructor(address) {
    this.address = address;
    this.name = decodeURIComponent(address.pathname.split("/").at(-1)) || address.hostname;
    this.windows = new Map();
  }

  async opened() {
    const response = await this.ask("bytes=0-0");
    const [, total] = /\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "") ?? [];
    await response.body?.cancel();
    this.bytes = Number(total ?? (await this.fetch({ method: "HEAD" })).headers.get("Content-Length") ?? 0);
    if (!this.bytes) throw new GlinferError(`${this.name}: its server does not say how long it is; download the file, and choose it here`);
    this.version = `${this.address.href} ${this.bytes} ${response.headers.get("ETag") ?? response.headers.get("Last-Modified")}`;
    return this;
  }

  /** See `GgufBytes`. */
  read = async (begin, end) => {
    const found = new Uint8Array(end - begin);
    const last = Math.floor((end - 1) / WINDOW);
    for (let number = Math.floor(begin / WINDOW); number <= last; number++) {
      const bytes = await this.window(number);
      const start = number * WINDOW;
      found.set(bytes.subarray(Math.max(0, begin - start), end - start), Math.max(0, start - begin));
    }
    if ((last + 1) * WINDOW < this.bytes) this.window(last + 1).catch(() => {}); // the error is raised when it is read
    return found;
  };

  window(number) {
    let found = this.windows.get(number);
    this.windows.delete(number);
    if (!found) {
      if (this.windows.size >= WINDOWS) this.windows.delete(this.windows.keys().next().value);
      found = this.part(number * WINDOW, Math.min(this.bytes, (number + 1) * WINDOW));
      found.catch(() => this.windows.delete(number));
    }
    this.windows.set(number, found); // the newest is the last
    return found;
  }

  async part(begin, end) {
    const response = await this.ask(`bytes=${begin}-${end - 1}`);
    const bytes = new Uint8Array(await response.arrayBuffer().catch(() => new ArrayBuffer(0)));
    if (bytes.length !== end - begin) throw new GlinferError(`${this.name} could not be loaded: the connection broke; try again`);
    return bytes;
  }

  async ask(range) {
    const response = await this.fetch({ headers: { Range: range }, cache: "no-store" });
    if (response.status === 206) return response;
    await response.body?.cancel();
    const found = response.ok ? "gives no parts of files" : `answered ${response.status}`;
    throw new GlinferError(`${this.name} could not be loaded: the server ${found}; download the file, and choose it here`);
  }

  async fetch(options) {
    try {
      return await fetch(this.address, { ...options, referrerPolicy: "no-referrer", credentials: "omit" });
    } catch {
      throw new GlinferError(`${this.name} could not be loaded from ${this.address.host}; check the address and the connection, or download the file and choose it here`);
    }
  }
}
