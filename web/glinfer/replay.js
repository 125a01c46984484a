/**
 * A plan bound to WebGL2 once, and the one loop that issues its draws and counts them: the browser's side of
 * glinfer/program/session.py and glinfer/gl/replay.py. Afterwards only uniform values and input textures change.
 */

import { GlinferError } from "./errors.js";
import { pauses, shortly } from "./generate.js";
import { Pace, texelsOf } from "./pace.js";
import { beginAll } from "./program.js";
import { Sentinel, spoiled, WATCH_EVERY, watchable } from "./sentinel.js";
import { clearBuffer, Framebuffer, LOST, NAN_BITS, NANS, pendingError, Texture } from "./textures.js";
import { evaluate, rectangleOf, runValues } from "./values.js";


/** The bindings before the first draw: none, so that `issue` sets all of them. */
const unbound = () => ({ framebuffer: null, program: null, viewport: "", bound: [], blending: false });

/** Clears rectangles of all outputs of a draw. */
function clear(gl, { spec, framebuffer }, values) {
  gl.enable(gl.SCISSOR_TEST);
  for (const rectangle of spec.clears) {
    gl.scissor(...rectangleOf(rectangle, values));
    framebuffer.textures.forEach(clearBuffer);
  }
  gl.disable(gl.SCISSOR_TEST);
}

/** Textures, programs, framebuffers and draws of one plan and its companions in one context. */
export class Replay {
  /**
   * Begins to compile all programs, and makes the textures, except those of companions loaded on demand. Once
   * `compiled` is done and the weights are uploaded, `bindAll` gets everything ready; see loading.js.
   * @param {WebGL2RenderingContext} gl
   * @param {object} plan plan.json.
   * @param {Map<string, string>} shaders the text of each shader file.
   * @param {import("./self_test.js").Form} form
   * @throws {GlinferError} something does not fit, or the driver refuses it.
   */
  constructor(gl, plan, shaders, form = { floats: true, keys: true }) {
    this.gl = gl;
    this.plan = plan;
    this.shaders = shaders;
    this.form = form;
    this.drawsIssued = 0;
    this.textures = [];
    this.programs = [];
    this.framebuffers = new Map();
    this.draws = [];
    this.companions = new Map(); // the bound draws of companions, by name
    this.watchable = new Map(); // the indices of the draws to watch, by the list of bound draws
    this.watched = new Set(); // draws that were watched once
    this.spoiled = new Map(); // what a run fills with NaN, by the list of bound draws
    this.sentinels = new Map(); // of draws of the last runs until something is read, by draw
    this.turn = 0;
    this.unwatched = 0; // runs since draws were watched
    this.pace = new Pace();
    this.texels = new Map(); // of weights, by the list of bound draws
    try {
      this.reset();
      // In the order in which a prompt and its answer need them.
      const { rows, ...others } = plan.companions;
      const needed = [rows, plan, ...Object.values(others)].filter((each) => each && !each.on_demand);
      for (const spec of plan.textures) this.textures.push(new Texture(gl, spec, true));
      this.begin(needed.flatMap(({ draws }) => draws));
      this.check("making the textures");
    } catch (error) {
      this.release();
      throw gl.isContextLost() ? new GlinferError(LOST) : error;
    }
  }

  /**
   * Binds the plan, and draws once with each of its programs: drivers finish compiling a program at its first draw. Does the
   * same for companions whose programs are compiled by now. Nothing waits for these draws, and they are not counted.
   * @throws {GlinferError} as `bindAll`.
   */
  warmUp() {
    this.bindAll();
    const compiled = ({ draws, on_demand: later }) => !later && this.programsOf(draws).every((program) => program.isDone());
    const companions = Object.entries(this.plan.companions).filter(([, spec]) => compiled(spec));
    const bound = companions.map(([name, spec]) => [spec, this.companion(name)]); // which queries the driver, so all of it comes first
    for (const [spec, draws] of [[this.plan, this.draws], ...bound]) this.drawOnce(spec, draws);
    this.gl.flush();
  }

  /** One draw with each program into one texel, which is zero again afterwards. */
  drawOnce({ run_values: given }, bound) {
    const { gl } = this;
    const values = Object.fromEntries(given.map(({ name, smallest }) => [name, smallest]));
    for (const draw of new Map(bound.map((each) => [each.program, each])).values()) {
      const [x, y] = rectangleOf(draw.spec.viewport, values);
      gl.enable(gl.SCISSOR_TEST);
      gl.scissor(x, y, 1, 1);
      this.issue(draw, values, unbound());
      gl.disable(gl.BLEND);
      draw.framebuffer.clear(x, y, 1, 1);
    }
  }

