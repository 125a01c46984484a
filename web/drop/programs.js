/** The ready program for a GGUF file: the one of its shape; see glinfer/export/drop.py. */

import { GlinferError } from "../glinfer/errors.js";
import { quoted, Unread } from "./gguf.js";
import { repeated } from "./repeat.js";

const ROPE_FREQS = "rope_freqs.weight";
const USUAL = "Q8_0"; // the embeddings of `plan`
const MEGABYTE = 1e6;
/** The settings that make a shape; the others are named by their own. */
const SIZES = ["embedding_length", "block_count", "feed_forward_length", "attention.head_count", "attention.head_count_kv", "attention.key_length"];
/** Settings with these beginnings change what is computed, also those that no program names. */
const COMPUTES = ["attention.", "rope."];

/**
 * The shape of a file.
 * @param {import("./gguf.js").GgufHeader} header
 * @param {{shapes: object[]}} tables `drop` of the site's plan.json.
 * @returns {object} an entry of `shapes`, with what the file's blocks take.
 * @throws {GlinferError} the architecture, the shape or a setting is not known here.
 */
export function shapeOf({ source, metadata }, { shapes }) {
  const architecture = metadata.get("general.architecture");
  const known = [...new Set(shapes.map((shape) => shape.architecture))].join(", ");
  if (architecture === undefined) throw new GlinferError(`${source}: found no general.architecture; expected one of those known: ${known}`);
  const kind = metadata.get("general.type") ?? "model";
  if (kind !== "model") throw new GlinferError(`${source}: its general.type is ${quoted(kind)}; expected a model`);
  const candidates = shapes.filter((shape) => shape.architecture === architecture);
  if (!candidates.length) {
    throw new GlinferError(`${source}: found architecture ${quoted(architecture)}, which is not supported here; expected one of: ${known}; ${advice(source)}`);
  }
  const keys = new Map([...metadata].filter(([key]) => key.startsWith(`${architecture}.`)).map(([key, value]) => [key, shared(value)]));
  const problems = candidates.map((shape) => problemOf(shape, keys));
  const found = problems.indexOf(null);
  if (found >= 0) return withBlocks(candidates[found], keys.get(`${architecture}.block_count`));
  const near = problems.findIndex(({ key }) => !SIZES.includes(key.slice(architecture.length + 1)));
  if (near >= 0) throw new GlinferError(`${source}: ${problems[near].words}, as in ${candidates[near].name}; ${advice(source)}`);
  const sizes = SIZES.slice(0, 5).map((name) => `${name} ${quoted(keys.get(`${architecture}.${name}`) ?? "none")}`);
  const names = candidates.map((shape) => shape.name).join(", ");
  throw new GlinferError(`${source}: its shape (${architecture}: ${sizes.join(", ")}) has no program here; expected ${names}; ${advice(source)}`);
}

function withBlocks(shape, blocks) {
  const [usual] = shape.keys[`${shape.architecture}.block_count`];
  if (blocks === usual) return shape;
  const { weights, all, group } = shape.bytes;
  const further = ((blocks - usual) / shape.repeats[1]) * group;
  return { ...shape, name: `${shape.name} with ${blocks} blocks`, bytes: { ...shape.bytes, weights: weights + further, all: all + further } };
}

function advice(source) {
  return `make a page for it with: glinfer export-web ${source} site/`;
}

/** A list with one value for each layer counts as the value that all share. */
function shared(value) {
  return Array.isArray(value) && value.length && value.every((each) => each === value[0]) ? value[0] : value;
}

/** The first setting that a file has otherwise than a shape, the sizes first; null if there is none. */
function problemOf({ architecture, keys, free, required, context }, found) {
  const before = `${architecture}.`;
  const names = [...new Set([...SIZES.map((name) => before + name), ...Object.keys(keys), ...found.keys()])];
  for (const key of names) {
    const value = found.get(key);
    const expected = keys[key];
    if (value === undefined) {
      if (required.includes(key)) return { key, words: `${key} is missing; expected ${quoted(expected[0])}` };
    } else if (free.includes(key)) {
      if (!(value > 1 && value < Infinity)) return { key, words: `${key} is ${quoted(value)}; expected a number above 1` };
    } else if (expected === undefined) {
      if (COMPUTES.some((name) => key.startsWith(before + name))) return { key, words: `${key} is ${quoted(value)}; expected no such setting` };
    } else if (key === `${before}context_length`) {
      if (!(Number.isInteger(value) && value >= context)) return { key, words: `${key} is ${quoted(value)}; expected ${context} or more` };
    } else if (value instanceof Unread || !expected.some((each) => same(each, value))) {
      return { key, words: `${key} is ${shown(value)}; expected ${expected.map(shown).join(" or ")}` };
    }
  }
  return null;
}

