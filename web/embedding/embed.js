/**
 * Vectors of texts in the browser, and scores of pairs: an exported model that makes them. The browser's side of
 * glinfer/engine/embed.py.
 *
 *   const model = await load("site/");
 *   const [vector] = await model.embed(["a cat"]); // Float32Array
 */

import { GlinferError, checkOptions, optionsOf, shown } from "../glinfer/errors.js";
import { linesOf, positionOf } from "../glinfer/layouts.js";
import { computingCanvas, openContext } from "../glinfer/limits.js";
import { checksumsOf, loadParts } from "../glinfer/loading.js";
import { TableTexels } from "../glinfer/rows.js";
import { fetchSource, folderAddress } from "../glinfer/source.js";
import { TextureChecker } from "../glinfer/verify.js";
import { encodeFeed, runsOf } from "./feed.js";
import { WordTokenizer } from "./words.js";

/** @typedef {import("../glinfer/loading.js").LoadOptions} LoadOptions */
/** @typedef {import("../glinfer/replay.js").Replay} Replay */
/** @typedef {import("../glinfer/source.js").Source} Source */

const SHORTEST = 1e-12; // as PyTorch's normalize does it: a vector of zeros stays one

/**
 * Loads an exported model that embeds texts.
 * @param {string|URL} base the address of the exported folder.
 * @param {LoadOptions & {canvas?: HTMLCanvasElement|OffscreenCanvas}} given see ../glinfer/loading.js; `canvas`: the one
 *   whose context computes.
 * @returns {Promise<EmbeddingModel>}
 * @throws {GlinferError} the browser lacks something, a file is missing or damaged, or the model embeds no texts.
 */
export async function load(base, given = {}) {
  const { canvas = computingCanvas(), ...options } = optionsOf(given);
  const address = folderAddress(base);
  const source = fetchSource(address);
  const { replay, tables, texts } = await loadParts(openContext(canvas), source, address, wordsFor, options);
  return new EmbeddingModel(replay, tables, texts, source);
}

/**
 * The tokenizer of a model.
 * @param {object} plan
 * @param {object|null} tokenizer tokenizer.json.
 * @returns {WordTokenizer}
 * @throws {GlinferError} the model embeds no texts, or the tokenizer cannot be run here.
 */
export function wordsFor(plan, tokenizer) {
  if (plan.driver === "encode" && tokenizer) return new WordTokenizer(tokenizer, plan.embedding);
  throw new GlinferError("this site has a model that generates text; expected an embedding model");
}

/** A model that makes vectors of texts, bound to WebGL2. */
export class EmbeddingModel {
  /**
   * @param {Replay} replay the bound plan.
   * @param {Map<string, Int32Array|Uint32Array>} tables line_checksums.
   * @param {WordTokenizer} tokenizer
   * @param {Source|null} source where the files came from, for `verifyTextures`.
   */
  constructor(replay, tables, tokenizer, source = null) {
    const { plan } = replay;
    this.plan = plan;
    this.replay = replay;
    this.tokenizer = tokenizer;
    this.checker = new TextureChecker(replay, checksumsOf(tables), source);
    const { rows, texts, vectors } = plan.embedding;
    this.inputs = { rows: this.replay.textures[rows], texts: this.replay.textures[texts] };
    this.tables = {
      rows: new TableTexels(this.inputs.rows.spec.layout),
      texts: new TableTexels(this.inputs.texts.spec.layout),
    };
    this.targets = vectors.length;
    this.vectorLayout = plan.textures[vectors[0]].layout;
    /** @type {Promise<any>} */
    this.turn = Promise.resolve(); // one call after another: they share the tables
  }

  /** How many numbers a whole vector has. */
  get dimensions() {
    return this.vectorLayout.cols;
  }

  /** Draw calls issued so far. */
  get drawsIssued() {
    return this.replay.drawsIssued;
  }

