import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { fetchSource, folderAddress, PART } from "../glinfer/source.js";

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
    [broken, /some\/file could not be loaded: the connection was lost/],
  ]) {
    await assert.rejects(piecesOf(t, answer), (error) => error instanceof GlinferError && message.test(error.message));
    t.mock.restoreAll();
  }
});

test("a folder needs no slash at the end of its address; a page in it, and its plan, are not folders", () => {
  const found = ["http://a/b", "http://a/b/", "http://a/v1.7?x=1", "http://a", "http://a/b/index.html", "http://a/b/plan.json"];
  const files = found.map((base) => new URL("plan.json", folderAddress(base)).href);
  assert.deepEqual(files, ["b/", "b/", "v1.7/", "", "b/", "b/"].map((folder) => `http://a/${folder}plan.json`));
});

test("what is not the address of a folder is refused", () => {
  for (const base of ["localhost:8000/site/", "http://", "site/"]) {
    assert.throws(() => folderAddress(base), { name: "GlinferError", message: new RegExp(`^"${base}" is not the address of a folder; expected`) });
  }
  for (const base of [undefined, null, 5, {}]) {
    const found = typeof base === "object" && base ? "an object" : String(base);
    assert.throws(() => folderAddress(base), { name: "GlinferError", message: new RegExp(`^${found} is not the address of a folder; expected`) });
  }
});

test("an error about another site's file names its address and CORS", async (t) => {
  t.mock.method(globalThis, "fetch", async () => Promise.reject(new TypeError("failed to fetch")));
  globalThis.location = { href: "http://b/", origin: "http://b" };
  t.after(() => delete globalThis.location);
  await assert.rejects(fetchSource("http://a/").text("plan.json"), /^GlinferError: http:\/\/a\/plan.json could not be loaded; .*CORS/);
});

/** A file on a server, which answers ranges where it knows them; `asked` are the ranges of all requests. */
function serving(t, bytes, { ranges = true, change = (answer) => answer } = {}) {
  const asked = [];
  t.mock.method(globalThis, "fetch", async (_, { headers: { Range: range } = {} } = {}) => {
    const [, first, last] = (range ?? "").match(/^bytes=(\d+)-(\d+)$/) ?? [];
    asked.push(range);
    if (!ranges || first === undefined) return new Response(bytes);
    const part = bytes.subarray(Number(first), Number(last) + 1);
    const headers = { "Content-Range": `bytes ${first}-${last}/${bytes.length}`, ETag: '"one"' };
    return change(new Response(part, { status: 206, headers }), asked.length);
  });
  return asked;
}

const BYTES = new Uint8Array(5 * PART + 123).map((_, index) => (index * 31 + (index >> 12)) & 0xff);

async function partsOf(source) {
  const parts = [];
  for await (const part of source.parts("some/file", BYTES.length)) parts.push(part);
  return parts;
}

for (const ranges of [true, false]) {
  test(`a large file comes in parts ${ranges ? "by ranges" : "though the server knows no ranges"}`, async (t) => {
    const asked = serving(t, BYTES, { ranges });
    const parts = await partsOf(fetchSource("http://localhost/"));
    assert.deepEqual(parts.map(({ length }) => length), [PART, PART, PART, PART, PART, 123]);
    assert.ok(Buffer.concat(parts).equals(Buffer.from(BYTES)));
    assert.equal(asked.length, ranges ? 6 : 1);
    assert.equal(asked[0], `bytes=0-${PART - 1}`);
  });
}

test("parts of another file, and parts that are cut short, are refused", async (t) => {
  const renamed = (answer, at) => (at > 2 && answer.headers.set("ETag", '"two"'), answer);
  const longer = (answer) => (answer.headers.set("Content-Range", `bytes 0-1/${BYTES.length + 1}`), answer);
  const cut = (answer, at) => (at > 2 ? new Response("abc", answer) : answer);
  const gone = (answer, at) => (at > 2 ? new Response("", { status: 404 }) : answer);
  for (const [change, message] of [
    [renamed, /some\/file is not the file that plan\.json was written with/],
    [longer, /some\/file is not the file that plan\.json was written with/],
    [cut, /some\/file could not be loaded: the connection was lost/],
    [gone, /some\/file could not be loaded: the server answered 404/],
  ]) {
    serving(t, BYTES, { change });
    await assert.rejects(partsOf(fetchSource("http://localhost/")), (error) => error instanceof GlinferError && message.test(error.message));
    t.mock.restoreAll();
  }
  for (const length of [BYTES.length - 1, 2 * PART]) {
    serving(t, BYTES.subarray(0, length), { ranges: false });
    await assert.rejects(partsOf(fetchSource("http://localhost/")), /it ends after \d+ bytes/);
    t.mock.restoreAll();
  }
  serving(t, Buffer.concat([BYTES, Uint8Array.of(1)]), { ranges: false });
  await assert.rejects(partsOf(fetchSource("http://localhost/")), /is not the file that plan\.json was written with/);
});

test("who leaves the parts early asks for no more", async (t) => {
  const asked = serving(t, BYTES);
  for await (const part of fetchSource("http://localhost/").parts("some/file", BYTES.length)) {
    assert.equal(part.length, PART);
    break;
  }
  assert.ok(asked.length <= 4);
});