/** A value for a message; files have float32. */
function shown(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(7))) : quoted(value);
}

/** Whether a value of a program, a decimal, is that of a file, a float32. */
function same(expected, value) {
  if (typeof expected === "number" && typeof value === "number") return Math.fround(expected) === Math.fround(value);
  return JSON.stringify(shared(expected)) === JSON.stringify(value);
}

/**
 * The program for a file, its plan being the one for the file's blocks, vocabulary and format of embeddings.
 * @param {import("./gguf.js").GgufHeader} header
 * @param {object} program of the file's shape.
 * @param {{readable: string[]}} tables
 * @returns {object}
 * @throws {GlinferError} a tensor is missing, unknown, of another shape, or of a type that is not known here.
 */
export function programFor({ source, metadata, tensors }, program, { readable }) {
  const { sizes, tensors: byToken } = program.tokens;
  const architecture = metadata.get("general.architecture");
  const value = (name) => metadata.get(`${architecture}.${name}`);
  const [embeddings] = byToken;
  const tokens = value("vocab_size") ?? tensors.get(embeddings)?.shape[0];
  const size = sizes.includes(tokens) ? tokens : sizes[0];
  const made = repeated({ ...program, plan: planFor(program, tensors.get(embeddings)?.type, size) }, value("block_count"));
  const expected = { ...made.tensors };
  for (const [name, shape] of Object.entries(program.optional)) if (tensors.has(name)) expected[name] = shape;
  if (program.factors) expected[ROPE_FREQS] = [program.factors.length];
  for (const name of byToken) if (expected[name]) expected[name] = [size, ...expected[name].slice(1)];
  check({ source, tensors }, expected, readable, value("block_count"), sizes);
  const config = { ...made.plan.model.config, num_hidden_layers: value("block_count") };
  const counted = Object.keys(made.tensors).reduce((sum, name) => sum + expected[name].reduce((product, edge) => product * edge), 0);
  made.plan.model = { ...made.plan.model, parameters: counted, draws_per_token: made.plan.draws.length, config };
  return made;
}

/** Compares the tensors of a file with those that are expected. */
function check({ source, tensors }, expected, readable, blocks, sizes) {
  const counts = `found ${tensors.size} tensors, expected ${Object.keys(expected).length} for ${blocks} blocks`;
  const missing = Object.keys(expected).find((name) => !tensors.has(name));
  if (missing !== undefined) throw new GlinferError(`${source}: tensor ${quoted(missing)} is missing; ${counts}`);
  const unknown = [...tensors.keys()].find((name) => !Object.hasOwn(expected, name));
  if (unknown !== undefined) throw new GlinferError(`${source}: unknown tensor ${quoted(unknown)}; ${counts}`);
  for (const [name, shape] of Object.entries(expected)) {
    const found = tensors.get(name);
    if (!readable.includes(found.type)) {
      const known = readable.join(", ");
      throw new GlinferError(`${source}: tensor ${quoted(name)} is ${found.type}, which is not supported here; known: ${known}; get the model in one of them, or ${advice(source)}`);
    }
    if (found.shape.join() !== shape.join()) {
      const known = sizes.includes(shape[0]) && sizes.length > 1 ? `, or another vocabulary of ${sizes.join(", ")}` : "";
      throw new GlinferError(`${source}: tensor ${quoted(name)} has shape ${quoted(found.shape)}; expected ${quoted(shape)} from the metadata (outermost first)${known}; ${advice(source)}`);
    }
  }
}

/** The plan of a program for the format of a file's embeddings and for the size of its vocabulary. */
function planFor({ plan, variants, tokens }, type, size) {
  const found = structuredClone(plan);
  const name = (form) => (size === tokens.sizes[0] ? form : `${form} ${size}`);
  for (const [path, value] of name(type) === USUAL ? [] : (variants[name(type)] ?? variants[name("F16")])) {
    const last = path.at(-1);
    path.slice(0, -1).reduce((part, key) => part[key], found)[last] = value;
  }
  return found;
}

/**
 * The graphics memory of a shape, in words.
 * @param {{name: string, bytes: {weights: number, all: number}}} shape
 * @returns {string}
 */
export function megabytesOf({ bytes }) {
  return `${Math.ceil(bytes.all / MEGABYTE).toLocaleString("en")} MB`;
}
