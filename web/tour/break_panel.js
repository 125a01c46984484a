/** Bugs as switches: what each does to the pictures and to the text, and which check notices it. */

import { $, button, element } from "../page/elements.js";
import { bugsOf } from "./bugs.js";
import { checkDraws, continuation, firstDifference } from "./checks.js";
import { shown, titleOf } from "./words.js";

const WORDS = 6;

/** See the head of this file. */
export class BreakPanel {
  /**
   * @param {object} actions `word(id)`, `alone(job)`, `record()` runs the reference plan again and gives its recording,
   *   `go(draw)`, and `say(text)`.
   */
  constructor(actions) {
    this.actions = actions;
    this.planted = null; // a bug, and what takes it out
    this.list = element("fieldset", { className: "bugs" });
    this.result = element("div");
    this.result.setAttribute("aria-live", "polite");
  }

  /** Offers the bugs that a plan can have. */
  offer(model) {
    this.model = model;
    const bugs = bugsOf(model.plan);
    if (!bugs.length) return;
    const options = [null, ...bugs].map((bug) => {
      const input = element("input", { type: "radio", name: "bug", value: bug?.id ?? "", checked: !bug, autocomplete: "off" });
      input.addEventListener("change", () => this.actions.alone(() => this.choose(bug)));
      return element("label", {}, input, element("span", { textContent: bug?.title ?? "No bug" }));
    });
    this.list.replaceChildren(element("legend", { className: "unseen", textContent: "A bug" }), ...options);
    $("break").replaceChildren(
      element("h2", { id: "break-title", textContent: "Break it" }),
      element("p", { textContent: "Typical graphics bugs. Each is planted into the running plan, so everything above shows the broken run. The text alone rarely reveals a bug; a check does." }),
      this.list,
      this.result,
    );
  }

  /** Takes the bug out, before another text is run. */
  heal() {
    this.planted?.undo();
    this.planted = null;
    this.healthy = null;
    this.result.replaceChildren();
    const [first] = this.list.querySelectorAll("input");
    if (first) first.checked = true;
  }

  /** Plants a bug, null for none, and lists what has changed. */
  async choose(bug) {
    this.planted?.undo();
    this.planted = null;
    this.list.disabled = true;
    try {
      if (!this.healthy) {
        const recording = this.actions.recording();
        this.healthy = { recording, words: continuation(this.model, recording.ids, WORDS) };
      }
      if (bug) this.planted = { bug, undo: bug.plant(this.model.replay) };
      const recording = await this.actions.record();
      if (bug) await this.tell(bug, recording);
      else this.result.replaceChildren(element("p", { textContent: "The bug is removed; everything is as before." }));
    } finally {
      this.list.disabled = false;
      this.list.querySelector("input:checked").focus({ preventScroll: true });
    }
  }

  async tell(bug, recording) {
    const { word, say } = this.actions;
    say("Looking for the bug…");
    const words = continuation(this.model, recording.ids, WORDS);
    const failed = recording.steps.findIndex(({ error }) => error);
    const { wrong, numbers } = checkDraws(recording, word);
    const different = firstDifference(this.healthy.recording, recording);
    const report = await this.model.verifyTextures();
    const text = (ids) => (ids.length ? `“${shown(ids.map(word).join(""))}”` : "no text: the logits are not numbers");
    const same = text(words) === text(this.healthy.words);
    const lines = [
      ["The text", same ? `does not change: ${text(words)}` : `becomes ${text(words)} instead of ${text(this.healthy.words)}`, null],
      ["The pictures", different < 0 ? "do not change" : "change from here on: ", different],
      ["OpenGL's errors", failed < 0 ? "none, so this check does not find it" : `find it: ${recording.steps[failed].error} in `, failed],
      ["Weights, bit for bit", report.ok ? "identical, so this check does not find it" : `find it: ${report.different[0].name} differs`, null],
      ["Each draw in float64", wrong ? "finds it; the first wrong draw is " : `${numbers.toLocaleString("en")} numbers agree, so this check does not find it`, wrong?.draw ?? -1],
    ];
    const rows = lines.map(([name, value, draw]) => {
      const { draws } = recording.plan;
      const link = draw === null || draw < 0 ? [] : [button(`draw ${draw + 1}, ${titleOf(draws[draw])}`, () => this.actions.go(draw), { className: "link" })];
      return element("div", {}, element("dt", { textContent: name }), element("dd", {}, value, ...link));
    });
    this.result.replaceChildren(element("p", { textContent: bug.text }), element("dl", { className: "facts" }, ...rows));
    say(`Ready. A bug is planted: ${bug.title}.`);
  }
}
