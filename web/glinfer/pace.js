/**
 * How many rows a run may have, so that no draw is expected to take longer than 50 ms. Some drivers drop a longer draw, and
 * Windows resets a GPU after two seconds. Draws of products are the longest; their time grows with their rows and with the
 * texels of their weights.
 */

import { PRODUCTS } from "./sentinel.js";

const LONGEST = 50; // milliseconds of a draw
const SLOW = 1e5; // rows × texels in a millisecond: assumed until a run was measured

/**
 * The texels of weights that products sample.
 * @param {object[]} draws bound ones, see replay.js.
 * @returns {{all: number, largest: number}} of all products together, and of the largest one.
 */
export function texelsOf(draws) {
  const sizes = draws
    .filter(({ program }) => PRODUCTS.includes(program.spec.fragment))
    .map(({ textures }) => textures.reduce((sum, { spec }) => sum + (spec.kind === "weight" ? spec.width * spec.height : 0), 0));
  return { all: sizes.reduce((sum, each) => sum + each, 0), largest: Math.max(0, ...sizes) };
}

/** Measures the rate of a context. */
export class Pace {
  constructor() {
    this.rate = SLOW;
    this.work = 0; // rows × texels that were issued since the last measurement began
    this.from = 0; // when
    this.ended = 0; // when the measurement before ended
  }

  /** Notes that `work` is issued. */
  begin(work) {
    if (!this.work) this.from = performance.now();
    this.work += work;
  }

  /**
   * Begins to wait for the work that was issued.
   * @returns {() => void} notes that it is computed.
   */
  measure() {
    const { work, from } = this;
    this.work = 0;
    return () => {
      const now = performance.now();
      if (work) this.rate = work / Math.max(now - Math.max(from, this.ended), 1e-3);
      this.ended = now;
    };
  }

  /**
   * Rows of a run.
   * @param {{largest: number}} texels see `texelsOf`.
   * @param {number} most
   * @param {number} step rows that one pass takes.
   * @returns {number} at most `most`, in whole steps if fewer; at least one step.
   */
  rows({ largest }, most, step) {
    const allowed = Math.floor((LONGEST * this.rate) / Math.max(largest, 1) / step) * step;
    return Math.min(most, Math.max(step, allowed));
  }
}
