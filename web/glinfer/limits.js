/** The limits of a browser, and which of them are too low for a plan. */

import { GlinferError, shown } from "./errors.js";

/** Vendor-neutral names of the limits that a plan asks for, and the minimum of each that WebGL2 promises. */
const MINIMUM = { max_texture_size: 2048, draw_buffers: 4, texture_units: 16, point_size: 1 };

const WORDS = {
  max_texture_size: ["textures of", "texels a side", "your graphics driver allows"],
  draw_buffers: ["", "render targets at once", "your graphics driver allows"],
  texture_units: ["", "textures in one pass", "your graphics driver allows"],
  point_size: ["points of", "pixels", "your graphics driver draws them up to"],
};
const EXTENSIONS = { EXT_float_blend: "adding up in 32-bit float textures (EXT_float_blend)" };
const FLOAT_TARGETS = "EXT_color_buffer_float"; // without it float textures hold bits, see integer_targets.js

/**
 * A canvas whose context computes, in a page or in a worker. In a page it is an element: WebKitGTK has WebGL2 there alone.
 * @returns {HTMLCanvasElement|OffscreenCanvas}
 * @throws {GlinferError} this is neither.
 */
export function computingCanvas() {
  if (typeof document !== "undefined") return document.createElement("canvas");
  if (typeof OffscreenCanvas !== "undefined") return new OffscreenCanvas(1, 1);
  throw new GlinferError("there is no WebGL2 here; load the model in a browser page");
}

/**
 * Resolves when the browser takes a canvas's context away.
 * @param {HTMLCanvasElement|OffscreenCanvas} canvas
 * @returns {Promise<void>}
 */
export function lossOf(canvas) {
  return new Promise((resolve) => canvas.addEventListener("webglcontextlost", () => resolve(), { once: true }));
}

/**
 * A WebGL2 context for computing; its canvas is never shown.
 * @param {HTMLCanvasElement|OffscreenCanvas} canvas
 * @returns {WebGL2RenderingContext|null}
 */
export function openContext(canvas) {
  if (typeof canvas?.getContext !== "function") throw new GlinferError(`canvas is ${shown(canvas)}; expected a canvas element or an OffscreenCanvas`);
  const plain = { alpha: false, antialias: false, depth: false, stencil: false };
  const context = canvas.getContext("webgl2", { ...plain, powerPreference: "high-performance" });
  return /** @type {WebGL2RenderingContext|null} */ (context);
}

/**
 * The renderer of a context, as named by the driver or the browser.
 * @param {WebGL2RenderingContext} gl
 * @returns {string}
 */
export function rendererOf(gl) {
  return gl.getParameter(gl.getExtension("WEBGL_debug_renderer_info")?.UNMASKED_RENDERER_WEBGL ?? gl.RENDERER);
}

/**
 * The limits of a context.
 * @param {WebGL2RenderingContext} gl
 * @param {boolean} minimum pretend no more than WebGL2 promises, whatever the driver says.
 * @returns {typeof MINIMUM}
 */
function limitsOf(gl, minimum = false) {
  if (minimum) return { ...MINIMUM };
  return {
    max_texture_size: gl.getParameter(gl.MAX_TEXTURE_SIZE),
    draw_buffers: Math.min(gl.getParameter(gl.MAX_DRAW_BUFFERS), gl.getParameter(gl.MAX_COLOR_ATTACHMENTS)),
    texture_units: gl.getParameter(gl.MAX_TEXTURE_IMAGE_UNITS),
    point_size: gl.getParameter(gl.ALIASED_POINT_SIZE_RANGE)[1],
  };
}

/**
 * Whether a context renders to float textures. Enables the extension.
 * @param {WebGL2RenderingContext} gl
 * @param {boolean} minimum see `limitsOf`.
 * @returns {boolean}
 */
export function hasFloatTargets(gl, minimum = false) {
  return !minimum && gl.getExtension(FLOAT_TARGETS) !== null;
}

/**
 * The requirements of a plan that this context lacks, in plain sentences; empty where it can run. Enables extensions.
 * @param {WebGL2RenderingContext|null} gl
 * @param {object} requires `requires` of plan.json.
 * @param {{minimum?: boolean}} options `minimum`: see `limitsOf`.
 * @returns {string[]}
 */
export function missing(gl, requires, { minimum = false } = {}) {
  if (!gl) {
    return [
      "This browser has no WebGL2. Use a current browser, and check that hardware acceleration or " +
        "software rendering is not disabled in its settings. Without a graphics card, Chrome needs --enable-unsafe-swiftshader.",
    ];
  }
  const found = [];
  const blends = hasFloatTargets(gl, minimum);
  for (const name of requires.extensions ?? []) {
    if (name !== FLOAT_TARGETS && !(blends && gl.getExtension(name))) {
      found.push(`The model needs ${EXTENSIONS[name] ?? `the extension ${name}`}, which your graphics driver lacks.`);
    }
  }
  const limits = limitsOf(gl, minimum);
  for (const [name, limit] of Object.entries(limits)) {
    const wanted = requires[name] ?? 0;
    if (wanted > limit) {
      const [before, after, allows] = WORDS[name];
      const whose = minimum ? allows.replace("your graphics driver", "WebGL2's guaranteed minimum") : allows;
      found.push(`The model needs ${`${before} ${wanted} ${after}`.trim()}; ${whose} ${limit}.`);
    }
  }
  return found;
}
