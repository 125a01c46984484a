/**
 * The chat page, over an engine: a model in the page itself (local.js) or models behind a server (../server/engine.js).
 *
 * @typedef {object} Engine
 * @property {string} name parts of the page with another `data-engine` are hidden.
 * @property {(page: Page) => Promise<object|null>} open gets a model ready, and tells the page by `describe` and `ready`;
 *   an error is shown.
 * @property {(message: string, settings: Settings, how: {signal: AbortSignal, watch: () => Wish|null}) =>
 *   AsyncIterable<{kind: string, text: string, tokens: number}>} write replies, or goes on with the text: pieces of kind
 *   `answer`, `thinking` or another, which is not shown, each with the number of its tokens. An abort ends it at once,
 *   and is no error. It asks `watch` before each token, if it can give pictures meanwhile.
 * @property {((picture: number) => Promise<Attention>)|undefined} attention what the last token of the last reply looks
 *   at; where an engine cannot give pictures while it writes.
 * @property {() => void} reset forgets the conversation.
 * @property {boolean} lost whether nothing can be run any more.
 * @property {{held: number, context: number, draws: number|null}} figures tokens held, and draw calls issued so far.
 *
 * @typedef {{count: number, temperature: number, topK: number, topP: number, minP: number, repetitionPenalty: number,
 *   seed: number|null, system: string}} Settings `system`: the system prompt, for a model that takes one.
 * @typedef {{rows: number, cols: number, weights: Float32Array}} Attention
 * @typedef {{picture: number, seen: (attention: Attention) => void}} Wish
 */

import { GlinferError } from "../glinfer/errors.js";
import { paintAttention } from "../glinfer/pictures.js";
import { startTheme } from "./theme.js";

const PICTURE_PAUSE = 350; // milliseconds; each picture makes the browser wait for the graphics card
const NUMBERS_PAUSE = 250;

const $ = (id) => document.getElementById(id);

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

