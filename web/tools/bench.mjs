// Times prompts and tokens in one Chromium: exported models, interleaved with other browser engines.
//
//   node bench.mjs <asked.json         `python -m qa bench-web` runs it
//
// asked.json: {"folder": FOLDER, "packages": FOLDER, "ways": [{"name": …, "peer": …, …}, …], "ids": [first token, …],
// "check": 8, "rounds": 2, "count": 8}. A way is a page with peers/PEER.js, whose `start` gets all of it; in the folder lies what
// `model` names. `prompts: false` and `decodes: false` leave a part out. Everything that is timed takes turns, and ends when the logits, or the
// token that was chosen, are in JavaScript. Printed: {"chromium": …, "ways": [{"about": …, "top": [[id, log probability], …], "ids": […],
// "prompt": [{"seconds": …, "processors": …}, …], "decode": […]}, …]}; numbers of `decode` are of `count` tokens.

import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import path from "node:path";
import process from "node:process";

import { FLAGS, ROOT, findChromium, playwright } from "./chromium.mjs";
import { processorSeconds } from "./processes.mjs";
import { serveContents } from "./server.mjs";

const WAIT = 1_800_000; // milliseconds
const LIKELIEST = 10; // tokens whose probabilities are printed
const SCRIPTS = {
  tfjs: ["@tensorflow/tfjs-core/dist/tf-core.min.js", "@tensorflow/tfjs-backend-webgl/dist/tf-backend-webgl.min.js"],
};

const { folder, packages, ways, ids, check, rounds, count } = JSON.parse(readFileSync(0, "utf8"));

function page(peer) {
  const scripts = (SCRIPTS[peer] ?? []).map((file) => `<script src="/packages/${file}"></script>`);
  return `<!DOCTYPE html><meta charset="utf-8"><title>${peer}</title><link rel="icon" href="data:,">
${scripts.join("")}<script type="module" src="/peers/${peer}.js"></script>`;
}

const FOLDERS = { peers: path.join(ROOT, "web/tools/peers"), packages };

async function contents(url, query) {
  if (url === "/peer.html") return page(query.get("peer"));
  const [, first, ...rest] = url.split("/");
  return readFile(first in FOLDERS ? path.join(FOLDERS[first], ...rest) : path.join(folder, url));
}

/** Opens the page of a way, and has its model ready. */
async function opened(browser, address, way) {
  const tab = await browser.newPage();
  tab.setDefaultTimeout(WAIT);
  const failed = new Promise((_, reject) => tab.on("pageerror", reject));
  failed.catch(() => {}); // the error is raised where the page is awaited
  await tab.goto(`${address}/peer.html?peer=${way.peer}`);
  await Promise.race([tab.waitForFunction(() => globalThis.peer), failed]);
  const about = await tab.evaluate((given) => globalThis.peer.start(given), way);
  const checked = await tab.evaluate((given) => globalThis.peer.check(...given), [ids, check, LIKELIEST]);
  return { tab, told: { name: way.name, about, ...checked, prompt: [], decode: [] } };
}

/** Seconds that a part of a page takes, by its own clock, and of processors, by all of the browser. */
async function timed(tab, name, argument) {
  const before = processorSeconds();
  const seconds = await tab.evaluate(
    async ([part, given]) => {
      const start = performance.now();
      await globalThis.peer[part](given);
      return (performance.now() - start) / 1000;
    },
    [name, argument],
  );
  return { seconds, processors: before === null ? null : processorSeconds() - before };
}

const launcher = await playwright();
const { server, address } = await serveContents(contents);
const browser = await launcher.launch({ executablePath: findChromium(), headless: true, args: FLAGS });
try {
  const open = [];
  for (const way of ways) open.push({ way, ...(await opened(browser, address, way)) });
  for (let round = 0; round <= rounds; round++) {
    for (const { way, tab, told } of open) {
      const found = {};
      if (way.prompts ?? true) found.prompt = await timed(tab, "prompt", ids);
      if (way.decodes ?? true) {
        await tab.evaluate(() => globalThis.peer.decode(1)); // what the first token has to do besides
        found.decode = await timed(tab, "decode", count);
      }
      if (round > 0) for (const [part, each] of Object.entries(found)) told[part].push(each); // the first round warms up
    }
  }
  process.stdout.write(JSON.stringify({ chromium: browser.version(), ways: open.map(({ told }) => told) }));
} finally {
  await browser.close();
  server.close();
}
