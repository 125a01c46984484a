// How long a site takes from its address to its first token, at a first and at later visits.
//
//   node web/tools/visits.mjs SITE [--visits 3] [--prompt "Once upon a time"] [--worker 1] [--before 0] [--stay 5]
//
// SITE is a folder that `glinfer export-web` wrote. It is served from here, opened in one Chromium that keeps what pages keep
// (GLINFER_CHROMIUM names another), and the prompt is written into the page's form, and sent --before seconds later.
// A visit ends --stay seconds after the reply: that is when a page keeps what the next one begins with. Of each visit it prints:
// seconds until the page takes messages, and from sending the prompt to the first token of the reply; bytes that the server sent
// of the model's files (weights, shaders, tokenizer, plan) and of the page's own; the longest time for which the page
// answered nobody. Beside seconds there are those of processors that Chromium took meanwhile (on Linux), which say more
// where a machine does other work too.

import { mkdtempSync, rmSync, statSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";

import { FLAGS, findChromium, playwright } from "./chromium.mjs";
import { processorSeconds } from "./processes.mjs";
import { serveFolder } from "./server.mjs";

const WAIT = 600_000; // milliseconds

/** Before any script of the page: when it was ready, when the first token was there, and for how long it was blocked. */
function watch() {
  const seen = (globalThis.seen = { ready: null, first: null, blocked: 0, told: [] });
  let last = performance.now();
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    const now = performance.now();
    seen.blocked = Math.max(seen.blocked, now - last);
    last = now;
    setTimeout(() => ((last = performance.now()), port2.postMessage(null)), 1);
  };
  port2.postMessage(null);
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) seen.blocked = Math.max(seen.blocked, duration);
  }).observe({ type: "longtask" });
  addEventListener("DOMContentLoaded", () => {
    new MutationObserver(() => {
      const { textContent } = document.getElementById("status");
      if (seen.told.at(-1)?.text.replace(/\d+/g, "") !== textContent.replace(/\d+/g, "")) seen.told.push({ at: performance.now(), text: textContent });
      if (textContent === "Ready.") seen.ready ??= performance.now();
      if (textContent === "Writing…" || textContent === "Done.") seen.first ??= performance.now();
    }).observe(document.getElementById("status"), { childList: true, characterData: true, subtree: true });
  });
}

async function visit(context, address, { sent, prompt, worker, before, stay }) {
  Object.assign(sent, { model: 0, page: 0, requests: 0 });
  const page = await context.newPage();
  const spent = [processorSeconds()];
  page.setDefaultTimeout(WAIT);
  await page.addInitScript(watch);
  await page.goto(`${address}/?worker=${worker}`);
  await page.waitForFunction(() => globalThis.seen.ready !== null || globalThis.glinfer?.errors.length);
  spent.push(processorSeconds());
  const errors = await page.evaluate(() => globalThis.glinfer.errors);
  if (errors.length) throw new Error(errors.join(" "));
  await page.fill("#length", "1");
  await page.fill("#message", prompt);
  await page.waitForTimeout(1000 * before);
  spent.push(processorSeconds());
  await page.evaluate(() => {
    globalThis.seen.sent = performance.now();
    document.getElementById("send").click();
  });
  await page.waitForFunction(() => globalThis.seen.first !== null);
  spent.push(processorSeconds());
  const seen = await page.evaluate(() => globalThis.seen);
  const threaded = await page.evaluate(() => Boolean(globalThis.glinfer.model.worker));
  await page.waitForTimeout(1000 * stay);
  await page.close();
  return { ...seen, ...sent, threaded, spent };
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      visits: { type: "string", default: "3" },
      prompt: { type: "string", default: "Once upon a time" },
      worker: { type: "string", default: "1" },
      before: { type: "string", default: "0" },
      stay: { type: "string", default: "5" },
    },
  });
  const visits = Number(values.visits);
  const [site] = positionals;
  if (!site || !statSync(path.join(site, "plan.json"), { throwIfNoEntry: false }) || !(visits >= 1)) {
    console.error("visits.mjs takes a folder that export-web wrote, and --visits of at least 1");
    process.exit(2);
  }
  const executablePath = findChromium();
  const launcher = await playwright();
  const profile = mkdtempSync(path.join(os.tmpdir(), "glinfer-visits-"));
  const { server, sent, address } = await serveFolder(site);
  const context = await launcher.launchPersistentContext(profile, { executablePath, headless: true, args: FLAGS });
  try {
    const load = os.loadavg()[0].toFixed(1);
    console.log(`${os.cpus().length} × ${os.cpus()[0].model}, load ${load} at the start\n`);
    console.log("| visit | in a worker | ready, s (of processors) | then first token, s (of processors) | model's files, MB | page's files, kB | requests | longest blocked, ms |");
    console.log("|---|---|---|---|---|---|---|---|");
    for (let number = 1; number <= visits; number++) {
      const [before, stay] = [Number(values.before), Number(values.stay)];
      const found = await visit(context, address, { sent, prompt: values.prompt, worker: values.worker, before, stay });
      const [start, ready, asked, end] = found.spent;
      const both = (milliseconds, seconds) => `${(milliseconds / 1000).toFixed(2)} (${start === null ? "?" : seconds.toFixed(2)})`;
      const numbers = [both(found.ready, ready - start), both(found.first - found.sent, end - asked), (found.model / 1e6).toFixed(2)];
      const more = [(found.page / 1e3).toFixed(0), found.requests, found.blocked.toFixed(0)];
      console.log(`| ${[number, found.threaded ? "yes" : "no", ...numbers, ...more].join(" | ")} |`);
      console.error(found.told.map(({ at, text }) => `${(at / 1000).toFixed(2)} ${text}`).join("; "));
    }
  } finally {
    await context.close();
    server.close();
    rmSync(profile, { recursive: true, force: true });
  }
}

await main();
