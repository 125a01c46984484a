// How long a token takes in Chromium: exported models, and the same shape on TensorFlow.js's WebGL backend.
//
//   npm ci --prefix web --ignore-scripts      once, with the optional packages
//   node web/tools/bench.mjs [--rounds 8] [--samples 3] [--tokens 128] [--short 32] [--shapes gab,shakespeare]
//
// Both have random weights or a bundled model's; speed does not depend on them. All that is timed lies in pages of one
// browser, takes turns, and ends when the logits are in JavaScript. GLINFER_CHROMIUM names another browser.

import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import { FLAGS, ROOT, findChromium, playwright, skip } from "./chromium.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const PYTHON = path.join(ROOT, ".venv/bin/python");
const PACKAGES = {
  "/tf-core.js": "@tensorflow/tfjs-core/dist/tf-core.min.js",
  "/tf-webgl.js": "@tensorflow/tfjs-backend-webgl/dist/tf-backend-webgl.min.js",
};
const PEER_PAGE = `<!DOCTYPE html><meta charset="utf-8"><title>peer</title><link rel="icon" href="data:,">
<script src="/tf-core.js"></script><script src="/tf-webgl.js"></script><script src="/tfjs.js"></script>`;
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };
const HEADERS = {
  // Alone in its process, a page may measure times more finely.
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};
const AGREED = 1e-3; // between TensorFlow.js with its cache and without, or one of them computes something else
const WAIT = 300_000; // milliseconds
const SHAPES = ["gab", "shakespeare"];
// What is exported: the rest of the names of folders, and export-web's options.
const EXPORTS = {
  f32: ["--weights", "f32"],
  q8: ["--weights", "q8"],
  reference: ["--plan", "reference", "--weights", "f32"],
};

function checkPackages() {
  const there = Object.values(PACKAGES).every((file) => existsSync(path.join(ROOT, "web/node_modules", file)));
  if (!there) skip("TensorFlow.js is not installed; run: npm ci --ignore-scripts --prefix web");
  if (!existsSync(PYTHON)) skip("there is no .venv; run: make demo");
}

function python(...options) {
  const { status, stderr, stdout } = spawnSync(PYTHON, options, { encoding: "utf8", cwd: ROOT });
  if (status !== 0) throw new Error(`python ${options.join(" ")}\n${stderr}`);
  return stdout.trim();
}

/** Writes the sites of one shape below a folder. */
function exportSites(shape, folder) {
  const write = "import sys,pathlib; from glinfer.engine.random_model import write_demo; " +
    "print(write_demo(pathlib.Path(sys.argv[1]))[0])";
  const model = shape === "gab" ? python("-c", write, path.join(folder, "demo")) : shape;
  for (const [name, options] of Object.entries(EXPORTS)) {
    python("-m", "glinfer", "export-web", model, path.join(folder, `${shape}-${name}`), ...options);
  }
}

/** A server of the sites, the peer's page and the packages. */
async function serve(folder) {
  const places = Object.entries(PACKAGES).map(([url, file]) => [url, path.join(ROOT, "web/node_modules", file)]);
  const fixed = new Map([...places, ["/tfjs.js", path.join(HERE, "tfjs.js")]]);
  const server = createServer(async (request, response) => {
    const url = decodeURIComponent(request.url.split("?")[0]);
    try {
      const file = fixed.get(url) ?? path.join(folder, path.normalize(url.endsWith("/") ? `${url}index.html` : url));
      const body = url === "/peer.html" ? PEER_PAGE : await readFile(file);
      const type = TYPES[path.extname(url) || ".html"] ?? "application/octet-stream";
      const length = Buffer.byteLength(body);
      response.writeHead(200, { ...HEADERS, "Content-Type": type, "Content-Length": length }).end(body);
    } catch {
      response.writeHead(404, HEADERS).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, address: `http://127.0.0.1:${server.address().port}` };
}

/** Opens an exported site and gives it tokens to stand behind. */
async function openSite(context, url, ids) {
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT);
  await page.goto(url); // with worker=0, which keeps the model where scripts reach it
  const renderer = await page.evaluate(async (given) => {
    const model = await globalThis.glinfer.ready;
    if (!model) throw new Error(globalThis.glinfer.errors.join(" "));
    model.prefill(given);
    model.logits();
    const { gl } = model.replay;
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    return gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
  }, ids);
  const time = (count) =>
    page.evaluate((samples) => {
      const { model } = globalThis.glinfer;
      const spent = [];
      for (let sample = 0; sample < samples; sample++) {
        const id = model.ids.at(-1);
        model.rewind(1);
        const start = performance.now();
        model.step(id);
        model.logits();
        spent.push(performance.now() - start);
      }
      return spent;
    }, count);
  const draws = await page.evaluate(() => globalThis.glinfer.plan.model.draws_per_token);
  return { page, time, renderer, draws };
}

async function openPeer(context, address, config, tokens, uniforms = false) {
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT);
  await page.goto(`${address}/peer.html`);
  const shape = {
    vocab: config.vocab_size,
    dim: config.hidden_size,
    heads: config.num_attention_heads,
    blocks: config.num_hidden_layers,
    inner: config.intermediate_size,
    context: config.max_position_embeddings,
  };
  const found = await page.evaluate((given) => globalThis.peer.start(...given), [shape, uniforms]);
  const difference = await page.evaluate((ids) => globalThis.peer.prefill(ids), tokens);
  if (!(difference < AGREED)) throw new Error(`TensorFlow.js differs from itself by ${difference}`);
  const time = (way, argument) => (count) =>
    page.evaluate(
      ([name, given, samples]) => Array.from({ length: samples }, () => globalThis.peer[name](given)),
      [way, argument, count],
    );
  return { page, time, ...found };
}

