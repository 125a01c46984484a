// Opens an exported site in a browser, runs a model there, and gives what came out; by itself it prints that as JSON.
//
//   node drive.mjs CHROMIUM <jobs.json
//   node --experimental-websocket drive.mjs FIREFOX <jobs.json
//   node drive.mjs WEBKITWEBDRIVER <jobs.json
//
// jobs.json: {"url": address of the page, "drop": a GGUF file of its site to drop on it, "ask": what to send by its form, see ask(),
// "talk": the same in Chromium, as a person would, see talk(), "flags": Chromium's, where the usual ones are not meant, "browser": "chromium", "firefox" or "webkit", "jobs": [job, …]} with jobs such as
//   {"kind": "greedy", "ids": [1, 2], "count": 50, "logits": 5}   tokens chosen, logits of the first few of them;
//       with "verify": true while textures are checked
//   {"kind": "drawn", "ids": [1, 2], "count": 50, "seed": 1, "temperature": 0.8}   tokens drawn by the page's sampler
//   {"kind": "logits", "ids": [1, 2]}                             logits of the token after these
//   {"kind": "aim", "draw": "lm_head", "sampler": "weight", "unit": 0}   the texture unit that a sampler of its shader reads
//   {"kind": "attention", "ids": [1, 2]}                          what each picture of attention shows of the last of these
//   {"kind": "stream", "ids": [1, 2], "count": 50, "options": {…}, "flat": true}   what model.stream gives; where "flat" is
//       said, every run counts as equally long, so that guesses always pay
//   {"kind": "encode", "text": "…"}                               ids of a text, and what they decode to
//   {"kind": "choices", "ids": […], "count": 100, "options": {…}}   ids that the page chooses, and base64 of all their logits
//   {"kind": "verify", "share": 0.1, "calls": 10}                 reports of so many checks of textures, or why there is none
//   {"kind": "flip", "times": 1, "seed": 1}     a random bit flipped in each weight in turn, and what a check says of each
//   {"kind": "overwrite", "texture": "wte", "y": 1, "lines": 2}   zeros in lines of a texture
//   {"kind": "reread", "path": "other"}         another file in the place of weights.safetensors, from now on
//   {"kind": "rebind", "draw": "lm_head", "unit": 0, "texture": "wte"}   what a draw samples at a texture unit
//   {"kind": "draw", "vertex": "…", "fragment": "…", "inputs": {"x": [1, 2, 3, 4]}}   a pass over textures of one line
// Printed: {"results": […], "console": […], "errors": […], "drawCalls": …, "renderer": …}.

import process from "node:process";
import { json } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

import { FLAGS } from "../../tools/chromium.mjs";
import { launchFirefox } from "../../tools/firefox.mjs";
import { launchWebKit } from "../../tools/webkit.mjs";

const LONGEST = 280_000; // milliseconds

/**
 * Before any script of the page: count draw calls, except of single texels, and keep errors, whatever the runtime says;
 * hide extensions if the address has extensions=0.
 */
function watch() {
  const watched = (globalThis.watched = { drawCalls: 0, glErrors: [], lost: 0 });
  const prototype = WebGL2RenderingContext.prototype;
  for (const name of ["drawArrays", "drawElements", "drawArraysInstanced", "drawElementsInstanced"]) {
    const original = prototype[name];
    prototype[name] = function (...values) {
      if (!this.isEnabled(this.SCISSOR_TEST)) watched.drawCalls += 1; // else to warm up, or to compare, see sentinel.js
      return original.apply(this, values);
    };
  }
  const getError = prototype.getError;
  prototype.getError = function () {
    const error = getError.call(this);
    if (error !== this.NO_ERROR) watched.glErrors.push(error);
    return error;
  };
  addEventListener("webglcontextlost", () => (watched.lost += 1), true);
  if (new URLSearchParams(location.search).get("extensions") !== "0") return;
  const { getExtension } = prototype;
  prototype.getExtension = function (name) {
    return name === "WEBGL_debug_renderer_info" ? getExtension.call(this, name) : null;
  };
}

