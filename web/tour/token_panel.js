/** The way of one token through the model, from its id to the next word. */

import { $, button, element } from "../page/elements.js";
import { gumbelAt } from "../glinfer/noise.js";
import { Sampler } from "../glinfer/sampler.js";
import { captured } from "./recording.js";
import { TextureView } from "./texture_view.js";
import { number, shown } from "./words.js";

const LISTED = 10; // words
const DETECTORS = 8;
const OPEN = 0.5; // what a detector says at least that counts as open

/** A table with headings, numbers to the right. */
function table(caption, headings, rows) {
  const head = element("tr", {}, ...headings.map((textContent) => (textContent ? element("th", { scope: "col", textContent }) : element("td"))));
  const body = rows.map(({ cells, className = "" }) => element("tr", { className }, ...cells.map((cell) => element("td", {}, cell))));
  return element("table", {}, element("caption", { textContent: caption, className: "unseen" }), element("thead", {}, head), element("tbody", {}, ...body));
}

function bar(share, className = "term plus") {
  const made = element("span", { className });
  made.style.width = `${Math.max(1, 90 * share)}px`;
  return made;
}

/** See the head of this file. */
export class TokenPanel {
  /**
   * @param {object} actions `word(id)` gives a token's text; `open(name)` shows the draw of a named value; `append(id)`
   *   adds a word to the text, `cut(count)` keeps the first tokens, and both run it again.
   */
  constructor(actions) {
    this.actions = actions;
    this.token = -1; // -1: the last one
    this.block = 0;
    this.settings = { temperature: 0.8, topK: 0, topP: 1, seed: 1 };
    this.attention = new TextureView({ height: 200, onPick: (_, head) => this.openHead(head) });
    this.title = element("h2", { id: "token-title" });
    this.hint = element("p", { className: "hint" });
    this.cutter = button("", () => this.actions.cut(this.position + 1));
    this.stream = element("div");
    this.looks = element("div", {}, element("h3", { textContent: "Where it looks" }), this.blockChoice(), this.attention.root);
    this.mlp = element("div");
    this.next = element("div");
    this.rows = element("div", { className: "scroll", tabIndex: 0 });
    this.rows.setAttribute("role", "region");
    this.rows.setAttribute("aria-label", "The likeliest words");
    this.result = element("p", { className: "result" });
    this.result.setAttribute("aria-live", "polite");
    this.next.append(element("h3", { textContent: "The next word" }), this.sliders(), this.rows, this.result);
    $("token").append(this.title, this.hint, this.cutter, element("div", { className: "cards" }, this.stream, this.looks, this.mlp, this.next));
  }

  /** Goes to the draw that has the attention of a head. */
  openHead(head) {
    const name = ["probs", "scores"].map((part) => `blocks.${this.block}.attn.${part}`).find((each) => this.points.has(each));
    this.actions.open(name, head);
  }

  blockChoice() {
    this.select = element("select", { autocomplete: "off" });
    this.select.addEventListener("change", () => {
      this.block = Number(this.select.value);
      this.showBlock();
    });
    return element("label", { className: "hint" }, "Block ", this.select);
  }

  sliders() {
    const made = [
      ["temperature", "Temperature", { min: 0, max: 2, step: 0.05 }],
      ["topK", "Top-k (0: all)", { min: 0, max: 50, step: 1 }],
      ["topP", "Top-p", { min: 0.05, max: 1, step: 0.05 }],
    ].map(([key, label, range]) => {
      const value = element("output");
      const input = element("input", { type: "range", ...range, value: this.settings[key], id: `set-${key}` });
      const tell = () => (value.textContent = input.value);
      input.addEventListener("input", () => {
        this.settings[key] = Number(input.value);
        tell();
        this.showNext();
      });
      tell();
      return element("label", { htmlFor: input.id }, element("span", {}, label, " ", value), input); // else it names the output
    });
    return element("div", { className: "sliders" }, ...made);
  }

