/** The page of `glinfer tour`: loads the plans, runs a token of each, and lets a person walk through its draws. */

import { $, element, sentence } from "../page/elements.js";
import { startTheme } from "../page/theme.js";
import { computingCanvas, openContext } from "../glinfer/limits.js";
import { loadParts, progressInWords } from "../glinfer/loading.js";
import { Model, textsFor } from "../glinfer/model.js";
import { DrawPanel } from "./draw_panel.js";
import { Recording } from "./recording.js";
import { openTour } from "./source.js";
import { Timeline } from "./timeline.js";
import { shown } from "./words.js";

const PLAY_EACH = 350; // milliseconds
const LABELS = { reference: "draws, as published", fast: "draws, fused", both: "Both" };

/** See the head of this file. */
class Tour {
  constructor() {
    this.models = {};
    this.recordings = {};
    this.plan = "reference";
    this.view = "reference"; // or "fast", or "both"
    this.draw = 0;
    this.timer = null;
    this.timeline = new Timeline((draw) => this.go(draw));
    this.panel = new DrawPanel((id) => this.word(id), () => {});
  }

  async start() {
    startTheme($("theme"), () => this.repaint());
    $("waiting").hidden = true;
    this.listen();
    try {
      const { tour, sourceOf } = await openTour(new URL(".", document.baseURI));
      this.tour = tour;
      $("text").value = tour.text;
      await this.load("reference", sourceOf);
      await this.run();
      $("run").disabled = false;
      if (tour.plans.fast) {
        await this.load("fast", sourceOf);
        await this.record("fast");
      }
      this.offerPlans();
      $("status").textContent = "Ready.";
    } catch (error) {
      this.fail(error);
    }
  }

  /** Loads a plan, its programs and its weights. */
  async load(name, sourceOf) {
    const words = progressInWords();
    const onProgress = (progress) => ($("status").textContent = words(progress));
    const context = openContext(computingCanvas());
    const { plan, replay, tables, texts } = await loadParts(context, sourceOf(name), document.baseURI, textsFor, { cache: false, onProgress });
    this.models[name] = new Model(replay, tables, texts, sourceOf(name));
    const { model } = plan;
    $("about").textContent = `${model.name}: ${model.parameters.toLocaleString("en")} numbers, ${model.config.num_hidden_layers} blocks. Everything below is computed by this page, on your graphics processor.`;
  }

  /** The tokens of the text; with no tokenizer the text has ids. */
  ids() {
    const { tokenizer, before } = this.models.reference;
    const text = $("text").value;
    if (!tokenizer) return text.split(/[\s,]+/).filter(Boolean).map(Number);
    return [...before, ...tokenizer.encode(text, { allowSpecial: false })];
  }

  word(id) {
    return this.models.reference.tokenizer?.decode([id]) ?? String(id);
  }

  /** Runs the text with all plans that are loaded. */
  async run() {
    $("problem").hidden = true;
    const ids = this.ids();
    const { context } = this.models.reference;
    if (!ids.length || ids.length > context) {
      this.fail(new Error(`the text has ${ids.length} tokens; expected 1 to ${context}`));
      return;
    }
    this.tokens = ids;
    this.recordings = {};
    for (const name of Object.keys(this.models)) await this.record(name);
    $("status").textContent = "Ready.";
  }

  /** Runs a plan, and shows its draws as they are issued. */
  async record(name) {
    const recording = new Recording(this.models[name], this.tokens);
    const { draws } = recording.plan;
    const watched = name === this.plan;
    if (watched) this.showPlan();
    await recording.run((draw) => {
      $("status").textContent = `Drawing ${draw + 1} of ${draws.length}…`;
      if (watched && (draw % 4 === 3 || draw === draws.length - 1)) this.timeline.mark(draw, draw + 1);
    });
    this.recordings[name] = recording;
    if (!watched) return;
    this.showTokens();
    this.go(Math.min(this.draw, draws.length - 1));
  }

  showTokens() {
    const items = this.tokens.map((id, place) => element("li", { title: `token ${place}, id ${id}` }, shown(this.word(id)), element("small", { textContent: String(id) })));
    $("tokens").replaceChildren(...items);
  }

  offerPlans() {
    const names = [...Object.keys(this.models), ...(this.models.fast ? ["both"] : [])];
    const radios = names.map((name) => {
      const count = this.models[name]?.plan.draws.length;
      const input = element("input", { type: "radio", name: "plan", value: name, checked: name === this.view });
      input.addEventListener("change", () => this.choosePlan(name));
      return element("label", {}, input, element("span", { textContent: `${count ?? ""} ${LABELS[name]}`.trim() }));
    });
    $("plans").replaceChildren($("plans").firstElementChild, ...radios);
  }

  /** Shows a plan, or one laid over the other. */
  choosePlan(view, draw = null) {
    const [from, to] = [this.plan, view === "both" ? "reference" : view];
    const replaced = this.tour.replaced_by;
    if (from !== to) this.draw = to === "fast" ? replaced[this.draw] : replaced.lastIndexOf(this.draw);
    [this.view, this.plan] = [view, to];
    for (const radio of document.querySelectorAll("#plans input")) radio.checked = radio.value === view;
    this.showPlan();
    this.go(draw ?? this.draw);
  }

  showPlan() {
    const { plan } = this.models[this.plan];
    const over = this.view === "both" ? { draws: this.models.fast.plan.draws, replacedBy: this.tour.replaced_by } : null;
    this.timeline.show(plan.draws, over);
    $("timeline-title").textContent = `All ${plan.draws.length} draws of one token`;
  }

  /** Shows a draw. */
  go(draw) {
    const recording = this.recordings[this.plan];
    if (!recording) return;
    this.draw = Math.max(0, Math.min(draw, recording.plan.draws.length - 1));
    this.timeline.mark(this.draw);
    this.panel.show(recording, this.draw);
  }

  repaint() {
    if (this.recordings[this.plan]) this.go(this.draw);
  }

  play() {
    const stop = this.timer !== null;
    clearInterval(this.timer);
    this.timer = null;
    $("play").textContent = stop ? "Play" : "Pause";
    if (stop) return;
    const { length } = this.models[this.plan].plan.draws;
    if (this.draw === length - 1) this.go(0);
    this.timer = setInterval(() => {
      this.go(this.draw + 1);
      if (this.draw === length - 1) this.play();
    }, PLAY_EACH);
  }

  listen() {
    const moves = { first: () => 0, back: () => this.draw - 1, forward: () => this.draw + 1, last: () => Infinity };
    for (const [id, to] of Object.entries(moves)) $(id).addEventListener("click", () => this.go(to()));
    $("play").addEventListener("click", () => this.play());
    $("scrub").addEventListener("input", () => this.go(Number($("scrub").value) - 1));
    $("jump").addEventListener("change", () => {
      const found = this.timeline.find($("jump").value);
      $("jump").setCustomValidity(found < 0 ? "No draw has this name or number" : "");
      if (found >= 0) this.go(found);
    });
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run().catch((error) => this.fail(error));
    });
    const keys = { ArrowRight: moves.forward, ArrowLeft: moves.back, Home: moves.first, End: moves.last };
    document.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, button, summary, a")) return;
      if (keys[event.key]) this.go(keys[event.key]());
      else if (event.key === " ") this.play();
      else return;
      event.preventDefault();
    });
  }

  fail(error) {
    console.error(error);
    $("status").textContent = "";
    $("problem").textContent = sentence(error.message);
    $("problem").hidden = false;
  }
}

const tour = new Tour();
globalThis.tour = tour; // for tests, and for those who look around
await tour.start();
