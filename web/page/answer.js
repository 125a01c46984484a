/**
 * Answers as elements of the page, built one by one from plain values.
 *
 * @typedef {string|{tag: string, children: AnswerNode[], href?: string, start?: number, level?: number, language?: string,
 *   code?: string}} AnswerNode a text or an element: `href` of a link, `start` of a list, `level` of a heading (all are
 *   h3, below those of the page), `language` and `code` of a block of code.
 */

import { elementsOf } from "../answers.js";
import { copyButton } from "./copy.js";
import { element } from "./elements.js";

const LEAST_PAUSE = 60; // milliseconds between two versions of an answer that is being written
const SHARE = 8; // or this many times the duration of the last update, if that is longer
const OF_TEXTS = new Set(["p", "h3", "li", "td", "th"]);

function build(node) {
  if (typeof node === "string") return node;
  const { tag, href, start, level } = node;
  const children = node.children.map(build);
  if (tag === "pre") return codeBlock(node, children);
  const made = element(tag, {}, ...children);
  if (OF_TEXTS.has(tag)) made.dir = "auto";
  if (tag === "ol" && start !== undefined) made.start = start;
  if (tag === "h3") made.className = `level-${level}`;
  if (tag === "a") Object.assign(made, { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" });
  // What is wider than the page scrolls, by keys too.
  return tag === "table" ? element("div", { className: "table", tabIndex: 0 }, made) : made;
}

function codeBlock({ language, code }, children) {
  const name = element("span", { textContent: language });
  const head = element("div", { className: "code-head" }, name, copyButton("Copy code", () => code));
  const pre = element("pre", { tabIndex: 0, dir: "ltr" }, element("code", {}, ...children));
  return element("div", { className: "code" }, head, pre);
}

/** One answer in the page, which grows. */
export class Answer {
  /**
   * @param {HTMLElement} element what it fills.
   * @param {boolean} formats whether Markdown of it is shown.
   */
  constructor(element, formats) {
    Object.assign(this, { element, formats, text: "", keys: [], plain: -1, shown: -Infinity, pause: 0 });
  }

  /** Takes more text, and shows it where the last time was long enough ago; no timer, which a background tab delays. */
  add(text) {
    this.text += text;
    if (performance.now() - this.shown > this.pause) this.show();
  }

  /** Shows all of it. */
  show() {
    const start = performance.now();
    const nodes = this.formats ? elementsOf(this.text) : null;
    this.element.classList.toggle("plain", nodes === null);
    if (nodes === null) this.showPlain();
    else this.replace(nodes);
    this.shown = performance.now();
    this.pause = this.formats ? Math.max(LEAST_PAUSE, SHARE * (this.shown - start)) : 0;
  }

  /** Shows the text as it is written: as far as it was shown so before, it stays. */
  showPlain() {
    if (this.plain < 0) this.element.replaceChildren();
    this.element.append(this.text.slice(Math.max(0, this.plain)));
    Object.assign(this, { keys: [], plain: this.text.length });
  }

  /** Puts elements in place; those that are as they were stay, with what is selected in them. */
  replace(nodes) {
    if (!this.keys.length) this.element.replaceChildren();
    const keys = nodes.map((node) => JSON.stringify(node));
    const same = keys.findIndex((key, index) => key !== this.keys[index]);
    const kept = same < 0 ? keys.length : same;
    while (this.element.childNodes.length > kept) this.element.lastChild.remove();
    this.element.append(...nodes.slice(kept).map(build));
    Object.assign(this, { keys, plain: -1 });
  }
}
