/**
 * The file of weights that an export would have, made of a GGUF file as its program says; see `Program._steps` in
 * glinfer/export/drop.py. The bits are those of Python's `--weights q8` (glinfer/lower/weights/fold.py). Few rows of a tensor are
 * in memory at once.
 */

import { crc32 } from "../glinfer/checksum.js";
import { GlinferError } from "../glinfer/errors.js";
import { positionOf } from "../glinfer/layouts.js";
import { floatsOf, halvesOf, rowBytes, sortGroups } from "./blocks.js";
import { quoted } from "./gguf.js";

const { abs, ceil, floor, fround, max, min } = Math;
const PIECE = 1 << 21; // weights that are made at once
const BLOCK = 64; // outputs of a block of a product
const HALF_BLOCK = 32;
const STEP_WORDS = 128; // of half a block and 16 inputs
const TO_WHOLE = 1.5 * 2 ** 52; // added and subtracted, it rounds to integers, ties to even
const SMALLEST = 2 ** -126; // normal float32
const LARGEST_HALF = 65504;
const ROPE_FREQS = "rope_freqs.weight";
const [CHECKSUMS, ORDER] = ["line_checksums", "logits_order"];
const FORMATS = {
  rgba32ui: ["U32", Uint32Array],
  rgba32f: ["F32", Float32Array],
  rgba16f: ["F16", Uint16Array],
};

/** A program with the file that it was found for. */
export class Weights {
  /**
   * @param {import("./gguf.js").GgufHeader} header
   * @param {object} program see programs.js.
   * @param {Record<string, object>} forms block formats.
   */
  constructor(header, program, forms) {
    Object.assign(this, { header, program, forms });
    this.textures = new Map(program.plan.textures.map((each) => [each.name, each]));
    this.rows = program.rows.map((differences) => {
      let at = 0;
      return Int32Array.from(differences, (each) => (at += each));
    });
    this.entries = program.weights.flatMap(({ kind, name }) => (kind === "product" ? [`${name}.weight`, `${name}.consts`] : [name]));
    this.prefix = this.safetensorsHeader();
  }

  /** Bytes of the file of weights. */
  get bytes() {
    return this.prefix.length + this.end;
  }

  /** The header: a tensor of texels for each texture, then the tables. */
  safetensorsHeader() {
    const header = {};
    let [end, lines] = [0, 0];
    const add = (name, dtype, shape, nbytes) => {
      header[name] = { dtype, shape, data_offsets: [end, end + nbytes] };
      end += nbytes;
    };
    for (const name of this.entries) {
      const { width, height, format } = this.textures.get(name);
      const [dtype, Type] = FORMATS[format];
      add(name, dtype, [height, width, 4], height * width * 4 * Type.BYTES_PER_ELEMENT);
      lines += height;
    }
    const { config } = this.program.plan.model;
    add(ORDER, "I32", [config.vocab_size], 4 * config.vocab_size);
    add(CHECKSUMS, "U32", [lines], 4 * lines);
    this.end = end;
    this.lineCount = lines;
    const text = new TextEncoder().encode(JSON.stringify(header));
    const whole = new Uint8Array(8 + ceil(text.length / 8) * 8).fill(32);
    new DataView(whole.buffer).setBigUint64(0, BigInt(whole.length - 8), true);
    whole.set(text, 8);
    return whole;
  }

  /**
   * The bytes of the file, in pieces.
   * @yields {Uint8Array}
   */
  async *pieces() {
    yield this.prefix;
    const sums = new Uint32Array(this.lineCount);
    let line = 0;
    for (const step of this.program.weights) {
      for await (const [name, texels] of this[step.kind](step)) {
        const bytes = new Uint8Array(texels.buffer, texels.byteOffset, texels.byteLength);
        const { width, format } = this.textures.get(name);
        const each = width * 4 * FORMATS[format][1].BYTES_PER_ELEMENT;
        for (let at = 0; at < bytes.length; at += each) sums[line++] = crc32(bytes.subarray(at, at + each));
        yield bytes;
      }
    }
    yield new Uint8Array(this.logitsOrder().buffer);
    yield new Uint8Array(sums.buffer);
  }

