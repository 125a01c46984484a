/** One draw: its target, what it read, its size and cost, and its shader. */

import { $, element } from "../page/elements.js";
import { assemble } from "../glinfer/program.js";
import { evaluate, rectangleOf } from "../glinfer/values.js";
import { elementFinder, elementPosition } from "./elements.js";
import { TextureView } from "./texture_view.js";
import { bytes, exactly, sentenceOf, shown, titleOf } from "./words.js";

const OUTPUT_HEIGHT = 340;
const INPUT_HEIGHT = 150;
const WIDTHS = { r32f: 4, r32i: 4, rgba32f: 16, rgba16f: 8, rgba8i: 4, rgba32i: 16, rgba32ui: 16 };

/** Multiply-adds of a draw by its shader: from the defines, the numbers of its viewport, the tokens so far, and the columns. */
const WORK = {
  "linear.frag": ({ IN }, numbers) => IN * numbers,
  "layer_norm.frag": ({ DIM }, numbers) => 3 * DIM * numbers,
  "attention_scores.frag": ({ HEAD_DIM }, numbers) => HEAD_DIM * numbers,
  "attention_values.frag": (_, numbers, tokens) => tokens * numbers,
  "softmax.frag": (_, numbers, tokens) => tokens * numbers,
  "embed.frag": (_, numbers) => numbers,
  "concat_head.frag": () => 0,
  "gemm.frag": ({ INPUTS }, numbers, tokens, cols) => INPUTS * cols,
  "cached_scores.frag": ({ HEAD_TEXELS, HEADS }, numbers, tokens) => 4 * HEAD_TEXELS * HEADS * tokens,
  "cached_values.frag": ({ HEAD_TEXELS, HEADS }, numbers, tokens) => 4 * HEAD_TEXELS * HEADS * tokens,
  "embed_token.frag": (_, numbers, tokens, cols) => cols,
};

/** The elements of a head. */
function headOf({ model: { config } }) {
  return config.head_dim ?? config.hidden_size / config.num_attention_heads;
}

/** Whether columns are tokens that others look at. Sizes do not tell: a context can be as long as the stream is wide. */
const isSquare = ({ name }) => /^attn\.(scores|probs)$/.test(name);

/** See the head of this file. */
export class DrawPanel {
  /**
   * @param {(word: (id: number) => string) => void} wordOf the text of a token.
   * @param {(row: number, col: number, texture: number) => void} onPick is called for an element of the target.
   */
  constructor(wordOf, onPick) {
    this.wordOf = wordOf;
    this.onPick = onPick;
    this.output = new TextureView({ height: OUTPUT_HEIGHT, onPick: (x, y) => this.pick(x, y) });
    this.title = element("h3");
    $("output").append(this.title, this.output.root);
    this.inputs = new Map(); // views by sampler
    this.open = null; // the draw whose shader is shown
    $("shader").addEventListener("toggle", () => this.showSource());
  }

  /** Shows a draw of a recording. */
  show(recording, index) {
    this.recording = recording;
    this.index = index;
    const { plan, steps } = recording;
    const draw = plan.draws[index];
    const step = steps[index];
    $("draw-number").textContent = `Draw ${index + 1} of ${plan.draws.length}  ·  ${draw.name}`;
    $("draw-title").textContent = titleOf(draw);
    $("draw-words").textContent = sentenceOf(draw.kind);
    const [target] = step.outputs;
    this.find = this.finder(target);
    this.title.textContent = `What it wrote: ${plan.textures[target.texture].name}`;
    this.output.show(this.picture(target, this.find));
    this.showInputs(draw);
    this.showFacts(draw, step);
    this.showSource();
  }

  /** The element at a number of a picture. */
  finder(texels) {
    const { layout } = this.recording.plan.textures[texels.texture];
    const find = elementFinder(layout, this.rowsOf(layout));
    return (x, y) => find(texels.x + Math.floor(x / texels.channels), texels.y + y, x % texels.channels);
  }

  /** The rows of a matrix that are in use: the tokens so far, or all. */
  rowsOf({ rows }) {
    const { context } = this.recording.model;
    return Array.from({ length: rows === context ? Math.min(rows, this.recording.ids.length) : rows }, (_, row) => row);
  }

  /** @returns {import("./texture_view.js").Shown} */
  picture(texels, find = this.finder(texels)) {
    const { plan, ids, model } = this.recording;
    const spec = plan.textures[texels.texture];
    const wide = texels.width * texels.channels;
    const { hidden_size: dim } = plan.model.config;
    const head = headOf(plan);
    const perToken = spec.kind !== "weight" && spec.layout.kind === "matrix" && spec.layout.rows === model.context && texels.height <= ids.length;
    const square = isSquare(spec);
    const words = ids.map((id) => shown(this.wordOf(id)));
    return {
      width: wide,
      height: texels.height,
      values: texels.values,
      name: spec.name,
      label: (x, y) => {
        const element = find(x, y);
        const at = `texel (${texels.x + Math.floor(x / texels.channels)}, ${texels.y + y})${texels.channels > 1 ? `.${"rgba"[x % texels.channels]}` : ""}`;
        return `${element ? this.describe(spec, element) : "padding"}  ·  ${at}  ·  ${exactly(texels.values[y * wide + x])}`;
      },
      lines: perToken ? words : undefined,
      columns: perToken && square && wide === ids.length ? words : undefined,
      stripe: perToken && !square && wide === dim ? head : 0,
    };
  }

