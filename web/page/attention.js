/** Pictures of attention in the page. */

import { paintAttention } from "../glinfer/pictures.js";
import { $ } from "./elements.js";

const PAUSE = 350; // milliseconds; each picture makes the browser wait for the graphics card

function accent() {
  const colour = getComputedStyle($("send")).backgroundColor;
  return (colour.match(/\d+/g) ?? [22, 80, 176]).slice(0, 3).map(Number);
}

/** See the head of this file. */
export class AttentionView {
  constructor() {
    this.painted = null; // the attention that is shown
    this.names = []; // of the pictures that there are
  }

  /**
   * Offers a model's pictures.
   * @param {string[]} names
   * @param {"heads"|"tokens"} lines what the lines of a picture are.
   */
  offer(names, lines) {
    this.names = names;
    $("attention").hidden = names.length === 0;
    $("layer").replaceChildren(...names.map((name, index) => new Option(name, String(index))));
    const told =
      lines === "tokens"
        ? "Each row is a token of the text, the newest at the bottom"
        : "Each row is one head of the block; heads look at different things";
    $("attention-hint").textContent =
      "For each token the model weighs all earlier tokens, in several blocks one after another. " +
      `${told}. Each column is a token that it looks at, the newest on the right. A stronger colour means more weight.`;
  }

  /** The picture that is chosen. */
  get chosen() {
    return Number($("layer").value);
  }

  /** Shows one. */
  paint(picture, attention) {
    this.painted = attention;
    paintAttention($("picture"), attention, accent());
    const label = `Attention of ${this.names[picture]}: ${attention.rows} rows over ${attention.cols} tokens`;
    $("picture").setAttribute("aria-label", label);
  }

  /** Shows it again, in the colours of now. */
  repaint() {
    if (this.painted) paintAttention($("picture"), this.painted, accent());
  }

  /**
   * Asks the engine for the picture that is chosen.
   * @param {import("./page.js").Page} page
   */
  async look(page) {
    const picture = this.chosen;
    $("look").disabled = true;
    page.say("Computing attention…");
    try {
      this.paint(picture, await page.engine.attention(picture));
      page.say("Done.");
    } catch (error) {
      page.say("Stopped by an error.");
      page.showError(error);
    } finally {
      page.able();
    }
  }

  /** What an engine asks before each token: which picture is wanted, where it is time for a new one. */
  watch() {
    let last = -Infinity;
    return () => {
      const picture = this.chosen;
      if (!this.names[picture] || !$("watch").checked || performance.now() - last < PAUSE) return null;
      const seen = (attention) => {
        this.paint(picture, attention);
        last = performance.now();
      };
      return { picture, seen };
    };
  }
}
