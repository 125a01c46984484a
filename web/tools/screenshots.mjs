// Pictures of the chat page with the bundled model, as docs/web.md and README.md show it.
//
//   node web/tools/screenshots.mjs [OUT]      OUT: docs/images if left out
//
// Exports the model, opens the page in Chromium (GLINFER_CHROMIUM names another browser), lets it write with a seed of
// its own, so that a renderer always gives the same text, and takes web-light.png, web-dark.png and web-phone.png; and
// web-start.png of the page as it opens with ?verify=1.

import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, statSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { createInterface } from "node:readline";

import { FLAGS, ROOT, findChromium, playwright, skip } from "./chromium.mjs";

const GLINFER = path.join(ROOT, ".venv/bin/glinfer");
const PROMPT = "ROMEO:\nWhat light";
const TEMPERATURE = 0.7;
const SEED = 1;
const TOKENS = 80;
const LARGEST = 150_000; // bytes of a picture
const PICTURES = {
  start: { width: 1000, height: 470, colorScheme: "light", opening: true },
  light: { width: 1000, height: 1040, colorScheme: "light" },
  dark: { width: 1000, height: 1040, colorScheme: "dark" },
  phone: { width: 390, height: 844, colorScheme: "light", isMobile: true, hasTouch: true },
};

/** Exports the bundled model and serves it, as the two commands of the documentation do. */
async function serveSite(folder) {
  const site = path.join(folder, "site");
  const options = ["export-web", "shakespeare", site, "--weights", "q8"];
  const { status, stderr } = spawnSync(GLINFER, options, { encoding: "utf8" });
  if (status !== 0) throw new Error(`export-web failed: ${stderr}`);
  const environment = { ...process.env, PYTHONUNBUFFERED: "1" };
  const pipes = { stdio: ["ignore", "pipe", "inherit"], env: environment };
  const server = spawn(GLINFER, ["serve-web", site, "--port", "0"], pipes);
  for await (const line of createInterface({ input: server.stdout })) {
    const address = line.match(/http:\S+/)?.[0];
    if (address) return { server, address };
  }
  throw new Error("serve-web ended without an address");
}

/** One picture: of the whole page once the model has written, or of its beginning as it opens. */
async function picture(browser, address, file, { width, height, opening = false, ...look }) {
  const context = await browser.newContext({ viewport: { width, height }, deviceScaleFactor: 1, ...look });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  await page.addInitScript((seed) => {
    crypto.getRandomValues = (numbers) => numbers.fill(BigInt(seed)); // where the page's sampler takes its seed from
  }, SEED);
  await page.goto(opening ? `${address}?verify=1` : address);
  await page.waitForSelector("#send:enabled");
  if (opening) await page.waitForFunction(() => globalThis.glinfer.checks.length > 0);
  else await write(page);
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

/** Lets the model write some lines. */
async function write(page) {
  await page.fill("#length", String(TOKENS));
  await page.locator("#temperature").fill(String(TEMPERATURE));
  await page.selectOption("#layer", { index: 2 });
  await page.fill("#message", PROMPT);
  await page.click("#send");
  await page.waitForSelector("#stop:enabled");
  await page.waitForSelector("#stop:disabled");
}

async function main() {
  const out = path.resolve(process.argv[2] ?? path.join(ROOT, "docs/images"));
  const chromium = findChromium();
  const launcher = await playwright();
  if (!existsSync(GLINFER)) skip("there is no .venv; run: make demo");
  mkdirSync(out, { recursive: true });
  const folder = mkdtempSync(path.join(os.tmpdir(), "glinfer-web-screenshots-"));
  let server;
  let browser;
  try {
    const served = await serveSite(folder);
    server = served.server;
    browser = await launcher.launch({ executablePath: chromium, headless: true, args: FLAGS });
    for (const [name, look] of Object.entries(PICTURES)) {
      await picture(browser, served.address, path.join(out, `web-${name}.png`), look);
    }
  } finally {
    await browser?.close();
    server?.kill();
    rmSync(folder, { recursive: true, force: true });
  }
}

await main();
