// The report that `glinfer profile --html` writes, light and dark, with its table sorted: gives
// {"figures": […], "rows": {"before": […], "after": […]}, "papers": […], "console": […], "errors": […], "asked": […]}.

/** In the page: each chart, with its size and the number of its bars' parts. */
function figures() {
  return [...document.querySelectorAll("figure")].map((figure) => {
    const chart = figure.querySelector(".bars, .blocks");
    const { width, height } = chart.getBoundingClientRect();
    const parts = [...chart.querySelectorAll("p i")].filter((part) => part.getBoundingClientRect().width > 0);
    return { title: figure.querySelector("h2").textContent, width, height, parts: parts.length };
  });
}

/** In the page: the first column of the first table that can be sorted. */
function firstColumn() {
  const rows = document.querySelector("table tbody").rows;
  return [...rows].map((row) => row.cells[0].textContent.trim());
}

/** Opens the report at an address, and sorts its table. */
export async function sortReport(browser, address) {
  const said = { console: [], errors: [], asked: [] };
  const page = await browser.newPage({ viewport: { width: 1100, height: 900 } });
  try {
    page.on("console", (message) => said.console.push(message.text()));
    page.on("pageerror", (error) => said.errors.push(String(error)));
    page.on("request", (request) => said.asked.push(request.url()));
    const papers = [];
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.goto(address);
      papers.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
    }
    await page.emulateMedia({ media: "print" });
    const ink = await page.evaluate(() => getComputedStyle(document.querySelector("figure")).color);
    await page.emulateMedia({ media: "screen" });
    const made = { papers, ink, figures: await page.evaluate(figures), rows: { before: await page.evaluate(firstColumn) } };
    await page.locator("table thead th button").first().click();
    made.rows.after = await page.evaluate(firstColumn);
    made.wide = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
    return { ...made, ...said };
  } finally {
    await page.close();
  }
}
