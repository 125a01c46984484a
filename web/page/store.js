/**
 * Where conversations are kept: in this browser's IndexedDB, and where that is refused, until the page is closed.
 *
 * @typedef {object} Saved a conversation as it is kept.
 * @property {string} id
 * @property {number} revision how often it was saved; 0 before the first time.
 * @property {number} changed when it was saved last, in milliseconds since 1970.
 * @property {string} title
 * @property {boolean} named whether somebody has given it its title.
 * @property {string} system its system prompt.
 * @property {Turn[]} turns
 *
 * @typedef {{message: string, answer: string, thinking: string, model: string}} Turn `model` is the name of what answered.
 *
 * @typedef {object} Store
 * @property {boolean} lasts whether what is kept outlasts the page.
 * @property {() => Promise<Saved[]>} all
 * @property {(id: string) => Promise<Saved|undefined>} get
 * @property {(saved: Saved) => Promise<boolean>} put keeps it where its revision follows that which is kept, and says
 *   whether it did: another tab may have changed or deleted it.
 * @property {(id: string) => Promise<void>} remove
 * @property {() => Promise<void>} clear
 */

const CONVERSATIONS = "conversations";

/** Whether a version may replace what is kept. */
function follows(saved, kept) {
  return saved.revision === (kept?.revision ?? 0) + 1;
}

/** See `Store`; lasts as long as the page. */
export class MemoryStore {
  lasts = false;
  kept = new Map();

  async all() {
    return structuredClone(Array.from(this.kept.values()));
  }

  async get(id) {
    return structuredClone(this.kept.get(id));
  }

  async put(saved) {
    if (!follows(saved, this.kept.get(saved.id))) return false;
    this.kept.set(saved.id, structuredClone(saved));
    return true;
  }

  async remove(id) {
    this.kept.delete(id);
  }

  async clear() {
    this.kept.clear();
  }
}

/** The result of a request to IndexedDB. */
function resultOf(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** See `Store`; a database of this browser. */
class DatabaseStore {
  lasts = true;

  /** @param {IDBDatabase} database */
  constructor(database) {
    this.database = database;
    database.onversionchange = () => database.close(); // a later version of this page wants it
  }

  /** Runs requests in one transaction, which has succeeded when this has. */
  async run(mode, requests) {
    const transaction = this.database.transaction(CONVERSATIONS, mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    const [found] = await Promise.all([requests(transaction.objectStore(CONVERSATIONS)), done]);
    return found;
  }

  all() {
    return this.run("readonly", (conversations) => resultOf(conversations.getAll()));
  }

  get(id) {
    return this.run("readonly", (conversations) => resultOf(conversations.get(id)));
  }

  put(saved) {
    return this.run("readwrite", async (conversations) => {
      if (!follows(saved, await resultOf(conversations.get(saved.id)))) return false;
      await resultOf(conversations.put(saved));
      return true;
    });
  }

  remove(id) {
    return this.run("readwrite", (conversations) => resultOf(conversations.delete(id)));
  }

  clear() {
    return this.run("readwrite", (conversations) => resultOf(conversations.clear()));
  }
}

/**
 * Opens a store.
 * @param {string} name of the database; pages with other names do not see it.
 * @returns {Promise<Store>}
 */
export async function openStore(name) {
  try {
    const opening = indexedDB.open(name, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
    const store = new DatabaseStore(await resultOf(opening));
    await store.all();
    return store;
  } catch {
    return new MemoryStore(); // private windows, files and sandboxes may have none
  }
}
