/** The page: loads the model beside it, and streams what it writes. */

import { Conversation } from "./glinfer/chat.js";
import { GlinferError } from "./glinfer/errors.js";
import { generate } from "./glinfer/generate.js";
import { openContext } from "./glinfer/limits.js";
import { loadModel } from "./glinfer/model.js";
import { paintAttention, pictureName, readAttention } from "./glinfer/pictures.js";
import { Sampler } from "./glinfer/sampler.js";
import { fetchSource } from "./glinfer/source.js";
import { IdTokenizer } from "./glinfer/tokenizer.js";
import { describeCheck } from "./glinfer/verify.js";

const PICTURE_PAUSE = 350; // milliseconds; each picture makes the browser wait for the graphics card
const NUMBERS_PAUSE = 250;
const THEME = "glinfer-theme";

const $ = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
const minimum = asked.get("minimum") === "1";
const verifies = asked.get("verify") === "1";

/**
 * What automated tests look at; `ready` gives the model, or null where `errors` says why there is none; `checks` are the
 * reports of checks of textures.
 */
const shared = { model: null, plan: null, errors: [], ready: null, checks: [] };
window.glinfer = shared;

let conversation = null;
let running = null; // the AbortController of what is being written
let checking = Promise.resolve(); // one check of textures after another
let painted = null; // the attention that is shown

function say(text) {
  $("status").textContent = text;
}

function showProblems(sentences) {
  shared.errors.push(...sentences);
  const list = document.createElement("ul");
  list.append(...sentences.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  $("problem").replaceChildren(list);
  $("problem").hidden = false;
}

function showError(error) {
  if (!(error instanceof GlinferError)) console.error(error);
  showProblems([error instanceof GlinferError ? sentence(error.message) : `Something went wrong: ${error}`]);
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

function startTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try {
      return localStorage.getItem(THEME);
    } catch {
      return null; // a page opened from a file may have no storage
    }
  };
  let chosen = remembered();
  const show = () => {
    const theme = chosen ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = theme === "dark" ? "Light theme" : "Dark theme"; // what a click gives
    if (painted) paintAttention($("picture"), painted, accent());
  };
  dark.addEventListener("change", show);
  $("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(THEME, chosen);
    } catch {
      // then it lasts until the page is closed
    }
    show();
  });
  show();
}

/** Loads the model; null where that fails, and the page then says why. */
async function load() {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const gl = openContext(canvas);
  canvas.addEventListener("webglcontextlost", () => {
    running?.abort();
    for (const id of ["send", "clear", "check"]) $(id).disabled = true;
    say("Stopped.");
    showProblems(["The browser took the graphics context away. Reload the page to go on."]);
  });
  try {
    const model = await loadModel(gl, fetchSource(document.baseURI), {
      minimum,
      onPlan: (plan) => {
        shared.plan = plan;
        describe(plan);
      },
      onProgress: say,
    });
    shared.model = model;
    ready(model);
    if (verifies) await check();
    return model;
  } catch (error) {
    say("This model cannot run here.");
    showError(error);
    return null;
  }
}

function describe({ model }) {
  const millions = (model.parameters / 1e6).toFixed(1);
  document.title = `${model.name} – glinfer`;
  $("about").textContent =
    `${model.name}, a language model, runs on this computer, inside this page. Nothing that you write leaves it.`;
  $("facts").textContent =
    `This one, ${model.name}, has ${millions} million numbers (parameters), kept as ${model.weights}. It is computed with ` +
    `WebGL2 by the plan “${model.plan}”.`;
  const { temperature, top_k: topK, top_p: topP, min_p: minP, repetition_penalty: penalty } = model.generation;
  Object.entries({ temperature, "top-k": topK, "top-p": topP, "min-p": minP, penalty }).forEach(([id, value]) => {
    if (id === "temperature") $(id).max = String(Math.max(2, value));
    $(id).value = String(value);
  });
  showTemperature();
}

