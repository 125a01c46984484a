/** The bytes of a GGUF file that is on this computer, or at an address whose server gives parts of files. */

import { GlinferError } from "../glinfer/errors.js";

const WINDOW = 8 << 20; // bytes of one request
const WINDOWS = 4; // that are held
const HUB = ["huggingface.co", "hf.co"];
const AGAIN = [1000, 4000]; // milliseconds until a request is repeated that failed in the middle of a file
const PASSING = [408, 429, 500, 502, 503, 504]; // answers after which it is
const BY_HAND = "download the file, and choose it here";

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
  return new RemoteFile(addressOf(given)).opened();
}

/**
 * The address of a file; pages of files on Hugging Face stand for the files.
 * @param {string} given
 * @returns {URL}
 * @throws {GlinferError} it does not name a file.
 */
export function addressOf(given) {
  const address = parsed(given.trim());
  if (!["http:", "https:"].includes(address?.protocol)) {
    throw new GlinferError(`${given.trim()} is not an address; expected one that begins with https:`);
  }
  if (HUB.includes(address.hostname)) {
    const [, owner, model, kind, ...rest] = address.pathname.split("/");
    if (!["blob", "resolve"].includes(kind) || rest.length < 2) {
      throw new GlinferError(`${address.href} is not the address of a file; open the files of ${model ? `${owner}/${model}` : "a model"}, and copy the address of one that ends in .gguf`);
    }
    address.hostname = HUB[0];
    address.pathname = ["", owner, model, "resolve", ...rest].join("/");
  }
  return address;
}

function parsed(text) {
  try {
    return new URL(text);
  } catch {
    return null;
  }
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
    this.bytes = Number(total ?? (await this.length()));
    if (!this.bytes) throw new GlinferError(`${this.name}: its server does not report its size; ${BY_HAND}`);
    this.version = `${this.address.href} ${this.bytes} ${response.headers.get("ETag") ?? response.headers.get("Last-Modified")}`;
    return this;
  }

  /** The length of the file where other sites may not read the answer's range. */
  async length() {
    const response = await this.fetch({ method: "HEAD" });
    return response.ok ? response.headers.get("Content-Length") : 0;
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
    for (const wait of [...AGAIN, null]) {
      try {
        const response = await this.ask(`bytes=${begin}-${end - 1}`);
        const bytes = new Uint8Array(await response.arrayBuffer().catch(() => new ArrayBuffer(0)));
        if (bytes.length === end - begin) return bytes;
        throw new PassingError(`${this.name} could not be loaded: the connection was lost; try again`);
      } catch (error) {
        if (!(error instanceof PassingError) || wait === null) throw error;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  }

  async ask(range) {
    const response = await this.fetch({ headers: { Range: range }, cache: "no-store" });
    const { status } = response;
    if (status === 206) return response;
    await response.body?.cancel();
    const failed = `${this.name} could not be loaded: `;
    if (response.ok) throw new GlinferError(`${failed}the server does not support range requests; ${BY_HAND}`);
    if (PASSING.includes(status)) throw new PassingError(`${failed}the server answered ${status}; try again later`);
    if (status === 401 || status === 403) throw new GlinferError(`${failed}the server answered ${status}: the file needs a login, or does not exist; ${BY_HAND}`);
    throw new GlinferError(`${failed}the server answered ${status}; check the address`);
  }

  async fetch(options) {
    try {
      return await fetch(this.address, { ...options, referrerPolicy: "no-referrer", credentials: "omit" });
    } catch {
      const { host, protocol } = this.address;
      const secure = globalThis.location?.protocol === "https:" && protocol === "http:";
      const why = secure ? "a page at https: may load only https: addresses" : "there is no connection to it, or it does not let other sites read its files (CORS)";
      throw new PassingError(`${this.name} could not be loaded from ${host}: ${why}; check the address, or ${BY_HAND}`);
    }
  }
}

/** A failure that may have gone when it is tried again. */
class PassingError extends GlinferError {}
