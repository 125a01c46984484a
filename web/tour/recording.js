/**
 * One token, draw by draw: issues the draws of a plan one at a time, reads each target back, and keeps what it held.
 * The texture that a draw samples is then what the last draw before it left there.
 */

import { pauses } from "../glinfer/generate.js";
import { pendingError } from "../glinfer/textures.js";
import { rectangleOf, runValues } from "../glinfer/values.js";
import { elementPosition } from "./elements.js";

/** @typedef {import("../glinfer/model.js").Model} Model */

/**
 * Texels of a texture: `values` has `channels` numbers for each, line by line, of the rectangle that is in use.
 * @typedef {{texture: number, x: number, y: number, width: number, height: number, channels: number,
 *   values: Float32Array|Int32Array|Uint32Array}} Texels
 */

/**
 * A draw that was issued: the textures that it sampled, its targets, `milliseconds` with reading back, `gpu` nanoseconds
 * where the renderer tells them, and the name of a GL error, or null.
 * @typedef {{inputs: number[], outputs: Texels[], milliseconds: number, gpu: number|null, error: string|null}} Step
 */

/** All draws of one token. */
export class Recording {
  /**
   * @param {Model} model
   * @param {number[]} ids the tokens so far; the draws are those of the last one.
   */
  constructor(model, ids) {
    this.model = model;
    this.ids = ids;
    this.plan = model.plan;
    /** @type {Step[]} */
    this.steps = [];
    this.values = {};
    this.fixed = new Map(); // texels of weights and inputs, by texture
  }

  /**
   * Runs all draws, and lets the page respond in between.
   * @param {(draw: number) => void} seen is called after each draw.
   */
  async run(seen = () => {}) {
    const { plan, model: { replay } } = this;
    const given = this.begin();
    this.values = runValues(plan, given);
    const pause = pauses();
    const timer = replay.gl.getExtension("EXT_disjoint_timer_query_webgl2");
    const queries = [];
    for (const [index, draw] of plan.draws.entries()) {
      const before = performance.now();
      const query = timer && replay.gl.createQuery();
      if (query) replay.gl.beginQuery(timer.TIME_ELAPSED_EXT, query);
      const error = this.issue(given, index);
      if (query) replay.gl.endQuery(timer.TIME_ELAPSED_EXT);
      queries.push(query);
      const { textures, framebuffer } = replay.draws[index]; // which differ from the plan where a bug is planted
      const [inputs, targets] = [textures, framebuffer.textures].map((each) => each.map((texture) => replay.textures.indexOf(texture)));
      const outputs = targets.map((texture) => this.read(texture, rectangleOf(draw.viewport, this.values)));
      this.steps.push({ inputs, outputs, milliseconds: performance.now() - before, gpu: null, error });
      seen(index);
      await pause();
    }
    this.readTimes(timer, queries);
  }

  /** Sets the inputs of the run; a plan with caches runs the tokens before the last. */
  begin() {
    const { model, ids } = this;
    const { driver } = model;
    for (const work = model.hold(ids); !work.next().done; );
    if (this.plan.driver === "fast") {
      return { ...driver.inputs, token: ids.at(-1), position: ids.length - 1, long: Number(driver.long) };
    }
    driver.column.fill(0).set(ids);
    driver.input.uploadColumn(driver.column);
    return { rows: ids.length };
  }

  /** Issues one draw; gives the name of the GL error, if there is one. */
  issue(inputs, index) {
    const { gl } = this.model.replay;
    const { check } = this.model.replay;
    let error = null;
    this.model.replay.check = () => (error = pendingError(gl)); // a bug that is planted shall not end the run
    try {
      this.model.replay.run(inputs, { first: index, last: index + 1 });
    } finally {
      this.model.replay.check = check;
    }
    return error;
  }

  /** Texels from (x, y) on; of a cache those of the tokens so far. @returns {Texels} */
  read(texture, [x, y, all, height]) {
    const { replay } = this.model;
    const width = Math.min(all, this.widthOf(this.plan.textures[texture]));
    const { channels } = replay.textures[texture];
    const read = replay.framebuffer([texture]).read(x, y, width, height);
    const values = channels === 4 ? read : read.filter((_, index) => index % 4 === 0);
    return { texture, x, y, width, height, channels, values };
  }

