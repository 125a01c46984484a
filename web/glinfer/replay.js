/**
 * A plan bound to WebGL2 once, and the one loop that issues its draws and counts them: the browser's side of
 * glinfer/models/session.py and glinfer/gl/replay.py. Afterwards only uniform values and input textures change.
 */

import { GlinferError } from "./errors.js";
import { pauses } from "./generate.js";
import { CELL_UNIFORMS, Cells, sizeOf, slotRectangles, vertexCount, viewport } from "./layouts.js";
import { beginAll } from "./program.js";
import { Framebuffer, pendingError, Texture } from "./textures.js";

const LOST =
  "The browser took the graphics context away (the driver was reset, or memory ran out). Reload the page to go on.";
const ZEROS = new Float32Array(4);
const POLL = 4; // milliseconds between questions whether a program is compiled

/** Sets to zero what a draw adds to: all of its outputs, or the slot that it writes. */
function clear(gl, spec, target, values) {
  const all = () => spec.outputs.forEach((_, index) => gl.clearBufferfv(gl.COLOR, index, ZEROS));
  if (spec.clears === "all") {
    all();
    return;
  }
  gl.enable(gl.SCISSOR_TEST);
  const slot = spec.uniforms.first_slot ?? values[spec.per_run.first_slot];
  for (const rectangle of slotRectangles(target, slot)) {
    gl.scissor(...rectangle);
    all();
  }
  gl.disable(gl.SCISSOR_TEST);
}

/** Textures, programs, framebuffers and draws of one plan in one context. */
export class Replay {
  /**
   * Begins to compile all programs, and makes the textures. Once `compiled` is done and the weights are uploaded,
   * `bindAll` gets everything ready; see loading.js.
   * @param {WebGL2RenderingContext} gl
   * @param {object} plan plan.json.
   * @param {Map<string, string>} shaders the text of each shader file.
   * @throws {GlinferError} something does not fit, or the driver refuses it.
   */
  constructor(gl, plan, shaders) {
    this.gl = gl;
    this.plan = plan;
    this.drawsIssued = 0;
    this.textures = [];
    this.programs = [];
    this.framebuffers = new Map();
    this.draws = [];
    try {
      this.reset();
      this.programs = beginAll(gl, plan.programs, shaders);
      for (const spec of plan.textures) this.textures.push(new Texture(gl, spec));
    } catch (error) {
      this.release();
      throw gl.isContextLost() ? new GlinferError(LOST) : error;
    }
  }

  /**
   * Waits until every program is compiled. Where the driver compiles beside the page nothing waits for it; else the page
   * can answer between two programs. Ends early where everything is released meanwhile.
   * @param {(done: number, all: number) => void} onProgress
   * @throws {GlinferError} the driver refuses a shader.
   */
  async compiled(onProgress = () => {}) {
    const { gl, programs } = this;
    const pause = pauses();
    onProgress(0, programs.length);
    for (const [index, program] of programs.entries()) {
      while (this.programs === programs && !program.isDone()) await new Promise((resolve) => setTimeout(resolve, POLL));
      if (this.programs !== programs) return;
      try {
        program.finish();
      } catch (error) {
        throw gl.isContextLost() ? new GlinferError(LOST) : error;
      }
      onProgress(index + 1, programs.length);
      await pause();
    }
  }

  /**
   * Binds the draws.
   * @throws {GlinferError} a draw does not fit its shader, or the driver refuses it.
   */
  bindAll() {
    try {
      this.draws = this.plan.draws.map((draw) => this.bind(draw));
      this.check("preparing the model");
    } catch (error) {
      throw this.gl.isContextLost() ? new GlinferError(LOST) : error;
    }
  }

