/**
 * A texel that tells whether the driver ran a draw: some drop a long one without an error. The browser's side of
 * glinfer/gl/sentinel.py.
 */

import { GlinferError } from "./errors.js";

const BITS = new Uint32Array(4).fill(0xf1a5c0de);
const NUMBERS = new Float32Array(BITS.buffer); // which no pass writes
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

/** The watched texel (x, y) of a draw's first target. */
export class Sentinel {
  /**
   * Overwrites the texel; the draw's framebuffer is bound.
   * @param {WebGL2RenderingContext} gl
   * @param {{spec: {name: string}, framebuffer: import("./textures.js").Framebuffer}} draw a bound one.
   * @param {number} x
   * @param {number} y
   */
  constructor(gl, { spec, framebuffer }, x, y) {
    this.name = spec.name;
    this.framebuffer = framebuffer;
    this.x = x;
    this.y = y;
    gl.enable(gl.SCISSOR_TEST);
    gl.scissor(x, y, 1, 1);
    if (framebuffer.textures[0].integer) gl.clearBufferuiv(gl.COLOR, 0, BITS);
    else gl.clearBufferfv(gl.COLOR, 0, NUMBERS);
    gl.disable(gl.SCISSOR_TEST);
  }

  /**
   * Reads the texel back.
   * @throws {GlinferError} it is still there: the driver dropped the draw.
   */
  check() {
    const texel = new Uint32Array(this.framebuffer.readTexels(this.x, this.y, 1, 1).buffer);
    if (texel.some((word, channel) => word !== BITS[channel])) return;
    throw new GlinferError(`pass ${this.name} wrote nothing: the graphics driver dropped it without an error, perhaps because it took too long`);
  }
}