  /** Texels of a line that are in use: where a cache has a token in each column of blocks, those of the tokens. */
  widthOf({ kind, width, layout }) {
    const { tiles, slot_step: step, block_step: blocks, columns, aside } = layout;
    const inColumns = kind === "cache" && layout.kind === "block" && tiles === 1 && step === 1 && blocks % columns === 0;
    return inColumns && this.ids.length <= columns ? Math.min(width, 4 * Math.max(this.ids.length, aside)) : width;
  }

  /** Notes the times of queries that are done. */
  readTimes(timer, queries) {
    const { gl } = this.model.replay;
    if (!timer) return;
    const read = () => {
      if (!gl.getQueryParameter(queries.at(-1), gl.QUERY_RESULT_AVAILABLE)) return void setTimeout(read, 20);
      queries.forEach((query, index) => {
        this.steps[index].gpu = gl.getQueryParameter(query, gl.QUERY_RESULT);
        gl.deleteQuery(query);
      });
    };
    setTimeout(read, 20);
  }

  /**
   * What a draw found in a texture.
   * @param {number} texture
   * @param {number} draw
   * @returns {Texels}
   */
  before(texture, draw) {
    for (let index = draw - 1; index >= 0; index--) {
      const found = this.steps[index].outputs.find((each) => each.texture === texture);
      if (found) return found;
    }
    if (!this.fixed.has(texture)) {
      const { width, height, kind } = this.plan.textures[texture];
      const rows = kind === "input" && this.plan.driver === "reference" ? this.ids.length : height;
      this.fixed.set(texture, this.read(texture, [0, 0, width, Math.min(height, rows)]));
    }
    return this.fixed.get(texture);
  }

  /** The number of the last draw before another one that writes a texture; -1 where there is none. */
  writer(texture, draw) {
    return this.steps.findLastIndex(({ outputs }, index) => index < draw && outputs.some((each) => each.texture === texture));
  }
}

/**
 * An element of a matrix that texels hold.
 * @param {Texels} texels
 * @param {import("../glinfer/layouts.js").Layout} layout
 * @param {number} row
 * @param {number} col
 * @returns {number}
 */
export function elementIn({ x, y, width, channels, values }, layout, row, col) {
  const at = elementPosition(layout, row, col);
  return values[((at.y - y) * width + (at.x - x)) * channels + at.channel];
}

/**
 * A named value of a run, as Python's `capture` gives it: rows of numbers, one for each token (and head).
 * @param {Recording} recording
 * @param {object} point of tour.json.
 * @returns {{rows: number, cols: number, values: Float32Array}} rows: heads × tokens; the heads of all sites in order.
 */
export function captured(recording, { sites, view, last_only: lastOnly }) {
  const { plan, ids, steps } = recording;
  const one = plan.driver === "fast" || lastOnly;
  const first = one ? ids.length - 1 : 0;
  const count = view.rows === "only" ? 1 : ids.length - first;
  const heads = Math.max(1, view.heads);
  const each = typeof view.cols === "number" ? view.cols : ids.length;
  const lines = view.joined ? count : heads * count;
  const cols = view.joined ? heads * each : each;
  const values = new Float32Array(sites.length * lines * cols);
  let at = 0;
  for (const [draw, texture] of sites) {
    const texels = steps[draw].outputs.find((found) => found.texture === texture);
    const { layout } = plan.textures[texture];
    const element = (head, token, n) => {
      if (view.cols === "slots") return elementIn(texels, layout, Math.floor(n / 64), head * 64 + (n % 64));
      const at = (view.rows === "run" || view.rows === "only" ? 0 : first) + (view.rows === "only" ? 0 : token);
      const line = typeof view.rows === "number" ? at % view.rows : at; // a slot of a ring, or a row
      const order = view.order.length ? view.order[n] : n;
      return elementIn(texels, layout, head * view.rows_apart + line, view.start + head * view.cols_apart + order);
    };
    for (let line = 0; line < lines; line++) {
      for (let col = 0; col < cols; col++) {
        const head = view.joined ? Math.floor(col / each) : Math.floor(line / count);
        values[at++] = element(head, line % count, col % each);
      }
    }
  }
  return { rows: sites.length * lines, cols, values };
}