function showTemperature() {
  $("temperature-value").textContent = $("temperature").value;
}

/** Says what the model takes, with examples to click on. */
function invite({ chat, tokenizer, examples, config }) {
  const kinds = {
    chat: "Ask something, or click on one of these. It is a small model: it writes fluently, and often makes things up.",
    text: "This model goes on with the beginning of a text; it does not answer questions. Write one, or click on one of these.",
    ids:
      "The words of this model are not on this page, only their numbers (token ids). " +
      `Write some whole numbers from 0 to ${config.vocab_size - 1}, with spaces between them.`,
  };
  $("invitation").textContent = kinds[chat ? "chat" : tokenizer ? "text" : "ids"];
  const buttons = examples.map((text) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    button.addEventListener("click", () => {
      $("message").value = text;
      send();
    });
    return button;
  });
  $("examples").replaceChildren(...buttons);
  $("welcome").hidden = false;
}

function ready(model) {
  const tokenizer = model.tokenizer ?? new IdTokenizer();
  const { chat, stop_ids: stopIds } = model.plan.model;
  conversation = new Conversation(tokenizer, chat, model.context, stopIds);
  $("message-label").textContent = chat ? "Your message" : model.tokenizer ? "A text to go on with" : "Token ids";
  $("attention").hidden = model.plan.pictures.length === 0;
  const options = model.plan.pictures.map(({ name }, index) => new Option(pictureName(name), String(index)));
  $("layer").replaceChildren(...options);
  $("draws").textContent = String(model.plan.model.draws_per_token);
  $("length").max = String(model.context);
  const lines = model.plan.pictures.some(({ name }) => name.includes(".head."))
    ? "Each line is a token of the text, the newest at the bottom"
    : "Each line is one of the block's heads, which look at different things";
  $("attention-hint").textContent =
    "Before each token the model weighs all those before it, in several blocks one after another. " +
    `${lines}; each column is a token that it looks at, the newest at the right. The stronger the colour, the more it counts.`;
  invite(model.plan.model);
  for (const id of ["send", "clear", "check"]) $(id).disabled = false;
  say("Ready.");
  $("message").focus();
}

function addTurn(who, given) {
  const turn = document.createElement("p");
  turn.className = "turn";
  const part = (name, text) => {
    const span = Object.assign(document.createElement("span"), { className: name, textContent: text });
    turn.append(span);
    return span;
  };
  part("who", who);
  const parts = { given: part("given", given), thinking: part("thinking", ""), answer: part("answer", "") };
  $("log").append(turn);
  return parts;
}

function samplerOfPage() {
  return new Sampler({
    temperature: Number($("temperature").value),
    topK: Number($("top-k").value),
    topP: Number($("top-p").value),
    minP: Number($("min-p").value),
    repetitionPenalty: Number($("penalty").value),
  });
}

/** A watch for the next token, where it is time for a new picture. */
function pictureTaker(model) {
  let last = -Infinity;
  return () => {
    const picture = model.plan.pictures[Number($("layer").value)];
    if (!picture || !$("watch").checked || performance.now() - last < PICTURE_PAUSE) return null;
    const seen = () => {
      painted = readAttention(model, picture);
      paintAttention($("picture"), painted, accent());
      const label = `Attention of ${pictureName(picture.name)}: ${painted.rows} lines over ${painted.cols} tokens`;
      $("picture").setAttribute("aria-label", label);
      last = performance.now();
    };
    return { draw: picture.draw, seen };
  };
}

function accent() {
  const colour = getComputedStyle($("send")).backgroundColor;
  return (colour.match(/\d+/g) ?? [22, 80, 176]).slice(0, 3).map(Number);
}

