import assert from "node:assert/strict";
import { test } from "node:test";

import { pictureName } from "../glinfer/pictures.js";

test("pictures are called by their block, and their head where each has one", () => {
  assert.equal(pictureName("h.2.attn.scores"), "block 2");
  assert.equal(pictureName("h.0.attn.head.11.probs"), "block 0, head 11");
  assert.equal(pictureName("something else"), "something else");
});
