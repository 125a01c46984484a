import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { parseSafetensors } from "../glinfer/safetensors.js";

function file(header, bytes, announced) {
  const text = new TextEncoder().encode(typeof header === "string" ? header : JSON.stringify(header));
  const whole = new Uint8Array(8 + text.length + bytes.length);
  new DataView(whole.buffer).setBigUint64(0, BigInt(announced ?? text.length), true);
  whole.set(text, 8);
  whole.set(bytes, 8 + text.length);
  return whole.buffer;
}

test("tensors of each type, also where they lie on no whole element", () => {
  const header = {
    __metadata__: { format: "x" },
    half: { dtype: "F16", shape: [1], data_offsets: [0, 2] },
    whole: { dtype: "I32", shape: [1, 2], data_offsets: [2, 10] },
    float: { dtype: "F32", shape: [1], data_offsets: [10, 14] },
  };
  const bytes = new Uint8Array(14);
  const view = new DataView(bytes.buffer);
  view.setUint16(0, 0x3c00, true);
  view.setInt32(2, -5, true);
  view.setInt32(6, 7, true);
  view.setFloat32(10, 0.5, true);
  const padded = (JSON.stringify(header).length + 8) % 4; // make the tensors unaligned or not, as it comes
  for (const more of [4 - padded, 5 - padded]) {
    const tensors = parseSafetensors(file(JSON.stringify(header) + " ".repeat(more), bytes));
    assert.deepEqual([...tensors.keys()], ["half", "whole", "float"]);
    assert.deepEqual(tensors.get("half").data, Uint16Array.of(0x3c00));
    assert.deepEqual(tensors.get("whole"), { dtype: "I32", shape: [1, 2], data: Int32Array.of(-5, 7) });
    assert.deepEqual(tensors.get("float").data, Float32Array.of(0.5));
  }
});

test("aligned tensors are views of the file", () => {
  const header = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}';
  const buffer = file(header + " ".repeat((8 - (header.length % 8)) % 8), new Uint8Array(8));
  assert.equal(parseSafetensors(buffer).get("a").data.buffer, buffer);
});

const entry = (changes) => ({ a: { dtype: "F32", shape: [2], data_offsets: [0, 8], ...changes } });
const DAMAGED = {
  "too short": new ArrayBuffer(3),
  "a header beyond the end": file(entry({}), new Uint8Array(8), 1e6),
  "a header that is no JSON": file("{]", new Uint8Array(8)),
  "a type that no texture holds": file(entry({ dtype: "F64" }), new Uint8Array(8)),
  "a tensor beyond the end": file(entry({ data_offsets: [4, 12] }), new Uint8Array(8)),
  "a tensor of another size": file(entry({ shape: [3] }), new Uint8Array(8)),
  "a negative edge": file(entry({ shape: [-2] }), new Uint8Array(8)),
  "no place": file(entry({ data_offsets: [0] }), new Uint8Array(8)),
};
for (const [what, buffer] of Object.entries(DAMAGED)) {
  test(`refuses ${what}`, () => assert.throws(() => parseSafetensors(buffer), GlinferError));
}