  /** The token that is shown. */
  get position() {
    return this.token < 0 ? this.recording.ids.length - 1 : Math.min(this.token, this.recording.ids.length - 1);
  }

  /**
   * Shows a token of a run of the reference plan.
   * @param {import("./recording.js").Recording} recording
   * @param {object[]} points of tour.json.
   */
  show(recording, points) {
    this.recording = recording;
    this.values = new Map();
    this.points = new Map(points.map((point) => [point.name, point]));
    const { num_hidden_layers: blocks } = recording.plan.model.config;
    this.block = Math.min(this.block, blocks - 1);
    this.select.replaceChildren(...Array.from({ length: blocks }, (_, block) => new Option(String(block), String(block), false, block === this.block)));
    this.update();
  }

  /** Shows another token. */
  choose(token) {
    this.token = token;
    this.update();
  }

  update() {
    const { ids } = this.recording;
    const [position, last] = [this.position, ids.length - 1];
    this.title.textContent = `The path of “${shown(this.actions.word(ids[position]))}”, token ${position}`;
    this.hint.textContent = `Its id in the vocabulary is ${ids[position]}. The id picks a row of the embedding table; every block adds to that row; the last row becomes the next word.`;
    this.cutter.textContent = `End the text after “${shown(this.actions.word(ids[position]))}”`;
    this.cutter.hidden = position === last;
    this.showStream();
    this.showBlock();
    this.showNext();
  }

  /** A named value, whose mean may be taken away, or null where the plan does not have it. */
  value(name) {
    const point = this.points.get(name) ?? this.points.get(`${name}.centred`);
    if (!point) return null;
    if (!this.values.has(name)) this.values.set(name, captured(this.recording, point));
    return this.values.get(name);
  }

  /** The numbers of a token in a named value of one row a token; a fast plan has those of the last token alone. */
  row(name) {
    const found = this.value(name);
    const line = found?.rows === 1 ? 0 : this.position;
    return found && found.values.subarray(line * found.cols, (line + 1) * found.cols);
  }

  /** How much of each token every head takes, [heads × tokens]; null where the plan does not have it. */
  shares() {
    const { length } = this.recording.ids;
    const probs = this.value(`blocks.${this.block}.attn.probs`);
    const found = probs ?? this.value(`blocks.${this.block}.attn.scores`);
    if (!found) return null;
    const heads = this.recording.plan.driver === "fast" ? found.rows : found.rows / length;
    const line = this.recording.plan.driver === "fast" ? 0 : this.position;
    const values = new Float32Array(heads * length);
    for (let head = 0; head < heads; head++) {
      const start = ((head * found.rows) / heads + line) * length;
      values.set(found.values.subarray(start, start + length).map(probs ? Number : Math.exp), head * length);
      const row = values.subarray(head * length, (head + 1) * length);
      const sum = row.reduce((total, each) => total + each, 0);
      if (!probs) row.forEach((each, index) => (row[index] = each / sum));
    }
    return { heads, values };
  }

  showStream() {
    const names = ["embed"];
    const { num_hidden_layers: blocks } = this.recording.plan.model.config;
    for (let block = 0; block < blocks; block++) names.push(`blocks.${block}.resid_mid`, `blocks.${block}.resid_post`);
    const norms = names.map((name) => [name, this.row(name)]).filter(([, row]) => row).map(([name, row]) => [name, Math.hypot(...row)]);
    const largest = Math.max(...norms.map(([, norm]) => norm));
    const label = (name) => name.replace("blocks.", "block ").replace(".resid_mid", " + attention").replace(".resid_post", " + MLP");
    const rows = norms.map(([name, norm]) => ({ cells: [button(label(name), () => this.actions.open(this.points.has(name) ? name : `${name}.centred`), { className: "link" }), bar(norm / largest), number(norm)] }));
    this.stream.replaceChildren(element("h3", { textContent: "Its stream grows" }), element("p", { className: "hint", textContent: "The length of its row of numbers, after each step that adds to it." }), table("Length of the stream", ["after", "", "length"], rows));
  }

