/**
 * A test of the browser's graphics against recorded numbers, before weights are loaded: the browser's side of
 * glinfer/gl/self_test.py. Some drivers compute with 16 bits, shift wrongly, or drop draws, without an error.
 */

import { GlinferError } from "./errors.js";
import { beginAll } from "./program.js";
import { Framebuffer, Texture } from "./textures.js";

/** The files of the test below `shaders/`. */
export const FILES = ["self_test.frag", "self_test.json", "common/triangle.vert"];

const ROUNDS = 4;
const UNIFORMS = "uniforms of 32 bits";
const FLOATS = "rgba32f";

/**
 * @param {WebGL2RenderingContext} gl
 * @param {Map<string, string>} files the texts of FILES and of what the shader includes.
 * @param {boolean} integers whether to use integer targets, see integer_targets.js.
 * @returns {{name: string, found: number[], expected: number[]}[]} the failed tests.
 * @throws {GlinferError} the driver refuses the shader or its targets.
 */
function selfTest(gl, files, integers) {
  const { tests, given, words, word, number } = JSON.parse(files.get("self_test.json"));
  const made = [];
  const keep = (each) => (made.push(each), each);
  const texture = (name, format, width) => {
    const layout = { rows: 1, cols: width };
    return keep(new Texture(gl, { name: `the self-test's ${name}`, kind: "activation", format, width, height: 1, layout, integers }));
  };
  try {
    const spec = { fragment: "self_test.frag", vertex: "common/triangle.vert", defines: {}, samplers: ["x", "words"] };
    const targets = { halves: [], targets: [FLOATS, FLOATS] };
    const [program] = beginAll(gl, [integers ? { ...spec, integers: targets } : spec], files).map(keep);
    const [x, w] = [texture("numbers", FLOATS, given.length), texture("words", "rgba32ui", words.length)];
    x.upload(Float32Array.from(given.flat()));
    w.upload(Uint32Array.from(words.flat()));
    const results = ["first target", "second target"].map((name) => texture(name, FLOATS, tests.length));
    const [both, ...each] = [results, ...results.map((result) => [result])].map((list) => keep(new Framebuffer(gl, list)));
    program.finish();
    const failed = new Map();
    for (let round = 0; round < ROUNDS; round++) {
      for (const result of results) result.upload(new Float32Array(4 * tests.length).fill(NaN));
      draw(gl, program, both, [x, w], { word, number });
      const [first, second] = each.map((framebuffer) => [...framebuffer.read(0, 0, tests.length, 1)]);
      for (const [index, { name, expected, tolerance = 0 }] of tests.entries()) {
        const found = first.slice(4 * index, 4 * index + 4);
        const same = found.every((value, index) => Math.abs(value - expected[index]) <= tolerance * Math.abs(expected[index]));
        if (!same) failed.set(name, { name, found, expected });
        const reversed = second.slice(4 * index, 4 * index + 4).reverse();
        if (!found.every((value, index) => Object.is(value, reversed[index]))) failed.set("a second target", { name: "a second target", found: reversed, expected: found });
      }
    }
    return [...failed.values()];
  } finally {
    for (const each of made.reverse()) each.release();
  }
}

function draw(gl, program, framebuffer, textures, uniforms) {
  gl.useProgram(program.handle);
  gl.bindFramebuffer(gl.FRAMEBUFFER, framebuffer.handle);
  gl.viewport(0, 0, framebuffer.textures[0].spec.width, 1);
  gl.disable(gl.BLEND);
  textures.forEach(({ handle }, unit) => {
    gl.activeTexture(gl.TEXTURE0 + unit);
    gl.bindTexture(gl.TEXTURE_2D, handle);
  });
  for (const [name, value] of Object.entries(uniforms)) program.set(name, value);
  gl.drawArrays(gl.TRIANGLES, 0, 3);
}

/**
 * How a context computes.
 * @typedef {object} Form
 * @property {boolean} floats whether it renders to floats; otherwise to integers, see integer_targets.js.
 * @property {boolean} keys whether its uniforms hold the 32 bits of a noise key; otherwise the sampler draws tokens.
 */

/**
 * The form in which this context computes right.
 * @param {WebGL2RenderingContext} gl
 * @param {Map<string, string>} files see `selfTest`.
 * @param {boolean} floats whether the context renders to floats.
 * @returns {Form}
 * @throws {GlinferError} neither form is right.
 */
export function formFor(gl, files, floats) {
  let failed = [];
  for (const targets of floats ? [true, false] : [false]) {
    failed = selfTest(gl, files, !targets);
    if (failed.every(({ name }) => name === UNIFORMS)) return { floats: targets, keys: !failed.length };
  }
  const [{ name, found, expected }] = failed;
  const [wrong, right] = [found, expected].map((numbers) => numbers.map((value) => Number(value.toPrecision(7))).join(", "));
  throw new GlinferError(
    `This browser's graphics compute wrong numbers in the test of ${name}: found ${wrong}; expected ${right}. ` +
      "Update the graphics driver, or try another browser.",
  );
}

/**
 * The result of the test in a few words.
 * @param {Form} form
 * @returns {string}
 */
export function inWords({ floats, keys }) {
  return ["passed", ...(floats ? [] : ["floats in integer textures"]), ...(keys ? [] : ["tokens drawn by the processor"])].join(", ");
}
