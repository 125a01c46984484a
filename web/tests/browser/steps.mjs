// Opens a page in Chromium and does with it what it is told, step by step: a line of JSON in, a line of JSON out.
//
//   node steps.mjs CHROMIUM OPTIONS     OPTIONS: JSON for Playwright's new context, such as {"colorScheme": "dark"}
//
// Steps: {"open": ADDRESS}, {"fill": [SELECTOR, TEXT]}, {"press": [SELECTOR, KEY]}, {"click": SELECTOR},
// {"choose": [SELECTOR, VALUE]}, {"files": [SELECTOR, PATHS]}, {"wait": SELECTOR}, {"gone": SELECTOR},
// {"says": [SELECTOR, TEXT]} waits for an element with that text, {"text": SELECTOR}, {"evaluate": EXPRESSION},
// {"before": SCRIPT} runs before a page's own, {"keys": KEY} presses it wherever the focus is, {"reload": true},
// {"tab": N} goes to the tab of that number, and opens it, {"size": [WIDTH, HEIGHT]}, {"axe": true} gives what axe-core
// finds fault with. Out: {"value": …, "console": […], "errors": […], "asked": […]}, of which the last three are new since
// the step before, or {"failed": WHY}.

import { readFileSync } from "node:fs";
import process from "node:process";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

import { FLAGS } from "../../tools/chromium.mjs";

const LONGEST = 60_000; // milliseconds

const browser = await chromium.launch({ executablePath: process.argv[2], headless: true, args: FLAGS });
const context = await browser.newContext(JSON.parse(process.argv[3]));
const tabs = [];
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

/** What axe-core finds fault with: each rule, and the elements. */
async function faults() {
  await page.evaluate(readFileSync(new URL("../../node_modules/axe-core/axe.min.js", import.meta.url), "utf8"));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" ")}`);
}

let page = (tabs[0] = await newTab());

const KINDS = {
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
  axe: faults,
};

try {
  for await (const line of createInterface({ input: process.stdin })) {
    const [[kind, given]] = Object.entries(JSON.parse(line));
    let found;
    try {
      found = { value: (await KINDS[kind](given)) ?? null };
    } catch (error) {
      found = { failed: `${line}: ${error.message}` };
    }
    process.stdout.write(`${JSON.stringify({ ...found, ...said })}\n`);
    said = { console: [], errors: [], asked: [] };
  }
} finally {
  await browser.close();
}
