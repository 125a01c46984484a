/**
 * Texels that tell whether the driver ran a draw: some drop a long one without an error, or give zeros. The browser's side
 * of glinfer/gl/sentinel.py, and of `_watched` in glinfer/program/session.py.
 */

import { GlinferError } from "./errors.js";

const BITS = new Uint32Array(4).fill(0xf1a5c0de);
const NUMBERS = new Float32Array(BITS.buffer); // which no pass writes
const EDGE = 4; // texels a side
const SMOOTH = 4; // activations up to this code give no long runs of zeros
export const MOST = 16; // sentinels that wait for a readback
export const WATCH_EVERY = 4; // one run of this many is watched, and the first run of each draw
const PRODUCTS = ["gemm.frag", "linear.frag", "matmul.frag"];

/**
 * The places of the draws to watch: products, the longest ones, that are the last to write a texture of floats.
 * @param {object[]} draws bound ones, see replay.js.
 * @returns {number[]}
 */
export function watchable(draws) {
  const last = new Map(draws.flatMap(({ framebuffer }, place) => framebuffer.textures.map((texture) => [texture, place])));
  return [...last].flatMap(([texture, place]) => {
    const { spec, program, framebuffer } = draws[place];
    const plain = framebuffer.textures.every(({ spec: { kind, format } }) => kind === "activation" && format === "rgba32f");
    const { fragment, defines } = program.spec;
    const fixed = !spec.adds && !("first_slot" in spec.per_run) && !spec.uniforms.first_slot && !("EXPERT_BLOCKS" in defines);
    return texture === framebuffer.textures[0] && plain && fixed && PRODUCTS.includes(fragment) ? [place] : [];
  });
}

/** The watched texels of a draw's first target, from the corner of its viewport on. */
export class Sentinel {
  /**
   * Overwrites the texels; the draw's framebuffer is bound.
   * @param {WebGL2RenderingContext} gl
   * @param {{spec: {name: string}, program: {spec: object}, framebuffer: import("./textures.js").Framebuffer}} draw a bound one.
   * @param {number[]} viewport
   */
  constructor(gl, { spec, program, framebuffer }, [x, y, width, height]) {
    const { fragment, defines } = program.spec;
    this.name = spec.name;
    this.mayBeZero = fragment === "matmul.frag" || Number(defines.ACTIVATION ?? 0) > SMOOTH || spec.name === "lm_head";
    this.framebuffer = framebuffer;
    this.rectangle = [x, y, Math.min(EDGE, width), Math.min(EDGE, height)];
    gl.enable(gl.SCISSOR_TEST);
    gl.scissor(...this.rectangle);
    if (framebuffer.textures[0].integer) gl.clearBufferuiv(gl.COLOR, 0, BITS);
    else gl.clearBufferfv(gl.COLOR, 0, NUMBERS);
    gl.disable(gl.SCISSOR_TEST);
  }

  /**
   * Reads the texels back.
   * @throws {GlinferError} they are unchanged, or zero where the draw gives none: the driver dropped the draw.
   */
  check() {
    const [x, y, width, height] = this.rectangle;
    const words = new Uint32Array(this.framebuffer.readTexels(x, y, width, height).buffer);
    if (words.some((word) => word !== words[0]) || (words[0] !== BITS[0] && (words[0] || this.mayBeZero))) return;
    const wrote = words[0] ? "nothing" : "only zeros";
    throw new GlinferError(`pass ${this.name} wrote ${wrote}: the graphics driver dropped it without an error, perhaps because it took too long`);
  }
}
