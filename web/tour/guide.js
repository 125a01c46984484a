/** The chapters beside the page: their list, and the text of the one that is open. */

import { $, button, element, sentence } from "../page/elements.js";
import { CHAPTERS } from "./chapters.js";

/** See the head of this file. */
export class Guide {
  /**
   * @param {object} actions `open(chapter)` shows the state of a chapter; `verify()` gives a text; `draws(plan)` a number, "main" is the first plan;
   *   `find(name)` shows a draw.
   */
  constructor(actions) {
    this.actions = actions;
    this.number = null; // of the chapter that is open
    addEventListener("hashchange", () => this.follow());
    $("guide").addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#']");
      if (!link) return;
      event.preventDefault(); // in the frame of a notebook the link would lead to the notebook
      location.hash = link.getAttribute("href");
    });
  }

  /** Lists the chapters, and opens one. */
  start() {
    const items = CHAPTERS.map(({ id, title }) => element("li", {}, element("a", { href: `#chapter=${id}`, textContent: this.counted(title) })));
    $("chapters").replaceChildren(...items);
    this.follow();
  }

  /** Opens the chapter of the address, the first where there is none; an address may name a draw instead. */
  follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const id = asked.get("chapter");
    const number = CHAPTERS.findIndex((chapter) => chapter.id === id);
    if (number !== this.number) this.open(Math.max(0, number), number >= 0);
    if (asked.has("draw")) this.actions.find(asked.get("draw"));
  }

  /** A text with the numbers of draws of this model. */
  counted(text) {
    return text.replace(/\{(\w+)\}/g, (_, plan) => this.actions.draws(plan) ?? "many");
  }

  /**
   * Opens a chapter.
   * @param {number} number
   * @param {boolean} moves whether the page goes to the part that the chapter is about.
   */
  open(number, moves = true) {
    const chapter = CHAPTERS[number];
    if (!chapter) return;
    this.number = number;
    [...$("chapters").querySelectorAll("a")].forEach((link, index) => {
      if (index === number) link.setAttribute("aria-current", "step");
      else link.removeAttribute("aria-current");
    });
    const told = element("p", { className: "hint" });
    told.setAttribute("role", "status");
    const verify = async () => {
      told.textContent = "Checking…";
      told.textContent = await this.actions.verify().catch((error) => sentence(error.message));
    };
    const next = CHAPTERS[number + 1];
    const alone = this.actions.draws("reference") === undefined;
    const paragraphs = alone && chapter.alone ? [...chapter.text.slice(0, -1), chapter.alone] : chapter.text;
    $("chapter").replaceChildren(
      element("h3", { textContent: `${number + 1}. ${this.counted(chapter.title)}` }),
      ...paragraphs.map((text) => element("p", { textContent: this.counted(text) })),
      ...(chapter.action === "verify" ? [button("Check all of them", verify), told] : []),
      ...(next ? [element("p", {}, element("a", { href: `#chapter=${next.id}`, textContent: `Next: ${this.counted(next.title)}` }))] : []),
    );
    this.actions.open(chapter, moves);
  }
}
