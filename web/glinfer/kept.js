/**
 * Files that the browser keeps from visit to visit: in Cache Storage, or large ones in the worker's private file system.
 * An export's files are kept under the fingerprint in its plan.json, which only equal files share. Where nothing can
 * be kept (a private window, a full disk, an address without https) everything comes from the server.
 */

import { KeptFolder } from "./kept_file.js";
import { folderAddress, inOrder, PART } from "./source.js";

const OURS = "glinfer";
const OFFLINE = "glinfer-offline"; // of ../offline.js, which keeps the page
const NOWHERE = "https://kept.invalid/"; // keys are addresses, which nobody asks

/**
 * A source that fetches files once, and keeps them.
 * @param {ReturnType<typeof import("./source.js").fetchSource>} source the server.
 * @param {string|URL} base its address.
 * @param {string} fingerprint of the export.
 * @returns {Promise<import("./source.js").Source>} `source` itself where nothing can be kept.
 */
export async function keptSource(source, base, fingerprint) {
  const kept = await openCache(base, fingerprint);
  if (!kept) return source;
  const text = (path, ask) => kept.get(path, (response) => response.text(), () => ask(path));
  return {
    text: (path) => text(path, source.text),
    optional: (path) => text(path, source.optional),
    pieces: source.pieces,
    parts: (path, bytes) => {
      const parts = source.open(path, bytes);
      const opened = kept.folder.then((folder) => folder?.file(path, bytes));
      const part = async (index) => {
        const file = await opened;
        const found = await file?.part(index).catch(() => null); // another tab has changed it
        if (found) return found;
        const length = Math.min(PART, bytes - index * PART);
        const read = async (response) => {
          const found = new Uint8Array(await response.arrayBuffer());
          return found.length === length ? found : null;
        };
        return kept.get(`${path}?part=${index}&of=${PART}`, read, () => parts.part(index), (found) => file?.write(index, found));
      };
      const close = async () => {
        (await opened)?.close();
        await parts.close();
      };
      return inOrder({ part, close }, bytes);
    },
  };
}

/** The name of an export's cache; without the fingerprint what the names of all exports at its address begin with. */
function nameOf(base, fingerprint = "", ours = OURS) {
  return `${ours} ${new URL(".", base).href} ${fingerprint}`;
}

/**
 * The cache of one export, once those of earlier exports at this address are gone; null where there can be none.
 * @returns {Promise<Kept|null>}
 */
async function openCache(base, fingerprint) {
  try {
    const [before, name] = [nameOf(base), nameOf(base, fingerprint)];
    const folder = KeptFolder.open(before, fingerprint);
    const others = (await caches.keys()).filter((each) => each.startsWith(before) && each !== name);
    await Promise.all(others.map((each) => caches.delete(each)));
    const store = await caches.open(name);
    return new Kept(store, name, (await store.keys()).map(({ url }) => url), folder);
  } catch {
    return null; // there is no `caches`, or this window may not use it
  }
}

/** One cache, and a folder beside it, until something goes wrong with them. */
class Kept {
  /**
   * @param {Cache} store
   * @param {string} name of the cache.
   * @param {string[]} keys of its entries.
   * @param {Promise<KeptFolder|null>} folder of large files.
   */
  constructor(store, name, keys, folder) {
    this.store = store;
    this.name = name;
    this.keys = new Set(keys);
    this.folder = folder;
    this.works = true;
  }

  /**
   * A kept file or part of one; otherwise it is fetched and kept. An absent file is not kept.
   * @template {BodyInit|null} T
   * @param {string} key
   * @param {(response: Response) => Promise<T|null>} read the kept bytes; null where they are of no use.
   * @param {() => Promise<T>} ask the server.
   * @param {(found: T) => boolean|undefined} write keeps it elsewhere; whether it has.
   * @returns {Promise<T>}
   */
  async get(key, read, ask, write = () => false) {
    const { href } = new URL(key, NOWHERE);
    if (this.works && this.keys.has(href)) {
      try {
        const found = await read(await this.store.match(href));
        if (found !== null) return found;
      } catch {
        this.works = false; // what was kept is gone, or the browser cannot read it
      }
    }
    const found = await ask();
    if (!this.works || found === null) return found;
    try {
      if (!write(found)) await this.store.put(href, new Response(found));
    } catch {
      this.works = false;
      // A file that does not fit as a whole would only take room from others.
      await Promise.all([caches.delete(this.name).catch(() => {}), this.folder.then((folder) => folder?.remove())]);
    }
    return found;
  }
}

/**
 * Data that is kept beside the files of an export, and deleted with them. Raises nothing where it cannot be kept.
 * @typedef {{read: () => Promise<Uint8Array|null>, write: (data: Blob) => Promise<void>}} Note
 *
 * @param {string|URL} base the site's address.
 * @param {string} fingerprint of the export.
 * @param {string} name of what is kept.
 * @returns {Note}
 */
export function keptNote(base, fingerprint, name) {
  const { href } = new URL(name, NOWHERE);
  const open = () => caches.open(nameOf(base, fingerprint));
  return {
    async read() {
      try {
        const found = await (await open()).match(href);
        return found ? new Uint8Array(await found.arrayBuffer()) : null;
      } catch {
        return null;
      }
    },
    async write(data) {
      try {
        await (await open()).put(href, new Response(data));
      } catch {
        // there is no room, or this window may keep nothing
      }
    },
  };
}

/**
 * Deletes everything that is kept of the exports at an address.
 * @param {string|URL} base
 * @returns {Promise<void>}
 */
export async function forget(base) {
  base = folderAddress(base);
  await Promise.all([letGo(OURS, base), KeptFolder.forget(nameOf(base)), forgetOffline(base)]);
}

/**
 * Deletes the kept pages of the exports at an address, but not their weights.
 * @param {string|URL} base
 * @returns {Promise<void>}
 */
export async function forgetOffline(base) {
  await letGo(OFFLINE, base);
}

async function letGo(ours, base) {
  const prefix = nameOf(base, "", ours);
  const all = async () => caches.keys();
  const names = await all().catch(() => []); // there is no `caches`, or this window may not use it
  await Promise.all(names.filter((name) => name.startsWith(prefix)).map((name) => caches.delete(name)));
}