async function write(message) {
  const { model } = shared;
  const count = Math.max(1, Math.floor(Number($("length").value)) || 1);
  const sampler = samplerOfPage();
  const prompt = conversation.prompt(message, Math.min(count, Math.floor(model.context / 2)));
  const chats = conversation.chat !== null;
  if (chats) addTurn("You", message);
  const parts = addTurn(model.plan.model.name, chats ? "" : message);
  const kindOf = conversation.splitter();
  const streams = { answer: conversation.tokenizer.stream(), thinking: conversation.tokenizer.stream() };
  const written = [];
  const meter = startMeter(model);
  say("Reading your text…");
  try {
    const stops = (id) => conversation.stopIds.has(id);
    const options = { prompt, count, stops, signal: running.signal, watch: pictureTaker(model) };
    for await (const id of generate(model, sampler, options)) {
      if (!written.length) say("Writing…");
      written.push(id);
      const kind = kindOf(id);
      if (streams[kind]) append(parts[kind], streams[kind].push(id));
      meter.count();
    }
  } finally {
    for (const kind of ["thinking", "answer"]) append(parts[kind], streams[kind].finish());
    conversation.addReply(written);
    meter.finish();
  }
}

function append(place, text) {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  place.append(text);
  if (atEnd) log.scrollTop = log.scrollHeight;
}

/** Tokens per second from the first token on, without the prompt. */
function startMeter(model) {
  let [first, tokens, shown, drawn] = [0, 0, 0, 0];
  const show = (now) => {
    if (tokens > 1) $("speed").textContent = ((1000 * (tokens - 1)) / (now - first)).toFixed(1);
    if (tokens > 1) $("draws").textContent = String(Math.round((model.drawsIssued - drawn) / (tokens - 1)));
    $("held").textContent = `${model.ids.length} of ${model.context}`;
    shown = now;
  };
  return {
    count: () => {
      const now = performance.now();
      if (tokens++ === 0) [first, drawn] = [now, model.drawsIssued];
      if (now - shown > NUMBERS_PAUSE) show(now);
    },
    finish: () => tokens > 0 && show(performance.now()),
  };
}

/** Compares the model's textures with its files and says what was found, once earlier checks are done. */
function check() {
  checking = checking.then(async () => {
    const line = $("checked");
    Object.assign(line, { hidden: false, className: "", textContent: "Checking the textures…" });
    try {
      const report = await shared.model.verifyTextures();
      line.className = report.ok ? "" : "different";
      line.textContent = describeCheck(report);
      shared.checks.push(report);
    } catch (error) {
      line.textContent = "The textures could not be checked.";
      showError(error);
    }
  });
  return checking;
}

async function send() {
  const message = $("message").value;
  if (!shared.model || running || $("send").disabled || !message.trim()) return;
  running = new AbortController();
  $("problem").hidden = $("welcome").hidden = true;
  $("send").disabled = $("clear").disabled = true;
  $("stop").disabled = false;
  $("log").setAttribute("aria-busy", "true");
  let failed = true;
  try {
    await write(message);
    failed = false;
    if (conversation.chat) $("message").value = "";
    say(running.signal.aborted ? "Stopped." : "Done.");
  } catch (error) {
    say("Stopped by an error.");
    showError(error);
  } finally {
    running = null;
    $("log").setAttribute("aria-busy", "false");
    $("stop").disabled = true;
    const lost = failed && shared.model.replay.gl.isContextLost();
    $("send").disabled = $("clear").disabled = lost;
    if (verifies && !lost) check();
  }
}

function startOver() {
  conversation.reset();
  shared.model.rewind(shared.model.ids.length);
  $("log").replaceChildren();
  $("welcome").hidden = false;
  $("held").textContent = "0";
  say("Ready.");
  $("message").focus();
}

function start() {
  addEventListener("error", ({ message }) => shared.errors.push(message));
  addEventListener("unhandledrejection", ({ reason }) => shared.errors.push(String(reason)));
  startTheme();
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
  $("stop").addEventListener("click", () => running?.abort());
  $("clear").addEventListener("click", startOver);
  $("check").addEventListener("click", check);
  $("temperature").addEventListener("input", showTemperature);
  shared.ready = load();
}

start();