/** Before any script of the page: a function that draws one triangle over textures of one line, and reads the bits back. */
function lendDraw() {
  globalThis.drawOnce = (gl, { vertex, fragment, inputs }) => {
    const program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    const width = Object.values(inputs)[0].length / 4;
    const texture = (unit, numbers) => {
      gl.activeTexture(gl.TEXTURE0 + unit);
      gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
      gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32F, width, 1, 0, gl.RGBA, gl.FLOAT, numbers);
      for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
      return gl.getParameter(gl.TEXTURE_BINDING_2D);
    };
    Object.entries(inputs).forEach(([name, numbers], unit) => {
      texture(unit, new Float32Array(numbers));
      gl.uniform1i(gl.getUniformLocation(program, name), unit);
    });
    const target = texture(Object.keys(inputs).length, null);
    gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
    gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, target, 0);
    gl.viewport(0, 0, width, 1);
    gl.drawArrays(gl.TRIANGLES, 0, 3);
    const found = new Float32Array(4 * width);
    gl.readPixels(0, 0, width, 1, gl.RGBA, gl.FLOAT, found);
    return Array.from(new Uint32Array(found.buffer));
  };
}

/** In the page: wait for its model and do the jobs; draw calls are counted around each. */
async function work(jobs) {
  await globalThis.glinfer.ready;
  const { model, errors } = globalThis.glinfer;
  if (model === null) throw new Error(`the page has no model: ${errors.join(" ")}`);
  const gl = model.replay.gl;
  if (model.replay.pace) model.replay.pace.rows = (texels, most) => most; // the same draws on every machine; see pace.test.js
  const results = [];
  const next = () => {
    const before = globalThis.watched.drawCalls;
    const logits = model.logits();
    return { logits, draws: globalThis.watched.drawCalls - before };
  };
  for (const job of jobs) {
    const start = performance.now();
    const made = {};
    if (job.kind === "draw") {
      made.bits = globalThis.drawOnce(gl, job);
    } else if (job.kind === "choices") {
      const { Sampler } = await import(new URL("glinfer/sampler.js", document.baseURI));
      const sampler = new Sampler(job.options);
      const again = () => {
        model.rewind(model.ids.length);
        job.ids.forEach((id) => model.step(id));
      };
      again();
      const read = model.readLogits.bind(model);
      Object.assign(made, { ids: [], reads: 0 });
      model.readLogits = () => ((made.reads += 1), read());
      while (made.ids.length < job.count) made.ids.push(...model.choose(Math.min(8, job.count - made.ids.length), sampler));
      delete model.readLogits;
      again();
      const rows = made.ids.map((id) => {
        const logits = model.logits();
        model.step(id);
        return logits;
      });
      const url = await new Promise((resolve) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result);
        reader.readAsDataURL(new Blob(rows));
      });
      made.logits = url.slice(url.indexOf(",") + 1);
    } else if (job.kind === "encode") {
      made.ids = model.tokenizer.encode(job.text);
      made.text = model.tokenizer.decode(made.ids);
    } else if (job.kind === "verify") {
      made.reports = [];
      for (let call = 0; call < (job.calls ?? 1); call++) {
        const report = model.verifyTextures(job.share === undefined ? {} : { share: job.share });
        made.reports.push(await report.catch((error) => ({ error: error.message, name: error.name })));
      }
    } else if (job.kind === "flip") {
      made.flips = [];
      let state = BigInt(job.seed);
      const random = (below) => {
        state = (state * 6364136223846793005n + 1442695040888963407n) % 2n ** 64n;
        return Number((state >> 33n) % BigInt(below));
      };
      const weights = model.replay.textures.filter(({ spec }) => spec.kind === "weight");
      for (const texture of Array.from({ length: job.times }, () => weights).flat()) {
        const { name, width, height } = texture.spec;
        const [y, place, bit] = [random(height), random(width * texture.channels), random(8 * texture.Array.BYTES_PER_ELEMENT)];
        const line = texture.readBits(y, 1);
        const write = () => {
          const texels = new texture.Array(line.buffer, 0, line.length);
          gl.bindTexture(gl.TEXTURE_2D, texture.handle);
          gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, y, width, 1, texture.pixels, texture.type, texels);
        };
        const was = line[place];
        line[place] ^= 1 << bit;
        const now = line[place];
        write();
        const { ok, different } = await model.verifyTextures();
        line[place] = was;
        write();
        const [x, channel] = [Math.floor(place / texture.channels), place % texture.channels];
        made.flips.push({ name, format: texture.spec.format, x, y, channel, was, now, ok, different });
      }
    } else if (job.kind === "overwrite") {
      const texture = model.replay.textures.find(({ spec }) => spec.name === job.texture);
      gl.bindTexture(gl.TEXTURE_2D, texture.handle);
      const zeros = new texture.Array(texture.spec.width * job.lines * texture.channels);
      const lines = [0, 0, job.y, texture.spec.width, job.lines];
      gl.texSubImage2D(gl.TEXTURE_2D, ...lines, texture.pixels, texture.type, zeros);
    } else if (job.kind === "reread") {
      const { fetchSource } = await import(new URL("glinfer/source.js", document.baseURI));
      model.checker.source = { pieces: () => fetchSource(document.baseURI).pieces(job.path) };
    } else if (job.kind === "rebind") {
      const draw = model.replay.draws.find(({ spec }) => spec.name === job.draw);
      draw.textures[job.unit] = model.replay.textures.find(({ spec }) => spec.name === job.texture);
    } else if (job.kind === "aim") {
      const { program } = model.replay.draws.find(({ spec }) => spec.name === job.draw);
      gl.useProgram(program.handle);
      gl.uniform1i(program.samplers.get(job.sampler), job.unit);
    } else if (job.kind === "attention") {
      const { readAttention } = await import(new URL("glinfer/pictures.js", document.baseURI));
      made.pictures = model.plan.pictures.map((picture) => {
        model.rewind(model.ids.length);
        model.prefill(job.ids);
        let seen;
        model.logits({ draw: picture.draw, seen: () => (seen = readAttention(model, picture)) });
        return { ...seen, weights: Array.from(seen.weights) };
      });
    } else if (job.kind === "stream") {
      const before = globalThis.watched.drawCalls;
      const { drafted, accepted } = model;
      if (job.flat) Object.assign(model.runTimes, { of: () => 1000, note: () => {} });
      Object.assign(made, { ids: [], logitReads: 0 });
      model.readLogits = () => {
        made.logitReads += 1;
        return Object.getPrototypeOf(model).readLogits.call(model);
      };
      for await (const id of model.stream(job.ids, { maxTokens: job.count, ...job.options })) made.ids.push(id);
      Object.assign(made, { draws: globalThis.watched.drawCalls - before, held: [...model.ids], dropped: model.dropped });
      Object.assign(made, { drafted: model.drafted - drafted, accepted: model.accepted - accepted });
    } else {
      model.rewind(model.ids.length);
      const before = globalThis.watched.drawCalls;
      if (job.single) job.ids.forEach((id) => model.step(id));
      else model.prefill(job.ids);
      Object.assign(made, { promptDraws: globalThis.watched.drawCalls - before, ids: [], logits: [], draws: [] });
      let sampler = null;
      if (job.kind === "drawn") {
        const { Sampler } = await import(new URL("glinfer/sampler.js", document.baseURI));
        sampler = new Sampler({ temperature: job.temperature, seed: job.seed });
      }
      const report = job.verify ? model.verifyTextures() : null;
      for (let index = 0; index < (job.count ?? 1); index++) {
        if (report) await new Promise((resolve) => setTimeout(resolve)); // some lines are compared meanwhile
        const { logits, draws } = next();
        const best = sampler ? sampler.sample(logits) : logits.indexOf(Math.max(...logits));
        made.ids.push(best);
        made.draws.push(draws);
        if (index < (job.logits ?? 1)) made.logits.push(Array.from(logits));
        model.step(best);
      }
      made.report = await report;
    }
    made.milliseconds = performance.now() - start;
    results.push(made);
  }
  const error = gl.getError();
  const info = gl.getExtension("WEBGL_debug_renderer_info");
  const renderer = gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
  return { results, renderer, computes: model.replay.form, pageErrors: errors, glErrors: [...globalThis.watched.glErrors, ...(error ? [error] : [])] };
}

