/** The draws of a plan as cells: a row for each block, in the order in which they are issued. */

import { $, element } from "../page/elements.js";
import { ROLES, roleOf, shortOf, titleOf } from "./words.js";

const NAMED = 12; // draws of a row that get a word each

/** The rows of a plan: a label and the numbers of the draws. */
function rowsOf(draws) {
  const rows = [];
  draws.forEach(({ name }, index) => {
    const block = /^h\.(\d+)\./.exec(name)?.[1];
    const label = block !== undefined ? `Block ${block}` : rows.length ? "End" : "Start";
    if (rows.at(-1)?.label !== label) rows.push({ label, draws: [] });
    rows.at(-1).draws.push(index);
  });
  return rows;
}

/** Whether a draw begins a group: another head, or no head any more. */
function beginsGroup(draws, index) {
  const head = (each) => /\.head\.(\d+)\./.exec(draws[each]?.name ?? "")?.[1];
  return head(index) !== head(index - 1) || (head(index) === undefined && roleOf(draws[index].kind) !== roleOf(draws[index - 1]?.kind ?? ""));
}

/** See the head of this file. */
export class Timeline {
  /** @param {(draw: number) => void} onChoose is called for a cell that is clicked. */
  constructor(onChoose) {
    this.cells = [];
    this.fastCells = [];
    $("map").addEventListener("click", ({ target }) => {
      const { draw, replaces } = target.closest("[data-draw], [data-replaces]")?.dataset ?? {};
      if (draw !== undefined) onChoose(Number(draw));
      if (replaces !== undefined) onChoose(this.replacedBy.indexOf(Number(replaces)));
    });
    $("legend").replaceChildren(...ROLES.map(({ id, name }) => element("li", {}, element("span", { className: `swatch ${id}` }), name)));
  }

  /**
   * Shows the draws of a plan.
   * @param {object[]} draws of plan.json.
   * @param {{draws: object[], replacedBy: number[]}|null} over the draws of the fast plan, and which of them replaces each draw.
   */
  show(draws, over = null) {
    this.draws = draws;
    this.replacedBy = over?.replacedBy ?? null;
    this.cells = [];
    this.fastCells = [];
    $("map").replaceChildren(...rowsOf(draws).map((row) => this.row(row, draws, over)));
    $("names").replaceChildren(...draws.map(({ name }) => element("option", { value: name })));
    $("scrub").max = String(draws.length);
    const used = new Set((over?.draws ?? draws).map(({ kind }) => roleOf(kind).id));
    ROLES.forEach(({ id }, index) => ($("legend").children[index].hidden = !used.has(id)));
  }

  row({ label, draws: numbers }, draws, over) {
    const named = numbers.length <= NAMED;
    const cells = numbers.map((index) => {
      const owner = over && over.draws[over.replacedBy[index]];
      const { id } = roleOf((owner ?? draws[index]).kind);
      const begins = index > numbers[0] && beginsGroup(draws, index);
      const cell = element("span", { className: `cell ${id}${begins ? " begins" : ""}`, title: `${index + 1}: ${titleOf(draws[index])}` });
      cell.dataset.draw = String(index);
      if (named) cell.textContent = shortOf(draws[index].kind);
      this.cells[index] = cell;
      return cell;
    });
    const line = element("div", { className: named ? "cells named" : "cells" }, ...cells);
    const made = element("div", { className: "row" }, element("span", { className: "label", textContent: label }), line);
    if (over) made.append(this.owners(numbers, over));
    return made;
  }

  /** The draws of the fast plan that replace those of a row, and how many each replaces. */
  owners(numbers, { draws, replacedBy }) {
    const owners = [...new Set(numbers.map((index) => replacedBy[index]))].sort((one, other) => one - other);
    const chips = owners.map((owner) => {
      const count = numbers.filter((index) => replacedBy[index] === owner).length;
      const chip = element("span", { className: `chip ${roleOf(draws[owner].kind).id}` }, shortOf(draws[owner].kind), element("b", { textContent: ` ×${count}` }));
      chip.dataset.replaces = String(owner);
      this.fastCells[owner] = chip;
      return chip;
    });
    return element("div", { className: "owners" }, ...chips);
  }

  /** Marks the draw that is shown, and how far the run is. */
  mark(draw, done = this.draws.length) {
    this.cells.forEach((cell, index) => {
      cell.classList.toggle("now", index === draw);
      cell.classList.toggle("ahead", index >= done || (!this.replacedBy && index > draw && done === this.draws.length));
      cell.classList.toggle("same", this.replacedBy !== null && this.replacedBy[index] === this.replacedBy[draw]);
    });
    this.fastCells.forEach((chip, owner) => chip.classList.toggle("same", owner === this.replacedBy[draw]));
    $("scrub").value = String(draw + 1);
    $("count").textContent = `${draw + 1} of ${this.draws.length}`;
    $("scrub").setAttribute("aria-valuetext", `${draw + 1} of ${this.draws.length}: ${titleOf(this.draws[draw])}`);
  }

  /**
   * The draw that a text names: its number, its name, or the first name that contains it.
   * @param {string} text
   * @returns {number} -1 where there is none.
   */
  find(text) {
    const wanted = text.trim();
    if (/^\d+$/.test(wanted)) return Number(wanted) <= this.draws.length ? Number(wanted) - 1 : -1;
    const exact = this.draws.findIndex(({ name }) => name === wanted);
    return exact >= 0 || !wanted ? exact : this.draws.findIndex((draw) => draw.name.includes(wanted) || titleOf(draw).includes(wanted));
  }
}
