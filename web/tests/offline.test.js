import assert from "node:assert/strict";
import { createHash, webcrypto } from "node:crypto";
import { readFileSync } from "node:fs";
import test from "node:test";
import { fileURLToPath } from "node:url";
import vm from "node:vm";

import { forget } from "../glinfer/kept.js";
import { keepPage, leavePage } from "../page/offline.js";

const SITE = "https://example.org/site/";
const SCRIPT = readFileSync(fileURLToPath(new URL("../offline.js", import.meta.url)), "utf-8");

/** Cache Storage that lasts as long as a test. */
function storage() {
  const all = new Map();
  const open = async (name) => {
    if (!all.has(name)) all.set(name, new Map());
    const store = all.get(name);
    return {
      match: async (key) => store.get(key)?.clone(),
      put: async (key, response) => void store.set(key, response),
      delete: async (key) => store.delete(key),
      keys: async () => [...store.keys()].map((url) => ({ url })),
    };
  };
  return { open, has: async (name) => all.has(name), keys: async () => [...all.keys()], delete: async (name) => all.delete(name), all };
}

/** The files of an export, by their names. */
function exported(name, { worker = "w" } = {}) {
  const files = { "index.html": `page of ${name}`, "app.js": `code of ${name}`, "page/worker.js": worker };
  const digests = Object.fromEntries(Object.entries(files).map(([file, text]) => [file, createHash("sha256").update(text).digest("hex")]));
  return { ...files, "plan.json": JSON.stringify({ name, offline: { version: name, files: digests } }), "weights.safetensors": `weights of ${name}` };
}

/** A browser with a server, whose files may be another export's later, and the service workers that are in force one by one. */
class Browser {
  constructor(files) {
    this.files = files; // null where the server is away
    this.status = 200;
    this.caches = storage();
    this.clients = new Set();
    this.listeners = null;
    this.asked = [];
    this.last = 0;
  }

  fetch = async (request) => {
    const address = typeof request === "string" ? request : request.url;
    if (!this.files) throw new TypeError("Failed to fetch");
    const name = address.slice(SITE.length).split("?")[0] || "index.html";
    this.asked.push(name);
    if (this.status !== 200) return new Response("", { status: this.status });
    const found = this.files[name];
    return found === undefined ? new Response("", { status: 404 }) : new Response(found, { headers: { "Content-Encoding": "gzip", "X-Of": "server" } });
  };

  /** Starts a worker that lost what it knew, as browsers do between two events. */
  start(version) {
    const listeners = (this.listeners = {});
    const self = {
      location: new URL(`${SITE}offline.js?${version}`),
      addEventListener: (name, listener) => (listeners[name] = listener),
      skipWaiting: async () => {},
      clients: { get: async (id) => (this.clients.has(id) ? { id } : undefined) },
    };
    const globals = { self, fetch: this.fetch, caches: this.caches, crypto: webcrypto, URL, Map, Set, Response, Headers, TextDecoder, Uint8Array };
    vm.runInNewContext(SCRIPT, globals);
  }

  async tell(kind) {
    const promises = [];
    this.listeners[kind]({ waitUntil: (promise) => promises.push(promise) });
    await Promise.all(promises);
  }

  /** Installs the worker of a version, and puts it in force. */
  async install(version) {
    this.start(version);
    await this.tell("install");
    await this.tell("activate");
  }

  /** What a request is answered with: the text, "nothing" where it fails, or "unanswered" where the worker leaves it alone. */
  async request(name, { clientId = "", resultingClientId = "", mode = "cors", method = "GET" } = {}) {
    const promises = [];
    let answer = null;
    const request = { url: new URL(name, SITE).href, mode, method };
    this.listeners.fetch({ request, clientId, resultingClientId, respondWith: (given) => (answer = given), waitUntil: (promise) => promises.push(promise) });
    const response = await answer;
    await Promise.all(promises);
    if (response === null) return "unanswered";
    return response.type === "error" ? "nothing" : response.text();
  }