  reset() {
    const { gl } = this;
    for (const capability of [gl.BLEND, gl.DITHER, gl.DEPTH_TEST, gl.STENCIL_TEST, gl.SCISSOR_TEST, gl.CULL_FACE]) {
      gl.disable(capability);
    }
    gl.blendFunc(gl.ONE, gl.ONE);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 4);
    gl.pixelStorei(gl.PACK_ALIGNMENT, 4);
  }

  bind(draw) {
    const program = this.programs[draw.program];
    const target = this.textures[draw.outputs[0]].spec.layout;
    const given = new Set([...Object.keys(draw.uniforms), ...Object.keys(draw.per_run)]);
    if (draw.largest_cell) CELL_UNIFORMS.forEach((name) => given.add(name));
    for (const name of program.uniforms.keys()) {
      if (!given.has(name)) throw new GlinferError(`draw ${draw.name} does not set the uniform ${name} of its shader`);
    }
    const modes = { points: this.gl.POINTS, scatter: this.gl.POINTS };
    return {
      spec: draw,
      program,
      target,
      framebuffer: this.framebuffer(draw.outputs),
      textures: draw.inputs.map((index) => this.textures[index]),
      constants: Object.entries(draw.uniforms),
      perRun: Object.entries(draw.per_run),
      mode: modes[draw.cover] ?? this.gl.TRIANGLES,
      cells: new Map(),
    };
  }

  framebuffer(outputs) {
    const key = outputs.join();
    if (!this.framebuffers.has(key)) {
      const textures = outputs.map((index) => this.textures[index]);
      this.framebuffers.set(key, new Framebuffer(this.gl, textures));
    }
    return this.framebuffers.get(key);
  }

  /**
   * Issues the first draws of the plan with these run values, and binds only what differs from the draw before.
   * @param {Record<string, number>} values of all run values.
   * @param {{last?: number, watch?: {draw: number, seen: () => void}|null}} options `last`: how many draws, all of
   *   them if left out; `watch`: `seen` is called after that draw, and may read textures.
   * @returns {number} draw calls issued.
   * @throws {GlinferError} a run value is missing or out of range, the context was lost, or the driver reports an error.
   */
  run(values, { last = this.draws.length, watch = null } = {}) {
    const { gl } = this;
    this.checkValues(values);
    const state = { framebuffer: null, program: null, viewport: "", bound: [], blending: false };
    for (let index = 0; index < last; index++) {
      this.issue(this.draws[index], values, state);
      if (watch?.draw === index) {
        watch.seen();
        state.framebuffer = null;
      }
    }
    if (state.blending) gl.disable(gl.BLEND);
    this.drawsIssued += last;
    this.check("running the model");
    return last;
  }

  checkValues(values) {
    for (const { name, smallest, largest, whole } of this.plan.run_values) {
      const value = values[name];
      if (!(value >= smallest && value <= largest) || (whole && !Number.isInteger(value))) {
        throw new GlinferError(`run value ${name} is ${value}; expected ${smallest} to ${largest}`);
      }
    }
  }

  issue(draw, values, state) {
    const { gl } = this;
    const { spec, program, target } = draw;
    if (state.program !== program) {
      gl.useProgram(program.handle);
      state.program = program;
    }
    if (state.framebuffer !== draw.framebuffer) {
      gl.bindFramebuffer(gl.FRAMEBUFFER, draw.framebuffer.handle);
      state.framebuffer = draw.framebuffer;
    }
    const size = viewport(spec, target, values);
    if (state.viewport !== size.join()) {
      gl.viewport(...size);
      state.viewport = size.join();
    }
    draw.textures.forEach((texture, unit) => {
      if (state.bound[unit] === texture) return;
      gl.activeTexture(gl.TEXTURE0 + unit);
      gl.bindTexture(gl.TEXTURE_2D, texture.handle);
      state.bound[unit] = texture;
    });
    for (const [name, value] of draw.constants) program.set(name, value);
    for (const [name, key] of draw.perRun) program.set(name, values[key]);
    if (state.blending !== spec.adds) {
      if (spec.adds) gl.enable(gl.BLEND);
      else gl.disable(gl.BLEND);
      state.blending = spec.adds;
    }
    if (spec.clears) clear(gl, spec, target, values);
    const cells = spec.largest_cell ? this.cellsOf(draw, values) : null;
    cells?.uniforms.forEach((value, index) => program.set(CELL_UNIFORMS[index], value));
    const vertices = vertexCount(spec, target, values, cells);
    gl.drawArraysInstanced(draw.mode, 0, vertices, sizeOf(spec.instances, values));
  }

  cellsOf(draw, values) {
    const rows = sizeOf(draw.spec.size[0], values);
    if (!draw.cells.has(rows)) draw.cells.set(rows, Cells.of(draw.target, rows, draw.spec.largest_cell));
    return draw.cells.get(rows);
  }

  /**
   * Texels [height × width × 4] from the left edge of a texture; waits until they are computed.
   * @param {number} texture index in the plan.
   * @param {number} width
   * @param {number} height
   * @param {number} first the first line.
   * @returns {Float32Array|Int32Array|Uint32Array}
   */
  read(texture, width, height, first = 0) {
    const texels = this.framebuffer([texture]).read(0, first, width, height);
    this.check(`reading ${this.plan.textures[texture].name} back`);
    return texels;
  }

  /**
   * Raises what the driver has to complain about.
   * @param {string} doing what was being done, for the message.
   * @throws {GlinferError}
   */
  check(doing) {
    const error = pendingError(this.gl);
    if (error === "CONTEXT_LOST_WEBGL" || this.gl.isContextLost()) throw new GlinferError(LOST);
    if (error === "OUT_OF_MEMORY") throw new GlinferError(`the graphics memory ran out while ${doing}`);
    if (error) throw new GlinferError(`the graphics driver reported ${error} while ${doing}`);
  }

  /** Releases every GL object that was made; harmless when repeated. */
  release() {
    for (const made of [...this.framebuffers.values(), ...this.textures, ...this.programs]) made.release();
    this.framebuffers.clear();
    this.textures = [];
    this.programs = [];
    this.draws = [];
  }
}
