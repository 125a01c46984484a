// One long conversation with an exported model in Chromium: memory has to stay, and every reply has to be Python's.
//
//   node web/tools/long_chat.mjs [--minutes 30] [--turns N] [--seed 1]
//
// A small model with random weights and a context of 256 tokens replies, greedily, to messages that are made up, by the engine
// that the page has; it overflows every few turns, and then the oldest turns are left out. long_chat.py makes model and site,
// and gives each message to a chat_session, whose reply has to have the same ids. Where the two likeliest tokens are as good as
// equal, float32 leaves the choice open: that is counted, and both go on with Python's reply.
// WebGL's objects, the bytes of the runtime's textures and Chromium's memory (on Linux) are counted after each turn. The exit
// status is 1 where an id differs, where objects or textures do not stay, where memory grows in 100 turns or more, or without two
// overflows.
// GLINFER_CHROMIUM names another Chromium, GLINFER_PYTHON another Python than that of .venv.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import { FLAGS, ROOT, findChromium, playwright, skip } from "./chromium.mjs";
import { memoryBytes } from "./processes.mjs";
import { serveFolder } from "./server.mjs";

const PYTHON = process.env.GLINFER_PYTHON ?? path.join(ROOT, ".venv/bin/python");
const SCRIPT = fileURLToPath(new URL("long_chat.py", import.meta.url));
const REPLY = 40; // tokens at most
const TIE = 1e-4; // between two logits that float32 cannot tell apart
const GROWTH = 1.1; // of memory, from the second quarter of all turns to the last
const SETTLED = 100; // turns: in fewer ones Chromium's memory is still on its way
const ENOUGH = 2; // overflows
const TOLD = 60_000; // milliseconds between two lines
const WORDS = "the sea is calm tonight — what about naïve 猫 and 12 ships? <|end|> tell me, please: why! a\nb (so) 🙂 x".split(" ");

/** Before any script of the page: counts WebGL's objects. */
function countObjects() {
  const objects = (globalThis.objects = {});
  for (const kind of ["Texture", "Framebuffer", "Program", "Shader", "Buffer", "VertexArray", "Sampler"]) {
    objects[kind] = 0;
    for (const [name, step] of [[`create${kind}`, 1], [`delete${kind}`, -1]]) {
      const original = WebGL2RenderingContext.prototype[name];
      WebGL2RenderingContext.prototype[name] = function (...given) {
        if (step > 0 || given[0]) objects[kind] += step;
        return original.apply(this, given);
      };
    }
  }
}

/** In the page: loads the model as the page does. */
async function open(base) {
  const { LocalEngine } = await import(new URL("page/local.js", base).href);
  const engine = new LocalEngine();
  await engine.open(base, { cache: false });
  globalThis.talk = { engine, turns: [], left: 0 };
}

/** In the page: a message and its reply as the page has them, and what there is of objects and textures afterwards. */
async function say({ message, count }) {
  const { talk, objects } = globalThis;
  const { engine } = talk;
  const settings = { count, system: "", temperature: 0 };
  const turn = { message, answer: "" };
  talk.turns.push(turn);
  let [tokens, left] = [0, 0];
  for await (const piece of engine.write(talk.turns.slice(talk.left), settings, { signal: new AbortController().signal })) {
    tokens += piece.tokens;
    left += piece.left ?? 0;
    if (piece.kind === "answer") turn.answer += piece.text;
  }
  talk.left += left;
  const { ids, replay } = engine.model;
  const bytes = replay.textures.reduce((sum, { spec, channels, Array: { BYTES_PER_ELEMENT: each } }) => sum + spec.width * spec.height * channels * each, 0);
  const held = ids.slice(ids.length - tokens);
  const counts = { ...objects, "bound framebuffer": replay.framebuffers.size, "bound texture": replay.textures.length, "texture byte": bytes };
  return { ids: held, left, counts };
}

/** In the page: the gap between the logits of two tokens where a reply can continue with either; `ids` is used. */
function settle({ ids, own }) {
  const { engine } = globalThis.talk;
  const { model, conversation } = engine;
  const common = ids.findIndex((id, index) => id !== own[index]);
  if (common < 0 || common >= own.length) return null;
  model.rewind(own.length - common);
  const logits = model.logits();
  const splitter = conversation.splitter();
  const shown = [...ids, null].flatMap((id) => splitter(id));
  conversation.turns.at(-1).reply = shown.filter(([kind]) => kind === "answer").map(([, id]) => id);
  return Math.abs(logits[ids[common]] - logits[own[common]]);
}

/** In the page: runs ahead what is known of the next message, as the page does between two. */
async function prepare(count) {
  const { engine, turns, left } = globalThis.talk;
  await engine.prepare(turns.slice(left), "", { count, system: "" });
}

