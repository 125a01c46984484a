import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { Client, ServerError, eventsOf } from "../server/client.js";
import { fitting } from "../server/conversation.js";

/** A stream of bytes that comes in these pieces, and then ends or breaks. */
function streamOf(pieces, broken = null) {
  const waiting = [...pieces];
  return new ReadableStream({
    pull: (stream) => {
      if (waiting.length) stream.enqueue(waiting.shift());
      else if (broken) stream.error(broken);
      else stream.close();
    },
  });
}

const bytes = (text) => new TextEncoder().encode(text);

async function all(source) {
  const found = [];
  for await (const each of source) found.push(each);
  return found;
}

test("events come whole, wherever the bytes are cut", async () => {
  const whole = bytes('data: {"a":"é€"}\n\n: a comment\n\nevent: x\ndata: one\ndata:two\n\ndata: [DONE]\n\n');
  const expected = ['{"a":"é€"}', "one\ntwo", "[DONE]"];
  for (let at = 0; at <= whole.length; at++) {
    assert.deepEqual(await all(eventsOf(streamOf([whole.slice(0, at), whole.slice(at)]))), expected);
  }
});

test("a stream gives its chunks, and ends with DONE", async (t) => {
  const answer = 'data: {"n":1}\n\ndata: {"n":2}\n\ndata: [DONE]\n\ndata: {"n":3}\n\n';
  const asked = t.mock.method(globalThis, "fetch", async () => new Response(answer));
  const client = new Client("http://localhost:1/");
  client.key = "secret";
  assert.deepEqual(await all(client.stream("v1/completions", { prompt: "x" })), [{ n: 1 }, { n: 2 }]);
  const [url, options] = asked.mock.calls[0].arguments;
  assert.equal(String(url), "http://localhost:1/v1/completions");
  assert.deepEqual(JSON.parse(options.body), { prompt: "x", stream: true });
  assert.equal(options.headers.Authorization, "Bearer secret");
  assert.equal(options.credentials, "omit"); // or the browser would ask for a password of its own
});

test("what goes wrong is one sentence", async (t) => {
  const error = { message: "no place", type: "x", param: null, code: "queue_full" };
  const body = `data: {"n":1}\n\ndata: ${JSON.stringify({ error })}\n\n`;
  const refused = () => new Response(JSON.stringify({ error }), { status: 429 });
  const strange = () => new Response("<html>", { status: 502 });
  const gone = () => {
    throw new TypeError("Failed to fetch");
  };
  const broken = () => new Response(streamOf([bytes('data: {"n":1}\n\n')], new TypeError("network error")));
  const short = () => new Response('data: {"n":1}\n\n');
  const inside = () => new Response(body);
  for (const [answer, kind, message] of [
    [refused, ServerError, /^no place$/],
    [inside, ServerError, /^no place$/],
    [strange, ServerError, /the server answered 502/],
    [gone, GlinferError, /does not answer/],
    [broken, GlinferError, /connection to the server was lost/],
    [short, GlinferError, /connection to the server was lost/],
  ]) {
    t.mock.method(globalThis, "fetch", async () => answer());
    await assert.rejects(all(new Client("http://localhost:1/").stream("x", {})), (found) => {
      return found instanceof kind && message.test(found.message);
    });
    t.mock.restoreAll();
  }
});

test("an abort is passed on as it is", async (t) => {
  const control = new AbortController();
  control.abort();
  t.mock.method(globalThis, "fetch", async (url, { signal }) => signal.throwIfAborted());
  await assert.rejects(all(new Client("http://localhost:1/").stream("x", {}, control.signal)), { name: "AbortError" });
});

test("the oldest turns are left out until a conversation fits", async () => {
  const turns = ["a", "b", "c", "d"].map((message) => ({ message, answer: message.toUpperCase() }));
  const count = async (given) => given.length;
  const all = await fitting(turns, "", 7, count);
  assert.deepEqual([all.messages.length, all.left], [7, 0]);
  const some = await fitting(turns, "", 4, count);
  assert.deepEqual(some.messages.map(({ content }) => content), ["c", "C", "d"]);
  assert.deepEqual(some.messages.map(({ role }) => role), ["user", "assistant", "user"]);
  assert.equal(some.left, 2);
  const none = await fitting(turns, "", 0, count); // which the server refuses
  assert.deepEqual(none, { messages: [{ role: "user", content: "d" }], left: 3 });
  const told = await fitting(turns, "Be kind.", 4, count);
  assert.deepEqual(told.messages[0], { role: "system", content: "Be kind." });
  assert.deepEqual([told.messages.length, told.left], [4, 2]);
});
