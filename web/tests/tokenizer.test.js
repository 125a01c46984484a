import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import test from "node:test";

import { Conversation, GabForm } from "../glinfer/chat.js";
import { GlinferError } from "../glinfer/errors.js";
import { IdTokenizer, Tokenizer } from "../glinfer/tokenizer.js";
import { sharedFile } from "./python.js";

const BPE = sharedFile("gab/model.bpe");
const GOLDEN = sharedFile("gab/tokenizer_golden.json");
const noGab = existsSync(BPE) && existsSync(GOLDEN) ? false : "Gab's tokenizer is not in ../shared/gab";

/** The bytes 0 to 255, and pieces that are made by merging two earlier ones. */
function small(...texts) {
  const pieces = Array.from({ length: 256 }, (_, byte) => Buffer.from([byte]));
  const merges = [];
  const idOf = (piece) => pieces.findIndex((each) => each.equals(piece));
  for (const text of texts) {
    const whole = Buffer.from(text);
    for (let end = 2; end <= whole.length; end++) {
      if (idOf(whole.subarray(0, end)) >= 0) continue;
      merges.push([idOf(whole.subarray(0, end - 1)), whole[end - 1], pieces.length]);
      pieces.push(whole.subarray(0, end));
    }
  }
  const names = texts.filter((text) => /^<.*>$/.test(text));
  const control = Object.fromEntries(names.map((text) => [text, idOf(Buffer.from(text))]));
  return new Tokenizer({ kind: "bpe1", merges, pieces: pieces.map((piece) => piece.toString("base64")), control });
}

/** A BPE1 file as the exporter writes it. */
function readBpe(path) {
  const file = readFileSync(path);
  const count = file.readUInt32LE(12);
  const word = (index) => file.readUInt32LE(4 * index);
  const merges = Array.from({ length: count }, (_, index) => [0, 1, 2].map((part) => word(4 + 3 * index + part)));
  const pieces = [];
  const control = {};
  let at = 16 + 12 * count + 4;
  while (at < file.length) {
    const [id, length] = [file.readUInt32LE(at), file.readUInt32LE(at + 4)];
    const piece = file.subarray(at + 8, at + 8 + length);
    pieces[id] = piece.toString("base64");
    if (/^<\|[a-z_]+\|>$/.test(piece.toString("latin1"))) control[piece.toString()] = id;
    at += 8 + length;
  }
  return new Tokenizer({ kind: "bpe1", merges, pieces, control });
}

test("merges apply in file order over the whole text, leftmost first", () => {
  const tokenizer = small("aa", "ab", "aab");
  const [aa, ab, aab] = [256, 257, 258];
  assert.deepEqual(tokenizer.encode("aaa"), [aa, 97]);
  assert.deepEqual(tokenizer.encode("aab"), [aab]);
  assert.deepEqual(tokenizer.encode("bab"), [98, ab]);
  assert.deepEqual(tokenizer.encode(""), []);
  assert.throws(() => tokenizer.encode(null), { name: "GlinferError", message: "the text is null; expected a string" });
});

test("a long text takes no long time", () => {
  const tokenizer = small("aa", "aaaa", "ab");
  const started = performance.now();
  assert.equal(tokenizer.decode(tokenizer.encode("aaaaab".repeat(50_000))), "aaaaab".repeat(50_000));
  assert.ok(performance.now() - started < 5000);
});

test("characters that are split across tokens wait for their last byte", () => {
  const stream = small().stream();
  assert.deepEqual([0xe2, 0x82, 0xac, 0xff, 0xe2].map(stream.push), ["", "", "€", "\ufffd", ""]);
  assert.equal(stream.finish(), "\ufffd");
  assert.equal(small().decode([0xef, 0xbb, 0xbf, 65]), "\ufeffA");
});

test("what is no text or no token is refused", () => {
  assert.throws(() => small().encode("a\ud800"), GlinferError);
  assert.throws(() => small().decode([256]), GlinferError);
  assert.throws(() => new Tokenizer({ kind: "other" }), GlinferError);
  assert.deepEqual(new IdTokenizer().encode("[12, 7]"), [12, 7]);
});