  /** The index of each logit among the numbers that are read back. */
  logitsOrder() {
    const { logits, textures, model } = this.program.plan;
    return Int32Array.from({ length: model.config.vocab_size }, (_, id) => {
      const { x, y, channel } = positionOf(textures[logits.texture].layout, 0, id);
      return 4 * (y * logits.width + x) + channel;
    });
  }

  /** The first of several tensors that the file has. */
  tensor(...names) {
    return this.header.tensors.get(names.find((name) => this.header.tensors.has(name)));
  }

  /** Rows [start, end) of a tensor, as the file has them. */
  read({ file, begin, type, shape }, start, end) {
    const row = rowBytes(type, shape.at(-1), this.forms);
    return file.read(begin + start * row, begin + end * row);
  }

  async floats(tensor, start = 0, end = tensor.shape.length === 1 ? 1 : tensor.shape[0]) {
    return floatsOf(tensor.type, await this.read(tensor, start, end), this.forms);
  }

  /** The gains of a norm; files have the whole gain, models its difference from the offset, which Python keeps in float32. */
  async gains(name) {
    const { offset } = this.program;
    const tensor = this.tensor(name);
    const found = Float64Array.from(await this.floats(tensor), (gain) => fround(gain - offset) + offset);
    if (!found.every(Number.isFinite)) throw this.notFinite(tensor);
    return found;
  }

  notFinite({ name, type }) {
    const expected = "expected finite numbers only; the weights are damaged, get them again";
    return new GlinferError(`${this.header.source}: a weight of tensor ${quoted(name)}, in ${type}, is NaN or infinite; ${expected}`);
  }

  /** Embeddings: blocks in groups, or half floats in rows. */
  async *table({ name, source }) {
    const tensor = this.tensor(source);
    const { layout } = this.textures.get(name);
    const [rows, inputs] = tensor.shape;
    if (layout.kind !== "groups") {
      yield* this.lines(name, async (start, end) => this.halves(await this.floats(tensor, start, end), tensor));
      return;
    }
    const form = this.forms[tensor.type];
    const [line, rounds] = [4 * layout.line, layout.lines_per_block / 2];
    yield* this.inPieces(name, HALF_BLOCK * max(1, floor(PIECE / inputs / HALF_BLOCK)), rows, async (start, end) => {
      const bytes = await this.read(tensor, start, end);
      this.checkBlocks(bytes, form, tensor);
      const words = new Uint32Array(ceil((end - start) / HALF_BLOCK) * rounds * line);
      sortGroups(bytes, inputs, form, words, line);
      return words;
    });
  }

  halves(floats, tensor) {
    for (const each of floats) {
      if (!(abs(each) < Infinity)) throw this.notFinite(tensor);
      if (abs(each) > LARGEST_HALF) throw new GlinferError(`wte: a weight of ${each.toPrecision(3)} is beyond float16's 65504; use f32`);
    }
    return halvesOf(floats);
  }

  checkBlocks(bytes, { bytes: size, halves: [start, count] }, tensor) {
    for (let at = start + 1; at < bytes.length; at += size) {
      for (let half = 0; half < count; half++) if ((bytes[at + 2 * half] & 0x7c) === 0x7c) throw this.notFinite(tensor);
    }
  }

  /** The angles per position of each pair: the program's, or computed for other numbers of the file, as in Python. */
  async frequencies({ frequencies, base }) {
    if (!base) return frequencies;
    const [key, usual] = base;
    const theta = this.header.metadata.get(key) ?? usual;
    const { factors } = this.program;
    const found = factors && (await this.floats(this.tensor(ROPE_FREQS)));
    if (found && !found.every((each) => each > 0 && each < Infinity)) {
      throw new GlinferError(`${this.header.source}: tensor '${ROPE_FREQS}' has numbers not above 0; the file is damaged, get it again`);
    }
    if (fround(usual) === theta && !found?.some((each, index) => each !== fround(factors[index]))) return frequencies;
    const decimal = Number(theta.toPrecision(7)); // files have float32
    const exact = fround(decimal) === theta ? decimal : theta;
    return frequencies.map((_, pair) => exact ** (-pair / frequencies.length) / (found?.[pair] ?? 1));
  }