  /**
   * The vectors of texts. Texts that are too long for the model are cut at their end. A text's vector does not depend on the
   * other texts.
   * @param {(string|number[])[]} texts strings, or token ids with their special tokens.
   * @param {{promptName?: string, prompt?: string, dimensions?: number, normalize?: boolean, signal?: AbortSignal,
   *   onProgress?: (done: number, all: number) => void}} options `promptName`: one of the model's prompts, put
   *   before each text, by default the model's own default; `prompt`: a text of your own; `dimensions`: length of each
   *   vector, cut to its first numbers; `normalize`: whether vectors have length 1, by default as the model's files say;
   *   `signal` stops the work between two runs.
   * @returns {Promise<Float32Array[]>} one for each text.
   * @throws {GlinferError} a text or an option cannot be run, the output is broken, or the graphics context was lost.
   */
  async embed(texts, options = {}) {
    const known = ["promptName", "prompt", "dimensions", "normalize", "signal", "onProgress"];
    const { promptName, prompt, dimensions, normalize, signal, onProgress = () => {} } = checkOptions(options, known);
    const { normalizes } = this.plan.embedding;
    if (this.ranks) throw new GlinferError("this model scores pairs of texts and has no vectors; use rerank");
    if (dimensions !== undefined && !(Number.isInteger(dimensions) && dimensions >= 1 && dimensions <= this.dimensions)) {
      throw new GlinferError(`dimensions is ${shown(dimensions)}; expected an integer from 1 to ${this.dimensions}`);
    }
    const before = this.prompt(promptName, prompt);
    const found = await this.inTurn(this.encode(texts, before), signal, onProgress);
    return found.map((vector) => finished(vector, dimensions ?? this.dimensions, normalize ?? normalizes));
  }

  /** Whether the model scores pairs of texts. */
  get ranks() {
    return this.plan.embedding.ranks !== null;
  }

  /**
   * Texts with their scores for a query, best first, as `model.rerank` in Python: scores of pairs by a model that was
   * trained on them, cosines by one that embeds texts.
   * @param {string} query what the texts shall answer.
   * @param {string[]} texts
   * @param {{signal?: AbortSignal, onProgress?: (done: number, all: number) => void}} options see `embed`.
   * @returns {Promise<{index: number, score: number}[]>}
   * @throws {GlinferError} as `embed`.
   */
  async rerank(query, texts, options = {}) {
    const { signal, onProgress = () => {} } = checkOptions(options, ["signal", "onProgress"]);
    if (!Array.isArray(texts)) throw new GlinferError(`the texts are ${shown(texts)}; expected an array of them`);
    [query, ...texts].forEach((text, index) => {
      if (typeof text === "string") return;
      throw new GlinferError(`${index ? `text ${index - 1}` : "the query"} is ${shown(text)}; expected a string`);
    });
    if (this.ranks) {
      const pairs = texts.map((text) => ({ ...this.tokenizer.encodePair(query, text), skipped: 0 }));
      const found = await this.inTurn(pairs, signal, onProgress);
      const { squashes } = this.plan.embedding.ranks;
      return ranked(found.map(([score]) => (squashes ? 1 / (1 + Math.exp(-score)) : score)));
    }
    const encoded = (each, ...names) => this.encode(each, this.prompt(this.promptAmong(...names)));
    const all = [...encoded([query], "query"), ...encoded(texts, "document", "passage")];
    const [asked, ...vectors] = (await this.inTurn(all, signal, onProgress)).map((vector) => finished(vector, this.dimensions, true));
    return ranked(vectors.map((vector) => vector.reduce((sum, each, index) => sum + each * asked[index], 0)));
  }

  /** The vectors of encoded texts, once earlier calls are done. */
  inTurn(encoded, signal, onProgress) {
    const run = this.turn.then(() => this.run(encoded, signal, onProgress));
    this.turn = run.catch(() => {});
    return run;
  }

  /** The text that stands before each text. */
  prompt(name, text) {
    const { prompts, default_prompt: usual } = this.plan.embedding;
    if (text !== undefined) {
      if (name !== undefined) throw new GlinferError("found both promptName and prompt; give one of them");
      if (typeof text !== "string") throw new GlinferError(`the prompt is ${shown(text)}; expected a string`);
      return text;
    }
    if (name !== undefined && !Object.hasOwn(prompts, name)) {
      const known = Object.keys(prompts).map((each) => `"${each}"`).join(", ") || "none";
      throw new GlinferError(`there is no prompt "${name}"; this model has ${known}; give its text with prompt`);
    }
    return Object.hasOwn(prompts, name ?? usual) ? prompts[name ?? usual] : "";
  }

