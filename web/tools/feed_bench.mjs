// Times a prompt and the tokens after it in Chromium: in pieces and token by token, chosen by the plan and in
// JavaScript; or with --guesses, correctly guessed tokens against single ones.
//
//   node web/tools/feed_bench.mjs [--models gab,shakespeare] [--weights q8] [--context 1024] [--tokens 128] [--count 24] [--rounds 5]
//       [--guesses]
//
// `gab` is Gab's full shape with random weights; other names are what export-web takes. All ways take turns in one page;
// the first round warms up. The tokens of all ways have to be equal. With --guesses the browser's processor time stands beside
// the time on the clock, since other work on the machine does not change it. GLINFER_CHROMIUM names another browser.

import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";

import { FLAGS, ROOT, findChromium, playwright } from "./chromium.mjs";

const PYTHON = path.join(ROOT, ".venv/bin/python");
const WAIT = 1_800_000; // milliseconds
const ROWS = [1, 4, 8, 16]; // at once, of which all but the first are guesses
const TICK = 10; // milliseconds of processor time in /proc

function python(...options) {
  const { status, stderr, stdout } = spawnSync(PYTHON, options, { encoding: "utf8", cwd: ROOT });
  if (status !== 0) throw new Error(`python ${options.join(" ")}\n${stderr}`);
  return stdout.trim();
}

/** Writes the site of a model; returns its folder. */
function exportSite(name, folder, options) {
  const write = "import sys,pathlib; from glinfer.engine.random_model import write_demo; " +
    "print(write_demo(pathlib.Path(sys.argv[1]))[0])";
  const model = name === "gab" ? python("-c", write, path.join(folder, "demo")) : name;
  const site = path.join(folder, "site");
  python("-m", "glinfer", "export-web", model, site, ...options);
  return site;
}

/** The server of a site, and its address. */
async function serve(site) {
  const server = spawn(PYTHON, ["-m", "glinfer", "serve-web", site, "--port", "0"], { cwd: ROOT });
  const said = await new Promise((resolve) => server.stdout.once("data", (line) => resolve(String(line))));
  return { server, address: said.match(/http:\S+/)[0] };
}

/** In the page: a prompt and the tokens after it, one way; milliseconds of both, and the tokens. */
async function timed({ ids, count, way }) {
  const { model } = globalThis.glinfer;
  const { Sampler } = await import(new URL("glinfer/sampler.js", document.baseURI));
  const sampler = new Sampler({ temperature: 0 });
  const argmax = (logits) => logits.reduce((best, each, place) => (each > logits[best] ? place : best), 0);
  const next = () => {
    const id = argmax(model.logits());
    model.step(id);
    return [id];
  };
  model.rewind(model.ids.length);
  const before = model.drawsIssued;
  const start = performance.now();
  if (way === "pieces") model.prefill(ids);
  else for (const id of ids) model.step(id);
  const made = way === "pieces" ? model.choose(1, sampler) : next();
  const read = performance.now();
  const draws = model.drawsIssued - before;
  while (made.length < count) made.push(...(way === "pieces" ? model.choose(Math.min(8, count - made.length), sampler) : next()));
  const end = performance.now();
  return { prompt: read - start, token: (end - read) / (count - 1), draws, made };
}

const median = (numbers) => {
  const sorted = numbers.toSorted((one, other) => one - other);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
};

/**
 * In the page: greedy tokens behind a prompt, one by one, or `rows` at once where all of them are guessed and right, as they
 * are in `known`; milliseconds a token, and the tokens.
 */
async function guessed({ ids, count, rows, known }) {
  const { model } = globalThis.glinfer;
  const { Sampler } = await import(new URL("glinfer/sampler.js", document.baseURI));
  const sampler = new Sampler({ temperature: 0 });
  model.rewind(model.ids.length);
  model.prefill(ids);
  const made = model.choose(1, sampler);
  const start = performance.now();
  while (made.length < count) {
    const most = Math.min(rows, count - made.length);
    made.push(...(most > 1 ? model.accept(known.slice(made.length, made.length + most - 1), sampler) : model.choose(1, sampler)));
  }
  return { token: (performance.now() - start) / (count - 1), made };
}

/** Processor time of this process's descendants so far, in milliseconds. */
function spentByBrowser() {
  const all = new Map();
  for (const id of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const fields = readFileSync(`/proc/${id}/stat`, "utf8").replace(/^.*\) /s, "").split(" ");
      all.set(Number(id), { parent: Number(fields[1]), ticks: Number(fields[11]) + Number(fields[12]) });
    } catch {
      // It has ended meanwhile.
    }
  }
  const ours = (id) => id === process.pid || (all.has(id) && ours(all.get(id).parent));
  return [...all].filter(([id]) => id !== process.pid && ours(id)).reduce((sum, [, { ticks }]) => sum + TICK * ticks, 0);
}

