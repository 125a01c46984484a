/**
 * Loading an exported model: its plan, then programs that the driver compiles while the weights stream into their
 * textures, a few megabytes of them in memory at a time.
 *
 * @typedef {"plan"|"shaders"|"weights"|"programs"} LoadingPart
 * @typedef {{part: LoadingPart, done: number, all: number}} Progress how far one part is: bytes of weights, numbers of the
 *   other files, and of programs.
 * @typedef {object} LoadOptions how a model is loaded.
 * @property {boolean} [minimum] allow no more than WebGL2 promises.
 * @property {boolean} [cache] whether the browser keeps the files for the next visit, where it can; true if left out.
 * @property {"ngram"|null} [speculate] default of `speculate`, see `Options` in generate.js, for models
 *   that continue texts.
 * @property {(plan: object) => void} [onPlan] receives the plan before anything else is loaded.
 * @property {(progress: Progress) => void} [onProgress] receives the progress of each part.
 */

import { crc32 } from "./checksum.js";
import { GlinferError, checkOptions } from "./errors.js";
import { pauses } from "./generate.js";
import { keptSource } from "./kept.js";
import { INTEGER_TARGETS, withIntegerTargets } from "./integer_targets.js";
import { hasFloatTargets, missing } from "./limits.js";
import { collectShaders } from "./program.js";
import { Replay } from "./replay.js";
import { headerLength, parseHeader, PREFIX, TYPES } from "./safetensors.js";
import { FILES, formFor } from "./self_test.js";
import { Reader } from "./source.js";

const BAND_BYTES = 4 << 20; // of texels that are uploaded at once
const PATIENCE = 200; // milliseconds that the driver gets to compile before weights are uploaded
const CHECKSUMS = "line_checksums";
const VERSION = 5;
const MEGABYTE = 1e6;
/** The names of `LoadOptions`. */
export const LOAD_OPTIONS = ["minimum", "cache", "speculate", "onPlan", "onProgress"];

/**
 * Reads a plan.
 * @param {string} text of plan.json.
 * @returns {object}
 * @throws {GlinferError} it is not a plan, or of a version that this runtime does not know.
 */
export function parsePlan(text) {
  let plan;
  try {
    plan = JSON.parse(text);
  } catch (error) {
    throw new GlinferError(`plan.json is not JSON (${error.message}); check the address of the folder, or export the model again`);
  }
  if (plan.format !== "glinfer-web" || plan.version !== VERSION) {
    const found = `${plan.format} version ${plan.version}; expected glinfer-web version ${VERSION}`;
    throw new GlinferError(`plan.json is ${found}; export the model again, and take the runtime of that export`);
  }
  if (plan.drop) throw new GlinferError("this site opens GGUF files; expected the site of a model; use loadGguf of drop/load.js");
  if (!plan.files) throw new GlinferError("plan.json does not name the files of its weights; export the model again");
  return plan;
}

/**
 * Loads and binds an exported model, after a check and a test that the browser can run it. The parts run in parallel: while the driver
 * compiles, weights are read and uploaded, and the tokenizer is built.
 * @template T
 * @param {WebGL2RenderingContext|null} gl
 * @param {ReturnType<typeof import("./source.js").fetchSource>} source
 * @param {string|URL} base the address that `source` has.
 * @param {(plan: object, tokenizer: object|null) => T} textsOf makes the tokenizer and the chat form from tokenizer.json, if there is one.
 * @param {LoadOptions} options
 * @returns {Promise<{plan: object, replay: Replay, tables: Map<string, Int32Array|Uint32Array>, texts: T}>} `tables`: the tensors
 *   of the weights' files that hold no texels.
 * @throws {GlinferError} the browser lacks something, or a file is missing, damaged or of another export.
 */
