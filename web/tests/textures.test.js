import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { Framebuffer, Texture } from "../glinfer/textures.js";

/** A context that takes every call, notes it, and has constants of its own names. */
function context() {
  const calls = [];
  const gl = new Proxy(
    {},
    {
      get(_, name) {
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

test("half floats are uploaded as their bits", () => {
  const { gl, calls } = context();
  const texture = new Texture(gl, { ...cache, format: "rgba16f" });
  texture.upload(new Uint16Array(8 * 2 * 4));
  assert.deepEqual(named(calls, "texSubImage2D")[0].slice(0, 8), ["TEXTURE_2D", 0, 0, 0, 8, 2, "RGBA", "HALF_FLOAT"]);
  assert.throws(() => texture.upload(new Float32Array(8 * 4)), /was given 32 numbers/);
});
