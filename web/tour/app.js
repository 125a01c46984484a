/** The page of `glinfer tour`: loads the plans, runs a token of each, and lets a person walk through its draws. */

import { $, button, element, sentence } from "../page/elements.js";
import { startTheme } from "../page/theme.js";
import { GlinferError, checkTokens } from "../glinfer/errors.js";
import { computingCanvas, openContext } from "../glinfer/limits.js";
import { loadParts, progressInWords } from "../glinfer/loading.js";
import { Model, textsFor } from "../glinfer/model.js";
import { IdTokenizer } from "../glinfer/tokenizer.js";
import { BreakPanel } from "./break_panel.js";
import { CHAPTERS } from "./chapters.js";
import { checkDraws } from "./checks.js";
import { DrawPanel } from "./draw_panel.js";
import { Guide } from "./guide.js";
import { Recording } from "./recording.js";
import { openTour } from "./source.js";
import { Timeline } from "./timeline.js";
import { showTexel } from "./texel_panel.js";
import { TokenPanel } from "./token_panel.js";
import { shown, titleOf } from "./words.js";

const PLAY_EACH = 350; // milliseconds
const LABELS = { reference: "draws, step by step", fast: "draws, fused", both: "Both" };

/** See the head of this file. */
class Tour {
  constructor() {
    this.models = {};
    this.recordings = {};
    this.main = "reference"; // the plan that everything beside the draws is about
    this.plan = "reference";
    this.view = "reference"; // or "fast", or "both"
    this.draw = 0;
    this.timer = null;
    this.last = Promise.resolve(); // the newest job of `alone`
    this.timeline = new Timeline((draw) => this.go(draw));
    this.panel = new DrawPanel((id) => this.word(id), (row, col) => this.chooseTexel(row, col));
    const word = (id) => this.word(id);
    this.token = new TokenPanel({
      word,
      open: (name, head) => this.openValue(name, head),
      append: (id) => this.rerun([...this.tokens, id]),
      cut: (count) => this.rerun(this.tokens.slice(0, count)),
    });
    this.bugs = new BreakPanel({
      word,
      alone: (job) => this.alone(job),
      recording: () => this.recordings.reference,
      record: () => this.record("reference"),
      go: (draw) => this.visit("reference", draw),
      say: (text) => ($("status").textContent = text),
    });
    this.guide = new Guide({ open: (chapter, moves) => this.openChapter(chapter, moves), verify: () => this.alone(() => this.verify()), draws: (name) => this.models[name === "main" ? this.main : name]?.plan.draws.length, find: (name) => this.find(name) });
  }