  /** Cosine and sine of each pair of a head's elements; what is not rotated has 1 and 0. */
  async *angles({ name, factor, ...step }) {
    const frequencies = await this.frequencies(step);
    const { cols } = this.textures.get(name).layout;
    yield* this.lines(name, async (start, end) => {
      const found = new Float32Array((end - start) * cols);
      for (let row = 0; row < end - start; row++) {
        for (let pair = 0; pair < cols / 2; pair++) {
          const angle = (start + row) * frequencies[pair];
          const rotated = pair < frequencies.length;
          found[row * cols + 2 * pair] = rotated ? Math.cos(angle) * factor : 1;
          found[row * cols + 2 * pair + 1] = rotated ? Math.sin(angle) * factor : 0;
        }
      }
      return found;
    });
  }

  /** Rows of gains. */
  async *vectors({ name, vectors }) {
    const rows = await Promise.all(
      vectors.map(async ({ source, rows: number }) => {
        const gains = await this.gains(source);
        return number === null ? gains : Float64Array.from(this.rows[number], (row) => (row < 0 ? 0 : gains[row]));
      }),
    );
    yield* this.lines(name, async (start, end) => Float32Array.from(rows.slice(start, end).flatMap((row) => Array.from(row))));
  }

  /** A matrix in int8 with scales, and its constants. */
  async *product({ name, sources, rows: table, inputs: order, gain, biases }) {
    const tensors = sources.map((names) => this.tensor(...names));
    const parts = [];
    let above = 0;
    for (const tensor of tensors) {
      parts.push({ tensor, above, end: above + tensor.shape[0] });
      above += tensor.shape[0];
    }
    const columns = order === null ? null : this.rows[order];
    const width = columns?.length ?? tensors[0].shape[1];
    const rows = table === null ? null : this.rows[table];
    const count = rows?.length ?? above;
    const bias = new Float32Array(above);
    for (const [part, each] of biases.entries()) if (each) bias.set(await this.floats(this.tensor(each)), parts[part].above);
    if (!bias.every(Number.isFinite)) throw this.notFinite(this.tensor(biases.find(Boolean)));
    const encoder = new RowEncoder(width, gain && (await this.gains(gain)), columns);
    const { layout } = this.textures.get(`${name}.weight`);
    const words = (layout.lines_per_block / 2) * STEP_WORDS; // of half a block
    const consts = new Float32Array(5 * BLOCK * ceil(count / BLOCK));
    yield* this.inPieces(`${name}.weight`, BLOCK * max(1, floor(PIECE / width / BLOCK)), count, async (start, end) => {
      const found = new Uint32Array(ceil((end - start) / BLOCK) * 2 * words);
      const held = await Promise.all(parts.map((part) => this.spanOf(part, rows, start, end)));
      for (let index = start; index < end; index++) {
        const row = rows ? rows[index] : index;
        if (row < 0) continue;
        const { tensor, first, floats } = held[parts.findIndex((part) => row < part.end)];
        const inside = index - start;
        const at = floor(inside / HALF_BLOCK) * words + (inside % HALF_BLOCK);
        const source = (row - first) * tensor.shape[1];
        if (!encoder.encode(floats.subarray(source, source + tensor.shape[1]), found, at)) throw this.notFinite(tensor);
        const constant = floor(index / BLOCK) * 5 * BLOCK + (index % BLOCK);
        for (let group = 0; group < 4; group++) consts[constant + group * BLOCK] = encoder.scales[group];
        consts[constant + 4 * BLOCK] = bias[row];
      }
      return found;
    });
    yield* this.inPieces(`${name}.consts`, Infinity, count, async () => consts);
  }

