/**
 * Compares textures with the exported files, bit for bit: the textures that the draws of a bound plan sample are read
 * back.
 */

import { crc32 } from "./checksum.js";
import { GlinferError, shown } from "./errors.js";
import { pauses } from "./generate.js";
import { elementOf } from "./layouts.js";
import { headerLength, parseHeader, PREFIX } from "./safetensors.js";
import { Reader } from "./source.js";

/** @typedef {import("./replay.js").Replay} Replay */
/** @typedef {import("./source.js").Source} Source */

const BAND_BYTES = 1 << 20; // that are read back at once
const MOST_TEXELS = 16; // that are listed of one texture
const MOST_NAMES = 3; // in one sentence
const WIDTHS = { F32: 4, I32: 4, U32: 4, F16: 2 };

/**
 * One number that differs: its texel, the element of the weight's matrix (see `elementOf`; null where unknown), and
 * the bits as hexadecimal digits.
 * @typedef {{x: number, y: number, channel: number, row: number|null, col: number|null, found: string,
 *   expected: string}} DifferentTexel
 */

/**
 * One texture that differs. `name` is the texture of the plan; `draw` and `sampler` are the first that sample it, or null
 * where no draw does; `count` is the number of differences, null where unknown; `why` then describes the fault.
 * `texels` are the first of them.
 * @typedef {{name: string, draw: string|null, sampler: string|null, count: number|null, texels: DifferentTexel[],
 *   why: string|null}} DifferentTexture
 */

/**
 * The result of a check.
 * @typedef {{ok: boolean, share: number, checked: {textures: number, texels: number, bytes: number},
 *   different: DifferentTexture[]}} TextureReport
 */

/** Checks the textures of one bound plan; keeps the line where sampled checks continue. */
export class TextureChecker {
  /**
   * @param {Replay} replay the bound plan.
   * @param {Uint32Array} checksums the CRC-32 of each line of texels, all weights one after another.
   * @param {Source|null} source the exported files.
   * @throws {GlinferError} there are not as many checksums as lines.
   */
  constructor(replay, checksums, source) {
    this.replay = replay;
    this.checksums = checksums;
    this.source = source;
    this.cursor = 0;
    this.starts = new Map(); // by the index of a weight: its first checksum
    let lines = 0;
    replay.plan.textures.forEach((spec, index) => {
      if (spec.kind !== "weight") return;
      this.starts.set(index, lines);
      lines += spec.height;
    });
    if (lines !== checksums.length) {
      throw new GlinferError(`found ${checksums.length} checksums of ${lines} lines of texels; export the model again`);
    }
  }

  /**
   * Checks; see `Model.verifyTextures`.
   * @param {number} share
   * @returns {Promise<TextureReport>}
   */
  async verify(share) {
    if (!(share > 0 && share <= 1)) {
      throw new GlinferError(`share is ${shown(share)}; expected a number above 0, and 1 to compare all`);
    }
    this.replay.requireHeld();
    const { parts, different } = this.bound();
    const checked = { textures: 0, texels: 0, bytes: 0 };
    if (share < 1) different.push(...(await this.sampled(parts, share, checked)));
    else different.push(...this.misread(), ...(await this.whole(parts, checked)));
    return { ok: different.length === 0, share, checked, different };
  }

  /** Each texture that must hold a weight according to the plan or a draw, and faults visible without reading it. */
  bound() {
    const { bound: draws, plan, textures } = this.replay;
    const parts = [];
    const different = [];
    const known = new Map([...this.starts.keys()].map((index) => [index, new Map()]));
    const add = (index, texture, draw, sampler) => {
      const spec = plan.textures[index];
      const found = known.get(index);
      if (found.has(texture)) {
        const part = found.get(texture);
        if (part && part.draw === null) Object.assign(part, { draw, sampler });
        return;
      }
      const same = ["width", "height", "format"].every((key) => texture.spec[key] === spec[key]);
      const part = same ? { index, texture, draw, sampler } : null;
      found.set(texture, part);
      if (same) parts.push(part);
      else different.push(entryOf(spec, draw, sampler, `the draw samples ${texture.spec.name} instead`));
    };
    for (const index of known.keys()) add(index, textures[index], null, null);
    for (const { spec, textures: sampled } of draws) {
      const { samplers } = plan.programs[spec.program];
      spec.inputs.forEach((index, unit) => {
        const texture = sampled[unit];
        if (known.has(index)) add(index, texture, spec.name, samplers[unit]);
        else if (texture !== textures[index]) {
          const why = `the draw samples ${texture.spec.name} instead`;
          different.push(entryOf(plan.textures[index], spec.name, samplers[unit], why));
        }
      });
    }
    parts.sort((one, other) => one.index - other.index); // as the file has them
    return { parts, different };
  }

