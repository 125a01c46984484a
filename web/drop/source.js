/**
 * A GGUF file as the files of an export: plan.json and the weights are made of it, and the shaders come from the site. The
 * browser keeps what was made for the next visit, which then needs neither the GGUF file nor a server.
 */

import { crc32 } from "../glinfer/checksum.js";
import { GlinferError } from "../glinfer/errors.js";
import { keptNote } from "../glinfer/kept.js";
import { inOrder, PART, Reader } from "../glinfer/source.js";
import { programFor, shapeOf } from "./programs.js";
import { readModel } from "./split.js";
import { textsOfFile } from "./vocabulary.js";
import { Weights } from "./weights.js";

const WEIGHTS = "weights.safetensors";
const NOTE = "dropped-plan";

/** @typedef {ReturnType<typeof import("../glinfer/source.js").fetchSource>} SiteSource */

/**
 * Reads the header of a model, and finds its shape. Nothing else of the file is read.
 * @param {File|File[]|string} given the file, all its parts, or an address.
 * @param {object} tables `drop` of the site's plan.json.
 * @returns {Promise<{file: import("./file.js").GgufBytes, header: import("./gguf.js").GgufHeader, shape: object}>}
 * @throws {GlinferError} the file cannot be read, or has no program here.
 */
export async function examine(given, tables) {
  const { file, header } = await readModel(given, tables);
  return { file, header, shape: shapeOf(header, tables) };
}

/**
 * The files of an export of a GGUF file.
 * @param {File|File[]|string} given the file, all its parts, or an address.
 * @param {SiteSource} site
 * @returns {Promise<SiteSource>}
 * @throws {GlinferError} as `examine`; the tensors are not those of the shape.
 */
export async function ggufSource(given, site) {
  const { drop, version, offline } = JSON.parse(await site.text("plan.json"));
  const { file, header, shape } = await examine(given, drop);
  const packed = await bytesOf(site, shape.file);
  const ready = JSON.parse(await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
  const program = programFor(header, ready, drop);
  const weights = new Weights(header, program, drop.blocks);
  const { tokenizer, about } = textsOfFile(header, drop);
  const parts = [header.header, packed, new TextEncoder().encode(file.version)];
  const fingerprint = parts.map((bytes) => crc32(bytes).toString(16).padStart(8, "0")).join("");
  const plan = {
    ...program.plan,
    version,
    offline,
    model: { ...program.plan.model, ...about },
    files: { weights: [{ name: WEIGHTS, bytes: weights.bytes }], fingerprint },
  };
  const texts = { "plan.json": JSON.stringify(plan), "tokenizer.json": tokenizer && JSON.stringify(tokenizer) };
  return filesOf(texts, site, () => weights.pieces());
}

/**
 * The files that the browser has kept of the GGUF file of an earlier visit.
 * @param {string} fingerprint
 * @param {SiteSource} site
 * @param {string|URL} base the site's address.
 * @returns {Promise<SiteSource>}
 * @throws {GlinferError} the browser has let go of them.
 */
export async function keptGguf(fingerprint, site, base) {
  const { version, offline } = JSON.parse(await site.text("plan.json"));
  const note = await keptNote(base, fingerprint, NOTE).read();
  const plan = note && JSON.parse(new TextDecoder().decode(note));
  const gone = () => new GlinferError("the browser no longer has this model; choose its file again");
  if (plan?.version !== version) throw gone();
  const texts = { "plan.json": JSON.stringify({ ...plan, offline }), "tokenizer.json": null };
  const lacking = { next: () => Promise.reject(gone()) }; // where a part of the weights was not kept
  return filesOf(texts, site, () => ({ [Symbol.asyncIterator]: () => lacking }));
}

/** Keeps the plan of a loaded model for `keptGguf`. */
export async function keepPlan(plan, base) {
  await keptNote(base, plan.files.fingerprint, NOTE).write(new Blob([JSON.stringify(plan)]));
}

function filesOf(texts, site, pieces) {
  const open = (path, bytes) => new MadeParts(pieces(), path, bytes);
  const text = async (path) => (Object.hasOwn(texts, path) ? texts[path] : site.text(path));
  return { text, optional: text, pieces, parts: (path, bytes) => inOrder(open(path, bytes), bytes), open };
}

/** Parts of a file that is made front to back; see `Parts` in ../glinfer/source.js. */
class MadeParts {
  constructor(pieces, path, bytes) {
    this.bytes = bytes;
    this.reader = new Reader(pieces, (why) => new GlinferError(`${path} could not be made: ${why}; reload the page`));
    this.turn = Promise.resolve();
  }

  part(index) {
    const made = this.turn.then(async () => {
      await this.reader.skipTo(index * PART);
      return this.reader.take(Math.min(PART, this.bytes - index * PART));
    });
    this.turn = made.then(() => {}, () => {});
    return made;
  }

  async close() {
    await this.turn;
    await this.reader.close();
  }
}

async function bytesOf(site, path) {
  const pieces = [];
  for await (const piece of site.pieces(path)) pieces.push(piece);
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}