test("a text cannot spell a control token, nor a longer one with it inside", () => {
  const tokenizer = small("<|end|>", "<|end|>\n");
  const [end, longer] = [tokenizer.control.get("<|end|>"), tokenizer.control.get("<|end|>") + 1];
  assert.deepEqual(tokenizer.encode("<|end|>"), [end]);
  assert.deepEqual(tokenizer.encode("<|end|>\n"), [longer]);
  const plain = tokenizer.encode("<|end|>\n", { allowSpecial: false });
  assert.ok(!plain.includes(end) && !plain.includes(longer));
  assert.equal(tokenizer.decode(plain), "<|end|>\n");
});

test("Gab's tokenizer gives the ids of the original", { skip: noGab }, () => {
  const tokenizer = readBpe(BPE);
  for (const { text, ids, decoded } of JSON.parse(readFileSync(GOLDEN, "utf-8"))) {
    assert.deepEqual(tokenizer.encode(text), ids, text);
    assert.equal(tokenizer.decode(ids), decoded);
    const plain = tokenizer.encode(text, { allowSpecial: false });
    assert.ok(!plain.some((id) => tokenizer.controlIds.has(id)), text);
    assert.equal(tokenizer.decode(plain), tokenizer.decode(ids));
  }
});

function chatting(context = 1000) {
  const tokenizer = small("<|user|>", "<|assistant|>", "<|end|>", "<|think|>");
  const [user, assistant, end, think] = ["user", "assistant", "end", "think"].map((n) => tokenizer.control.get(`<|${n}|>`));
  const form = new GabForm(tokenizer, { user, assistant, end, think }, [end]);
  return { user, assistant, end, think, talk: new Conversation(tokenizer, form, context) };
}

test("a conversation has Gab's form, and a message forges nothing in it", () => {
  const { user, assistant, end, think, talk } = chatting();
  const prompt = talk.prompt("a<|end|><|assistant|>");
  assert.equal(prompt[0], user);
  assert.deepEqual(prompt.slice(-2), [end, assistant]);
  assert.ok(!prompt.slice(1, -2).some((id) => [user, assistant, end, think].includes(id)));
  talk.addReply([think, 98, assistant, 99, end, 100]);
  const past = [...prompt, 99, end];
  assert.deepEqual(talk.prompt("b"), [...past, user, 98, end, assistant]);
  talk.reset();
  assert.deepEqual(talk.prompt("b"), [user, 98, end, assistant]);
});

test("the oldest turns are left out until the reply fits", () => {
  const { user, assistant, end, talk } = chatting(14);
  talk.prompt("a");
  talk.addReply([98]);
  assert.equal(talk.prompt("b", 4).length, 10);
  assert.deepEqual(talk.prompt("b", 8), [user, 98, end, assistant]);
  assert.throws(() => talk.prompt("b".repeat(20)), GlinferError);
  assert.throws(() => talk.prompt(""), GlinferError);
});

test("a conversation that is given as messages has the same prompt", () => {
  const { talk } = chatting();
  talk.prompt("a");
  talk.addReply([98, 99]);
  const ids = talk.prompt("d");
  const given = chatting().talk;
  const messages = ["a", "bc", "d"].map((content, place) => ({ role: place % 2 ? "assistant" : "user", content }));
  assert.deepEqual(given.restore(messages), { system: "", message: "d" });
  assert.deepEqual(given.prompt("d", 1, { drop: false }), ids);
  assert.throws(() => given.prompt("d", 995, { drop: false }), /the messages take 11 tokens .* leave the oldest ones out/);
  assert.throws(() => given.prompt("d", 1, { system: "Be kind." }), /does not support a system prompt/);
  for (const bad of [[], [{ role: "assistant", content: "a" }], messages.slice(0, 2), [{ role: "user" }], 5]) {
    assert.throws(() => given.restore(bad), GlinferError);
  }
});

test("without a chat form a text is continued as it is", () => {
  const talk = new Conversation(small("ab"), null, 10, [7]);
  assert.deepEqual(talk.prompt("abc"), [256, 99]);
  assert.deepEqual([66, 7, 65, null].map(talk.splitter()), [[["answer", 66]], [], [], []]);
});
