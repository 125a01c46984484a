import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { headerLength, parseHeader, PREFIX } from "../glinfer/safetensors.js";

function file(header, bytes, announced) {
  const text = new TextEncoder().encode(typeof header === "string" ? header : JSON.stringify(header));
  const whole = new Uint8Array(8 + text.length + bytes.length);
  new DataView(whole.buffer).setBigUint64(0, BigInt(announced ?? text.length), true);
  whole.set(text, 8);
  whole.set(bytes, 8 + text.length);
  return whole.buffer;
}

/** The header of a file, as the loader reads it. */
function headerOf(buffer) {
  const length = headerLength(new Uint8Array(buffer, 0, Math.min(PREFIX, buffer.byteLength)), buffer.byteLength);
  return parseHeader(new Uint8Array(buffer, PREFIX, length));
}

test("the offsets of tensors of each type", () => {
  const header = {
    __metadata__: { format: "x" },
    half: { dtype: "F16", shape: [1], data_offsets: [0, 2] },
    whole: { dtype: "I32", shape: [1, 2], data_offsets: [2, 10] },
    float: { dtype: "F32", shape: [1], data_offsets: [10, 14] },
  };
  assert.deepEqual(headerOf(file(header, new Uint8Array(14))), [
    { name: "half", dtype: "F16", shape: [1], begin: 0, end: 2 },
    { name: "whole", dtype: "I32", shape: [1, 2], begin: 2, end: 10 },
    { name: "float", dtype: "F32", shape: [1], begin: 10, end: 14 },
  ]);
});

const entry = (changes) => ({ a: { dtype: "F32", shape: [2], data_offsets: [0, 8], ...changes } });
const DAMAGED = {
  "too short": new ArrayBuffer(3),
  "a header beyond the end": file(entry({}), new Uint8Array(8), 1e6),
  "a header that is no JSON": file("{]", new Uint8Array(8)),
  "a type that no texture holds": file(entry({ dtype: "F64" }), new Uint8Array(8)),
  "a tensor of another size": file(entry({ shape: [3] }), new Uint8Array(8)),
  "a negative edge": file(entry({ shape: [-2] }), new Uint8Array(8)),
  "no offsets": file(entry({ data_offsets: [0] }), new Uint8Array(8)),
};
for (const [what, buffer] of Object.entries(DAMAGED)) {
  test(`refuses ${what}`, () => assert.throws(() => headerOf(buffer), GlinferError));
}
