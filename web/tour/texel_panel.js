/** The texel that was chosen: the terms of its sum, and the number in float64. */

import { $, element } from "../page/elements.js";
import { explain } from "./explain.js";
import { exactly, number } from "./words.js";

const LARGEST = 12; // terms that are listed
const ROUNDING = 1e-4; // a larger difference is not due to rounding

/** Shows how an element of a draw came about; hides the panel where the page does not know. */
export function showTexel(recording, index, row, col, wordOf) {
  const found = explain(recording, index, row, col, wordOf);
  $("texel").hidden = false;
  $("texel-words").textContent = found?.words ?? "The page cannot explain this shader; its source is below.";
  $("terms").replaceChildren();
  $("texel-sum").replaceChildren();
  if (!found) return;
  const ordered = [...found.terms].sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  if (ordered.length) $("terms").append(...tableOf(ordered, found));
  const error = Math.abs(found.found - found.exact);
  const lines = [
    ...found.sums.map(([name, value]) => [name, number(value)]),
    ["in float64", found.exact.toPrecision(12).replaceAll("-", "−")],
    ["in WebGL2, float32", exactly(found.found)],
    ["difference", Number.isNaN(error) ? "not a number" : error === 0 ? "none" : error.toExponential(1).replace("-", "−")],
  ];
  const bad = !(error <= ROUNDING * Math.max(1, Math.abs(found.exact)));
  $("texel-sum").replaceChildren(...lines.map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value, className: bad && name === "difference" ? "bad" : "" }))));
}

/** The largest terms, each with a bar, and the rest in one line. */
function tableOf(ordered, { columns }) {
  const headings = ["of", ...columns, "adds", ""];
  const head = element("thead", {}, element("tr", {}, ...headings.map((textContent) => (textContent ? element("th", { textContent, scope: "col" }) : element("td")))));
  const largest = Math.abs(ordered[0].value) || 1;
  const rows = ordered.slice(0, LARGEST).map(({ name, factors, value }) => {
    const bar = element("span", { className: value < 0 ? "term minus" : "term plus" });
    bar.style.width = `${Math.max(1, (Math.abs(value) / largest) * 72)}px`;
    return element("tr", {}, ...[name, ...factors.map(number), number(value)].map((textContent) => element("td", { textContent })), element("td", { className: "bars" }, bar));
  });
  const rest = ordered.slice(LARGEST);
  if (rest.length) {
    const sum = rest.reduce((total, { value }) => total + value, 0);
    rows.push(element("tr", { className: "quiet" }, ...[`${rest.length} smaller ones`, ...columns.map(() => ""), number(sum), ""].map((textContent) => element("td", { textContent }))));
  }
  return [element("caption", { className: "unseen", textContent: "The largest terms" }), head, element("tbody", {}, ...rows)];
}