export async function loadParts(gl, source, base, textsOf, options = {}) {
  const { minimum = false, cache = true, onPlan, onProgress: report = () => {} } = options;
  checkOptions(options, ["canvas", ...LOAD_OPTIONS]);
  let failed = false; // after which the other parts report nothing
  const onProgress = (progress) => failed || report(progress);
  onProgress({ part: "plan", done: 0, all: 1 });
  const given = parsePlan(await source.text("plan.json"));
  onPlan?.(given);
  const lacks = missing(gl, given.requires, { minimum });
  if (lacks.length) throw new GlinferError(lacks.join(" "));
  onProgress({ part: "plan", done: 1, all: 1 });
  const files = cache ? await keptSource(source, base, given.files.fingerprint) : source;
  const shaders = await shadersOf(given, files, onProgress);
  const form = formFor(gl, shaders, hasFloatTargets(gl, minimum)); // which throws before weights are loaded
  const plan = form.floats ? given : withIntegerTargets(given);
  const begun = new Promise((resolve) => resolve(new Replay(gl, plan, shaders, form)));
  const tokenizer = plan.model.tokenizer === false ? Promise.resolve(null) : files.optional("tokenizer.json");
  try {
    const warm = begun.then((replay) => readied(replay, onProgress));
    const first = Promise.race([warm, begun.then(() => later(PATIENCE))]).then(() => begun);
    const uploaded = uploadWeights(first, plan, files, onProgress);
    // While the driver compiles, this thread builds the tokenizer.
    const built = Promise.all([tokenizer, Promise.race([warm, uploaded])]);
    const [replay, tables, texts] = await Promise.all([
      begun,
      uploaded,
      built.then(([text]) => textsOf(plan, text === null ? null : JSON.parse(text))),
      warm,
    ]);
    return { plan, replay, tables, texts };
  } catch (error) {
    failed = true;
    await begun.then((replay) => replay.release(), () => {});
    throw error;
  }
}

async function readied(replay, onProgress) {
  await replay.compiled((done, all) => onProgress({ part: "programs", done, all }));
  if (replay.textures.length) replay.warmUp(); // or it was released meanwhile
}

/** @type {(milliseconds: number) => Promise<void>} */
const later = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function shadersOf(plan, files, onProgress) {
  const names = [INTEGER_TARGETS, ...FILES, ...plan.programs.flatMap(({ fragment, vertex }) => [fragment, vertex])];
  let [done, all] = [0, 0];
  const tell = (more, ended) => onProgress({ part: "shaders", done: (done += ended), all: (all += more) });
  return collectShaders(names, async (name) => {
    tell(1, 0);
    const text = await files.text(`shaders/${name}`);
    tell(0, 1);
    return text;
  });
}

/**
 * Fills the textures of all weights, a band of lines at a time.
 * @param {Promise<Replay>} begun has the textures.
 * @param {object} plan
 * @param {{parts: (path: string, bytes: number) => AsyncIterable<Uint8Array>}} files
 * @param {(progress: Progress) => void} onProgress
 * @returns {Promise<Map<string, Int32Array|Uint32Array>>} the other tensors of the files, joined where several files have
 *   one: line_checksums, and logits_order.
 */
export async function uploadWeights(begun, plan, files, onProgress) {
  const tables = new Map();
  let textures = null;
  const all = plan.files.weights.reduce((sum, { bytes }) => sum + bytes, 0);
  const [buffer, pause] = [new ArrayBuffer(BAND_BYTES), pauses()];
  let before = 0;
  for (const file of plan.files.weights) {
    const reader = new Reader(files.parts(file.name, file.bytes), (why) => damaged(file, why));
    try {
      const entries = await entriesOf(file, reader); // while the textures are made
      const replay = await begun;
      textures ??= weightsOf(replay);
      const goOn = async () => {
        replay.gl.flush(); // so that the driver copies while the next lines are read
        await pause(); // so that programs compiled meanwhile are used
        if (!replay.textures.length) throw new GlinferError("the model was released while it was loaded");
      };
      await readFile(file, entries, reader, { textures, tables, buffer, goOn }, (done) => onProgress({ part: "weights", done: before + done, all }));
    } finally {
      await reader.close();
    }
    before += file.bytes;
  }
  const [lacks] = (textures ?? weightsOf(await begun)).keys();
  if (lacks !== undefined) throw new GlinferError(`the weights have no tensor ${lacks}; export the model again`);
  (await begun).check("uploading the weights");
  return tables;
}

/** The textures of weights, by their tensors. */
function weightsOf({ textures }) {
  return new Map(textures.filter(({ spec }) => spec.kind === "weight").map((each) => [each.spec.tensor ?? each.spec.name, each]));
}

