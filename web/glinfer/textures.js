/** Textures that hold matrices, and the framebuffers that render to them and read them back. */

import { GlinferError } from "./errors.js";

// name: [sized format, format, type, channels, integer, the array that is uploaded]
const FORMATS = {
  r32f: ["R32F", "RED", "FLOAT", 1, false, Float32Array],
  r32i: ["R32I", "RED_INTEGER", "INT", 1, true, Int32Array],
  rgba32f: ["RGBA32F", "RGBA", "FLOAT", 4, false, Float32Array],
  rgba16f: ["RGBA16F", "RGBA", "HALF_FLOAT", 4, false, Uint16Array],
  rgba8i: ["RGBA8I", "RGBA_INTEGER", "BYTE", 4, true, Int8Array],
  rgba32i: ["RGBA32I", "RGBA_INTEGER", "INT", 4, true, Int32Array],
  rgba32ui: ["RGBA32UI", "RGBA_INTEGER", "UNSIGNED_INT", 4, true, Uint32Array],
};

// The formats that hold the bits of floats, see integer_targets.js, and the arrays that they are sent to the driver in.
const INTEGERS = {
  r32f: ["R32UI", "RED_INTEGER", "UNSIGNED_INT", Uint32Array],
  rgba32f: ["RGBA32UI", "RGBA_INTEGER", "UNSIGNED_INT", Uint32Array],
  rgba16f: ["RGBA16I", "RGBA_INTEGER", "SHORT", Int16Array],
};

/** The message of a lost context. */
export const LOST =
  "The browser dropped the graphics context (the driver was reset, or memory ran out). Reload the page to continue.";

/**
 * The first GL error that is pending, by its name, or null. A lost context is one too.
 * @param {WebGL2RenderingContext} gl
 * @returns {string|null}
 */
export function pendingError(gl) {
  const code = gl.getError();
  if (code === gl.NO_ERROR) return null;
  const names = ["INVALID_ENUM", "INVALID_VALUE", "INVALID_OPERATION", "INVALID_FRAMEBUFFER_OPERATION"];
  const name = [...names, "OUT_OF_MEMORY", "CONTEXT_LOST_WEBGL"].find((each) => gl[each] === code);
  return name ?? `error ${code}`;
}

/** One matrix in one texture, NEAREST and CLAMP_TO_EDGE. New textures hold zeros, as WebGL promises. */
export class Texture {
  /**
   * @param {WebGL2RenderingContext} gl
   * @param {{name: string, kind: string, format: string, width: number, height: number, layout: object, integers?: boolean}} spec
   *   of plan.json; `integers`: whether floats are held as bits, see integer_targets.js.
   * @param {boolean} later whether only `make` allocates graphics memory.
   */
  constructor(gl, spec, later = false) {
    const format = FORMATS[spec.format];
    if (!format) throw new GlinferError(`texture ${spec.name} has the unknown format ${spec.format}`);
    const [, , , channels, integer, Array] = format;
    const bits = spec.integers ? INTEGERS[spec.format] : undefined;
    const [sized, pixels, type] = bits ?? format;
    this.gl = gl;
    this.sized = gl[sized];
    this.spec = spec;
    this.channels = channels;
    this.integer = integer || bits !== undefined; // for the driver
    this.Array = Array;
    this.Bits = bits?.[3]; // if the driver holds floats as integers
    this.pixels = gl[pixels];
    this.type = gl[type];
    /** @type {WebGLTexture|null} */
    this.handle = null;
    if (!later) this.make();
  }

  /** Allocates graphics memory; harmless when repeated. */
  make() {
    if (this.handle) return;
    const { gl, spec } = this;
    this.handle = gl.createTexture();
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D, this.handle);
    for (const filter of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) {
      gl.texParameteri(gl.TEXTURE_2D, filter, gl.NEAREST);
    }
    for (const wrap of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) {
      gl.texParameteri(gl.TEXTURE_2D, wrap, gl.CLAMP_TO_EDGE);
    }
    gl.texStorage2D(gl.TEXTURE_2D, 1, this.sized, spec.width, spec.height);
  }

  /**
   * Overwrites lines of texels.
   * @param {Float32Array|Int8Array|Uint16Array|Int32Array|Uint32Array} texels whole lines, of the texture's own type.
   * @param {number} y the first line.
   * @param {number} width texels of each line, from its beginning on.
   * @throws {GlinferError} they are of another type, or outside the texture.
   */
  upload(texels, y = 0, width = this.spec.width) {
    const { gl, spec } = this;
    const line = width * this.channels;
    const lines = texels.length / line;
    if (!(texels instanceof this.Array) || !Number.isInteger(lines) || lines < 1 || y + lines > spec.height) {
      const expected = `${spec.width}×${spec.height} texels of ${this.channels}`;
      throw new GlinferError(`texture ${spec.name} was given ${texels.length} numbers; expected ${expected}`);
    }
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D, this.handle);
    const { buffer, byteOffset, length } = texels;
    const sent = this.Bits ? new this.Bits(buffer, byteOffset, length) : texels;
    gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, y, width, lines, this.pixels, this.type, sent);
  }

  /**
   * Overwrites a matrix of one column, which has one element a texel; rows after the column become zero.
   * @param {ArrayLike<number>} column
   */
  uploadColumn(column) {
    const texels = new this.Array(this.spec.width * this.spec.height * this.channels);
    for (let row = 0; row < column.length; row++) texels[row * this.channels] = column[row];
    this.upload(texels);
  }

  /**
   * The bits of lines of texels, in the form in which they are uploaded; waits for the driver.
   * @param {number} y the first line.
   * @param {number} lines how many.
   * @param {number} width texels of each line, from its beginning on.
   * @returns {Uint8Array|Uint16Array|Uint32Array} [lines × width × channels]
   */
  readBits(y, lines, width = this.spec.width) {
    const framebuffer = new Framebuffer(this.gl, [this]); // of its own: the handle may be another one by now
    const texels = framebuffer.readTexels(0, y, width, lines);
    framebuffer.release();
    if (this.Array === Int8Array) return Uint8Array.from(texels);
    const words = new Uint32Array(texels.buffer);
    if (this.Array === Uint16Array) return this.Bits ? Uint16Array.from(words) : Uint16Array.from(words, halfOf);
    return this.channels === 4 ? words : words.filter((_, index) => index % 4 === 0);
  }

  /** Releases the texture. */
  release() {
    this.gl.deleteTexture(this.handle);
  }
}