  async start() {
    startTheme($("theme"), () => this.repaint());
    matchMedia("print").addEventListener("change", () => this.repaint());
    $("waiting").hidden = true;
    this.listen();
    try {
      const { tour, sourceOf } = await openTour(new URL(".", document.baseURI));
      this.tour = tour;
      $("text").value = tour.text;
      const [first, ...others] = Object.keys(tour.plans);
      [this.main, this.plan, this.view] = [first, first, first];
      await this.load(first, sourceOf);
      const { context } = this.models[first];
      await (this.ids().length > context ? this.rerun(this.ids().slice(0, context)) : this.run(this.ids()));
      if (first === "reference") this.bugs.offer(this.models.reference);
      $("run").disabled = false;
      for (const name of others) {
        await this.load(name, sourceOf);
        await this.alone(() => this.record(name));
      }
      this.offerPlans();
      if (tour.other) $("about").append(" ", element("a", { href: tour.other, textContent: "Another model." }));
      this.guide.start();
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
    const { plan, replay, tables, texts } = await loadParts(context, sourceOf(name), document.baseURI, textsFor, { cache: !this.tour.tensors, onProgress });
    const made = (this.models[name] = new Model(replay, tables, texts, sourceOf(name)));
    made.driver.rows = null; // every draw of the last token is issued, none ahead by a piece of the prompt
    const { model } = plan;
    $("about").textContent = `${model.name}: ${model.parameters.toLocaleString("en")} numbers, ${model.config.num_hidden_layers} blocks. Everything below is computed by this page, in your browser with WebGL2.`;
  }

  /** The tokens of the text; with no tokenizer the text has ids. */
  ids() {
    return (this.models[this.main].tokenizer ?? new IdTokenizer()).encode($("text").value);
  }

  word(id) {
    return this.models[this.main].tokenizer?.decode([id]) ?? String(id);
  }

  /** Runs a job after the jobs before it: two at once would draw into the same textures. */
  alone(job) {
    return (this.last = this.last.catch(() => {}).then(job));
  }

  /** Runs tokens, those of the form if left out, with all plans that are loaded. */
  async run(ids = this.ids()) {
    await this.alone(() => this.recordAll(ids));
  }

  async recordAll(ids) {
    $("problem").hidden = true;
    const { context, vocabulary } = this.models[this.main];
    checkTokens(ids, vocabulary);
    if (!ids.length || ids.length > context) throw new GlinferError(`the text has ${ids.length} tokens; expected 1 to ${context}`);
    this.bugs.heal();
    [this.tokens, this.token.token] = [ids, -1];
    for (const name of Object.keys(this.models)) await this.record(name);
    if (Object.keys(this.tour.plans).every((name) => this.recordings[name])) $("status").textContent = "Ready.";
  }

  /** Runs other tokens, and puts them into the form. */
  async rerun(ids) {
    const { tokenizer, before } = this.models[this.main];
    $("text").value = tokenizer ? tokenizer.decode(ids.slice(before.length)) : ids.join(" ");
    await this.run(ids).catch((error) => this.fail(error));
  }

  /** Runs a plan, and shows its draws as they are issued. */
  async record(name) {
    const recording = new Recording(this.models[name], this.tokens);
    const { draws } = recording.plan;
    const watched = name === this.plan;
    if (watched) this.showPlan();
    await recording.run((draw) => {
      if (draw % 4 !== 3 && draw !== draws.length - 1) return;
      $("status").textContent = `Drawing ${draw + 1} of ${draws.length}…`;
      if (watched) this.timeline.mark(draw, draw + 1);
    });
    this.recordings[name] = recording;
    if (name === this.main) {
      this.token.show(recording, this.tour.plans[name].points);
      this.showTokens();
    }
    if (watched) this.go(Math.min(this.draw, draws.length - 1));
    return recording;
  }

  /** The tokens as buttons, each of which shows the way of its token. */
  showTokens() {
    const buttons = this.tokens.map((id, position) => {
      const made = button("", () => this.chooseToken(position), { title: `token ${position}, id ${id}`, disabled: this.main === "fast" });
      made.append(shown(this.word(id)), element("small", { textContent: String(id) }));
      return made;
    });
    $("tokens").replaceChildren(...buttons.map((each) => element("li", {}, each)));
    this.markToken();
  }

  markToken() {
    [...$("tokens").querySelectorAll("button")].forEach((each, position) => each.setAttribute("aria-pressed", String(position === this.token.position)));
  }

  chooseToken(position) {
    this.token.choose(position);
    this.markToken();
  }

  offerPlans() {
    const names = [...Object.keys(this.models), ...(this.tour.replaced_by ? ["both"] : [])];
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
    const other = this.view === "both" && this.tour.replaced_by[this.draw];
    $("draw-other").textContent = other === false ? "" : `In the fast plan: draw ${other + 1}, ${titleOf(this.models.fast.plan.draws[other])}`;
    $("texel").hidden = true;
  }

  /** Shows how an element of the draw's target came about. */
  chooseTexel(row, col) {
    showTexel(this.recordings[this.plan], this.draw, row, col, (id) => this.word(id));
  }

  /** Shows a draw of a plan, and goes there. */
  visit(view, draw) {
    if (this.view !== view) this.choosePlan(view, draw);
    else this.go(draw);
    $("draw").scrollIntoView({ block: "start" });
  }

  /** Shows the draw of a named value. */
  openValue(name, site = 0) {
    const point = this.tour.plans[this.main].points.find((each) => each.name === name);
    this.visit(this.main, point.sites[Math.min(site, point.sites.length - 1)][0]);
  }

  openChapter({ view, draw, texel, part }, moves) {
    const { draws } = this.models[this.main].plan;
    const found = draw.map((pattern) => draws.findIndex(({ name }) => pattern.test(name))).find((index) => index >= 0);
    this.choosePlan(this.tour.replaced_by && this.models.fast ? view : this.main, found ?? 0);
    if (!moves) return;
    if (texel) this.panel.chooseElement(texel[0] < 0 ? this.tokens.length + texel[0] : texel[0], texel[1]);
    if (matchMedia("(min-width: 75rem)").matches) $(part).scrollIntoView({ block: "start" });
  }

  /** Compares weights and draws; gives a sentence. */
  async verify() {
    const parts = [];
    for (const [name, model] of Object.entries(this.models)) {
      const { ok, checked, different } = await model.verifyTextures();
      const told = ok ? "all identical" : `${different[0].name} differs`;
      parts.push(`Plan ${name}: ${checked.textures} textures, ${checked.bytes.toLocaleString("en")} bytes, ${told}.`);
    }
    const { numbers, wrong } = checkDraws(this.recordings[this.main], (id) => this.word(id));
    parts.push(wrong ? `The first wrong draw is ${titleOf(this.recordings[this.main].plan.draws[wrong.draw])}.` : `${numbers.toLocaleString("en")} numbers from the draws agree with float64.`);
    return parts.join(" ");
  }

  /** Shows the draw of a name or number; false where there is none. */
  find(name) {
    const found = this.timeline.find(name);
    if (found >= 0) this.go(found);
    return found >= 0;
  }

  repaint() {
    if (!this.recordings[this.plan]) return;
    this.panel.repaint();
    this.token.attention.repaint();
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
      const found = this.find($("jump").value);
      $("jump").setCustomValidity(found ? "" : "No draw has this name or number");
    });
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run().catch((error) => this.fail(error));
    });
    const keys = { ArrowRight: moves.forward, ArrowLeft: moves.back, Home: moves.first, End: moves.last };
    document.addEventListener("keydown", (event) => {
      const own = event.key === " " ? "button, summary, a" : "[role=region]"; // what these keys press or scroll
      if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest(`input, textarea, select, ${own}`)) return;
      if (keys[event.key]) this.go(keys[event.key]());
      else if (event.key === " ") this.play();
      else if (/^[1-8]$/.test(event.key)) location.hash = `chapter=${CHAPTERS[Number(event.key) - 1].id}`;
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
