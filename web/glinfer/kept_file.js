/**
 * A large file that a browser keeps in parts in its origin private file system, where a worker reads them without a copy
 * from process to process. After its bytes it has a byte for each part: whether the part is complete.
 */

import { AT_ONCE, PART } from "./source.js";

const FOLDER = "glinfer";
const WHOLE = 1;

/** The folder of one export. */
export class KeptFolder {
  /**
   * @param {FileSystemDirectoryHandle} site the folder of all exports at an address.
   * @param {string} name of this export's.
   */
  constructor(site, name) {
    this.site = site;
    this.name = name;
  }

  /**
   * The folder of an export, once those of others at the same address are gone.
   * @param {string} address
   * @param {string} fingerprint
   * @returns {Promise<KeptFolder|null>} null where the browser has no such file system, or this window may not use it.
   */
  static async open(address, fingerprint) {
    try {
      const all = await (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
      const site = await all.getDirectoryHandle(await nameOf(address), { create: true });
      const folder = new KeptFolder(site, encodeURIComponent(fingerprint));
      for await (const name of site.keys()) if (name !== folder.name) await folder.remove(name);
      return folder;
    } catch {
      return null;
    }
  }

  /**
   * One of its files.
   * @param {string} path
   * @param {number} bytes of the file.
   * @returns {Promise<KeptFile|null>} null where it is not there and cannot be begun.
   */
  async file(path, bytes) {
    const size = bytes + Math.ceil(bytes / PART);
    const name = encodeURIComponent(path);
    try {
      const writes = "createSyncAccessHandle" in (globalThis.FileSystemFileHandle?.prototype ?? {});
      const folder = await this.site.getDirectoryHandle(this.name, { create: writes });
      /** @type {any} */ // in workers it has more
      const file = await folder.getFileHandle(name, { create: writes });
      const access = writes ? await file.createSyncAccessHandle().catch(() => null) : null;
      if (!access) return await read(await file.getFile(), bytes, size, writes);
      if (access.getSize() !== size) access.truncate(size); // which fills up with zeros
      return new OpenFile(access, bytes, size);
    } catch {
      return null;
    }
  }

  /** Deletes an export, which must not be open. */
  async remove(name = this.name) {
    await this.site.removeEntry(name, { recursive: true }).catch(() => {}); // it is gone, or another tab loads it
  }

  /**
   * Deletes all exports at an address.
   * @param {string} address
   */
  static async forget(address) {
    try {
      const all = await (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER);
      await all.removeEntry(await nameOf(address), { recursive: true });
    } catch {
      // there is none
    }
  }
}

/**
 * A file that can be read, and perhaps written.
 * @typedef {object} KeptFile
 * @property {(index: number) => Promise<Uint8Array|null>} part null where it is not there.
 * @property {(index: number, part: Uint8Array) => boolean} write returns whether the part is kept here. Raises where there is no
 *   room.
 * @property {() => void} close
 */

/** A file that may only be read; `taken` where another tab has it open and keeps the missing parts. */
async function read(file, bytes, size, taken) {
  const whole = new Uint8Array(file.size === size ? await file.slice(bytes).arrayBuffer() : size - bytes);
  return {
    async part(index) {
      if (whole[index] !== WHOLE) return null;
      return new Uint8Array(await file.slice(index * PART, Math.min(bytes, (index + 1) * PART)).arrayBuffer());
    },
    write: () => taken,
    close() {},
  };
}

/** A file that this worker holds exclusively until it is closed. */
class OpenFile {
  constructor(access, bytes, size) {
    this.access = access;
    this.bytes = bytes;
    this.whole = new Uint8Array(size - bytes);
    /** @type {ArrayBuffer[]} */
    this.buffers = []; // reused for the parts in use
    access.read(this.whole, { at: bytes });
  }

  async part(index) {
    if (this.whole[index] !== WHOLE) return null;
    const buffer = (this.buffers[index % AT_ONCE] ??= new ArrayBuffer(PART));
    const part = new Uint8Array(buffer, 0, Math.min(PART, this.bytes - index * PART));
    return this.access.read(part, { at: index * PART }) === part.length ? part : null;
  }

  write(index, part) {
    try {
      this.put(part, index * PART);
      this.access.flush(); // a part is marked complete only after it was written
      this.put(Uint8Array.of(WHOLE), this.bytes + index);
    } catch (error) {
      this.close();
      throw error;
    }
    return true;
  }

  put(bytes, at) {
    if (this.access.write(bytes, { at }) !== bytes.length) throw new DOMException("it was not written", "QuotaExceededError");
  }

  close() {
    this.access.close(); // harmless when repeated
  }
}

/** A name for an address, which may be longer than names of files may. */
async function nameOf(address) {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(address));
  return Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
