// What Lighthouse finds on the pages of exported sites: accessibility and best practices.
//
//   npm ci --prefix web --ignore-scripts      once, with the optional packages
//   node web/tools/lighthouse.mjs SITE [SITE …]
//
// A SITE is a folder that `glinfer export-web` wrote, of a model that chats, continues texts or searches. Each is opened in
// Chromium (GLINFER_CHROMIUM names another one), wide and as a phone. Printed: a line for each category with its
// score, and for each audit that failed one with its elements. Where anything fails the exit status is 1.

import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import path from "node:path";
import process from "node:process";

import { FLAGS, findChromium, playwright, skip } from "./chromium.mjs";
import { serveContents } from "./server.mjs";

const CATEGORIES = ["accessibility", "best-practices"];
const PORT = 9333; // of Chromium's debugger, where Lighthouse finds it
const SCREENS = { desktop: { width: 1350, height: 940, deviceScaleFactor: 1 }, mobile: { width: 390, height: 844, deviceScaleFactor: 2 } };

async function lighthouse() {
  try {
    return (await import("lighthouse")).default;
  } catch {
    return skip("lighthouse is not installed; run: npm ci --ignore-scripts --prefix web");
  }
}

/** Prints what was found on a page in one form; gives the number of audits that failed. */
async function audit(run, url, title, form) {
  const screenEmulation = { ...SCREENS[form], mobile: form === "mobile", disabled: false };
  const settings = { port: PORT, onlyCategories: CATEGORIES, formFactor: form, screenEmulation, throttlingMethod: "provided" };
  const { lhr } = await run(url, { ...settings, logLevel: "error", maxWaitForLoad: 120_000 });
  if (lhr.runtimeError) throw new Error(lhr.runtimeError.message);
  let failed = 0;
  for (const name of CATEGORIES) {
    const { score, auditRefs } = lhr.categories[name];
    const audits = auditRefs.map(({ id }) => lhr.audits[id]).filter((each) => each.score !== null);
    const bad = audits.filter((each) => each.score < 1);
    console.log(`${title}, ${form}: ${name} ${Math.round(100 * score)}, ${audits.length - bad.length} of ${audits.length} audits`);
    for (const { id, title: words, details } of bad) {
      const snippets = (details?.items ?? []).map((item) => item.node?.snippet ?? item.description ?? JSON.stringify(item).slice(0, 200));
      console.log(`  ${id}: ${words}${snippets.map((snippet) => `\n    ${snippet}`).join("")}`);
    }
    failed += bad.length;
  }
  return failed;
}

const sites = process.argv.slice(2);
if (sites.length === 0 || !sites.every((site) => existsSync(path.join(site, "plan.json")))) {
  console.error("lighthouse.mjs takes folders that export-web wrote");
  process.exit(2);
}
const run = await lighthouse();
const { server, address } = await serveContents((url) => {
  const [, number, ...rest] = url.split("/");
  return readFile(path.join(sites[Number(number)], ...rest, url.endsWith("/") ? "index.html" : ""));
});
const launcher = await playwright();
const args = [...FLAGS, `--remote-debugging-port=${PORT}`];
const browser = await launcher.launch({ executablePath: findChromium(), headless: true, args });
try {
  let failed = 0;
  for (const [number, site] of sites.entries()) {
    for (const form of Object.keys(SCREENS)) failed += await audit(run, `${address}/${number}/`, path.basename(site), form);
  }
  process.exitCode = failed ? 1 : 0;
} finally {
  await browser.close();
  server.close();
}
