/**
 * The files of the two plans of a tour. Their weights are made from weights.bin, which has each tensor of the model once;
 * see glinfer/export/tour.py.
 */

import { GlinferError } from "../glinfer/errors.js";
import { fetchSource } from "../glinfer/source.js";
import { elementPosition } from "./elements.js";

const BLOCK = 128; // numbers that NumPy adds up in eight sums

/** The numbers that half floats stand for, by their bits. */
const HALVES = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
});

/** The tensors of the model's file. */
export class Store {
  /**
   * @param {ArrayBuffer} buffer weights.bin.
   * @param {Record<string, {at: number, shape: [number, number], half: boolean}>} tensors of tour.json.
   */
  constructor(buffer, tensors) {
    this.buffer = buffer;
    this.tensors = tensors;
  }

  /**
   * The numbers of a tensor.
   * @param {string} name
   * @returns {Float32Array} [rows × columns]
   */
  floats(name) {
    const { at, shape, half } = this.tensors[name];
    const count = shape[0] * shape[1];
    if (!half) return new Float32Array(this.buffer, at, count);
    const bits = new Uint16Array(this.buffer, at, count);
    const values = new Float32Array(count);
    for (let index = 0; index < count; index++) values[index] = HALVES[bits[index]];
    return values;
  }

  /**
   * The bytes of a segment.
   * @param {object} segment of tour.json.
   * @returns {Uint8Array}
   */
  bytesOf(segment) {
    if (segment.at !== undefined) return new Uint8Array(this.buffer, segment.at, segment.bytes);
    const { buffer, byteOffset, byteLength } = packed(this.derived(segment), segment);
    return new Uint8Array(buffer, byteOffset, byteLength);
  }

  /** The matrix of a segment, row by row: the tensors' rows, times gains, centred; float64 until the end. */
  derived({ rows, gain, centre }) {
    if (gain === null && !centre.length && rows.length === 1) return this.floats(rows[0]);
    const cols = this.tensors[rows[0]].shape[1];
    const parts = rows.map((name) => this.floats(name));
    const matrix = new Float64Array(parts.reduce((sum, { length }) => sum + length, 0));
    parts.reduce((start, part) => (matrix.set(part, start), start + part.length), 0);
    if (gain !== null) {
      const factors = this.floats(gain);
      for (let index = 0; index < matrix.length; index++) matrix[index] *= factors[index % cols];
    }
    for (const each of centre) (each === "rows" ? centreRows : centreColumns)(matrix, cols);
    return Float32Array.from(matrix);
  }
}

function centreRows(matrix, cols) {
  for (let start = 0; start < matrix.length; start += cols) {
    const mean = pairwise(matrix, start, cols) / cols;
    for (let index = start; index < start + cols; index++) matrix[index] -= mean;
  }
}

function centreColumns(matrix, cols) {
  const means = new Float64Array(cols);
  for (let index = 0; index < matrix.length; index++) means[index % cols] += matrix[index];
  for (let col = 0; col < cols; col++) means[col] /= matrix.length / cols;
  for (let index = 0; index < matrix.length; index++) matrix[index] -= means[index % cols];
}

/** The sum of numbers in the order in which NumPy adds them, so that both have the same last bit. */
function pairwise(numbers, start, count) {
  if (count > BLOCK) {
    const half = Math.floor(count / 16) * 8;
    return pairwise(numbers, start, half) + pairwise(numbers, start + half, count - half);
  }
  const sums = [0, 0, 0, 0, 0, 0, 0, 0];
  const whole = count - (count % 8);
  for (let index = 0; index < whole; index++) sums[index & 7] += numbers[start + index];
  let sum = sums[0] + sums[1] + (sums[2] + sums[3]) + (sums[4] + sums[5] + (sums[6] + sums[7]));
  for (let index = whole; index < count; index++) sum += numbers[start + index];
  return sum;
}

/** The texels of a matrix; see the layouts of plan.json. */
function packed(matrix, { layout, channels }) {
  const { kind, cols, width, height } = layout;
  if (kind === "matrix" && matrix.length === width * height) return matrix;
  const texels = new Float32Array(width * height * channels);
  if (kind === "matrix") texels.set(matrix);
  for (let index = 0; kind !== "matrix" && index < matrix.length; index++) {
    const { x, y, channel } = elementPosition(layout, Math.floor(index / cols), index % cols);
    texels[(y * width + x) * channels + channel] = matrix[index];
  }
  return texels;
}

/**
 * Loads tour.json and weights.bin. In an exported site the tour has the site's own plan and files.
 * @param {string|URL} base the address of the page.
 * @returns {Promise<{tour: object, sourceOf: (plan: string) => object}>} `sourceOf` gives a source of a plan's files, see
 *   ../glinfer/source.js.
 * @throws {GlinferError} a file is missing.
 */
export async function openTour(base) {
  const files = fetchSource(base);
  const tour = JSON.parse(await files.text("tour.json"));
  if (!tour.tensors) return { tour, sourceOf: () => files };
  const response = await fetch(new URL("weights.bin", base));
  if (!response.ok) throw new GlinferError("weights.bin could not be loaded; write the page again");
  const store = new Store(await response.arrayBuffer(), tour.tensors);
  const sourceOf = (plan) => {
    const pieces = async function* (path) {
      for (const segment of tour.plans[plan].segments[path]) yield store.bytesOf(segment);
    };
    return { ...files, text: (path) => files.text(path === "plan.json" ? `${plan}.json` : path), pieces, parts: pieces };
  };
  return { tour, sourceOf };
}