/** Messages of one to twenty words, always the same ones. */
function* messages(seed) {
  let state = seed;
  const random = (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  for (;;) yield Array.from({ length: 1 + random(20) }, () => WORDS[random(WORDS.length)]).join(" ");
}

/** Python's chat_session over the same model, which makes the site first. */
async function startPython(folder) {
  if (!existsSync(PYTHON)) skip(`there is no ${PYTHON}; run: make setup, or name one with GLINFER_PYTHON`);
  const environment = { ...process.env, PYTHONPATH: ROOT };
  const python = spawn(PYTHON, [SCRIPT, folder, String(REPLY)], { stdio: ["pipe", "pipe", "inherit"], env: environment, cwd: ROOT });
  const lines = createInterface({ input: python.stdout })[Symbol.asyncIterator]();
  const next = async () => {
    const { done, value } = await lines.next();
    if (done) throw new Error("long_chat.py has ended");
    return JSON.parse(value);
  };
  const ask = (message) => {
    python.stdin.write(`${JSON.stringify(message)}\n`);
    return next();
  };
  const close = async () => {
    const ended = once(python, "exit");
    python.stdin.end();
    await ended;
  };
  await next();
  return { pid: python.pid, ask, close };
}

const median = (numbers) => numbers.toSorted((one, other) => one - other)[Math.floor(numbers.length / 2)];

/** Talks until it is enough, and gives what was found. */
async function converse(page, python, { until, turns, seed }) {
  const found = { turns: 0, tokens: 0, overflows: 0, ties: 0, wrong: [], memory: [], counts: [] };
  let told = Date.now();
  for (const message of messages(seed)) {
    if (Date.now() >= until || found.turns >= turns) break;
    const [{ ids: own, left, counts }, ids] = await Promise.all([page.evaluate(say, { message, count: REPLY }), python.ask(message)]);
    found.turns += 1;
    found.tokens += own.length;
    found.overflows += left > 0;
    found.counts.push(counts);
    if (own.join() !== ids.join()) {
      const gap = await page.evaluate(settle, { ids, own });
      if (gap === null || gap > TIE) found.wrong.push(`turn ${found.turns}: found the ids ${own}; expected ${ids}; logits ${gap} apart`);
      if (found.wrong.length) break;
      found.ties += 1;
    }
    await page.evaluate(prepare, REPLY);
    found.memory.push(memoryBytes(python.pid));
    if (Date.now() - told < TOLD) continue;
    told = Date.now();
    console.error(`${found.turns} turns, ${found.tokens} tokens, ${found.overflows} overflows, ${(found.memory.at(-1) / 1e6).toFixed(0)} MB`);
  }
  return found;
}

/** Sentences about what is not as it has to be. */
function problems({ turns, overflows, wrong, memory, counts }, [before, after]) {
  const all = [...wrong];
  if (overflows < ENOUGH) all.push(`the context overflowed ${overflows} times in ${turns} turns; expected at least ${ENOUGH}`);
  const settled = counts[Math.floor(turns / 4)] ?? {};
  for (const [kind, count] of Object.entries(counts.at(-1) ?? {})) {
    if (count !== settled[kind]) all.push(`there are ${count} ${kind}s at the end, and were ${settled[kind]} after a quarter of the turns`);
  }
  if (memory[0] !== null && turns >= SETTLED && after > GROWTH * before) all.push(`memory grew from ${before} to ${after} bytes`);
  return all;
}

/** Prints what was found, and memory in the second quarter of the turns and the last. */
function report({ turns, tokens, overflows, ties, wrong, counts }, quarters, minutes) {
  const { "texture byte": bytes, ...objects } = counts.at(-1);
  const equal = turns - ties - wrong.length;
  const [before, after] = quarters.map((each) => (each === null ? "?" : (each / 1e6).toFixed(0)));
  console.log(`${minutes.toFixed(1)} minutes, ${turns} turns, ${tokens} tokens, ${overflows} overflows of the context`);
  console.log(`replies with the ids of Python's chat_session: ${equal} of ${turns}; choices that float32 leaves open: ${ties}`);
  console.log(`objects at the end: ${Object.entries(objects).map(([kind, count]) => `${count} ${kind}`).join(", ")}; textures ${(bytes / 1e6).toFixed(2)} MB`);
  console.log(`memory of Chromium: ${before} MB in the second quarter of the turns, ${after} MB in the last`);
}

async function main() {
  const { values } = parseArgs({ options: { minutes: { type: "string", default: "30" }, turns: { type: "string" }, seed: { type: "string", default: "1" } } });
  const [minutes, turns, seed] = [Number(values.minutes), Number(values.turns ?? Infinity), Number(values.seed)];
  if (!(minutes > 0 && turns >= 1 && Number.isInteger(seed))) {
    console.error("--minutes takes a number above 0, --turns one of at least 1, --seed a whole one");
    process.exit(2);
  }
  const executablePath = findChromium();
  const launcher = await playwright();
  const folder = mkdtempSync(path.join(os.tmpdir(), "glinfer-long-chat-"));
  const python = await startPython(folder);
  const { server, address } = await serveFolder(path.join(folder, "site"));
  const browser = await launcher.launch({ executablePath, headless: true, args: FLAGS });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(0);
    await page.addInitScript(countObjects);
    await page.goto(`${address}/style.css`); // an address of the site without its page
    await page.evaluate(open, `${address}/`);
    const begun = Date.now();
    const found = await converse(page, python, { until: begun + 60_000 * minutes, turns, seed });
    const { length } = found.memory;
    const quarters = [found.memory.slice(length / 4, length / 2), found.memory.slice((3 * length) / 4)].map(median);
    const wrong = problems(found, quarters);
    report(found, quarters, (Date.now() - begun) / 60_000);
    for (const each of wrong) console.error(each);
    process.exitCode = wrong.length ? 1 : 0;
  } finally {
    await browser.close();
    server.close();
    await python.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

await main();
