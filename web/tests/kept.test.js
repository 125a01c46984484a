import assert from "node:assert/strict";
import test from "node:test";

import { forget, keptNote, keptSource } from "../glinfer/kept.js";
import { inOrder, PART } from "../glinfer/source.js";

const BASE = "https://example.org/site/";

/** Cache Storage in this process; `full` says when it takes no more. */
function lendCaches(t, { full = () => false, broken = false } = {}) {
  const stores = new Map();
  const storeOf = (name) => {
    const entries = stores.get(name) ?? new Map();
    stores.set(name, entries);
    return {
      keys: async () => [...entries.keys()].map((url) => ({ url })),
      match: async (url) => entries.get(url)?.clone(),
      put: async (url, response) => {
        if (full(entries.size)) throw new DOMException("no room", "QuotaExceededError");
        entries.set(url, new Response(await response.arrayBuffer()));
      },
    };
  };
  const caches = {
    keys: async () => [...stores.keys()],
    open: async (name) => {
      if (broken) throw new DOMException("not in this window", "SecurityError");
      return storeOf(name);
    },
    delete: async (name) => stores.delete(name),
  };
  Object.defineProperty(globalThis, "caches", { value: caches, configurable: true });
  t.after(() => delete globalThis.caches);
  return stores;
}

/**
 * A browser's own file system in this process: folders are maps, files {bytes, taken}. Without `worker` nothing there can be written,
 * and `room` is how many bytes a file may have.
 */
function lendFiles(t, { worker = true, room = Infinity } = {}) {
  class FileSystemFileHandle {
    constructor(file) {
      this.file = file;
    }

    async getFile() {
      return new Blob([this.file.bytes]);
    }
  }
  const access = (file) => ({
    getSize: () => file.bytes.length,
    truncate(size) {
      const bytes = new Uint8Array(size);
      bytes.set(file.bytes.subarray(0, size));
      file.bytes = bytes;
    },
    read(into, { at }) {
      const found = file.bytes.subarray(at, at + into.length);
      into.set(found);
      return found.length;
    },
    write(bytes, { at }) {
      if (at + bytes.length > room) throw new DOMException("no room", "QuotaExceededError");
      file.bytes.set(bytes, at);
      return bytes.length;
    },
    flush() {},
    close() {
      file.taken = false;
    },
  });
  if (worker) {
    Object.assign(FileSystemFileHandle.prototype, {
      async createSyncAccessHandle() {
        if (this.file.taken) throw new DOMException("another tab has it", "NoModificationAllowedError");
        this.file.taken = true;
        return access(this.file);
      },
    });
  }
  const missing = () => new DOMException("nothing is there", "NotFoundError");
  const folder = (entries) => ({
    entries,
    async *keys() {
      yield* [...entries.keys()];
    },
    async getDirectoryHandle(name, { create = false } = {}) {
      if (!entries.has(name) && !create) throw missing();
      if (!entries.has(name)) entries.set(name, new Map());
      return folder(entries.get(name));
    },
    async getFileHandle(name, { create = false } = {}) {
      if (!entries.has(name) && !create) throw missing();
      if (!entries.has(name)) entries.set(name, { bytes: new Uint8Array(0), taken: false });
      return new FileSystemFileHandle(entries.get(name));
    },
    async removeEntry(name) {
      if (!entries.has(name)) throw missing();
      const open = (each) => (each instanceof Map ? [...each.values()].some(open) : each.taken);
      if (open(entries.get(name))) throw new DOMException("a file is open", "NoModificationAllowedError");
      entries.delete(name);
    },
  });
  const root = new Map();
  Object.defineProperty(globalThis, "FileSystemFileHandle", { value: FileSystemFileHandle, configurable: true });
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator") ?? { value: undefined, configurable: true };
  const storage = { getDirectory: async () => folder(root) };
  Object.defineProperty(globalThis, "navigator", { value: { storage }, configurable: true });
  t.after(() => {
    delete globalThis.FileSystemFileHandle;
    Object.defineProperty(globalThis, "navigator", before);
  });
  const files = (entries) => [...entries].flatMap(([name, each]) => (each instanceof Map ? files(each) : [{ name, ...each, file: each }]));
  return () => files(root);
}