  showBlock() {
    const { ids } = this.recording;
    const shares = this.shares();
    this.looks.hidden = !shares;
    if (shares) {
      const { heads, values } = shares;
      const word = (position) => shown(this.actions.word(ids[position]));
      const label = (x, y) => `head ${y} gives token ${x} “${word(x)}” ${(100 * values[y * ids.length + x]).toFixed(1)}%`;
      const lines = Array.from({ length: heads }, (_, head) => `head ${head}`);
      this.attention.show({ width: ids.length, height: heads, values, name: `Attention of block ${this.block}`, label, lines, columns: ids.map((_, position) => word(position)) });
    }
    const hidden = this.row(`blocks.${this.block}.mlp.hidden`);
    this.mlp.hidden = !hidden;
    if (!hidden) return;
    const order = [...hidden.keys()].sort((one, other) => Math.abs(hidden[other]) - Math.abs(hidden[one]));
    const open = hidden.filter((value) => value > OPEN).length;
    const largest = Math.abs(hidden[order[0]]) || 1;
    const rows = order.slice(0, DETECTORS).map((index) => ({ cells: [`detector ${index}`, bar(Math.abs(hidden[index]) / largest, hidden[index] < 0 ? "term minus" : "term plus"), number(hidden[index])] }));
    this.mlp.replaceChildren(element("h3", { textContent: `What the MLP of block ${this.block} detects` }), element("p", { className: "hint", textContent: `${open} of ${hidden.length} detectors are open, with more than ${OPEN}. The strongest:` }), table("Strongest detectors", ["", "", "value"], rows));
  }

  /** The likeliest words, what the sampler leaves of them, and the one that it draws. */
  showNext() {
    const { ids } = this.recording;
    const found = this.value("logits");
    this.next.hidden = !found;
    if (!found) return;
    const logits = found.values;
    const { temperature, topK, topP, seed } = this.settings;
    const sampler = new Sampler({ temperature, topK, topP, seed });
    const largest = logits.reduce((most, each) => Math.max(most, each));
    const kept = new Set(sampler.greedy ? [logits.indexOf(largest)] : sampler.kept(logits, largest));
    const weight = (id) => (kept.has(id) ? Math.exp((logits[id] - largest) / (sampler.greedy ? 1 : temperature)) : 0);
    const total = [...kept].reduce((sum, id) => sum + weight(id), 0);
    const key = sampler.noiseKey();
    const chosen = sampler.sample(logits);
    const order = [...logits.keys()].sort((one, other) => logits[other] - logits[one]);
    const listed = order.slice(0, LISTED);
    if (!listed.includes(chosen)) listed.push(chosen);
    const rows = listed.map((id) => {
      const share = weight(id) / total;
      const score = sampler.greedy ? "" : kept.has(id) ? number(logits[id] / temperature + gumbelAt(key, id)) : "cut";
      const cells = [shown(this.actions.word(id)), number(logits[id]), bar(share), `${(100 * share).toFixed(1)}%`, sampler.greedy || !kept.has(id) ? "" : number(gumbelAt(key, id)), score];
      return { cells, className: id === chosen ? "chosen" : kept.has(id) ? "" : "quiet" };
    });
    this.rows.replaceChildren(table("The likeliest words", ["word", "logit", "", "share", "luck", "score"], rows));
    const why = sampler.greedy ? "Temperature 0 takes the likeliest word." : "Logit ÷ temperature plus luck is the score; the highest score wins. So a word wins as often as its share says.";
    const word = shown(this.actions.word(chosen));
    this.result.replaceChildren(`${why} `, element("b", { textContent: `“${word}” wins.` }), " ",
      button("Draw again", () => this.again()), " ", button(`Append “${word}”`, () => this.actions.append(chosen)));
    this.result.hidden = this.position !== ids.length - 1;
    this.chosen = chosen;
  }

  again() {
    this.settings.seed += 1;
    this.showNext();
  }
}
