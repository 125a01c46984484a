// Opens a page in Chromium and does with it what it is told, step by step: a line of JSON in, a line of JSON out.
//
//   node steps.mjs CHROMIUM OPTIONS     OPTIONS: JSON for Playwright's new context, such as {"colorScheme": "dark"}
//
// Steps: {"open": ADDRESS}, {"fill": [SELECTOR, TEXT]}, {"press": [SELECTOR, KEY]}, {"click": SELECTOR},
// {"choose": [SELECTOR, VALUE]}, {"files": [SELECTOR, PATHS]}, {"wait": SELECTOR}, {"says": [SELECTOR, TEXT]} waits for an element with that text,
// {"text": SELECTOR}, {"evaluate": EXPRESSION}. Out: {"value": …, "console": […], "errors": […], "asked": […]}, of which
// the last three are new since the step before, or {"failed": WHY}.

import process from "node:process";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

import { FLAGS } from "../../tools/chromium.mjs";

const LONGEST = 60_000; // milliseconds

const browser = await chromium.launch({ executablePath: process.argv[2], headless: true, args: FLAGS });
const context = await browser.newContext(JSON.parse(process.argv[3]));
const page = await context.newPage();
page.setDefaultTimeout(LONGEST);
let said = { console: [], errors: [], asked: [] };
page.on("console", (message) => ["error", "warning"].includes(message.type()) && said.console.push(message.text()));
page.on("pageerror", (error) => said.errors.push(String(error)));
page.on("request", (request) => said.asked.push(request.url()));
page.on("dialog", (dialog) => said.errors.push(`a dialog: ${dialog.message()}`));

const KINDS = {
  open: (address) => page.goto(address).then(() => null),
  fill: ([selector, text]) => page.fill(selector, text),
  press: ([selector, key]) => page.press(selector, key),
  click: (selector) => page.click(selector),
  choose: ([selector, value]) => page.selectOption(selector, value),
  files: ([selector, paths]) => page.setInputFiles(selector, paths),
  wait: (selector) => page.waitForSelector(selector).then(() => null),
  says: ([selector, text]) => page.locator(selector).filter({ hasText: text }).waitFor(),
  text: async (selector) => (await page.locator(selector).allTextContents()).join("\n"),
  evaluate: (expression) => page.evaluate(expression),
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
