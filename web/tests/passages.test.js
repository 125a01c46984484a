import assert from "node:assert/strict";
import test from "node:test";

import { nearest, passagesOf } from "../search/passages.js";

const words = (most) => (text) => text.split(/\s+/).filter(Boolean).length <= most;

test("paragraphs are passages, with the lines where they begin", () => {
  const text = "\n\n  one\r\ntwo  \r\n \t\r\n\r\nthree\n\n\n\nfour";
  const found = [
    { text: "one\ntwo", line: 3 },
    { text: "three", line: 7 },
    { text: "four", line: 11 },
  ];
  assert.deepEqual(passagesOf(text, () => true), found);
  assert.deepEqual(passagesOf(" \n\n \n", () => true), []);
  assert.deepEqual(passagesOf("", () => true), []);
});

test("what does not fit is cut at ends of sentences, and between words where a sentence does not fit", () => {
  const text = "A cat sat. A dog lay down! Was it late?\nYes.";
  const found = passagesOf(`first\n\n${text}`, words(4));
  assert.deepEqual(found.slice(1).map((each) => each.text), ["A cat sat.", "A dog lay down!", "Was it late?\nYes."]);
  assert.deepEqual(found.map(({ line }) => line), [1, 3, 3, 3]);
  const long = Array.from({ length: 100 }, (_, index) => `w${index}`).join(" ");
  const parts = passagesOf(long, words(7)).map((each) => each.text);
  assert.equal(parts.join(" "), long);
  assert.ok(parts.every(words(7)));
});

test("a text without spaces is cut between characters, never inside of one", () => {
  const text = "😀".repeat(33);
  const parts = passagesOf(text, (each) => each.length <= 8).map((each) => each.text);
  assert.equal(parts.join(""), text);
  assert.ok(parts.every((each) => each.isWellFormed() && each.length <= 8));
  assert.deepEqual(passagesOf("😀", () => false), [{ text: "😀", line: 1 }]);
});

test("the nearest vectors come first, of equal ones the first", () => {
  const vectors = [[0, 1], [1, 0], [0.6, 0.8], [1, 0]].map((each) => Float32Array.from(each));
  const found = nearest(Float32Array.from([1, 0]), vectors, 3);
  assert.deepEqual(found.map(({ index }) => index), [1, 3, 2]);
  assert.deepEqual(found.map(({ score }) => Math.round(10 * score)), [10, 10, 6]);
});
