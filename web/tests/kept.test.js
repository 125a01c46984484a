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

const BYTES = Uint8Array.from({ length: 2 * PART + 5 }, (_, index) => index & 0xff);

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