/**
 * The bits of a half float by those of the same number as a float, which is how half floats are read back.
 * @param {number} bits of a float that a half float can hold.
 * @returns {number} from 0 to 0xffff; a NaN where no half float is that number.
 */
export function halfOf(bits) {
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 0xff) - 127;
  const fraction = bits & 0x7fffff;
  if (exponent === -127 && fraction === 0) return sign;
  if (exponent === 128) return sign | 0x7c00 | (fraction >>> 13) | (fraction ? 0x200 : 0);
  const dropped = 13 + Math.max(0, -14 - exponent); // bits; subnormal half floats have fewer than 10
  if (exponent > 15 || exponent < -24 || fraction & ((1 << dropped) - 1)) return 0x7e01;
  return sign | (exponent < -14 ? (0x800000 | fraction) >>> dropped : ((exponent + 15) << 10) | (fraction >>> 13));
}

/**
 * The number that a half float is.
 * @param {number} bits
 * @returns {number}
 */
export function numberOf(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 0x3ff];
  const size = exponent === 31 ? (fraction ? NaN : Infinity) : 2 ** (Math.max(1, exponent) - 25) * (fraction + (exponent ? 1024 : 0));
  return bits & 0x8000 ? -size : size;
}

/**
 * Sets one attachment of the bound framebuffer to zero, within the scissor.
 * @param {Texture} texture the attachment.
 * @param {number} index its number.
 */
export function clearBuffer({ gl, integer, type }, index) {
  if (!integer) gl.clearBufferfv(gl.COLOR, index, ZEROS);
  else if (type === gl.UNSIGNED_INT) gl.clearBufferuiv(gl.COLOR, index, ZERO_BITS);
  else gl.clearBufferiv(gl.COLOR, index, ZERO_INTEGERS);
}

export const [NANS, NAN_BITS] = [new Float32Array(4).fill(NaN), new Uint32Array(4).fill(0x7fc00000)];
const [ZEROS, ZERO_BITS, ZERO_INTEGERS] = [new Float32Array(4), new Uint32Array(4), new Int32Array(4)];

/** Render targets in attachment order: what a draw writes, and the only way to read a texture. */
export class Framebuffer {
  /**
   * @param {WebGL2RenderingContext} gl
   * @param {Texture[]} textures all of one size.
   * @throws {GlinferError} the driver cannot render to them.
   */
  constructor(gl, textures) {
    this.gl = gl;
    this.textures = textures;
    this.handle = gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.handle);
    const attachments = textures.map((_, index) => gl.COLOR_ATTACHMENT0 + index);
    textures.forEach((texture, index) => {
      gl.framebufferTexture2D(gl.FRAMEBUFFER, attachments[index], gl.TEXTURE_2D, texture.handle, 0);
    });
    gl.drawBuffers(attachments);
    if (gl.checkFramebufferStatus(gl.FRAMEBUFFER) !== gl.FRAMEBUFFER_COMPLETE) {
      if (gl.isContextLost()) throw new GlinferError(LOST);
      throw new GlinferError(`the graphics driver cannot render to ${textures.map(({ spec }) => `${spec.name} (${spec.format})`).join(", ")}`);
    }
  }

  /**
   * Texels from (x, y) on of the first attachment, four numbers each, whatever the format; waits for the driver.
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   * @returns {Float32Array|Int32Array|Uint32Array} [height × width × 4]
   */
  read(x, y, width, height) {
    const texels = this.readTexels(x, y, width, height);
    const { Bits } = this.textures[0];
    if (Bits === Uint32Array) return new Float32Array(texels.buffer);
    return Bits ? Float32Array.from(texels, numberOf) : texels;
  }

  /** As `read`, with bits where the driver holds floats as integers. */
  readTexels(x, y, width, height) {
    const { gl } = this;
    const { integer, type } = this.textures[0];
    // The forms that WebGL2 promises: shorter integers as whole ones, and half floats as floats.
    const [readType, Type] = !integer ? [gl.FLOAT, Float32Array] : type === gl.UNSIGNED_INT ? [type, Uint32Array] : [gl.INT, Int32Array];
    const texels = new Type(width * height * 4);
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.handle);
    gl.readBuffer(gl.COLOR_ATTACHMENT0);
    gl.readPixels(x, y, width, height, integer ? gl.RGBA_INTEGER : gl.RGBA, readType, texels);
    return texels;
  }

  /**
   * Sets texels of all attachments to zero.
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   */
  clear(x, y, width, height) {
    const { gl } = this;
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.handle);
    gl.enable(gl.SCISSOR_TEST);
    gl.scissor(x, y, width, height);
    this.textures.forEach(clearBuffer);
    gl.disable(gl.SCISSOR_TEST);
  }

  /** Releases the framebuffer; the textures stay. */
  release() {
    this.gl.deleteFramebuffer(this.handle);
  }
}
