import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { loadThrough } from "../glinfer/host.js";
import { connect, direct, expose } from "../glinfer/threads.js";

/** An object behind a channel, as behind a worker, and in this thread. */
function linksTo(t, target) {
  const { port1, port2 } = new MessageChannel();
  expose(target, port1);
  const link = connect(port2);
  t.after(() => (link.close(), port1.close()));
  return { threaded: link, here: direct(target) };
}

const both = (name, check) => {
  for (const kind of ["threaded", "here"]) {
    test(`${name} (${kind})`, (t) => check((target) => linksTo(t, target)[kind]));
  }
};

class Counter {
  left = [];
  seen = [];

  add(one, { more = 0 } = {}) {
    return one + more;
  }

  same(given) {
    return given;
  }

  async told({ onProgress }) {
    onProgress(1, "a");
    onProgress(2, "b");
  }

  fail(kind) {
    if (kind === "known") throw new GlinferError("found 1; expected 2");
    throw new TypeError("no such thing");
  }

  async *count(end, { signal } = {}) {
    try {
      for (let at = 0; at < end && !signal?.aborted; at++) this.seen.push(yield at);
    } finally {
      this.left.push(end);
    }
    return "the end";
  }

  async until({ signal }) {
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    signal.throwIfAborted();
  }
}

both("a call gives its value, with what is left out as it is", async (link) => {
  assert.equal(await link(new Counter()).call("add", 1, { more: 2 }), 3);
  assert.equal(await link(new Counter()).call("add", 1), 1);
});

both("proxies of arrays and objects are given as copies", async (link) => {
  const reactive = new Proxy([new Proxy({ role: "user", parts: new Proxy([1, 2], {}) }, {})], {});
  assert.deepEqual(await link(new Counter()).call("same", { messages: reactive }), { messages: [{ role: "user", parts: [1, 2] }] });
});

both("callbacks among the arguments are told in order", async (link) => {
  const told = [];
  await link(new Counter()).call("told", { onProgress: (...values) => told.push(values) });
  assert.deepEqual(told, [[1, "a"], [2, "b"]]);
});

both("errors keep their kind and their sentence", async (link) => {
  const made = link(new Counter());
  await assert.rejects(made.call("fail", "known"), (error) => error instanceof GlinferError && error.message === "found 1; expected 2");
  await assert.rejects(made.call("fail", "odd"), { name: "TypeError", message: "no such thing" });
});

both("an iterable gives a value when it is asked, and takes what next is given", async (link) => {
  const counter = new Counter();
  const items = link(counter).iterate("count", 3);
  assert.deepEqual(await items.next("first"), { done: false, value: 0 });
  assert.deepEqual(await items.next("second"), { done: false, value: 1 });
  assert.deepEqual(await items.next("third"), { done: false, value: 2 });
  assert.deepEqual(await items.next("fourth"), { done: true, value: "the end" });
  assert.deepEqual(counter.seen, ["second", "third", "fourth"]);
});

both("leaving a loop ends it there, too, and no value was made ahead", async (link) => {
  const counter = new Counter();
  for await (const item of link(counter).iterate("count", 1000)) if (item === 4) break;
  assert.deepEqual(counter.left, [1000]);
  assert.equal(counter.seen.length, 4);
});

test("what cannot be sent is refused in one sentence", async (t) => {
  const { threaded } = linksTo(t, new Counter());
  await assert.rejects(threaded.call("same", Symbol("a")), { name: "GlinferError", message: /^an argument cannot be sent to the worker \(.*\); expected plain values$/ });
  assert.equal(await threaded.call("same", 1), 1);
});

both("an abort reaches the other side", async (link) => {
  const counter = new Counter();
  const stop = new AbortController();
  const items = [];
  for await (const item of link(counter).iterate("count", 1000, { signal: stop.signal })) {
    items.push(item);
    if (item === 2) stop.abort();
  }
  assert.ok(items.length < 10 && counter.left.length === 1);
  const other = new AbortController();
  const waiting = link(counter).call("until", { signal: other.signal });
  setTimeout(() => other.abort(), 5);
  await assert.rejects(waiting, { name: "AbortError" });
});

test("what waits for a thread that is closed is told", async (t) => {
  const { threaded } = linksTo(t, new Counter());
  const waiting = threaded.call("until", { signal: new AbortController().signal });
  threaded.close();
  await assert.rejects(waiting, GlinferError);
  await assert.rejects(threaded.call("add", 1), /released/);
});

test("logits wait for no text, and decode refuses ids outside the vocabulary", async (t) => {
  globalThis.OffscreenCanvas = /** @type {any} */ (EventTarget);
  t.after(() => delete globalThis.OffscreenCanvas);
  const tokenizer = { encode: (text, { allowSpecial = true } = {}) => [text, allowSpecial], decode: String };
  const model = {
    ...{ plan: { model: { config: { vocab_size: 9 } } }, tokenizer },
    logits: () => new Float32Array(9),
    writing: false,
    release() {},
  };
  const loadedWith = (options) => loadThrough("http://localhost/", { load: async () => model, start: null }, { worker: false, ...options });
  await assert.rejects(loadedWith({ canvas: {} }), { name: "GlinferError", message: /^unknown option canvas; known: worker, onLost, minimum/ });
  await assert.rejects(loadedWith({ onLost: 5 }), { name: "GlinferError", message: "onLost is 5; expected a function" });
  const loaded = await loadedWith({});
  assert.deepEqual(await loaded.encode("a", null), ["a", true]);
  assert.equal((await loaded.logits()).length, 9);
  model.writing = true;
  await assert.rejects(loaded.logits(), /generating a text; leave its loop, or abort it, before logits$/);
  assert.equal(await loaded.decode([0, 8]), "0,8");
  assert.equal(await loaded.decode(new Uint32Array([8])), "8");
  for (const [ids, words] of [[[9], "the token 9"], [[-1], "the token -1"], [["a"], 'the token "a"'], ["a", '"a"'], [5, "5"], [null, "null"]]) {
    await assert.rejects(loaded.decode(ids), ({ name, message }) => name === "GlinferError" && message.startsWith(`found ${words}; expected`));
  }
});
