// Starts Chromium, and does there what it is told, step by step: a line of JSON in, a line of JSON out.
//
//   node steps.mjs CHROMIUM [FLAGS]
//
// Steps: {"context": OPTIONS} closes all tabs and opens one in a new context of Playwright, with options such as
// {"colorScheme": "dark"}; {"open": ADDRESS}, {"fill": [SELECTOR, TEXT]}, {"press": [SELECTOR, KEY]}, {"click": SELECTOR},
// {"choose": [SELECTOR, VALUE]}, {"files": [SELECTOR, PATHS]}, {"wait": SELECTOR}, {"gone": SELECTOR},
// {"says": [SELECTOR, TEXT]} waits for an element with that text, {"text": SELECTOR}, {"evaluate": EXPRESSION},
// {"before": SCRIPT} runs before a page's own, {"keys": KEY} presses it wherever the focus is, {"reload": true},
// {"tab": N} goes to the tab of that number, and opens it, {"size": [WIDTH, HEIGHT]}, {"picture": [FILE, WHOLE]}, {"axe": true} gives what axe-core
// finds fault with. {"drive": ASKED}, {"look": ADDRESS} and {"report": ADDRESS} open pages of their own, see drive.mjs,
// look_page.mjs and profile_page.mjs. Out: {"value": …, "console": […], "errors": […], "asked": […]}, of which the last three
// are new since the step before, or {"failed": WHY}.

import { readFileSync } from "node:fs";
import process from "node:process";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

import { FLAGS } from "../../tools/chromium.mjs";
import { drivenPage } from "./drive.mjs";
import { look } from "./look_page.mjs";
import { sortReport } from "./profile_page.mjs";

const LONGEST = 60_000; // milliseconds
const HANGS = 280_000;

// Pages are put together without the renderer: in software that takes longer than most of what the pages compute.
const [given, ...others] = process.argv.slice(2);
const args = [...(others.length ? others : FLAGS), "--disable-gpu-compositing"];
const browser = await chromium.launch({ executablePath: given, headless: true, args });
let driven = null;
let [context, page, tabs] = [null, null, []];
let said = { console: [], errors: [], asked: [] };

/** A new tab, of which everything that it says is noted. */
async function newTab() {
  const page = await context.newPage();
  page.setDefaultTimeout(LONGEST);
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && said.console.push(message.text()));
  page.on("pageerror", (error) => said.errors.push(String(error)));
  page.on("request", (request) => said.asked.push(request.url()));
  page.on("dialog", (dialog) => said.errors.push(`a dialog: ${dialog.message()}`));
  return page;
}

async function goTo(number) {
  page = tabs[number] ??= await newTab();
  await page.bringToFront();
}

/** Closes all tabs, and with options opens one that knows nothing of them. */
async function begin(options) {
  await context?.close();
  [context, page, tabs, said] = [null, null, [], { console: [], errors: [], asked: [] }];
  if (options === null) return;
  context = await browser.newContext(options);
  await goTo(0);
}

/** What axe-core finds fault with: each rule, and the elements; fields too whose label is that of an <output> before them. */
async function faults() {
  await page.evaluate(readFileSync(new URL("../../node_modules/axe-core/axe.min.js", import.meta.url), "utf8"));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const nameless = await page.evaluate(() => [...document.querySelectorAll("input, select, textarea")].filter((each) => !each.labels.length && !each.ariaLabel).map(({ outerHTML }) => outerHTML));
  return [...violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" ")}`), ...nameless];
}

const KINDS = {
  context: begin,
  drive: async (asked) => (driven ??= await drivenPage(browser))(asked),
  look: (address) => look(browser, address),
  report: (address) => sortReport(browser, address),
  open: (address) => page.goto(address).then(() => null),
  fill: ([selector, text]) => page.fill(selector, text),
  press: ([selector, key]) => page.press(selector, key),
  click: (selector) => page.click(selector),
  choose: ([selector, value]) => page.selectOption(selector, value),
  files: ([selector, paths]) => page.setInputFiles(selector, paths),
  wait: (selector) => page.waitForSelector(selector).then(() => null),
  gone: (selector) => page.locator(selector).first().waitFor({ state: "hidden" }),
  says: ([selector, text]) => page.locator(selector).filter({ hasText: text }).waitFor(),
  text: async (selector) => (await page.locator(selector).allTextContents()).join("\n"),
  evaluate: (expression) => page.evaluate(expression),
  before: (script) => context.addInitScript(script).then(() => null),
  keys: (key) => page.keyboard.press(key),
  reload: () => page.reload().then(() => null),
  tab: goTo,
  size: ([width, height]) => page.setViewportSize({ width, height }),
  media: (media) => page.emulateMedia({ media }),
  axe: faults,
  picture: ([path, fullPage]) => page.screenshot({ path, fullPage }).then(() => null),
};

/** Does a step; one that hangs fails. */
async function done(kind, given) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("it does not end")), HANGS)));
  try {
    return await Promise.race([KINDS[kind](given), late]);
  } finally {
    clearTimeout(timer);
  }
}

try {
  for await (const line of createInterface({ input: process.stdin })) {
    const [[kind, given]] = Object.entries(JSON.parse(line));
    let found;
    try {
      found = { value: (await done(kind, given)) ?? null };
    } catch (error) {
      found = { failed: `${line.slice(0, 2000)}: ${error.message}` };
    }
    process.stdout.write(`${JSON.stringify({ ...found, ...said })}\n`);
    said = { console: [], errors: [], asked: [] };
  }
} finally {
  await browser.close();
}