  /** What an element is: its token, head, word, or its row and column. */
  describe({ kind, name, layout }, { row, col }) {
    const { ids, plan, model } = this.recording;
    const { hidden_size: dim, vocab_size: vocabulary } = plan.model.config;
    const head = headOf(plan);
    const token = (position) => `token ${position} “${shown(this.wordOf(ids[position]))}”`;
    if (kind === "weight") {
      if (layout.rows === vocabulary) return `word “${shown(this.wordOf(row))}”, column ${col}`;
      return layout.rows === 1 ? `column ${col}` : `output ${row}, input ${col ?? "?"}`;
    }
    if (layout.cols === vocabulary && layout.rows === 1) return `word “${shown(this.wordOf(col))}”`;
    if (layout.rows !== model.context || row >= ids.length) return layout.rows === 1 ? `element ${col}` : `row ${row}, column ${col}`;
    if (isSquare({ name }) && col < ids.length) return `${token(row)} looks at ${token(col)}`;
    if (kind === "input") return token(row);
    return layout.cols === dim && /^(q|k|v|joined)/.test(name) ? `${token(row)}, head ${Math.floor(col / head)}, element ${col % head}` : `${token(row)}, element ${col}`;
  }

  showInputs(draw) {
    const { recording, index } = this;
    const { samplers } = recording.plan.programs[draw.program];
    const figures = recording.steps[index].inputs.map((texture, unit) => {
      const sampler = samplers[unit];
      if (!this.inputs.has(sampler)) {
        const view = new TextureView({ height: INPUT_HEIGHT });
        const caption = element("figcaption");
        this.inputs.set(sampler, { view, caption, figure: element("figure", {}, caption, view.root) });
      }
      const { view, caption, figure } = this.inputs.get(sampler);
      const texels = recording.before(texture, index);
      const spec = recording.plan.textures[texture];
      const from = recording.writer(texture, index);
      const what = from >= 0 ? `written by draw ${from + 1}` : { weight: "weights of the model", input: "input" }[spec.kind] ?? "cache";
      caption.replaceChildren(element("b", { textContent: sampler }), ` ${spec.name}, ${texels.width} × ${texels.height} texels, ${what}`);
      return { figure, show: () => view.show(this.picture(texels)) };
    });
    $("inputs").replaceChildren(...figures.map(({ figure }) => figure));
    for (const { show } of figures) show();
  }

  showFacts(draw, { outputs: [target], milliseconds, gpu, error }) {
    const { plan, values, ids } = this.recording;
    const { fragment, defines } = plan.programs[draw.program];
    const size = ({ width, height, texture }) => width * height * WIDTHS[plan.textures[texture].format];
    const read = draw.inputs.map((texture) => size(this.recording.before(texture, this.index))).reduce((sum, each) => sum + each, 0);
    const numbers = target.width * target.height * target.channels;
    const { cols } = plan.textures[target.texture].layout;
    const [, , width, height] = rectangleOf(draw.viewport, values);
    const uniforms = [...Object.entries(draw.uniforms), ...Object.entries(draw.per_run).map(([name, key]) => [name, values[key]])];
    const facts = {
      Shader: fragment,
      Viewport: `${width} × ${height} texels`,
      Vertices: evaluate(draw.vertices, values).toLocaleString("en"),
      "Multiply-adds": WORK[fragment] ? WORK[fragment](defines, numbers, ids.length, cols).toLocaleString("en") : "not counted",
      Read: `${bytes(read)} from ${draw.inputs.length} texture${draw.inputs.length === 1 ? "" : "s"}`,
      Written: bytes(size(target)),
      Uniforms: uniforms.map(([name, value]) => `${name} = ${value}`).join(", ") || "none",
      Time: gpu === null ? `${milliseconds.toFixed(1)} ms with reading back` : gpu < 1e6 ? `${(gpu / 1000).toFixed(1)} µs` : `${(gpu / 1e6).toFixed(1)} ms`,
      "OpenGL": error ?? "no error",
    };
    $("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
  }

  /** The source of the shader as it is compiled; lines of included files are folded. */
  showSource() {
    const { plan, model } = this.recording ?? {};
    if (!plan || !$("shader").open) return;
    const { fragment, defines } = plan.programs[plan.draws[this.index].program];
    const { text, origin } = assemble(fragment, defines, model.replay.shaders);
    const parts = [];
    text.split("\n").forEach((line, number) => {
      const [file, from] = origin[number] ?? [];
      if (file === undefined) return;
      if (parts.at(-1)?.file !== file) parts.push({ file, from, lines: [] });
      parts.at(-1).lines.push(line);
    });
    $("source").replaceChildren(...parts.map(({ file, from, lines }) => {
      const code = element("pre", { tabIndex: 0, textContent: lines.join("\n") });
      code.setAttribute("aria-label", `Lines of ${file} from ${from}`);
      code.setAttribute("role", "region");
      if (file === fragment) return code;
      return element("details", {}, element("summary", { textContent: `${file}: ${lines.length} lines` }), code);
    }));
  }

  /** Chooses an element of the target. */
  chooseElement(row, col) {
    const [target] = this.recording.steps[this.index].outputs;
    const { layout } = this.recording.plan.textures[target.texture];
    const position = elementPosition(layout, Math.min(row, layout.rows - 1), Math.min(col, layout.cols - 1));
    this.output.choose((position.x - target.x) * target.channels + position.channel, position.y - target.y);
  }

  repaint() {
    for (const view of [this.output, ...[...this.inputs.values()].map((each) => each.view)]) view.repaint();
  }

  pick(x, y) {
    const found = this.find(x, y);
    if (found) this.onPick(found.row, found.col);
  }
}
