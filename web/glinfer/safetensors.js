/** The safetensors format: a JSON header of names, types and offsets, then the bytes of all tensors. */

import { GlinferError } from "./errors.js";

/** The arrays of the types that textures hold. */
export const TYPES = {
  F32: Float32Array,
  F16: Uint16Array, // JavaScript has no half floats; WebGL takes their bits
  I32: Int32Array,
  U32: Uint32Array,
};
const LONGEST_HEADER = 100_000_000;
/** Bytes before the header, which say how long it is. */
export const PREFIX = 8;

/**
 * The offsets of a tensor: `begin` and `end` in bytes after the header.
 * @typedef {{name: string, dtype: string, shape: number[], begin: number, end: number}} Entry
 */

/**
 * How many bytes of JSON follow the first eight bytes of a file.
 * @param {Uint8Array} prefix those eight bytes, or fewer of a file that is too short.
 * @param {number} size of the whole file, if that is known.
 * @returns {number}
 * @throws {GlinferError} the file is damaged.
 */
export function headerLength(prefix, size = Infinity) {
  if (prefix.length < PREFIX) throw damaged(`the file has only ${prefix.length} bytes`);
  const length = Number(new DataView(prefix.buffer, prefix.byteOffset).getBigUint64(0, true));
  if (length > LONGEST_HEADER || length > size - PREFIX) throw damaged("its header is longer than the file");
  return length;
}

/**
 * Reads the header of a safetensors file.
 * @param {Uint8Array} bytes the header, without the eight bytes before it.
 * @returns {Entry[]} in the order of their names in the header.
 * @throws {GlinferError} the header is damaged, or names a type that no texture holds.
 */
export function parseHeader(bytes) {
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    throw damaged("its header is not JSON");
  }
  const entries = [];
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, shape, data_offsets: offsets } = entry ?? {};
    const Type = TYPES[dtype];
    if (!Type) throw damaged(`tensor ${name} has the type ${dtype}; expected ${Object.keys(TYPES).join(", ")}`);
    if (!isCounts(shape) || !isCounts(offsets) || offsets.length !== 2) throw damaged(`tensor ${name} has no offsets`);
    const count = shape.reduce((product, edge) => product * edge, 1);
    const [begin, end] = offsets;
    if (end - begin !== count * Type.BYTES_PER_ELEMENT) {
      throw damaged(`tensor ${name} takes bytes ${begin} to ${end}, which are not ${count} of ${dtype}`);
    }
    entries.push({ name, dtype, shape, begin, end });
  }
  return entries;
}

function damaged(why) {
  return new GlinferError(`the weights cannot be read: ${why}; export the model again`);
}

function isCounts(list) {
  return Array.isArray(list) && list.every((number) => Number.isSafeInteger(number) && number >= 0);
}