function append(place, text) {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  place.append(text);
  if (atEnd) log.scrollTop = log.scrollHeight;
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

function accent() {
  const colour = getComputedStyle($("send")).backgroundColor;
  return (colour.match(/\d+/g) ?? [22, 80, 176]).slice(0, 3).map(Number);
}

function showTemperature() {
  $("temperature-value").textContent = $("temperature").value;
}

/** @returns {Settings} what the form says. */
function settings() {
  const number = (id) => Number($(id).value);
  return {
    count: Math.max(1, Math.floor(number("length")) || 1),
    temperature: number("temperature"),
    topK: number("top-k"),
    topP: number("top-p"),
    minP: number("min-p"),
    repetitionPenalty: number("penalty"),
    seed: $("seed").value.trim() === "" ? null : number("seed"),
    system: $("system-field").hidden ? "" : $("system").value,
  };
}

/** The page's state, and what an engine may do with it. */
export class Page {
  /** @param {Engine} engine */
  constructor(engine) {
    this.engine = engine;
    this.running = null; // the AbortController of what is being written
    this.painted = null; // the attention that is shown
    this.model = null; // what `describe` was told
    this.can = null; // what `ready` was told
    /**
     * What automated tests look at; `ready` gives the model, or null where `errors` says why there is none; `checks` are
     * the reports of checks of textures.
     */
    this.shared = { model: null, plan: null, errors: [], ready: null, checks: [] };
    for (const each of document.querySelectorAll("[data-engine]")) each.hidden ||= each.dataset.engine !== engine.name;
  }

  /** Says in one line how things stand. */
  say = (text) => {
    $("status").textContent = text;
  };

  showProblems(sentences) {
    this.shared.errors.push(...sentences);
    const list = document.createElement("ul");
    list.append(...sentences.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
    $("problem").replaceChildren(list);
    $("problem").hidden = false;
  }

  showError(error) {
    const known = error instanceof GlinferError;
    if (!known) console.error(error);
    this.showProblems([known ? sentence(error.message) : `Something went wrong: ${error}`]);
  }

  /** Nothing more can be run, and why. */
  close(problem) {
    this.running?.abort();
    this.pause();
    this.say("Stopped.");
    this.showProblems([problem]);
  }

  /** Takes no messages until the next `ready`. */
  pause() {
    this.can = null;
    for (const id of ["send", "clear", "look"]) $(id).disabled = true;
  }

  /**
   * Shows what is known of a model before it is ready.
   * @param {{name: string, about: string, facts: string, sampling: object}} model `sampling`: its own settings, by the
   *   names of glinfer's options.
   */
  describe(model) {
    this.model = model;
    document.title = `${model.name} – glinfer`;
    $("about").textContent = model.about;
    $("facts").textContent = model.facts;
    const { temperature, top_k: topK, top_p: topP, min_p: minP, repetition_penalty: penalty } = model.sampling;
    Object.entries({ temperature, "top-k": topK, "top-p": topP, "min-p": minP, penalty }).forEach(([id, value]) => {
      if (id === "temperature") $(id).max = String(Math.max(2, value));
      $(id).value = String(value);
    });
    showTemperature();
  }

  /**
   * Takes messages from now on.
   * @param {{takes: "chat"|"text"|"ids", vocabulary: number, examples: string[], context: number, draws: number|null,
   *   pictures: string[], lines: "heads"|"tokens", system?: boolean, why?: string}} can what the model takes, whether that
   *   may be a system prompt, why it is no more, and the names of its pictures.
   */
  ready(can) {
    this.can = can;
    $("message-label").textContent = { chat: "Your message", text: "A text to go on with", ids: "Token ids" }[can.takes];
    $("system-field").hidden = !can.system;
    $("attention").hidden = can.pictures.length === 0;
    $("layer").replaceChildren(...can.pictures.map((name, index) => new Option(name, String(index))));
    $("draws").textContent = String(can.draws ?? "–");
    $("length").max = String(can.context);
    const lines =
      can.lines === "tokens"
        ? "Each line is a token of the text, the newest at the bottom"
        : "Each line is one of the block's heads, which look at different things";
    $("attention-hint").textContent =
      "Before each token the model weighs all those before it, in several blocks one after another. " +
      `${lines}; each column is a token that it looks at, the newest at the right. The stronger the colour, the more it counts.`;
    this.invite(can);
    for (const id of ["send", "clear"]) $(id).disabled = false;
    this.say("Ready.");
    $("message").focus();
  }

  /** Says what the model takes, with examples to click on. */
  invite({ takes, examples, vocabulary, why }) {
    const kinds = {
      chat: "Ask something, or click on one of these. It is a small model: it writes fluently, and often makes things up.",
      text: "This model goes on with the beginning of a text; it does not answer questions. Write one, or click on one of these.",
      ids:
        "The words of this model are not on this page, only their numbers (token ids). " +
        `Write some whole numbers from 0 to ${vocabulary - 1}, with spaces between them.`,
    };
    $("invitation").textContent = why ? `${kinds[takes]} ${sentence(why)}` : kinds[takes];
    const buttons = examples.map((text) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
      button.addEventListener("click", () => {
        $("message").value = text;
        this.send();
      });
      return button;
    });
    $("examples").replaceChildren(...buttons);
    $("welcome").hidden = false;
  }

  paint(name, attention) {
    this.painted = attention;
    paintAttention($("picture"), attention, accent());
    const label = `Attention of ${name}: ${attention.rows} lines over ${attention.cols} tokens`;
    $("picture").setAttribute("aria-label", label);
  }

  /** What an engine asks before each token: which picture is wanted, where it is time for a new one. */
  watch() {
    let last = -Infinity;
    return () => {
      const picture = Number($("layer").value);
      const name = this.can?.pictures[picture];
      if (!name || !$("watch").checked || performance.now() - last < PICTURE_PAUSE) return null;
      const seen = (attention) => {
        this.paint(name, attention);
        last = performance.now();
      };
      return { picture, seen };
    };
  }

  /** Asks the engine for the picture that is chosen. */
  async look() {
    const picture = Number($("layer").value);
    const name = this.can.pictures[picture];
    $("look").disabled = true;
    this.say("Computing attention…");
    try {
      this.paint(name, await this.engine.attention(picture));
      this.say("Done.");
    } catch (error) {
      this.say("Stopped by an error.");
      this.showError(error);
    } finally {
      $("look").disabled = this.can === null || this.running !== null;
    }
  }

  /** Tokens per second from the first token on, without the prompt. */
  meter() {
    const { engine } = this;
    let [first, tokens, early, shown, drawn] = [0, 0, 0, 0, 0];
    const show = (now) => {
      const { held, context, draws } = engine.figures;
      if (tokens > early) {
        $("speed").textContent = ((1000 * (tokens - early)) / (now - first)).toFixed(1);
        if (draws !== null) $("draws").textContent = String(Math.round((draws - drawn) / (tokens - early)));
      }
      $("held").textContent = `${held} of ${context}`;
      shown = now;
    };
    return {
      count: (more) => {
        const now = performance.now();
        if (tokens === 0) [first, early, drawn] = [now, more, engine.figures.draws];
        tokens += more;
        if (now - shown > NUMBERS_PAUSE) show(now);
      },
      finish: () => tokens > 0 && show(performance.now()),
    };
  }

  async write(message) {
    const chats = this.can.takes === "chat";
    if (chats) addTurn("You", message);
    const parts = addTurn(this.model.name, chats ? "" : message);
    const meter = this.meter();
    let begun = false;
    this.say("Reading your text…");
    try {
      const how = { signal: this.running.signal, watch: this.watch() };
      for await (const { kind, text, tokens } of this.engine.write(message, settings(), how)) {
        if (tokens && !begun) this.say("Writing…");
        begun ||= tokens > 0;
        if (parts[kind] && text) append(parts[kind], text);
        meter.count(tokens);
      }
    } finally {
      meter.finish();
    }
  }

  async send() {
    const message = $("message").value;
    if (this.can === null || this.running || !message.trim()) return;
    this.running = new AbortController();
    $("problem").hidden = $("welcome").hidden = true;
    for (const id of ["send", "clear", "look"]) $(id).disabled = true;
    $("stop").disabled = false;
    $("log").setAttribute("aria-busy", "true");
    try {
      await this.write(message);
      if (this.can?.takes === "chat") $("message").value = "";
      this.say(this.running.signal.aborted ? "Stopped." : "Done.");
    } catch (error) {
      this.say("Stopped by an error.");
      this.showError(error);
    } finally {
      this.running = null;
      $("log").setAttribute("aria-busy", "false");
      $("stop").disabled = true;
      for (const id of ["send", "clear", "look"]) $(id).disabled = this.can === null || this.engine.lost;
    }
  }

  startOver() {
    this.engine.reset();
    $("log").replaceChildren();
    $("welcome").hidden = false;
    $("problem").hidden = true;
    $("held").textContent = "0";
    $("look").disabled = true;
    this.say("Ready.");
    $("message").focus();
  }

  /** Listens to the person. */
  start() {
    addEventListener("error", ({ message }) => this.shared.errors.push(message));
    addEventListener("unhandledrejection", ({ reason }) => this.shared.errors.push(String(reason)));
    startTheme($("theme"), () => this.painted && paintAttention($("picture"), this.painted, accent()));
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    $("message").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    addEventListener("keydown", (event) => event.key === "Escape" && this.running?.abort());
    $("stop").addEventListener("click", () => this.running?.abort());
    $("clear").addEventListener("click", () => this.startOver());
    $("look").addEventListener("click", () => this.look());
    $("temperature").addEventListener("input", showTemperature);
    this.shared.ready = this.engine.open(this).catch((error) => {
      this.say("This model cannot run here.");
      this.showError(error);
      return null;
    });
  }
}

/**
 * Starts the page.
 * @param {Engine} engine what writes.
 */
export function startPage(engine) {
  const page = new Page(engine);
  window.glinfer = page.shared;
  page.start();
}
