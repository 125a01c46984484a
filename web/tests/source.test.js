import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { fetchSource } from "../glinfer/source.js";

/** The pieces of a file, where the network answers like this. */
async function piecesOf(t, answer) {
  const asked = t.mock.method(globalThis, "fetch", async () => answer());
  const pieces = [];
  for await (const piece of fetchSource("http://localhost/").pieces("some/file")) pieces.push(...piece);
  assert.equal(String(asked.mock.calls[0].arguments[0]), "http://localhost/some/file");
  assert.equal(asked.mock.calls[0].arguments[1].cache, "no-cache"); // the file as it is now
  return pieces;
}

const streamOf = (parts, end) =>
  new ReadableStream({ pull: (stream) => (parts.length ? stream.enqueue(parts.shift()) : end(stream)) });

test("a file comes in pieces, as they arrive", async (t) => {
  const stream = streamOf([Uint8Array.of(1, 2), Uint8Array.of(3)], (each) => each.close());
  assert.deepEqual(await piecesOf(t, () => new Response(stream)), [1, 2, 3]);
});

test("a file that is gone, a lost connection and a stream that breaks are told", async (t) => {
  const gone = () => new Response("", { status: 404 });
  const lost = () => {
    throw new TypeError("failed to fetch");
  };
  const broken = () => new Response(streamOf([Uint8Array.of(1)], (each) => each.error(new TypeError("network error"))));
  for (const [answer, message] of [
    [gone, /some\/file could not be loaded: the server answered 404/],
    [lost, /some\/file could not be loaded; check the connection/],
    [broken, /some\/file could not be loaded: the connection broke/],
  ]) {
    await assert.rejects(piecesOf(t, answer), (error) => error instanceof GlinferError && message.test(error.message));
    t.mock.restoreAll();
  }
});