/** The header of a file, and its tensors in the order of their bytes. */
async function entriesOf(file, reader) {
  const length = headerLength(await reader.take(PREFIX), file.bytes);
  const header = await reader.take(length);
  return { header, entries: parseHeader(header).sort((one, other) => one.begin - other.begin) };
}

async function readFile(file, { header, entries }, reader, { textures, tables, buffer, goOn }, tell) {
  const found = new Map();
  for (const entry of entries) {
    await reader.skipTo(PREFIX + header.length + entry.begin);
    const texture = textures.get(entry.name);
    if (!texture) {
      found.set(entry.name, new TYPES[entry.dtype]((await reader.take(entry.end - entry.begin)).buffer));
      continue;
    }
    await fill(texture, entry, reader, { buffer, goOn }, tell);
    textures.delete(entry.name);
  }
  const sums = found.get(CHECKSUMS);
  const known = file.crc32 ?? null; // a file that was just made has none
  if (!sums || (known !== null && crc32(new Uint8Array(sums.buffer), crc32(header)) !== known)) {
    throw damaged(file, "it is not the file that plan.json was written with");
  }
  for (const [name, table] of found) {
    const more = tables.get(name) ?? new table.constructor(0);
    const joined = new table.constructor(more.length + table.length);
    joined.set(more);
    joined.set(table, more.length);
    tables.set(name, joined);
  }
  tell(file.bytes);
}

/** Fills one texture with the bytes that come next. */
async function fill(texture, { name, dtype, shape, begin, end }, reader, { buffer, goOn }, tell) {
  const { width, height } = texture.spec;
  const Type = TYPES[dtype];
  if (Type !== texture.Array || (end - begin) !== width * height * texture.channels * Type.BYTES_PER_ELEMENT) {
    const expected = `${width}×${height} texels of ${texture.channels}`;
    throw new GlinferError(`tensor ${name} has the shape ${shape.join("×")} of ${dtype}; expected ${expected}`);
  }
  const line = (end - begin) / height; // bytes
  const most = Math.max(1, Math.floor(BAND_BYTES / line));
  for (let y = 0; y < height; y += most) {
    const size = Math.min(most, height - y) * line;
    const bytes = await reader.take(size, size <= buffer.byteLength ? buffer : undefined);
    await goOn();
    texture.upload(new Type(bytes.buffer, 0, size / Type.BYTES_PER_ELEMENT), y);
    tell(reader.at);
  }
}

function damaged({ name }, why) {
  return new GlinferError(`${name} cannot be read: ${why}; reload the page, or export the model again`);
}

/**
 * One of the tables that the weights' files have.
 * @param {Map<string, Int32Array|Uint32Array>} tables
 * @param {string} name
 * @returns {Int32Array|Uint32Array}
 * @throws {GlinferError} they do not have it.
 */
export function tableOf(tables, name) {
  const table = tables.get(name);
  if (!table) throw new GlinferError(`the weights have no ${name}; export the model again`);
  return table;
}

/**
 * The CRC-32 of each line of texels, all weights one after another.
 * @param {Map<string, Int32Array|Uint32Array>} tables
 * @returns {Uint32Array}
 * @throws {GlinferError} the files do not have it.
 */
export function checksumsOf(tables) {
  return new Uint32Array(tableOf(tables, CHECKSUMS));
}

/**
 * Describes the progress of loading. Parts run in parallel; the text names the first that is not done.
 * @returns {(progress: Progress) => string}
 */
export function progressInWords() {
  const known = new Map();
  return ({ part, done, all }) => {
    known.set(part, { done, all });
    for (const name of ["plan", "shaders", "weights"]) {
      const each = known.get(name);
      if (!each || each.done >= each.all) continue;
      if (name === "plan") return "Loading the plan…";
      if (name === "shaders") return "Loading the shaders…";
      return `Loading the weights… ${(each.done / MEGABYTE).toFixed(0)} of ${(each.all / MEGABYTE).toFixed(0)} MB`;
    }
    const programs = known.get("programs");
    return programs && known.has("weights") ? `Compiling the shaders… ${programs.done} of ${programs.all}` : "Loading the weights…";
  };
}
