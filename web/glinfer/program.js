/**
 * Makes programs of shader files: include, specialise with #defines, compile, link. The browser's side of
 * glinfer/gl/program.py, with the same shader files and the same sources as a result.
 */

import { GlinferError } from "./errors.js";
import { INTEGER_TARGETS, rewritten } from "./integer_targets.js";

const VERTEX_SHADER = "common/triangle.vert";
const INCLUDE = /^\s*#include\s+"([^"]+)"\s*$/;
// ANGLE: "ERROR: 0:12:", Mesa: "0:12(5): error", NVIDIA: "0(12) : error".
const LOG_LINE = /\b0[:(](\d+)[:()]/;

/**
 * A shader ready to compile, and for every line of it the file and line it came from.
 * @typedef {{text: string, origin: [string, number][]}} Source
 */

/**
 * The shader files that some shaders need, includes of includes as well.
 * @param {Iterable<string>} names paths below the shader folder.
 * @param {(name: string) => Promise<string>} readText gives the text of one file.
 * @returns {Promise<Map<string, string>>} the text of each file by its path.
 */
export async function collectShaders(names, readText) {
  const files = new Map();
  let wanted = [...new Set(names)];
  while (wanted.length) {
    const texts = await Promise.all(wanted.map(readText));
    wanted.forEach((name, index) => files.set(name, texts[index]));
    const included = texts.flatMap((text) => text.split(/\r\n|\r|\n/).map((line) => line.match(INCLUDE)?.[1]));
    wanted = [...new Set(included)].filter((name) => name && !files.has(name));
  }
  return files;
}

/**
 * A shader's source: its includes resolved once each, the #defines after the version line.
 * @param {string} name path of the shader below the shader folder.
 * @param {Record<string, number|string>} defines values as numbers, or spelt as they go into the source.
 * @param {Map<string, string>} files the text of each shader file.
 * @returns {Source}
 * @throws {GlinferError} a file is missing, or does not begin with the version line.
 */
export function assemble(name, defines, files) {
  const lines = [];
  const origin = [];
  const seen = new Set();
  const add = (file, wantedBy) => {
    if (seen.has(file)) return;
    seen.add(file);
    if (!files.has(file)) throw new GlinferError(`${wantedBy}: there is no shader file ${file}`);
    linesOf(files.get(file)).forEach((line, index) => {
      const include = line.match(INCLUDE);
      if (include) {
        add(include[1], `${file}:${index + 1}`);
      } else {
        lines.push(line);
        origin.push([file, index + 1]);
      }
    });
  };
  add(name, name);
  if (!lines.length || !/^#version \d+ es$/.test(lines[0].trim())) {
    throw new GlinferError(`${name}:1: the first line is not a #version line of GLSL ES`);
  }
  const header = Object.keys(defines)
    .sort()
    .map((key) => `#define ${key} ${defines[key]}`);
  return {
    text: [lines[0], ...header, ...lines.slice(1)].join("\n") + "\n",
    origin: [origin[0], ...header.map(() => ["#define", 0]), ...origin.slice(1)],
  };
}

function linesOf(text) {
  const lines = text.split(/\r\n|\r|\n/);
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/**
 * The first error of a driver's compile log, as `file:line: what the driver said`.
 * @param {string} log
 * @param {Source} source
 * @returns {string}
 */
export function explain(log, source) {
  const lines = log.replaceAll("\0", "").split("\n");
  // Warnings come in the same form, and may come first.
  const isError = (line) => line.toLowerCase().includes("error");
  for (const line of [...lines.filter(isError), ...lines.filter((each) => !isError(each))]) {
    const number = Number(line.match(LOG_LINE)?.[1]);
    if (number >= 1 && number <= source.origin.length) {
      const [file, at] = source.origin[number - 1];
      return `${file}:${at}: ${line.trim()}`;
    }
  }
  return log.split(/\s+/).join(" ").trim();
}

/**
 * Begins to compile and link programs: all shaders first, so that a driver can compile in several threads.
 * @param {WebGL2RenderingContext} gl
 * @param {object[]} specs see `Program`.
 * @param {Map<string, string>} files the text of each shader file.
 * @returns {Program[]}
 */
export function beginAll(gl, specs, files) {
  const parallel = gl.getExtension("KHR_parallel_shader_compile");
  const programs = specs.map((spec) => new Program(gl, spec, files, parallel));
  for (const program of programs) program.link();
  return programs;
}

/** One compiled shader specialisation; its samplers are fixed to texture units 0, 1, … in the given order. */
export class Program {
  /**
   * Begins to compile: a browser may do so in the background. Call `link`, and `finish` before use.
   * @param {WebGL2RenderingContext} gl
   * @param {{fragment: string, vertex: string, defines: Record<string, number|string>, samplers: string[],
   *   integers?: {halves: string[], targets: string[]}}} spec of plan.json; `integers`: see integer_targets.js.
   * @param {Map<string, string>} files the text of each shader file.
   * @param {{COMPLETION_STATUS_KHR: number}|null} parallel the extension KHR_parallel_shader_compile, where there is one.
   */
  constructor(gl, spec, files, parallel = null) {
    this.gl = gl;
    this.spec = spec;
    this.parallel = parallel;
    const vertexDefines = spec.vertex === VERTEX_SHADER ? {} : spec.defines;
    const source = assemble(spec.fragment, spec.defines, files);
    const fragment = spec.integers ? rewritten(source, spec.integers, files.get(INTEGER_TARGETS)) : source;
    this.stages = [
      { type: gl.VERTEX_SHADER, source: assemble(spec.vertex, vertexDefines, files) },
      { type: gl.FRAGMENT_SHADER, source: fragment },
    ];
    this.handle = gl.createProgram();
    for (const stage of this.stages) {
      stage.shader = gl.createShader(stage.type);
      gl.shaderSource(stage.shader, stage.source.text);
      gl.compileShader(stage.shader);
      gl.attachShader(this.handle, stage.shader);
    }
    this.uniforms = new Map();
    this.samplers = new Map();
    // The current uniform values: GL keeps them in the program, and only this class writes them.
    this.values = new Map();
  }

  /** Begins to link. */
  link() {
    this.gl.linkProgram(this.handle);
  }

  /**
   * Whether `finish` need not wait, or the driver cannot report it.
   * @returns {boolean}
   */
  isDone() {
    const { gl, handle, parallel } = this;
    return !parallel || gl.isContextLost() || gl.getProgramParameter(handle, parallel.COMPLETION_STATUS_KHR);
  }

  /**
   * Waits for the compiler, and fixes the samplers; does nothing when repeated.
   * @throws {GlinferError} the driver refuses the source, or a sampler has no texture.
   */
  finish() {
    const { gl, handle, spec } = this;
    if (!this.stages.length) return;
    if (!gl.getProgramParameter(handle, gl.LINK_STATUS)) this.refuse();
    for (const { shader } of this.stages) gl.deleteShader(shader);
    this.stages = [];
    gl.useProgram(handle);
    const samplers = [gl.SAMPLER_2D, gl.INT_SAMPLER_2D, gl.UNSIGNED_INT_SAMPLER_2D];
    for (let index = gl.getProgramParameter(handle, gl.ACTIVE_UNIFORMS) - 1; index >= 0; index--) {
      const { name: given, type } = gl.getActiveUniform(handle, index);
      const name = given.replace("[0]", ""); // samplers of integer targets are arrays of one
      const location = gl.getUniformLocation(handle, name);
      if (!samplers.some((each) => each === type)) {
        this.uniforms.set(name, { location, type });
        continue;
      }
      const unit = spec.samplers.indexOf(name);
      if (unit < 0) throw new GlinferError(`shader ${spec.fragment} samples ${name}, which is bound to nothing`);
      gl.uniform1i(location, unit);
      this.samplers.set(name, location);
    }
  }

  /**
   * The texture unit that a sampler reads, as the driver has it; null where the driver has found it to be unused.
   * @param {string} name
   * @returns {number|null}
   */
  unitOf(name) {
    const location = this.samplers.get(name);
    return location === undefined ? null : this.gl.getUniform(this.handle, location);
  }

  refuse() {
    const { gl, handle, stages } = this;
    for (const { shader, source } of stages) {
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) {
        throw new GlinferError(`a shader does not compile: ${explain(gl.getShaderInfoLog(shader) ?? "", source)}`);
      }
    }
    throw new GlinferError(`shader ${this.spec.fragment} does not link: ${gl.getProgramInfoLog(handle) ?? ""}`);
  }

  /**
   * Sets one uniform of the program in use, unless it has the value. A uniform that the driver has found
   * to be unused is skipped.
   * @param {string} name
   * @param {number} value
   * @throws {GlinferError} the value is not of the uniform's type.
   */
  set(name, value) {
    if (this.values.get(name) === value) return;
    const uniform = this.uniforms.get(name);
    if (!uniform) return;
    const { gl } = this;
    const isFloat = uniform.type === gl.FLOAT;
    if (typeof value !== "number" || (!isFloat && !Number.isInteger(value))) {
      const kind = isFloat ? "a number" : "an integer";
      throw new GlinferError(`shader ${this.spec.fragment}: uniform ${name} is ${value}; expected ${kind}`);
    }
    if (isFloat) gl.uniform1f(uniform.location, value);
    else if (uniform.type === gl.UNSIGNED_INT) gl.uniform1ui(uniform.location, value);
    else gl.uniform1i(uniform.location, value);
    this.values.set(name, value);
  }

  /** Releases the program and its shaders. */
  release() {
    for (const { shader } of this.stages) this.gl.deleteShader(shader);
    this.gl.deleteProgram(this.handle);
  }
}