  /**
   * The name of the first of these prompts that the model has.
   * @param {...string} names
   * @returns {string|undefined} undefined where it has none of them, which stands for its default.
   */
  promptAmong(...names) {
    return names.find((name) => Object.hasOwn(this.plan.embedding.prompts, name));
  }

  /** The tokens of texts behind a prompt, and how many of the first do not count for the vector. */
  encode(texts, before) {
    if (!Array.isArray(texts)) throw new GlinferError(`the texts are ${shown(texts)}; expected an array of them`);
    const { config } = this.plan.model;
    const most = config.max_position_embeddings;
    const skipped = this.plan.embedding.counts_prompt || !before ? 0 : this.tokenizer.lengthOf(before);
    return texts.map((text, index) => {
      if (typeof text !== "string" && !Array.isArray(text)) {
        throw new GlinferError(`text ${index} is ${shown(text)}; expected a string, or token ids`);
      }
      const ids = typeof text === "string" ? this.tokenizer.encode(before + text) : text;
      const odd = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= config.vocab_size);
      if (odd !== undefined) {
        throw new GlinferError(`text ${index} has the token ${odd}; this vocabulary has ids 0 to ${config.vocab_size - 1}`);
      }
      if (!ids.length || ids.length > most) {
        throw new GlinferError(`text ${index} has ${ids.length} tokens; expected 1 to ${most}`);
      }
      return { ids, skipped };
    });
  }

  /** A run of the plan at a time. */
  async run(encoded, signal, onProgress) {
    const { tables, inputs, targets, replay } = this;
    const most = tables.rows.layout.rows;
    const size = { rows: () => replay.rowsOf(null, { most, targets }), texts: tables.texts.layout.rows, targets };
    const found = new Array(encoded.length);
    let done = 0;
    for (const run of runsOf(encoded.map(({ ids }) => ids.length), size)) {
      signal?.throwIfAborted();
      const texts = run.map((index) => encoded[index]);
      const given = encodeFeed(tables, texts, { targets, ...this.plan.embedding });
      for (const name of ["rows", "texts"]) inputs[name].upload(tables[name].texels);
      replay.run(given);
      await replay.finished();
      this.vectors(texts.length).forEach((vector, index) => (found[run[index]] = vector));
      done += run.length;
      onProgress(done, encoded.length);
    }
    return found;
  }

  /** The vectors of the first texts, text `targets` · slot + n in slot `slot` of texture n. */
  vectors(count) {
    const { targets, dimensions, vectorLayout: layout, replay } = this;
    const [width, height] = [layout.width, linesOf(layout, Math.ceil(count / targets))];
    const texels = this.plan.embedding.vectors.map((texture) => replay.read(texture, width, height));
    return Array.from({ length: count }, (_, text) => {
      const slot = Math.floor(text / targets);
      const from = texels[text % targets];
      const vector = Float32Array.from({ length: dimensions }, (_, col) => {
        const { x, y, channel } = positionOf(layout, slot, col);
        return from[4 * (y * width + x) + channel];
      });
      if (!vector.every(Number.isFinite)) {
        throw new GlinferError("a vector contains NaN or infinity; expected finite numbers: the model's output is broken");
      }
      return vector;
    });
  }

  /** Compares textures with the exported files, see `Model.verifyTextures` in ../glinfer/model.js. */
  async verifyTextures(options = {}) {
    const { share = 1 } = checkOptions(options, ["share"]);
    return this.checker.verify(share);
  }

  /** Releases all graphics memory. */
  release() {
    this.replay.release();
  }
}

/** Indices with their scores, best first; of equal ones the first. */
function ranked(scores) {
  const found = Array.from(scores, (score, index) => ({ index, score }));
  return found.sort((one, other) => other.score - one.score || one.index - other.index);
}

/** The first numbers of a vector, of length 1 where that is wanted. */
function finished(vector, dimensions, unit) {
  const cut = vector.slice(0, dimensions);
  if (!unit) return cut;
  const length = Math.max(Math.sqrt(cut.reduce((sum, each) => sum + each * each, 0)), SHORTEST);
  return cut.map((each) => each / length);
}