  /** Samplers that read another texture unit than the one that the plan binds. */
  misread() {
    const { bound: draws, plan } = this.replay;
    const seen = new Set();
    const different = [];
    for (const { spec, program } of draws) {
      if (seen.has(program)) continue;
      seen.add(program);
      program.spec.samplers.forEach((sampler, unit) => {
        const found = program.unitOf(sampler);
        if (found === null || found === unit) return;
        const why = `the sampler reads texture unit ${found}; expected ${unit}`;
        different.push(entryOf(plan.textures[spec.inputs[unit]], spec.name, sampler, why));
      });
    }
    return different;
  }

  async whole(parts, checked) {
    const found = await this.compared(new Map(parts.map((part) => [part, null])));
    for (const { texture } of parts) tally(checked, texture, texture.spec.height);
    checked.textures = parts.length;
    return found.filter((entry) => entry.count > 0);
  }

  /** Compares the checksums of the next lines, and those lines that differ with the file. */
  async sampled(parts, share, checked) {
    const wanted = new Map(); // by part: lines that differ
    const seen = new Set();
    const pause = pauses();
    for (const { part, first, end } of this.nextLines(parts, share)) {
      for (const band of bandsOf(part.texture.spec, first, end)) {
        const sums = sumsOf(this.read(part.texture, band), band.lines);
        const expected = this.starts.get(part.index) + band.y;
        sums.forEach((sum, line) => {
          if (sum === this.checksums[expected + line]) return;
          if (!wanted.has(part)) wanted.set(part, new Set());
          wanted.get(part).add(band.y + line);
        });
        await pause();
      }
      tally(checked, part.texture, end - first);
      seen.add(part);
    }
    checked.textures = seen.size;
    return wanted.size ? this.explained(wanted) : [];
  }

  /** The next lines of a sampled check: every line once, then from the beginning. */
  nextLines(parts, share) {
    const total = parts.reduce((sum, { texture }) => sum + texture.spec.height, 0);
    const lines = Math.ceil(share * total);
    const from = this.cursor % total;
    this.cursor = (from + lines) % total;
    const runs = [];
    for (const [start, end] of [[from, Math.min(total, from + lines)], [0, from + lines - total]]) {
      let at = 0;
      for (const part of parts) {
        const { height } = part.texture.spec;
        const [first, last] = [Math.max(0, start - at), Math.min(height, end - at)];
        if (first < last) runs.push({ part, first, end: last });
        at += height;
      }
    }
    return runs;
  }

  /** The texels that differ in these lines; where the file is unavailable, only the lines. */
  async explained(wanted) {
    const lines = [...wanted.values()].map((set) => `line ${[...set][0]}${set.size > 1 ? ` and ${set.size - 1} more` : ""}`);
    const noted = (why) =>
      [...wanted.keys()].map(({ index, draw, sampler }, at) =>
        entryOf(this.replay.plan.textures[index], draw, sampler, `the checksum of ${lines[at]} differs, ${why}`),
      );
    try {
      const sorted = new Map([...wanted].sort(([one], [other]) => one.index - other.index));
      const again = noted("and did not when it was read again");
      const found = await this.compared(sorted);
      return found.map((entry) => (entry.count ? entry : again.find(({ name }) => name === entry.name)));
    } catch (error) {
      if (!(error instanceof GlinferError)) throw error;
      return noted(`and no more can be said: ${error.message}`);
    }
  }

  /** Compares lines of textures, or all of them, with the files. */
  async compared(wanted) {
    if (!this.source) throw new GlinferError("the model does not know its files; load it with load");
    const left = new Map(wanted);
    const different = [];
    for (const { name } of this.replay.plan.files.weights) {
      if (left.size) different.push(...(await this.comparedFile(name, wanted, left)));
    }
    for (const [{ index, texture }] of left) this.offsetOf(new Map(), index, texture); // no file has it
    return different;
  }

  /** Compares the tensors of one file, and removes them from `left`. */
  async comparedFile(name, wanted, left) {
    const file = new Reader(this.source.pieces(name), changed);
    try {
      const length = headerLength(await file.take(PREFIX));
      const entries = new Map(parseHeader(await file.take(length)).map((entry) => [entry.name, entry]));
      const different = [];
      const { textures, files } = this.replay.plan;
      for (const index of new Set([...left.keys()].map((part) => part.index))) {
        const parts = [...left.keys()].filter((part) => part.index === index);
        if (files.weights.length > 1 && !entries.has(textures[index].tensor ?? textures[index].name)) continue;
        await file.skipTo(PREFIX + length + this.offsetOf(entries, index, parts[0].texture));
        different.push(...(await this.comparedWeight(file, index, parts, wanted)));
        for (const part of parts) left.delete(part);
      }
      await file.skipTo(PREFIX + length + Math.max(...[...entries.values()].map(({ end }) => end))); // or it is cut short
      return different;
    } finally {
      await file.close();
    }
  }