  /** The rows of a part of a product that some of its outputs need, in floats, from the row `first` of all parts on. */
  async spanOf({ tensor, above, end: below }, rows, start, end) {
    let [first, last] = [Infinity, -1];
    for (let index = start; index < end; index++) {
      const row = rows ? rows[index] : index;
      if (row < above || row >= below) continue;
      first = min(first, row);
      last = max(last, row);
    }
    return { tensor, first, floats: last < 0 ? null : await this.floats(tensor, first - above, last + 1 - above) };
  }

  /**
   * The texels of a texture that is filled front to back: `make` gives those of rows [start, end), `step` at a time. Zeros
   * follow to the end.
   */
  async *inPieces(name, step, rows, make) {
    const { width, height, format } = this.textures.get(name);
    const Type = FORMATS[format][1];
    const size = 4 * width;
    let pending = new Type(0); // less than a line
    let left = size * height;
    for (let start = 0; start < rows; start += step) {
      const texels = await make(start, min(rows, start + step));
      const joined = new Type(pending.length + texels.length);
      joined.set(pending);
      joined.set(texels, pending.length);
      const whole = floor(joined.length / size) * size;
      left -= whole;
      yield [name, joined.subarray(0, whole)];
      pending = joined.subarray(whole);
    }
    const rest = new Type(left);
    rest.set(pending);
    yield [name, rest];
  }

  /** The texels of a table that is read a row at a time, in stacks side by side; `make` gives rows [start, end). */
  async *lines(name, make) {
    const { width, height, format, layout } = this.textures.get(name);
    const Type = FORMATS[format][1];
    const row = 4 * layout.row_texels;
    const step = max(1, floor(PIECE / (4 * width)));
    for (let y = 0; y < height; y += step) {
      const lines = min(step, height - y);
      const found = new Type(lines * 4 * width);
      for (let stack = 0; stack * layout.stack < layout.rows; stack++) {
        const start = stack * layout.stack + y;
        const end = min(layout.rows, start + lines);
        if (start >= end) continue;
        const rows = await make(start, end);
        for (let line = 0; line < end - start; line++) {
          found.set(rows.subarray(line * layout.cols, (line + 1) * layout.cols), line * 4 * width + stack * row);
        }
      }
      yield [name, found];
    }
  }
}

/** Encodes rows in int8: glinfer/quant/words.py, where the rounding is explained. */
class RowEncoder {
  constructor(width, gains, columns) {
    this.gains = gains;
    this.columns = columns;
    this.row = new Float32Array(4 * ceil(width / 4));
    this.width = width;
    this.scales = new Float32Array(4);
    this.inverse = new Float64Array(4);
    this.peaks = new Float64Array(4);
  }

  /** Encodes one row into words that are 32 apart; false where a weight is not finite. */
  encode(source, words, at) {
    const { gains, columns, row, width, scales, inverse } = this;
    const peaks = this.peaks.fill(0);
    for (let index = 0; index < width; index++) {
      const from = columns ? columns[index] : index;
      let weight = from < 0 ? 0 : source[from];
      if (gains) weight = fround(weight * gains[index]);
      row[index] = weight;
      const size = abs(weight);
      if (!(size < Infinity)) return false;
      if (size > peaks[(index >> 2) & 3]) peaks[(index >> 2) & 3] = size;
    }
    for (let group = 0; group < 4; group++) {
      const step = fround(peaks[group] / 127);
      inverse[group] = step >= SMALLEST ? fround(1 / step) : 0;
      scales[group] = step * 2 ** -24;
    }
    for (let word = 0; word < row.length / 4; word++) {
      const factor = inverse[word & 3];
      let found = 0;
      let behind = 0;
      for (let index = 3; index >= 0; index--) {
        const exact = fround(fround(row[4 * word + index] * factor) - behind);
        const byte = max(-128, min(127, exact + TO_WHOLE - TO_WHOLE)) & 255;
        found |= byte << (8 * (3 - index));
        behind = fround(fround(byte + behind) * 2 ** -8);
      }
      words[at + HALF_BLOCK * word] = found;
    }
    return true;
  }
}