/** A table of what guesses bring where all of them are right. */
async function benchGuesses(page, ids, { count, rounds }) {
  const { made: known } = await page.evaluate(guessed, { ids, count, rows: 1, known: [] });
  const spent = new Map(ROWS.map((rows) => [rows, []]));
  for (let round = 0; round <= rounds; round++) {
    for (const [rows, all] of spent) {
      const before = spentByBrowser();
      const found = await page.evaluate(guessed, { ids, count, rows, known });
      const processor = (spentByBrowser() - before) / count; // with the prompt's
      if (found.made.join() !== known.join()) throw new Error(`with ${rows} rows at once there are other tokens`);
      if (round > 0) all.push({ ...found, processor });
    }
  }
  console.log("| rows of a run | a token, ms | of the processor, ms |\n|---|---|---|");
  for (const [rows, all] of spent) {
    const numbers = ["token", "processor"].map((key) => median(all.map((each) => each[key])).toFixed(1));
    console.log(`| ${[rows, ...numbers].join(" | ")} |`);
  }
}

async function bench(browser, name, { weights, context, tokens, count, rounds, guesses }) {
  const folder = mkdtempSync(path.join(os.tmpdir(), "glinfer-feed-bench-"));
  try {
    const site = exportSite(name, folder, ["--weights", weights, ...(context ? ["--context", context] : [])]);
    const { server, address } = await serve(site);
    const page = await browser.newPage();
    page.setDefaultTimeout(WAIT);
    await page.goto(`${address}?worker=0`);
    await page.evaluate(() => globalThis.glinfer.ready);
    const about = await page.evaluate(() => {
      const { plan, replay } = globalThis.glinfer.model;
      const info = replay.gl.getExtension("WEBGL_debug_renderer_info");
      const { vocab_size: vocabulary } = plan.model.config;
      const used = new Set(plan.draws.flatMap(({ inputs, outputs }) => [...inputs, ...outputs]));
      const own = replay.textures.filter(({ handle }, index) => handle && !used.has(index));
      const bytes = own.reduce((sum, { spec, channels, Array }) => sum + spec.width * spec.height * channels * Array.BYTES_PER_ELEMENT, 0);
      const renderer = replay.gl.getParameter(info.UNMASKED_RENDERER_WEBGL);
      return { vocabulary, rows: plan.companions.rows.most, megabytes: (bytes / 1e6).toFixed(1), renderer };
    });
    const ids = Array.from({ length: tokens }, (_, index) => (index * 7919 + 11) % about.vocabulary);
    if (guesses) {
      console.log(`\n${name}, ${weights}, ${count} tokens behind ${tokens} of prompt; ${about.renderer}`);
      await benchGuesses(page, ids, { count, rounds });
      server.kill("SIGINT");
      return;
    }
    const spent = { pieces: [], single: [] };
    for (let round = 0; round <= rounds; round++) {
      const found = {};
      for (const way of Object.keys(spent)) {
        found[way] = await page.evaluate(timed, { ids, count, way });
        if (round > 0) spent[way].push(found[way]);
      }
      if (found.pieces.made.join() !== found.single.made.join()) throw new Error(`${name}: the tokens of both ways differ`);
    }
    console.log(`\n${name}, ${weights}, ${tokens} tokens of prompt in pieces of ${about.rows}, ${count} chosen; ${about.renderer}`);
    console.log(`textures of companions: ${about.megabytes} MB`);
    console.log("| | prompt and first token, ms | fastest | draws | a token, ms | fastest |\n|---|---|---|---|---|---|");
    const titles = { pieces: "pieces, chosen by the plan", single: "token by token, logits read" };
    for (const [way, all] of Object.entries(spent)) {
      const numbers = ["prompt", "token"].flatMap((key) => {
        const times = all.map((each) => each[key]);
        return [median(times).toFixed(1), Math.min(...times).toFixed(1), ...(key === "prompt" ? [all[0].draws] : [])];
      });
      console.log(`| ${[titles[way], ...numbers].join(" | ")} |`);
    }
    await page.close();
    server.kill("SIGINT");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const { values } = parseArgs({
  options: {
    models: { type: "string", default: "gab,shakespeare" },
    weights: { type: "string", default: "q8" },
    context: { type: "string" },
    tokens: { type: "string", default: "128" },
    count: { type: "string", default: "24" },
    rounds: { type: "string", default: "5" },
    guesses: { type: "boolean", default: false },
  },
});
const numbers = Object.fromEntries(["tokens", "count", "rounds"].map((name) => [name, Number(values[name])]));
const least = { tokens: 2, count: 2, rounds: 1 };
const odd = Object.entries(numbers).find(([name, number]) => !Number.isInteger(number) || number < least[name]);
if (odd) {
  console.error(`--${odd[0]} takes a whole number from ${least[odd[0]]} on`);
  process.exit(2);
}
const launcher = await playwright();
const browser = await launcher.launch({ executablePath: findChromium(), headless: true, args: FLAGS });
try {
  console.log(`Chromium ${browser.version()}, ${os.cpus().length} × ${os.cpus()[0].model}, load ${os.loadavg()[0].toFixed(1)} at the start`);
  for (const name of values.models.split(",")) await bench(browser, name, { ...values, ...numbers });
} finally {
  await browser.close();
}
