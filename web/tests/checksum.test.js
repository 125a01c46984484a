import assert from "node:assert/strict";
import test from "node:test";
import zlib from "node:zlib";

import { crc32 } from "../glinfer/checksum.js";

test("the checksum of the nine digits is the published one", () => {
  assert.equal(crc32(new TextEncoder().encode("123456789")), 0xcbf43926);
  assert.equal(crc32(new Uint8Array(0)), 0);
});

test("checksums are those of zlib, which exports are written with", () => {
  const bytes = Uint8Array.from({ length: 5000 }, (_, index) => (index * index * 31 + (index >> 3)) % 256);
  for (const length of [1, 2, 255, 256, 4097, 5000]) {
    assert.equal(crc32(bytes.subarray(0, length)), zlib.crc32(bytes.subarray(0, length)));
  }
});
