// Times embeddings in Chromium: an exported model, interleaved with transformers.js in WebAssembly.
//
//   node embed_bench.mjs <asked.json         `python -m qa embed-web` runs it
//
// asked.json: {"folder": FOLDER, "packages": FOLDER or null, "texts": […], "runs": 2}. In the folder lie `site`, an exported model,
// and with packages `peer/model`; see peers/transformers_texts.js. Printed: {"chromium": …, "renderer": …, "peer": …, "seconds": {name: […]},
// "processor": {name: […]}, "vectors": {name: […]}}; "processor" is the processor time of all of Chromium's processes.

import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import path from "node:path";
import process from "node:process";

import { FLAGS, ROOT, findChromium, playwright } from "./chromium.mjs";
import { processorSeconds } from "./processes.mjs";
import { serveContents } from "./server.mjs";

const PEER_PAGE = `<!DOCTYPE html><meta charset="utf-8"><title>peer</title><link rel="icon" href="data:,">
<script type="module" src="/transformers_texts.js"></script>`;
const WAIT = 1_800_000; // milliseconds

const { folder, packages, texts, runs } = JSON.parse(readFileSync(0, "utf8"));

async function contents(url) {
  if (url === "/peer.html") return PEER_PAGE;
  if (url === "/transformers_texts.js") return readFile(path.join(ROOT, "web/tools/peers/transformers_texts.js"));
  if (url.startsWith("/packages/")) return readFile(path.join(packages, url.slice("/packages/".length)));
  return readFile(path.join(folder, url.endsWith("/") ? `${url}index.html` : url));
}

const { server, address } = await serveContents(contents);
const launcher = await playwright();
const browser = await launcher.launch({ executablePath: findChromium(), headless: true, args: FLAGS });

async function opened(place, whatIsReady) {
  const page = await browser.newPage();
  page.setDefaultTimeout(WAIT);
  const failed = new Promise((_, reject) => page.on("pageerror", reject));
  await page.goto(`${address}${place}`);
  await Promise.race([page.waitForFunction(whatIsReady), failed]);
  return page;
}

try {
  const site = await opened("/site/", () => globalThis.glinfer?.model);
  const ways = { glinfer: [site, async (given) => globalThis.glinfer.model.embed(given)] };
  const told = { chromium: browser.version(), peer: null, seconds: {}, processor: {}, vectors: {} };
  told.renderer = await site.evaluate(() => {
    const { gl } = globalThis.glinfer.model.replay;
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    return gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
  });
  if (packages) {
    const peer = await opened("/peer.html", () => globalThis.peer);
    told.peer = `transformers.js ${await peer.evaluate(() => globalThis.peer.version)}, WebAssembly`;
    ways.transformers = [peer, async (given) => globalThis.peer.embed(given)];
  }
  for (const [page, embed] of Object.values(ways)) await page.evaluate(`globalThis.embed = ${embed}`);
  const time = (given) => globalThis.timed(given);
  for (const [name, [page]] of Object.entries(ways)) {
    await page.evaluate(() => {
      globalThis.timed = async (given) => {
        const start = performance.now();
        const found = await globalThis.embed(given);
        return { seconds: (performance.now() - start) / 1000, vectors: found.map((each) => Array.from(each)) };
      };
    });
    await page.evaluate(time, texts.slice(0, 2)); // warms up
    told.seconds[name] = [];
    told.processor[name] = [];
  }
  for (let run = 0; run < runs; run++) {
    for (const [name, [page]] of Object.entries(ways)) {
      const before = processorSeconds();
      const { seconds, vectors } = await page.evaluate(time, texts);
      told.processor[name].push(processorSeconds() - before);
      told.seconds[name].push(seconds);
      told.vectors[name] = vectors;
    }
  }
  process.stdout.write(JSON.stringify(told));
} finally {
  await browser.close();
  server.close();
}