  /** Opens the page; gives its client's id and what it was answered with. */
  async open(name = "") {
    const id = `client${++this.last}`;
    const text = await this.request(name, { mode: "navigate", resultingClientId: id });
    this.clients.add(id);
    return { id, text };
  }
}

test("where the server answers all comes from it, and where it does not all comes from what is kept", async () => {
  const browser = new Browser(exported("A"));
  await browser.install("A");
  const online = await browser.open();
  assert.equal(online.text, "page of A");
  assert.equal(await browser.request("app.js", { clientId: online.id }), "unanswered"); // the browser asks by itself
  assert.ok(!browser.asked.includes("weights.safetensors")); // they are kept elsewhere
  browser.files = null;
  assert.equal(await browser.request("app.js", { clientId: online.id }), "unanswered");
  for (const address of ["", "index.html", "?worker=0", "index.html?verify=1#x"]) {
    const { id, text } = await browser.open(address);
    assert.equal(text, "page of A");
    assert.equal(await browser.request("app.js?x=1", { clientId: id }), "code of A");
    assert.equal(JSON.parse(await browser.request("plan.json", { clientId: id })).name, "A");
    assert.equal(await browser.request("weights.safetensors", { clientId: id }), "nothing");
  }
});

test("a page has no files of two exports, whatever the server and its workers do later", async () => {
  const browser = new Browser(exported("A"));
  await browser.install("A");
  browser.files = null;
  const before = await browser.open();
  browser.files = exported("B");
  assert.equal(await browser.request("page/worker.js", { clientId: before.id, resultingClientId: "thread" }), "w");
  browser.clients.add("thread");
  await browser.install("B"); // the worker of another tab, which the server has answered
  for (const clientId of [before.id, "thread"]) {
    assert.equal(await browser.request("app.js", { clientId }), "code of A");
    assert.equal(await browser.request("weights.safetensors", { clientId }), "nothing");
  }
  browser.start("B"); // which the browser had stopped meanwhile
  assert.equal(await browser.request("app.js", { clientId: "thread" }), "code of A");
  const after = await browser.open();
  assert.equal(after.text, "page of B");
  browser.files = null;
  assert.equal((await browser.open()).text, "page of B");
  browser.clients.clear(); // all tabs were closed
  await browser.tell("activate");
  const versions = (await browser.caches.keys()).filter((name) => !name.endsWith(" opened"));
  assert.deepEqual(versions, [`glinfer-offline ${SITE} B`]);
});

test("what is kept is one export as a whole, or nothing", async () => {
  const changed = { ...exported("A"), "app.js": "code of B" };
  const halfway = { ...exported("A"), "app.js": undefined };
  for (const [files, version] of [[changed, "A"], [halfway, "A"], [exported("B"), "A"]]) {
    const browser = new Browser(files);
    browser.start(version);
    await assert.rejects(() => browser.tell("install"));
    browser.files = null;
    assert.equal((await browser.open()).text, "nothing");
  }
  const browser = new Browser(exported("A"));
  await browser.install("A");
  browser.caches.all.get(`glinfer-offline ${SITE} A`).delete(`${SITE}plan.json`); // it was broken off
  browser.files = null;
  assert.equal((await browser.open()).text, "nothing");
});

test("what the browser has let go of is kept again, and a server that has broken down counts as away", async () => {
  const browser = new Browser(exported("A"));
  await browser.install("A");
  browser.caches.all.clear();
  browser.status = 404; // which is an answer: the site is gone
  await browser.open();
  browser.status = 200;
  assert.equal((await browser.open()).text, "page of A");
  browser.status = 503;
  const { id, text } = await browser.open();
  assert.equal(text, "page of A");
  assert.equal(await browser.request("app.js", { clientId: id }), "code of A");
  const kept = browser.caches.all.get(`glinfer-offline ${SITE} A`).get(`${SITE}app.js`);
  assert.deepEqual([kept.headers.get("X-Of"), kept.headers.get("Content-Encoding")], ["server", null]);
});

