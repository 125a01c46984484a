/** How fast a reply is written. */

import { $ } from "./elements.js";

const PAUSE = 250; // milliseconds between two looks at the numbers

/** Shows the numbers of one reply while it is written: tokens a second from the first one on, without the prompt. */
export class Meter {
  /** @param {Engine} engine see page.js. */
  constructor(engine) {
    Object.assign(this, { engine, sent: performance.now(), tokens: 0, early: 0, first: 0, shown: 0, drawn: 0 });
  }

  /** Counts tokens that were written. */
  count(more) {
    const now = performance.now();
    if (more > 0 && this.tokens === 0) {
      Object.assign(this, { first: now, early: more, drawn: this.engine.figures.draws });
      $("first").textContent = `${((now - this.sent) / 1000).toFixed(2)} s`;
    }
    this.tokens += more;
    if (this.tokens > 0 && now - this.shown > PAUSE) this.show(now);
  }

  /** Shows the numbers at the end. */
  finish() {
    if (this.tokens > 0) this.show(performance.now());
  }

  show(now) {
    const { held, context, draws } = this.engine.figures;
    const later = this.tokens - this.early;
    if (later > 0) {
      $("speed").textContent = ((1000 * later) / (now - this.first)).toFixed(1);
      if (draws !== null) $("draws").textContent = String(Math.round((draws - this.drawn) / later));
    }
    $("held").textContent = `${held} of ${context}`;
    this.shown = now;
  }
}
