// How long texts take in Chromium: an exported model that embeds them, in turns with transformers.js in WebAssembly.
//
//   node embed_bench.mjs <asked.json         `python -m qa embed-web` runs it
//
// asked.json: {"folder": FOLDER, "packages": FOLDER or null, "texts": […], "runs": 2}. In the folder lie `site`, an exported model,
// and with packages `peer/model`; see transformers.js. Printed: {"chromium": …, "renderer": …, "peer": …, "seconds": {name: […]},
// "processor": {name: […]}, "vectors": {name: […]}}; "processor" is the processor time of all of Chromium's processes.

import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import path from "node:path";
import process from "node:process";

import { FLAGS, ROOT, findChromium, playwright } from "./chromium.mjs";

const PEER_PAGE = `<!DOCTYPE html><meta charset="utf-8"><title>peer</title><link rel="icon" href="data:,">
<script type="module" src="/transformers.js"></script>`;
const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".wasm": "application/wasm",
};
const HEADERS = {
  // WebAssembly has threads in a page that is alone in its process.
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};
const WAIT = 1_800_000; // milliseconds

const { folder, packages, texts, runs } = JSON.parse(readFileSync(0, "utf8"));

async function contents(url) {
  if (url === "/peer.html") return PEER_PAGE;
  if (url === "/transformers.js") return readFile(path.join(ROOT, "web/tools/transformers.js"));
  if (url.startsWith("/packages/")) return readFile(path.join(packages, url.slice("/packages/".length)));
  return readFile(path.join(folder, url.endsWith("/") ? `${url}index.html` : url));
}

const server = createServer(async (request, response) => {
  const url = path.posix.normalize(decodeURIComponent(request.url.split("?")[0]));
  try {
    const body = await contents(url);
    const type = TYPES[path.extname(url) || ".html"] ?? "application/octet-stream";
    const length = Buffer.byteLength(body);
    response.writeHead(200, { ...HEADERS, "Content-Type": type, "Content-Length": length }).end(body);
  } catch {
    response.writeHead(404, HEADERS).end();
  }
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const address = `http://127.0.0.1:${server.address().port}`;
const launcher = await playwright();
const browser = await launcher.launch({ executablePath: findChromium(), headless: true, args: FLAGS });
const system = await browser.newBrowserCDPSession();

/** Seconds of processor time that Chromium's processes have taken so far. */
async function processorTime() {
  const { processInfo } = await system.send("SystemInfo.getProcessInfo");
  return processInfo.reduce((sum, each) => sum + each.cpuTime, 0);
}

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
      const before = await processorTime();
      const { seconds, vectors } = await page.evaluate(time, texts);
      told.processor[name].push((await processorTime()) - before);
      told.seconds[name].push(seconds);
      told.vectors[name] = vectors;
    }
  }
  process.stdout.write(JSON.stringify(told));
} finally {
  await browser.close();
  server.close();
}
