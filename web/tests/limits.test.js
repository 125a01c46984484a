import assert from "node:assert/strict";
import test from "node:test";

import { computingCanvas, hasFloatTargets, missing } from "../glinfer/limits.js";

/** A context with these limits and extensions. */
function context(limits, extensions) {
  const names = ["MAX_TEXTURE_SIZE", "MAX_DRAW_BUFFERS", "MAX_COLOR_ATTACHMENTS", "MAX_TEXTURE_IMAGE_UNITS"];
  const gl = Object.fromEntries([...names, "ALIASED_POINT_SIZE_RANGE"].map((name) => [name, name]));
  gl.getParameter = (name) => limits[name];
  gl.getExtension = (name) => (extensions.includes(name) ? {} : null);
  return gl;
}

const LARGE = {
  MAX_TEXTURE_SIZE: 8192, MAX_DRAW_BUFFERS: 8, MAX_COLOR_ATTACHMENTS: 8, MAX_TEXTURE_IMAGE_UNITS: 32,
  ALIASED_POINT_SIZE_RANGE: [1, 256],
};
const REQUIRES = {
  max_texture_size: 4096, draw_buffers: 8, texture_units: 17, point_size: 4,
  extensions: ["EXT_color_buffer_float", "EXT_float_blend"],
};

test("nothing is missing where everything is there", () => {
  assert.deepEqual(missing(context(LARGE, REQUIRES.extensions), REQUIRES), []);
});

test("without WebGL2 there is one sentence", () => {
  assert.match(missing(null, REQUIRES).join(), /no WebGL2/);
});

test("each extension and each limit that is too small has a sentence of its own", () => {
  const gl = context({ ...LARGE, MAX_COLOR_ATTACHMENTS: 4, MAX_TEXTURE_SIZE: 2048 }, ["EXT_color_buffer_float"]);
  const found = missing(gl, REQUIRES);
  assert.equal(found.length, 3);
  assert.match(found[0], /EXT_float_blend/);
  assert.equal(found[1], "The model needs textures of 4096 texels a side; your graphics driver allows 2048.");
  assert.equal(found[2], "The model needs 8 render targets at once; your graphics driver allows 4.");
});

test("WebGL2's minimum can be pretended", () => {
  const found = missing(context(LARGE, REQUIRES.extensions), REQUIRES, { minimum: true });
  assert.equal(found.length, 5);
  assert.match(found[0], /EXT_float_blend/);
  assert.match(found[4], /points of 4 pixels; WebGL2's guaranteed minimum .* 1\.$/);
});

test("a browser that cannot render to floats has integer targets", () => {
  const requires = { ...REQUIRES, extensions: ["EXT_color_buffer_float"] };
  assert.deepEqual(missing(context(LARGE, []), requires), []);
  assert.equal(hasFloatTargets(context(LARGE, [])), false);
  assert.equal(hasFloatTargets(context(LARGE, requires.extensions)), true);
  assert.equal(hasFloatTargets(context(LARGE, requires.extensions), true), false);
});

test("a page computes with an element, which every browser has WebGL2 in, and a worker without one", (context) => {
  const none = () => delete globalThis.document && delete globalThis.OffscreenCanvas;
  context.after(none);
  Object.assign(globalThis, { OffscreenCanvas: class {}, document: { createElement: (name) => name } });
  assert.equal(computingCanvas(), "canvas");
  delete globalThis.document;
  assert.ok(computingCanvas() instanceof OffscreenCanvas);
  none();
  assert.throws(computingCanvas, /there is no WebGL2 here/);
});
