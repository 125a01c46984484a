import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { Framebuffer, halfOf, Texture } from "../glinfer/textures.js";

/** A context that takes every call, notes it, and has constants of its own names. */
function context() {
  const calls = [];
  const gl = new Proxy(
    {},
    {
      get(own, name) {
        if (name in own) return own[name];
        if (name === name.toUpperCase()) return name;
        if (name === "checkFramebufferStatus") return () => "FRAMEBUFFER_COMPLETE";
        return (...given) => calls.push([name, ...given]);
      },
    },
  );
  return { gl, calls };
}

const named = (calls, name) => calls.filter(([each]) => each === name).map(([, ...given]) => given);
const cache = { name: "h.0.attn.cache", width: 8, height: 4, layout: {} };

test("a cache is allocated in the format that the plan names", () => {
  for (const [format, sized] of [
    ["rgba32f", "RGBA32F"],
    ["rgba16f", "RGBA16F"],
  ]) {
    const { gl, calls } = context();
    const texture = new Texture(gl, { ...cache, format });
    assert.deepEqual(named(calls, "texStorage2D"), [["TEXTURE_2D", 1, sized, 8, 4]]);
    assert.deepEqual(
      named(calls, "texParameteri").map((given) => given[2]),
      ["NEAREST", "NEAREST", "CLAMP_TO_EDGE", "CLAMP_TO_EDGE"],
    );
    assert.equal(texture.channels, 4);
  }
  assert.throws(() => new Texture(context().gl, { ...cache, format: "rgba8" }), GlinferError);
});

test("half floats are read as floats, the one form that WebGL2 promises", () => {
  const { gl, calls } = context();
  const found = new Framebuffer(gl, [new Texture(gl, { ...cache, format: "rgba16f" })]).read(0, 0, 8, 4);
  assert.ok(found instanceof Float32Array);
  assert.equal(found.length, 8 * 4 * 4);
  assert.deepEqual(named(calls, "readPixels")[0].slice(0, 6), [0, 0, 8, 4, "RGBA", "FLOAT"]);
});

test("bytes are read as whole integers, the one form that WebGL2 promises", () => {
  const { gl, calls } = context();
  const found = new Framebuffer(gl, [new Texture(gl, { ...cache, format: "rgba8i" })]).read(0, 0, 8, 4);
  assert.ok(found instanceof Int32Array);
  assert.equal(found.length, 8 * 4 * 4);
  assert.deepEqual(named(calls, "readPixels")[0].slice(0, 6), [0, 0, 8, 4, "RGBA_INTEGER", "INT"]);
});

test("integer targets hold the bits of floats and half floats, which are read as numbers", () => {
  for (const [format, sized, type, sent, Type, bits, number] of [
    ["rgba32f", "RGBA32UI", "UNSIGNED_INT", new Float32Array(8 * 4), Uint32Array, 0x40490000, 3.140625],
    ["rgba16f", "RGBA16I", "SHORT", new Uint16Array(8 * 4), Int16Array, -0x3db8, -3.140625],
  ]) {
    const { gl, calls } = context();
    const texture = new Texture(gl, { ...cache, format, integers: true });
    assert.deepEqual(named(calls, "texStorage2D"), [["TEXTURE_2D", 1, sized, 8, 4]]);
    texture.upload(sent);
    const [[, , , , , , pixels, as, texels]] = named(calls, "texSubImage2D");
    assert.deepEqual([pixels, as, texels.constructor], ["RGBA_INTEGER", type, Type]);
    gl.readPixels = (...given) => given.at(-1).fill(bits);
    const found = new Framebuffer(gl, [texture]).read(0, 0, 8, 4);
    assert.deepEqual(found, new Float32Array(8 * 4 * 4).fill(number));
    assert.equal(texture.readBits(0, 1)[0], format === "rgba32f" ? bits : bits & 0xffff);
  }
});

test("half floats are uploaded as their bits", () => {
  const { gl, calls } = context();
  const texture = new Texture(gl, { ...cache, format: "rgba16f" });
  texture.upload(new Uint16Array(8 * 2 * 4));
  assert.deepEqual(named(calls, "texSubImage2D")[0].slice(0, 8), ["TEXTURE_2D", 0, 0, 0, 8, 2, "RGBA", "HALF_FLOAT"]);
  assert.throws(() => texture.upload(new Float32Array(8 * 4)), /was given 32 numbers/);
});

test("half floats that were read as floats have the bits that were uploaded", () => {
  const floatOf = (bits) => {
    const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 0x3ff];
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (2 ** -14 * fraction) / 1024);
  };
  const [float, bits] = [new Float32Array(1), new Uint32Array(1)];
  const bitsOf = (number) => {
    float[0] = number;
    bits.set(new Uint32Array(float.buffer));
    return bits[0];
  };
  for (let half = 0; half < 1 << 16; half++) {
    const number = floatOf(half);
    if (Number.isNaN(number)) continue;
    assert.equal(halfOf(bitsOf(number)), half);
  }
  const isNaN = (half) => (half & 0x7c00) === 0x7c00 && (half & 0x3ff) !== 0;
  assert.ok(isNaN(halfOf(0x7fc00000)) && isNaN(halfOf(0xff800001)));
  for (const number of [65536, 1 + 2 ** -11, 2 ** -25, 2 ** -24 + 2 ** -26]) assert.ok(isNaN(halfOf(bitsOf(number))));
});