/** A page for as many sites as are driven, one after another; gives what opens a site there and does what is asked. */
export async function drivenPage(browser) {
  const page = await browser.newPage();
  let said;
  page.setDefaultTimeout(LONGEST);
  page.on("console", (message) => {
    const { url: where } = message.location();
    if (["error", "warning"].includes(message.type())) said.console.push(`${message.text()} (${where})`);
  });
  page.on("pageerror", (error) => said.errors.push(String(error)));
  page.on("requestfailed", (request) => {
    const why = request.failure()?.errorText;
    if (why !== "net::ERR_ABORTED") said.errors.push(`${request.url()} ${why}`); // the page has read enough of it
  });
  await page.addInitScript(watch);
  await page.addInitScript(lendDraw);
  return async ({ url, drop = null, ask: asked = null, talk: message = null, jobs = [] }) => {
    const now = (said = { console: [], errors: [] });
    await page.goto(url);
    let made = {};
    if (drop) await page.evaluate(dropFile, drop);
    if (asked) made.shown = await page.evaluate(ask, asked);
    if (message) made = await talk(page, message);
    if (jobs.length) made = { ...made, ...(await page.evaluate(work, jobs)) };
    const watched = await page.evaluate(() => globalThis.watched);
    return { ...made, ...now, drawCalls: watched.drawCalls, lost: watched.lost };
  };
}