const median = (numbers) => {
  const sorted = numbers.toSorted((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

/** Times everything of one shape in turns, and prints it. */
async function bench(browser, address, shape, { rounds, samples, tokens, short }) {
  const context = await browser.newContext();
  const config = (await (await fetch(`${address}/${shape}-f32/plan.json`)).json()).model.config;
  const ids = Array.from({ length: tokens }, (_, index) => (index * 7919 + 11) % config.vocab_size);
  const sites = {};
  for (const name of Object.keys(EXPORTS)) {
    const given = name === "reference" ? ids.slice(0, short) : ids;
    sites[name] = await openSite(context, `${address}/${shape}-${name}/?worker=0`, given);
  }
  const peer = await openPeer(context, address, config, ids);
  const grower = await openPeer(context, address, config, ids);
  const uniform = await openPeer(context, address, config, ids, true);
  const ways = [
    [`glinfer fast plan, f32, ${sites.f32.draws} draws`, tokens, samples, sites.f32.time],
    [`glinfer fast plan, q8, ${sites.q8.draws} draws`, tokens, samples, sites.q8.time],
    ["TensorFlow.js, cache, one length again and again", tokens, samples, peer.time("cached", ids.at(-1))],
    ["TensorFlow.js, cache that grows (decoding)", `${tokens} on`, samples, grower.time("growing", ids.at(-1))],
    ["the same with WEBGL_USE_SHAPES_UNIFORMS", `${tokens} on`, samples, uniform.time("growing", ids.at(-1))],
    ["TensorFlow.js, whole sequence", tokens, 1, peer.time("whole", ids)],
    [`glinfer reference plan, whole sequence, ${sites.reference.draws} draws`, short, 1, sites.reference.time],
    ["TensorFlow.js, whole sequence", short, 1, peer.time("whole", ids.slice(0, short))],
  ];
  const spent = ways.map(() => []);
  for (let round = 0; round <= rounds; round++) {
    for (const [index, [, , count, time]] of ways.entries()) {
      const times = await time(count);
      if (round > 0) spent[index].push(...times); // the first round warms up
    }
  }
  const { dim, inner } = { dim: config.hidden_size, inner: config.intermediate_size };
  console.log(
    `\n${shape}: ${config.num_hidden_layers} blocks, ${config.num_attention_heads} heads, width ${dim} (${inner}), ` +
      `vocabulary ${config.vocab_size}; ${peer.about}\nrenderer: ${peer.renderer}`,
  );
  if (peer.renderer !== sites.f32.renderer) console.log(`glinfer's renderer: ${sites.f32.renderer}`);
  console.log("\n| ms a token | tokens | median | fastest | slowest | samples |\n|---|---|---|---|---|---|");
  ways.forEach(([name, length], index) => {
    const of = spent[index];
    const numbers = [median(of), Math.min(...of), Math.max(...of)].map((each) => each.toFixed(1));
    console.log(`| ${[name, length, ...numbers, of.length].join(" | ")} |`);
  });
  const [f32, q8, again, growing] = spent.map(median);
  const times = (one, other) => (one / other).toFixed(1);
  console.log(
    `\nTensorFlow.js with a cache takes ${times(again, f32)} (f32) and ${times(again, q8)} (q8) times as long as the ` +
      `fast plan at one length, ${times(growing, f32)} and ${times(growing, q8)} times while decoding.`,
  );
  await context.close();
}

async function main() {
  const { values } = parseArgs({
    options: {
      rounds: { type: "string", default: "8" },
      samples: { type: "string", default: "3" },
      tokens: { type: "string", default: "128" },
      short: { type: "string", default: "32" },
      shapes: { type: "string", default: "gab,shakespeare" },
    },
  });
  const { shapes, ...numbers } = values;
  const settings = Object.fromEntries(Object.entries(numbers).map(([name, text]) => [name, Number(text)]));
  const odd = Object.entries(settings).find(([, number]) => !Number.isInteger(number) || number < 1);
  const unknown = shapes.split(",").find((shape) => !SHAPES.includes(shape));
  if (odd || unknown !== undefined) {
    const shapesTaken = `--shapes takes ${SHAPES.join(" and ")}, with commas`;
    console.error(odd ? `--${odd[0]} takes a whole number from 1 on` : shapesTaken);
    process.exit(2);
  }
  const chromium = findChromium();
  const launcher = await playwright();
  checkPackages();
  const folder = mkdtempSync(path.join(os.tmpdir(), "glinfer-web-bench-"));
  const { server, address } = await serve(folder);
  const browser = await launcher.launch({ executablePath: chromium, headless: true, args: FLAGS });
  try {
    const load = os.loadavg()[0].toFixed(1);
    const processors = `${os.cpus().length} × ${os.cpus()[0].model}`;
    console.log(`Chromium ${browser.version()}, ${processors}, load ${load} at the start`);
    for (const shape of shapes.split(",")) {
      exportSites(shape, folder);
      await bench(browser, address, shape, settings);
    }
  } finally {
    await browser.close();
    server.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

await main();
