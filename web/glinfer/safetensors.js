/** The safetensors format: a JSON header of names, types and places, then the bytes of all tensors. */

import { GlinferError } from "./errors.js";

const TYPES = {
  F32: Float32Array,
  F16: Uint16Array, // JavaScript has no half floats; WebGL takes their bits
  I32: Int32Array,
  U32: Uint32Array,
};
const LONGEST_HEADER = 100_000_000;

/**
 * One tensor: a view of the file's own bytes where they lie on a whole element, else a copy.
 * @typedef {{dtype: string, shape: number[], data: Float32Array|Uint16Array|Int32Array|Uint32Array}} Tensor
 */

/**
 * Reads a safetensors file.
 * @param {ArrayBuffer} buffer the whole file.
 * @returns {Map<string, Tensor>}
 * @throws {GlinferError} the file is damaged, or has a type that no texture holds.
 */
export function parseSafetensors(buffer) {
  const damaged = (why) => new GlinferError(`the weights cannot be read: ${why}; export the model again`);
  if (buffer.byteLength < 8) throw damaged(`the file has only ${buffer.byteLength} bytes`);
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (length > LONGEST_HEADER || length > buffer.byteLength - 8) throw damaged("its header is longer than the file");
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(buffer, 8, length)));
  } catch {
    throw damaged("its header is no JSON");
  }
  const tensors = new Map();
  const room = buffer.byteLength - 8 - length;
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, shape, data_offsets: offsets } = entry ?? {};
    const Type = TYPES[dtype];
    if (!Type) throw damaged(`tensor ${name} has the type ${dtype}; expected ${Object.keys(TYPES).join(", ")}`);
    if (!isCounts(shape) || !isCounts(offsets) || offsets.length !== 2) throw damaged(`tensor ${name} has no place`);
    const count = shape.reduce((product, edge) => product * edge, 1);
    const [begin, end] = offsets;
    if (end > room || end - begin !== count * Type.BYTES_PER_ELEMENT) {
      throw damaged(`tensor ${name} takes bytes ${begin} to ${end} of ${room}, which are not ${count} of ${dtype}`);
    }
    const at = 8 + length + begin;
    const whole = at % Type.BYTES_PER_ELEMENT === 0;
    const data = whole ? new Type(buffer, at, count) : new Type(buffer.slice(at, 8 + length + end));
    tensors.set(name, { dtype, shape, data });
  }
  return tensors;
}

function isCounts(list) {
  return Array.isArray(list) && list.every((number) => Number.isSafeInteger(number) && number >= 0);
}
