/**
 * Texels that tell whether the driver ran a draw: some drop a long one without an error, or give zeros. The browser's
 * side of glinfer/gl/sentinel.py, and of `_watched` in glinfer/program/session.py.
 */

import { GlinferError } from "./errors.js";

const BITS = new Uint32Array(4).fill(0xf1a5c0de);
const NUMBERS = new Float32Array(BITS.buffer); // which no pass writes
const EDGE = 4; // texels a side
export const WATCH_EVERY = 4; // runs for each watched draw; the first run of each draw is watched too
/** The shaders of products, the longest draws. */
export const PRODUCTS = ["gemm.frag", "linear.frag", "matmul.frag"];
const WATCHED = [...PRODUCTS, "cached_scores.frag", "cached_values.frag"];

/**
 * The indices of the draws to watch: the longest ones that are the last to write a texture of floats.
 * @param {object[]} draws bound ones, see replay.js.
 * @returns {number[]}
 */
export function watchable(draws) {
  const last = new Map(draws.flatMap(({ framebuffer }, index) => framebuffer.textures.map((texture) => [texture, index])));
  return [...last].flatMap(([texture, index]) => {
    const { spec, program, framebuffer } = draws[index];
    const plain = framebuffer.textures.every(({ spec: { kind, format } }) => kind === "activation" && format === "rgba32f");
    const { fragment, defines } = program.spec;
    const fixed = !spec.adds && !("first_slot" in spec.per_run) && !spec.uniforms.first_slot && !("EXPERT_BLOCKS" in defines);
    return texture === framebuffer.textures[0] && plain && fixed && WATCHED.includes(fragment) ? [index] : [];
  });
}

/**
 * What a run fills with NaN first, so that a draw that the driver drops leaves it: activations of floats that draws write
 * before others read them.
 * @param {object[]} draws bound ones.
 * @returns {number[]} indices of textures.
 */
export function spoiled(draws) {
  const [found, seen] = [[], new Set()];
  for (const { spec, framebuffer } of draws) {
    for (const input of spec.inputs) seen.add(input);
    spec.outputs.forEach((output, index) => {
      const { kind, format } = framebuffer.textures[index].spec;
      if (kind === "activation" && format === "rgba32f" && !seen.has(output)) found.push(output);
      seen.add(output);
    });
  }
  return found;
}

/** The watched texels of a draw's first target, from the corner of its viewport on. */
export class Sentinel {
  /**
   * @param {WebGL2RenderingContext} gl
   * @param {{spec: {name: string}, framebuffer: import("./textures.js").Framebuffer}} draw a bound one.
   * @param {number[]} viewport
   * @param {() => void} again draws the texels alone and then all once more, as the first time, and compares.
   */
  constructor(gl, { spec, framebuffer }, [x, y, width, height], again) {
    this.gl = gl;
    this.name = spec.name;
    this.framebuffer = framebuffer;
    this.again = again;
    /** @type {[number, number, number, number]} */
    this.rectangle = [x, y, Math.min(EDGE, width), Math.min(EDGE, height)];
  }

  /**
   * Overwrites the texels; the draw's framebuffer is bound.
   * @param {() => void} then draws the texels alone, if given.
   */
  plant(then = () => {}) {
    const { gl } = this;
    gl.enable(gl.SCISSOR_TEST);
    gl.scissor(...this.rectangle);
    if (this.framebuffer.textures[0].integer) gl.clearBufferuiv(gl.COLOR, 0, BITS);
    else gl.clearBufferfv(gl.COLOR, 0, NUMBERS);
    then();
    gl.disable(gl.SCISSOR_TEST);
  }

  /**
   * Draws the texels alone, which no driver drops, then all, and compares the texels; waits for both.
   * @param {() => void} draw
   * @throws {GlinferError} they differ, or the driver dropped the draw.
   */
  compare(draw) {
    this.plant(draw);
    const alone = this.texels();
    this.plant();
    draw();
    const whole = this.written();
    if (whole.some((word, index) => word !== alone[index])) throw this.error("wrong numbers");
  }

  texels() {
    return new Uint32Array(this.framebuffer.readTexels(...this.rectangle).buffer);
  }

  error(wrote) {
    return new GlinferError(`pass ${this.name} wrote ${wrote}: the graphics driver dropped it without an error, perhaps because it took too long`);
  }

  /**
   * Reads the texels back.
   * @throws {GlinferError} they are unchanged: the driver dropped the draw.
   */
  written() {
    const texels = this.texels();
    if (texels.every((word) => word === BITS[0])) throw this.error("nothing");
    return texels;
  }

  /**
   * Reads the texels back, and draws again if all are 0.
   * @throws {GlinferError} they are unchanged, or 0 where a draw of them alone is not.
   */
  check() {
    if (this.written().every((word) => word === 0)) this.again();
  }
}
