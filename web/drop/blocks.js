/**
 * The numbers in tensors of GGUF files, and their blocks as textures hold them. The browser's side of glinfer/quant/ggml.py
 * and groups.py; `form` is an entry of `blocks` in the site's plan.json, which comes from Python's table.
 */

import { numberOf } from "../glinfer/textures.js";

const GROUP = 32; // weights with one scale word
const HALF_BLOCK = 32; // outputs of a line of texels
const { fround } = Math;

/** The number of each half float, by its bits. */
const HALVES = Float32Array.from({ length: 1 << 16 }, (_, bits) => numberOf(bits));

/**
 * The bytes of a row of weights.
 * @param {string} type of a tensor.
 * @param {number} inputs
 * @param {Record<string, object>} forms
 * @returns {number}
 */
export function rowBytes(type, inputs, forms) {
  const form = forms[type];
  return form ? (inputs / form.weights) * form.bytes : inputs * (type === "F32" ? 4 : 2);
}

/**
 * Weights as float32, bit for bit as Python has them.
 * @param {string} type
 * @param {Uint8Array} bytes of whole blocks.
 * @param {Record<string, object>} forms
 * @returns {Float32Array}
 */
export function floatsOf(type, bytes, forms) {
  const { buffer, byteOffset, length } = bytes;
  if (type === "F32") return new Float32Array(byteOffset % 4 ? bytes.slice().buffer : buffer, byteOffset % 4 ? 0 : byteOffset, length / 4);
  const form = forms[type];
  if (form) return blockFloats(bytes, form);
  const halves = new Uint16Array(byteOffset % 2 ? bytes.slice().buffer : buffer, byteOffset % 2 ? 0 : byteOffset, length / 2);
  if (type === "F16") return Float32Array.from(halves, (bits) => HALVES[bits]);
  return new Float32Array(Uint32Array.from(halves, (bits) => bits << 16).buffer);
}

function blockFloats(bytes, form) {
  const count = bytes.length / form.bytes;
  const found = new Float32Array(count * form.weights);
  const block = new Block(form);
  const factors = new Float32Array(3);
  for (let number = 0; number < count; number++) {
    block.read(bytes, number * form.bytes);
    for (let group = 0; group < form.weights / GROUP; group++) {
      block.factors(group, factors);
      const [first, second, added] = factors;
      const start = group * GROUP;
      const at = number * form.weights + start;
      for (let index = 0; index < GROUP; index++) {
        const whole = form.low_bits === 8 ? (block.numbers[start + index] << 24) >> 24 : block.numbers[start + index] - form.offset;
        found[at + index] = fround((index < GROUP / 2 ? first : second) * whole) + added;
      }
    }
  }
  return found;
}

/** One block: its integers, a word of scales for each group, and the half floats that groups share. */
class Block {
  constructor(form) {
    this.form = form;
    this.numbers = new Uint8Array(form.weights);
    this.scales = new Uint32Array(form.weights / GROUP);
    this.shared = 0;
  }

  read(bytes, at) {
    const { numbers, form } = this;
    numbers.fill(0);
    for (const [start, nbytes, chunks, bits, position] of form.planes) {
      const [width, steps, mask] = [nbytes / chunks, 8 / bits, (1 << bits) - 1];
      for (let chunk = 0; chunk < chunks; chunk++) {
        for (let step = 0; step < steps; step++) {
          const [from, to] = [at + start + chunk * width, (chunk * steps + step) * width];
          for (let index = 0; index < width; index++) numbers[to + index] |= ((bytes[from + index] >> (step * bits)) & mask) << position;
        }
      }
    }
    this.readScales(bytes, at);
  }

  readScales(bytes, at) {
    const { scales, form } = this;
    const half = (offset) => bytes[at + offset] | (bytes[at + offset + 1] << 8);
    const pair = (offset) => (half(offset) | (half(offset + 2) << 16)) >>> 0;
    if (form.scales === "half") {
      scales[0] = half(form.scale_start);
    } else if (form.scales === "pair") {
      scales[0] = pair(form.scale_start);
    } else if (form.scales === "signed bytes") {
      this.shared = half(form.scale_start);
      for (let group = 0; group < scales.length; group++) scales[group] = half(form.factor_start + 2 * group);
    } else {
      this.shared = pair(form.scale_start);
      const factor = (index) => bytes[at + form.factor_start + index];
      for (let group = 0; group < 4; group++) {
        const [scale, least, both] = [factor(group), factor(4 + group), factor(8 + group)];
        scales[group] = (scale & 63) | ((least & 63) << 8);
        scales[4 + group] = (both & 15) | ((scale >> 2) & 48) | (((both >> 4) | ((least >> 2) & 48)) << 8);
      }
    }
  }