  /** Compares the textures of one weight, whose bytes in the file come next. */
  async comparedWeight(file, index, parts, wanted) {
    const spec = this.replay.plan.textures[index];
    const found = parts.map(({ draw, sampler }) => entryOf(spec, draw, sampler, null));
    const pause = pauses();
    for (const band of bandsOf(spec, 0, spec.height)) {
      const bytes = await file.take(band.lines * spec.width * texelBytes(parts[0].texture));
      const start = this.starts.get(index) + band.y;
      const at = sumsOf(bytes, band.lines).findIndex((sum, line) => sum !== this.checksums[start + line]);
      if (at >= 0) throw changed(`line ${band.y + at} of ${spec.name} has another checksum`);
      parts.forEach((part, index) => {
        if (touches(wanted.get(part), band)) compareBand(found[index], spec, band, this.read(part.texture, band), bytes);
      });
      await pause();
    }
    return found;
  }

  /** The offset of a weight's texels in the file, in bytes after the header. */
  offsetOf(entries, index, texture) {
    const { name, tensor, width, height } = this.replay.plan.textures[index];
    const entry = entries.get(tensor ?? name);
    const shape = [height, width, texture.channels].join("×");
    const has = entry ? `${entry.dtype} ${entry.shape.join("×")}` : "nothing";
    if (entry?.shape.join("×") === shape && WIDTHS[entry.dtype] === texture.Array.BYTES_PER_ELEMENT) return entry.begin;
    throw changed(`it has ${has} for ${name}; expected ${shape} numbers of ${texture.Array.BYTES_PER_ELEMENT} bytes`);
  }

  read(texture, { y, lines }) {
    const bits = texture.readBits(y, lines);
    this.replay.check(`reading ${texture.spec.name} back`);
    return bits;
  }
}

/**
 * The result of a check as a sentence.
 * @param {TextureReport} report
 * @returns {string}
 */
export function describeCheck({ ok, checked, different }) {
  const size = `${(checked.bytes / 1e6).toFixed(1)} MB`;
  if (ok) return `Checked ${checked.textures} textures (${size}) bit for bit against the files: all identical.`;
  const shown = different.slice(0, MOST_NAMES).map(describeDifference);
  const more = different.length > MOST_NAMES ? `; and ${different.length - MOST_NAMES} more` : "";
  return `Checked ${checked.textures} textures (${size}): ${different.length} differ from the files: ${shown.join("; ")}${more}.`;
}

function describeDifference({ name, draw, count: numbers, texels, why }) {
  if (why !== null) return `${name}${draw === null ? "" : `, for ${draw}`} (${why})`;
  const [{ x, y, channel, row, col, found, expected }] = texels;
  const element = row === null ? "" : `, row ${row}${col === null ? "" : `, column ${col}`}`;
  const where = `texel (${x}, ${y}), channel ${channel}${element}`;
  return `${name} (${numbers} ${numbers === 1 ? "number" : "numbers"}; first ${where}: found ${found}, expected ${expected})`;
}

function entryOf(spec, draw, sampler, why) {
  return { name: spec.name, draw, sampler, count: why === null ? 0 : null, texels: [], why };
}

function texelBytes(texture) {
  return texture.channels * texture.Array.BYTES_PER_ELEMENT;
}

function tally(checked, texture, lines) {
  checked.texels += lines * texture.spec.width;
  checked.bytes += lines * texture.spec.width * texelBytes(texture);
}

/** The checksum of each line of texels. */
function sumsOf(texels, lines) {
  const bytes = new Uint8Array(texels.buffer, texels.byteOffset, texels.byteLength);
  const each = bytes.length / lines;
  return Array.from({ length: lines }, (_, line) => crc32(bytes.subarray(line * each, (line + 1) * each)));
}

/** Lines from `first` up to `end`, in parts that are small when they are read back. */
function* bandsOf({ width }, first, end) {
  const most = Math.max(1, Math.floor(BAND_BYTES / (16 * width)));
  for (let y = first; y < end; y += most) yield { y, lines: Math.min(most, end - y) };
}

/** Whether lines of a band are wanted: all of them where `lines` is null. */
function touches(lines, band) {
  return lines === null || [...lines].some((line) => line >= band.y && line < band.y + band.lines);
}

/** Adds the numbers that differ in one band of lines to the entry of its texture. */
function compareBand(entry, spec, { y, lines }, found, bytes) {
  const expected = new found.constructor(bytes.buffer, bytes.byteOffset, found.length);
  const channels = found.length / (spec.width * lines);
  for (let index = 0; index < found.length; index++) {
    if (found[index] === expected[index]) continue;
    entry.count += 1;
    if (entry.texels.length === MOST_TEXELS) continue;
    const texel = Math.floor(index / channels);
    const position = { x: texel % spec.width, y: y + Math.floor(texel / spec.width), channel: index % channels };
    const { row, col } = elementOf(spec.layout, position.x, position.y, position.channel) ?? { row: null, col: null };
    const digits = (bits) => bits.toString(16).padStart(2 * found.BYTES_PER_ELEMENT, "0");
    entry.texels.push({ ...position, row, col, found: digits(found[index]), expected: digits(expected[index]) });
  }
}

function changed(why) {
  return new GlinferError(
    `the weights have changed since they were loaded: ${why}; reload the page to use the new file, or restore the old one`,
  );
}