/** In the page: drops a file of the site on it. */
async function dropFile(name) {
  while (!document.getElementById("zone")) await new Promise((resolve) => setTimeout(resolve, 20));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([await (await fetch(name)).blob()], name));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
}

/** In the page: sends a message by its form; gives the answer, and whether a worker wrote it. */
async function ask({ text, tokens }) {
  const { glinfer } = globalThis;
  await glinfer.ready;
  const [form, status] = ["form", "status"].map((id) => document.getElementById(id));
  for (const [id, value] of Object.entries({ temperature: 0, length: tokens, message: text })) document.getElementById(id).value = value;
  form.requestSubmit();
  while (status.textContent !== "Done.") {
    if (glinfer.errors.length) throw new Error(glinfer.errors.join(" "));
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return { answer: glinfer.page.turns.at(-1).answer, worker: glinfer.model.worker === true };
}

/**
 * Uses the page as a person would: waits until it is ready, sends a message by its form or clicks on an example, waits for
 * the reply, and for so many checks of textures.
 */
async function talk(page, { text, example, tokens, checks = 0 }) {
  await page.waitForSelector("#clear:enabled");
  const texts = async (selector) => (await page.locator(selector).allTextContents()).join("");
  const shown = {};
  for (const id of ["temperature", "top-k", "top-p", "min-p", "penalty"]) shown[id] = await page.inputValue(`#${id}`);
  for (const id of ["invitation", "about", "attention-hint"]) shown[id] = await texts(`#${id}`);
  shown.examples = await page.locator("#examples button").allTextContents();
  shown.layers = await page.locator("#layer option").allTextContents();
  if (await page.locator("#watch").isVisible()) await page.check("#watch");
  await page.fill("#length", String(tokens));
  await page.locator("#temperature").fill("0");
  if (example === undefined) {
    await page.fill("#message", text);
    await page.click("#send");
  } else {
    await page.locator("#examples button").nth(example).click();
  }
  await page.waitForSelector("#log .turn"); // there is one from the beginning of a reply
  await page.waitForSelector("#stop:disabled");
  await page.waitForFunction((count) => globalThis.glinfer.checks.length >= count, checks);
  shown.log = await texts("#log .turn:last-child .given, #log .turn:last-child .answer");
  for (const id of ["status", "draws", "held", "speed", "checked"]) shown[id] = await texts(`#${id}`);
  shown.welcome = await page.isVisible("#welcome");
  shown.checks = await page.evaluate(() => globalThis.glinfer.checks);
  shown.picture = await page.locator("#picture").evaluate(({ width, height }) => [width, height]);
  const colour = () =>
    page.locator("#picture").evaluate((canvas) => {
      const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
      const context = copy.getContext("2d", { willReadFrequently: true });
      context.drawImage(canvas, 0, 0);
      const { data } = context.getImageData(0, 0, copy.width, copy.height);
      const opaque = data.findIndex((value, place) => place % 4 === 3 && value === 255);
      return Array.from(data.slice(opaque - 3, opaque));
    });
  shown.colours = [await colour()];
  await page.click("#theme");
  shown.colours.push(await colour());
  return { shown };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { flags = FLAGS, browser: named = "chromium", ...asked } = await json(process.stdin);
  const launchChromium = (executablePath) => chromium.launch({ executablePath, headless: true, args: flags });
  const browser = await { chromium: launchChromium, firefox: launchFirefox, webkit: launchWebKit }[named](process.argv[2]);
  try {
    process.stdout.write(JSON.stringify(await (await drivenPage(browser))(asked)));
  } finally {
    await browser.close();
  }
}