const BYTES = new Uint8Array(2 * PART + 5).map((_, index) => index & 0xff);

/** A server's files, and what is asked of it. */
function server() {
  const asked = [];
  const open = (path, bytes) => ({
    part: async (index) => (asked.push(`${path} ${index}`), BYTES.slice(index * PART, Math.min(bytes, (index + 1) * PART))),
    close: async () => {},
  });
  return {
    asked,
    text: async (path) => (asked.push(path), `text of ${path}`),
    optional: async (path) => (asked.push(path), path === "absent" ? null : `text of ${path}`),
    pieces: () => assert.fail("not here"),
    parts: (path, bytes) => inOrder(open(path, bytes), bytes),
    open,
  };
}

/** Everything of a site, as a visit asks for it. */
async function visit(fingerprint, base = BASE) {
  const from = server();
  const source = await keptSource(from, base, fingerprint);
  const parts = [];
  for await (const part of source.parts("weights", BYTES.length)) parts.push(part);
  const texts = [await source.text("shaders/a b.frag"), await source.optional("tokenizer.json"), await source.optional("absent")];
  assert.ok(Buffer.concat(parts).equals(Buffer.from(BYTES)));
  assert.deepEqual(texts, ["text of shaders/a b.frag", "text of tokenizer.json", null]);
  return from.asked;
}

const ALL = ["weights 0", "weights 1", "weights 2", "shaders/a b.frag", "tokenizer.json", "absent"];

test("a second visit asks the server for nothing but what is absent", async (t) => {
  lendCaches(t);
  assert.deepEqual(await visit("one"), ALL);
  assert.deepEqual(await visit("one"), ["absent"]);
  assert.deepEqual(await visit("one", `${BASE}?verify=1#x`), ["absent"]);
});

test("a new export is never mixed with an old one, which is let go of; other sites keep theirs", async (t) => {
  const stores = lendCaches(t);
  await visit("one");
  await visit("one", "https://example.org/site/other/");
  assert.deepEqual(await visit("two"), ALL);
  assert.deepEqual([...stores.keys()].sort(), [`glinfer ${BASE} two`, `glinfer ${BASE}other/ one`]);
  await forget(BASE);
  assert.deepEqual([...stores.keys()], [`glinfer ${BASE}other/ one`]);
});

test("a visit that was broken off goes on where it ended", async (t) => {
  lendCaches(t);
  for await (const part of (await keptSource(server(), BASE, "one")).parts("weights", PART)) assert.equal(part.length, PART);
  assert.deepEqual(await visit("one"), ALL.slice(1));
});

test("where there is no room nothing is kept, and all is loaded", async (t) => {
  const stores = lendCaches(t, { full: (entries) => entries >= 2 });
  assert.deepEqual(await visit("one"), ALL);
  assert.deepEqual([...stores.keys()], []);
  assert.deepEqual(await visit("one"), ALL);
});

test("windows that may keep nothing, and browsers that cannot, load all", async (t) => {
  lendCaches(t, { broken: true });
  assert.deepEqual(await visit("one"), ALL);
  delete globalThis.caches;
  assert.deepEqual(await visit("one"), ALL);
  await forget(BASE);
});

test("what was kept and has another length is asked for again", async (t) => {
  const stores = lendCaches(t);
  await visit("one");
  const [entries] = stores.values();
  for (const url of entries.keys()) if (url.includes("part=1")) entries.set(url, new Response("abc"));
  assert.deepEqual(await visit("one"), ["weights 1", "absent"]);
});