test("other addresses, other pages of the site, and what is no question, are left alone", async () => {
  const browser = new Browser(exported("A"));
  await browser.install("A");
  browser.files = null;
  const { id } = await browser.open();
  assert.equal(await browser.request("https://example.org/other/app.js", { clientId: id }), "unanswered");
  assert.equal(await browser.request("app.js", { clientId: id, method: "POST" }), "unanswered");
  assert.equal((await browser.open("mine.html")).text, "unanswered");
});

/** Runs what registers, with a browser that has these service workers; gives what was registered and let go of. */
async function registering(act, { worker = null, secure = true, sandboxed = false } = {}) {
  const done = [];
  const found = worker && { scope: worker.scope ?? SITE, active: { scriptURL: worker.script }, unregister: async () => done.push("unregistered") };
  const serviceWorker = {
    getRegistration: async () => found ?? undefined,
    register: async (address, options) => done.push([address, options]),
  };
  const kept = storage();
  for (const name of [`glinfer-offline ${SITE} A`, `glinfer ${SITE} 12`, `glinfer-offline ${SITE}deeper/ B`]) await kept.open(name);
  Object.defineProperty(globalThis, "navigator", { value: secure ? { serviceWorker } : {}, configurable: true });
  Object.assign(globalThis, { document: { baseURI: `${SITE}?x=1` }, caches: kept });
  if (sandboxed) {
    const refused = { get() { throw new Error("SecurityError"); }, configurable: true };
    Object.defineProperty(navigator, "serviceWorker", refused);
    Object.defineProperty(globalThis, "caches", refused);
  }
  try {
    await act();
  } finally {
    Object.defineProperty(globalThis, "caches", { value: kept, writable: true, configurable: true });
  }
  return { done, kept: await kept.keys() };
}

const asked = (query) => new URLSearchParams(query);
const PLAN = { offline: { version: "A" } };

test("a page is kept where the browser can, and where nobody has said that it is not to be", async () => {
  const registered = [[`${SITE}offline.js?A`, { updateViaCache: "none" }]];
  const own = { script: `${SITE}offline.js?B` };
  const cases = [
    [PLAN, "", {}, registered],
    [PLAN, "worker=0", { worker: own }, registered],
    [PLAN, "", { worker: { script: "https://example.org/theirs.js", scope: "https://example.org/" } }, registered],
    [PLAN, "", { worker: { script: `${SITE}theirs.js` } }, []],
    [PLAN, "cache=0", {}, []],
    [PLAN, "offline=0", {}, []],
    [PLAN, "", { secure: false }, []],
    [PLAN, "", { sandboxed: true }, []],
    [{ offline: null }, "", {}, []], // a single file
    [{}, "", {}, []], // an export of before
  ];
  for (const [plan, query, browser, expected] of cases) {
    assert.deepEqual((await registering(() => keepPage(plan, asked(query)), browser)).done, expected);
  }
});

test("a page lets go of what is kept of it, and of nothing else", async () => {
  const others = [`glinfer ${SITE} 12`, `glinfer-offline ${SITE}deeper/ B`];
  const own = { worker: { script: `${SITE}offline.js?A` } };
  const left = await registering(() => leavePage(asked("offline=0")), own);
  assert.deepEqual(left, { done: ["unregistered"], kept: others });
  const theirs = await registering(() => leavePage(asked("offline=0")), { worker: { script: `${SITE}theirs.js` } });
  assert.deepEqual(theirs, { done: [], kept: others });
  assert.equal((await registering(() => leavePage(asked("")), own)).kept.length, 3);
  assert.equal((await registering(() => leavePage(asked("offline=0")), { secure: false })).kept.length, 3);
  assert.deepEqual((await registering(() => forget(SITE), own)).kept, [others[1]]);
  for (const act of [() => leavePage(asked("offline=0")), () => forget(SITE)]) {
    assert.equal((await registering(act, { sandboxed: true })).kept.length, 3); // an error would reject it
  }
});