  /**
   * Waits until every program of the plan itself is compiled. Where the driver compiles in the background nothing blocks;
   * otherwise the page can respond between two programs. Those of companions are compiled meanwhile. Ends early where
   * everything is released meanwhile.
   * @param {(done: number, all: number) => void} onProgress
   * @throws {GlinferError} the driver refuses a shader.
   */
  async compiled(onProgress = () => {}) {
    const { gl, programs: made } = this;
    const programs = this.programsOf(this.plan.draws);
    const pause = pauses();
    onProgress(0, programs.length);
    for (const [index, program] of programs.entries()) {
      while (this.programs === made && !program.isDone()) await shortly();
      if (this.programs !== made) return;
      try {
        program.finish();
      } catch (error) {
        throw gl.isContextLost() ? new GlinferError(LOST) : error;
      }
      onProgress(index + 1, programs.length);
      await pause();
    }
  }

  /** Begins to compile the programs of some draws, and makes their textures, unless that was done. */
  begin(draws) {
    const { gl, plan, shaders, programs, textures } = this;
    if (gl.isContextLost()) throw new GlinferError(LOST);
    const wanted = [...new Set(draws.map(({ program }) => program))].filter((index) => !programs[index]);
    const made = beginAll(gl, wanted.map((index) => plan.programs[index]), shaders);
    wanted.forEach((index, number) => (programs[index] = made[number]));
    for (const index of draws.flatMap(({ inputs, outputs }) => [...inputs, ...outputs])) textures[index].make();
  }

  programsOf(draws) {
    return [...new Set(draws.map(({ program }) => this.programs[program]))];
  }

  /**
   * Binds the draws of the plan itself.
   * @throws {GlinferError} a draw does not fit its shader, or the driver refuses it.
   */
  bindAll() {
    this.draws = this.boundAll(this.plan.draws);
  }

  /**
   * The draws of a companion, which are bound when they are first needed.
   * @param {string} name its key in plan.json.
   * @returns {object[]}
   * @throws {GlinferError} the driver refuses a program, the model was released, or the context was lost.
   */
  companion(name) {
    this.requireHeld();
    if (!this.companions.has(name)) this.companions.set(name, this.boundAll(this.plan.companions[name].draws));
    return this.companions.get(name);
  }

  /** @throws {GlinferError} the model was released. */
  requireHeld() {
    if (!this.textures.length) throw new GlinferError("the model was released; load it again");
  }

  /** The draws that are bound so far, those of companions last. */
  get bound() {
    return [this.draws, ...this.companions.values()].flat();
  }

