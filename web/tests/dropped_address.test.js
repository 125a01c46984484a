// Addresses of GGUF files: which are files, and what is said of others. test_drop_page.py loads from servers.

import assert from "node:assert/strict";
import { test } from "node:test";

import { addressOf } from "../drop/file.js";

test("pages of files on Hugging Face stand for the files", () => {
  const file = "https://huggingface.co/org/model-GGUF/resolve/main/sub/m-Q4_K_M.gguf";
  assert.equal(addressOf(` ${file} `).href, file);
  assert.equal(addressOf(file.replace("resolve", "blob")).href, file);
  assert.equal(addressOf(`${file.replace("resolve", "blob")}?download=true`).href, `${file}?download=true`);
  assert.equal(addressOf("https://example.org/blob/m.gguf").href, "https://example.org/blob/m.gguf");
});

test("other addresses get one sentence", () => {
  for (const given of ["model.gguf", "file:///m.gguf", "ftp://a/m.gguf", ""]) {
    assert.throws(() => addressOf(given), /is not an address; expected one that begins with https:$/);
  }
  for (const rest of ["org/model", "org/model/tree/main", "org/model/blob/main", ""]) {
    assert.throws(() => addressOf(`https://hf.co/${rest}`), /is not the address of a file; open the files of (org\/model|a model), and copy/);
  }
});