test("in a worker large files are kept in the browser's file system, and in Cache Storage no longer", async (t) => {
  const stores = lendCaches(t);
  const files = lendFiles(t);
  assert.deepEqual(await visit("one"), ALL);
  assert.deepEqual(files().map(({ name, bytes, taken }) => [name, bytes.length, taken]), [["weights", BYTES.length + 3, false]]);
  assert.deepEqual([...[...stores.values()][0].keys()].filter((key) => key.includes("part")), []);
  assert.deepEqual(await visit("one"), ["absent"]);
  await visit("one", "https://example.org/site/other/");
  assert.deepEqual(await visit("two"), ALL);
  assert.equal(files().length, 2, "of each address the newest");
  await forget(BASE);
  assert.equal(files().length, 1);
  assert.deepEqual(await visit("one", "https://example.org/site/other/"), ["absent"]);
});

test("a part that was not written to its end, or a file of another length, is asked for again", async (t) => {
  lendCaches(t);
  const files = lendFiles(t);
  for await (const part of (await keptSource(server(), BASE, "one")).parts("weights", BYTES.length)) {
    assert.equal(part.length, PART);
    break; // the next two are on their way already, and kept
  }
  const [{ file }] = files();
  assert.equal(file.taken, false);
  file.bytes[BYTES.length + 1] = 0;
  assert.deepEqual(await visit("one"), ["weights 1", ...ALL.slice(3)]);
  assert.deepEqual(await visit("one"), ["absent"]);
  file.bytes = file.bytes.slice(0, PART);
  assert.deepEqual(await visit("one"), ["weights 0", "weights 1", "weights 2", "absent"]);
  assert.deepEqual(await visit("one"), ["absent"]);
});

test("where another tab has the file open it is read, and nothing is kept twice", async (t) => {
  const stores = lendCaches(t);
  const files = lendFiles(t);
  const first = (await keptSource(server(), BASE, "one")).parts("weights", BYTES.length)[Symbol.asyncIterator]();
  await first.next();
  assert.equal(files()[0].taken, true);
  const asked = await visit("one");
  assert.ok(asked.length < ALL.length, "some parts are there already");
  assert.deepEqual([...[...stores.values()][0].keys()].filter((key) => key.includes("part")), []);
  await first.return();
  assert.deepEqual(await visit("one"), ["absent"]);
});

test("a page without a worker reads what a worker has kept, and keeps the rest in Cache Storage", async (t) => {
  const stores = lendCaches(t);
  const files = lendFiles(t);
  await visit("one");
  files()[0].file.bytes[BYTES.length + 2] = 0;
  delete globalThis.FileSystemFileHandle.prototype.createSyncAccessHandle;
  assert.deepEqual(await visit("one"), ["weights 2", "absent"]);
  assert.equal([...[...stores.values()][0].keys()].filter((key) => key.includes("part")).length, 1);
  assert.deepEqual(await visit("one"), ["absent"]);
});

test("where a file does not fit nothing is kept of it, and all is loaded", async (t) => {
  const stores = lendCaches(t);
  const files = lendFiles(t, { room: PART + 1 });
  assert.deepEqual(await visit("one"), ALL);
  assert.deepEqual([files(), [...stores.keys()]], [[], []]);
  assert.deepEqual(await visit("one"), ALL);
});

test("a note is kept beside the files of its export, and goes with them", async (t) => {
  const stores = lendCaches(t);
  await visit("one");
  const note = keptNote(BASE, "one", "note");
  assert.equal(await note.read(), null);
  await note.write(new Blob([Uint8Array.of(1, 2, 3)]));
  assert.deepEqual(await note.read(), Uint8Array.of(1, 2, 3));
  assert.equal(stores.size, 1);
  assert.equal(await keptNote(BASE, "two", "note").read(), null);
  await visit("two");
  assert.equal(await keptNote(BASE, "one", "note").read(), null);
});

test("where nothing can be kept a note is not there", async (t) => {
  lendCaches(t, { broken: true });
  const note = keptNote(BASE, "one", "note");
  await note.write(new Blob([Uint8Array.of(1)]));
  assert.equal(await note.read(), null);
});