  /** The factors of both halves of a group, and what is added. */
  factors(group, found) {
    const [scale, { scales: kind }] = [this.scales[group], this.form];
    found[2] = 0;
    if (kind === "half") {
      found[0] = found[1] = HALVES[scale];
    } else if (kind === "pair") {
      found[0] = found[1] = HALVES[scale & 0xffff];
      found[2] = HALVES[scale >>> 16];
    } else if (kind === "signed bytes") {
      found[0] = HALVES[this.shared] * ((scale << 24) >> 24);
      found[1] = HALVES[this.shared] * ((scale << 16) >> 24);
    } else {
      found[0] = found[1] = HALVES[this.shared & 0xffff] * (scale & 63);
      found[2] = -fround(HALVES[this.shared >>> 16] * ((scale >> 8) & 63));
    }
  }
}

/**
 * The texels of rows of blocks sorted into groups; see glinfer/gl/layouts/grouped.py.
 * @param {Uint8Array} bytes of rows, the first of which begins a half block of outputs.
 * @param {number} inputs weights of a row.
 * @param {object} form
 * @param {Uint32Array} words of those lines, all zero.
 * @param {number} line words of a line.
 */
export function sortGroups(bytes, inputs, form, words, line) {
  const block = new Block(form);
  const perRow = inputs / form.weights;
  const [groups, rounds] = [form.weights / GROUP, Math.ceil(inputs / GROUP / 4)];
  const lowWords = form.low_bits;
  const scalesAt = 4 * (lowWords + form.high_words);
  const shares = form.scales === "six bits" || form.scales === "signed bytes";
  for (let number = 0; number < bytes.length / form.bytes; number++) {
    const row = Math.floor(number / perRow);
    const output = row % HALF_BLOCK;
    block.read(bytes, number * form.bytes);
    for (let each = 0; each < groups; each++) {
      const group = (number % perRow) * groups + each;
      const [round, member] = [group >> 2, group & 3];
      const base = (Math.floor(row / HALF_BLOCK) * rounds + round) * line;
      const put = (texel, word) => (words[base + texel * HALF_BLOCK + output] = word);
      for (let word = 0; word < lowWords; word++) {
        const texel = lowWords === 8 ? 2 * ((word & 3) * 4 + member) + (word >> 2) : word * 4 + member;
        put(texel, lowWord(block.numbers, each * GROUP, word, lowWords));
      }
      for (let word = 0; word < form.high_words; word++) {
        put(4 * (lowWords + word) + member, highWord(block.numbers, each * GROUP, word, form.high_words));
      }
      if (form.scales === "pair") {
        put(scalesAt + member, block.scales[each]);
      } else {
        const index = base + (scalesAt + (member >> 1)) * HALF_BLOCK + 4 * (output >> 2) + 2 * (member & 1) + ((output >> 1) & 1);
        words[index] |= block.scales[each] << (16 * (output & 1));
      }
      if (shares) put(scalesAt + 2, block.shared);
    }
  }
}

/** Four bytes of numbers; or their lowest four bits, with those of the numbers 16 later above them. */
function lowWord(numbers, at, word, words) {
  let found = 0;
  for (let byte = 0; byte < 4; byte++) {
    const index = at + 4 * word + byte;
    found |= (words === 8 ? numbers[index] : (numbers[index] & 15) | ((numbers[index + 16] & 15) << 4)) << (8 * byte);
  }
  return found;
}

/** The bits above the lowest four, `bits` of each number. */
function highWord(numbers, at, word, bits) {
  let found = 0;
  for (let index = 0; index < GROUP / bits; index++) {
    found |= (numbers[at + (GROUP / bits) * word + index] >> 4) << (bits * (index >> 2) + 8 * (index & 3));
  }
  return found;
}

/**
 * Half floats, rounded to nearest, ties to even.
 * @param {Float32Array} numbers
 * @returns {Uint16Array} their bits.
 */
export function halvesOf(numbers) {
  const bits = new Uint32Array(numbers.buffer, numbers.byteOffset, numbers.length);
  return Uint16Array.from(bits, (each) => {
    const sign = (each >>> 16) & 0x8000;
    const size = each & 0x7fffffff;
    if (size >= 0x47800000) return sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00);
    const shift = size < 0x38800000 ? Math.min(126 - (size >>> 23), 31) : 13; // subnormal half floats have fewer bits
    const whole = size < 0x38800000 ? (size & 0x7fffff) | 0x800000 : size - 0x38000000;
    const [kept, rest, middle] = [whole >>> shift, whole & ((1 << shift) - 1), 1 << (shift - 1)];
    if (shift > 24) return sign;
    return sign | (kept + (rest > middle || (rest === middle && kept & 1) ? 1 : 0));
  });
}
