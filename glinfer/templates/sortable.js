// Lets a reader sort tables with the class "sortable" by a click on a heading; each heading is a button in a th.
// A cell's data-value counts where it has one (numbers), else its text. A second click turns the order around.
"use strict";

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.querySelectorAll("thead th")];
  const body = table.tBodies[0];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const numbers = heading.classList.contains("right");
      // Numbers are mostly looked at from the largest on.
      const first = numbers ? "descending" : "ascending";
      const other = numbers ? "ascending" : "descending";
      const order = heading.getAttribute("aria-sort") === first ? other : first;
      for (const each of headings) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => {
        const cell = row.cells[column];
        return numbers ? Number(cell.dataset.value ?? cell.textContent) : cell.textContent.trim();
      };
      const compare = (one, other) =>
        numbers ? key(one) - key(other) : key(one).localeCompare(key(other), undefined, { numeric: true });
      body.append(...[...body.rows].sort((one, other) => sign * compare(one, other)));
    });
  });
}
