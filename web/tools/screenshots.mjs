// Pictures of the chat page with the bundled model, as docs/web.md, docs/server.md and README.md show it.
//
//   node web/tools/screenshots.mjs [OUT]      OUT: docs/images if left out
//
// Exports the model, opens the page in Chromium (GLINFER_CHROMIUM names another browser), lets it write with a seed, so
// that a renderer always gives the same text, and takes web-light.png, web-dark.png and web-phone.png; web-start.png of
// the page as it opens with ?verify=1; server-page.png of the same page over the models of `glinfer serve`; and
// tour.png of the page of `glinfer tour`.

import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, statSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

import { FLAGS, ROOT, findChromium, playwright, skip } from "./chromium.mjs";

const GLINFER = path.join(ROOT, ".venv/bin/glinfer");
const PROMPT = "ROMEO:\nWhat light";
const TOUR_TEXT = "ROMEO:\nBut, soft! what light";
const TEMPERATURE = 0.7;
const SEED = 1;
const TOKENS = 60;
const LARGEST = 160_000; // bytes of a picture
const PICTURES = {
  "web-start": { width: 1280, height: 720, colorScheme: "light", opening: true },
  "web-light": { width: 1280, height: 720, colorScheme: "light", folded: true },
  "web-dark": { width: 1000, height: 720, colorScheme: "dark" },
  "web-phone": { width: 390, height: 844, colorScheme: "light", isMobile: true, hasTouch: true },
};
const SERVED = {
  "server-page": { width: 1280, height: 720, colorScheme: "light", asks: true, folded: true },
};

/** Exports the bundled model as the documentation does. */
function exportSite(folder) {
  const site = path.join(folder, "site");
  const options = ["export-web", "shakespeare", site, "--weights", "q8"];
  const { status, stderr } = spawnSync(GLINFER, options, { encoding: "utf8" });
  if (status !== 0) throw new Error(`export-web failed: ${stderr}`);
  return site;
}

/** Runs a command that serves, and gives its address. */
async function serve(...command) {
  const environment = { ...process.env, PYTHONUNBUFFERED: "1" };
  const pipes = { stdio: ["ignore", "pipe", "inherit"], env: environment };
  const server = spawn(GLINFER, [...command, "--port", "0"], pipes);
  for await (const line of createInterface({ input: server.stdout })) {
    const address = line.match(/http:\/\/[^/\s]+/)?.[0];
    if (address) return { server, address };
  }
  throw new Error(`${command[0]} ended without an address`);
}

/** One picture: of the whole page once the model has written, or of its beginning as it opens. */
async function picture(browser, address, file, { width, height, opening = false, asks = false, folded = false, ...look }) {
  const context = await browser.newContext({ viewport: { width, height }, deviceScaleFactor: 1, ...look });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  await page.goto(opening ? `${address}/?verify=1` : address);
  await page.waitForSelector("#clear:enabled");
  if (opening) await page.waitForFunction(() => globalThis.glinfer.checks.length > 0);
  else await write(page);
  if (asks) await lookAt(page);
  if (folded) await page.click("#settings summary");
  await page.locator("#numbers").click(); // nothing stays in focus
  await page.evaluate(() => scrollTo(0, 0));
  const beyond = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  await page.screenshot({ path: file, fullPage: !opening });
  await context.close();
  const { size } = statSync(file);
  const notes = [`${size} bytes`, ...(beyond > 0 ? [`${beyond} pixels wider than the window`] : [])];
  console.log(`${file}: ${notes.join(", ")}`);
  if (size > LARGEST) throw new Error(`${file} has ${size} bytes; expected at most ${LARGEST}`);
}

/** The page of `glinfer tour`, at its chapter on attention. */
async function tourPicture(browser, folder, file) {
  const page = path.join(folder, "tour.html");
  const { status, stderr } = spawnSync(GLINFER, ["tour", "shakespeare", TOUR_TEXT, "--out", page], { encoding: "utf8" });
  if (status !== 0) throw new Error(`tour failed: ${stderr}`);
  const shown = await browser.newPage({ viewport: { width: 1280, height: 1040 }, colorScheme: "light" });
  shown.setDefaultTimeout(120_000);
  await shown.goto(pathToFileURL(page).href);
  await shown.locator("#status", { hasText: "Ready." }).waitFor();
  await shown.click("#chapters li:nth-child(4) a");
  await shown.evaluate(() => scrollTo(0, 0));
  await shown.screenshot({ path: file });
  await shown.close();
  console.log(`${file}: ${statSync(file).size} bytes`);
}

/** Lets the model write some lines. */
async function write(page) {
  const closed = await page.locator("#panel").isHidden();
  if (closed) await page.click("#show-panel");
  await page.fill("#length", String(TOKENS));
  await page.fill("#seed", String(SEED));
  await page.locator("#temperature").fill(String(TEMPERATURE));
  await page.selectOption("#layer", { index: 2 });
  if (await page.locator("#watch").isVisible()) await page.check("#watch");
  if (closed) await page.click("#hide-panel");
  await page.fill("#message", PROMPT);
  await page.click("#send");
  await page.waitForSelector("#stop:enabled");
  await page.waitForSelector("#stop:disabled");
}

/** Asks for the picture of attention, and waits for it. */
async function lookAt(page) {
  await page.click("#look");
  await page.waitForSelector("#picture[aria-label*='rows over']");
}

/** Pictures of what a command serves. */
async function pictures(browser, out, named, ...command) {
  const { server, address } = await serve(...command);
  try {
    for (const [name, look] of Object.entries(named)) {
      await picture(browser, address, path.join(out, `${name}.png`), look);
    }
  } finally {
    server.kill();
  }
}

async function main() {
  const out = path.resolve(process.argv[2] ?? path.join(ROOT, "docs/images"));
  const chromium = findChromium();
  const launcher = await playwright();
  if (!existsSync(GLINFER)) skip("there is no .venv; run: make demo");
  mkdirSync(out, { recursive: true });
  const folder = mkdtempSync(path.join(os.tmpdir(), "glinfer-web-screenshots-"));
  let browser;
  try {
    browser = await launcher.launch({ executablePath: chromium, headless: true, args: FLAGS });
    await pictures(browser, out, PICTURES, "serve-web", exportSite(folder));
    await tourPicture(browser, folder, path.join(out, "tour.png"));
    await pictures(browser, out, SERVED, "serve", "shakespeare");
  } finally {
    await browser?.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

await main();