  boundAll(draws) {
    try {
      this.begin(draws);
      for (const program of this.programsOf(draws)) program.finish();
      const bound = draws.map((draw) => this.bind(draw));
      this.watchable.set(bound, watchable(bound));
      this.spoiled.set(bound, spoiled(bound));
      this.texels.set(bound, texelsOf(bound));
      this.check("preparing the model");
      return bound;
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
    const given = new Set([...Object.keys(draw.uniforms), ...Object.keys(draw.per_run)]);
    for (const name of program.uniforms.keys()) {
      if (!given.has(name)) throw new GlinferError(`draw ${draw.name} does not set the uniform ${name} of its shader`);
    }
    return {
      spec: draw,
      program,
      framebuffer: this.framebuffer(draw.outputs),
      textures: draw.inputs.map((index) => this.textures[index]),
      constants: Object.entries(draw.uniforms),
      perRun: Object.entries(draw.per_run),
      mode: draw.points ? this.gl.POINTS : this.gl.TRIANGLES,
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
   * Issues draws of a plan with these run values, and binds only what differs from the draw before.
   * @param {Record<string, number>} inputs of the run.
   * @param {{companion?: string|null, first?: number, last?: number, watch?: {draw: number, seen: () => void}|null,
   *   read?: boolean}} options `companion`: the plan, the first one if left out; draws from number `first` on to before
   *   `last`, all of them if left out; `watch`: `seen` is called after that draw, and may read textures; `read`: whether
   *   results are read back before the next run.
   * @returns {number} draw calls issued.
   * @throws {GlinferError} a run value is missing or out of range, the context was lost, or the driver reports an error.
   */
  run(inputs, { companion = null, first = 0, last, watch = null, read = true } = {}) {
    this.requireHeld();
    const { gl, plan } = this;
    const draws = companion === null ? this.draws : this.companion(companion);
    const end = last ?? draws.length;
    const values = runValues(companion === null ? plan : plan.companions[companion], inputs);
    const state = unbound();
    const watched = this.watchedIn(draws, first, end, read);
    if (read && first === 0 && end > 1) for (const texture of this.spoiled.get(draws) ?? []) this.spoil(texture);
    const texels = this.texels.get(draws); // none for draws that the tour has changed
    if (texels && values.rows) this.pace.begin(values.rows * texels.all);
    for (let index = first; index < end; index++) {
      this.issue(draws[index], values, state, watched.includes(index));
      if (watch?.draw === index) {
        watch.seen();
        state.framebuffer = null;
      }
    }
    if (state.blending) gl.disable(gl.BLEND);
    this.drawsIssued += end - first;
    this.check("running the model");
    return end - first;
  }

  /**
   * The indices of the draws that this run watches: those that were never watched. Else in turn, one for each WATCH_EVERY runs
   * since others were, if results are read back before the next run overwrites the texels.
   */
  watchedIn(draws, first, end, read) {
    const indices = (this.watchable.get(draws) ?? []).filter((index) => index >= first && index < end);
    const fresh = indices.filter((index) => !this.watched.has(draws[index]));
    this.unwatched += 1;
    if (fresh.length || !read) return fresh;
    const count = Math.min(Math.floor(this.unwatched / WATCH_EVERY), indices.length);
    if (count) this.unwatched = 0;
    return Array.from({ length: count }, () => indices[this.turn++ % indices.length]);
  }

  /**
   * Fills a texture of floats with NaN.
   * @param {number} texture index in the plan.
   */
  spoil(texture) {
    const { gl } = this;
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.framebuffer([texture]).handle);
    if (this.textures[texture].integer) gl.clearBufferuiv(gl.COLOR, 0, NAN_BITS);
    else gl.clearBufferfv(gl.COLOR, 0, NANS);
  }

  issue(draw, values, state, watched = false) {
    const { gl } = this;
    const { spec, program } = draw;
    if (state.program !== program) {
      gl.useProgram(program.handle);
      state.program = program;
    }
    if (state.framebuffer !== draw.framebuffer) {
      gl.bindFramebuffer(gl.FRAMEBUFFER, draw.framebuffer.handle);
      state.framebuffer = draw.framebuffer;
    }
    const size = rectangleOf(spec.viewport, values);
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
    if (spec.clears.length) clear(gl, draw, values);
    const drawn = () => gl.drawArraysInstanced(draw.mode, 0, evaluate(spec.vertices, values), evaluate(spec.instances, values));
    const again = () => {
      this.watched.delete(draw);
      this.issue(draw, values, unbound(), true);
      gl.disable(gl.BLEND);
    };
    const sentinel = watched ? new Sentinel(gl, draw, size, again) : null;
    if (sentinel && !this.watched.has(draw)) {
      this.watched.add(draw);
      sentinel.compare(drawn);
      return;
    }
    if (sentinel) {
      this.sentinels.set(draw, sentinel);
      sentinel.plant();
    }
    drawn();
  }

  /**
   * Texels [height × width × 4] of a texture; waits until they are computed.
   * @param {number} texture index in the plan.
   * @param {number} width
   * @param {number} height
   * @param {number} first the first line.
   * @param {number} left the first texel of each line.
   * @returns {Float32Array|Int32Array|Uint32Array}
   */
  read(texture, width, height, first = 0, left = 0) {
    const texels = this.framebuffer([texture]).read(left, first, width, height);
    const sentinels = [...this.sentinels.values()];
    this.sentinels.clear();
    for (const sentinel of sentinels) sentinel.check();
    this.check(`reading ${this.plan.textures[texture].name} back`);
    return texels;
  }

  /** Waits until everything issued before is computed, and lets the page respond meanwhile. */
  async finished() {
    const { gl } = this;
    const fence = gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    const measured = this.pace.measure();
    gl.flush();
    do await shortly();
    while (!gl.isContextLost() && gl.clientWaitSync(fence, 0, 0) === gl.TIMEOUT_EXPIRED);
    gl.deleteSync(fence);
    measured();
  }

  /**
   * The rows of the next run, see pace.js.
   * @param {string|null} companion the plan, null for the first one.
   * @param {{most: number, targets: number}} size the rows that the plan can have, and the rows of a pass.
   * @returns {number}
   */
  rowsOf(companion, { most, targets } = this.plan.companions[companion]) {
    const draws = companion === null ? this.draws : this.companion(companion);
    return this.pace.rows(this.texels.get(draws), most, targets);
  }

  /**
   * Raises pending errors of the driver.
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
    for (const made of [...this.framebuffers.values(), ...this.textures, ...this.programs]) made?.release();
    this.framebuffers.clear();
    this.watchable.clear();
    this.texels.clear();
    this.watched.clear();
    this.spoiled.clear();
    this.sentinels.clear();
    this.textures = [];
    this.programs = [];
    this.draws = [];
    this.companions.clear();
  }
}
