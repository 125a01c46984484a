/** A model in one GGUF file or in several parts; the browser's side of glinfer/formats/gguf/split.py, with its sentences. */

import { GlinferError } from "../glinfer/errors.js";
import { openBytes } from "./file.js";
import { quoted, readHeader } from "./gguf.js";

const [NUMBER, COUNT, TENSORS] = ["split.no", "split.count", "split.tensors.count"];
const NAME = /-(\d{5})-of-(\d{5})\.gguf$/;
const MOST_NAMED = 3;

/**
 * Opens a model, and reads the headers of its files.
 * @param {File|File[]|string} given its file, all its parts, or the address of its file or of a part.
 * @param {object} tables `drop` of the site's plan.json.
 * @returns {Promise<{file: import("./file.js").GgufBytes, header: import("./gguf.js").GgufHeader}>} those of the first part,
 *   with the bytes, versions, tensors and headers of all.
 * @throws {GlinferError} a file cannot be read, a part is missing, or they are not of one model.
 */
export async function readModel(given, tables) {
  const files = typeof given === "string" ? [await openBytes(given)] : await Promise.all([given].flat().map(openBytes));
  const first = files[0];
  const header = await readHeader(first, tables);
  const count = header.metadata.get(COUNT) ?? 1;
  if (count === 0 || count === 1) {
    if (files.length > 1) throw new GlinferError(`${first.name}: this is a whole model, and ${files.length} files were chosen; choose one, or all parts of one`);
    return { file: first, header };
  }
  const { parts: most } = tables.limits;
  const number = whole(header, NUMBER, 0, most);
  whole(header, COUNT, number + 1, most);
  const opened = new Map(files.map((file) => [file.name, file]));
  const parts = [];
  for (const name of namesOf(header, number, count, typeof given === "string" ? null : opened)) {
    const file = opened.get(name) ?? (await openBytes(given.replace(NAME, NAME.exec(name)[0])));
    parts.push({ file, header: file === first ? header : await readHeader(file, tables) });
  }
  return joined(header, parts);
}

function whole({ source, metadata }, key, least, most) {
  const found = metadata.get(key);
  if (!Number.isInteger(found) || found < least || found > most) {
    throw new GlinferError(`${source}: its ${key} is ${quoted(found)}; expected an integer from ${least} to ${most}; the file is damaged, get it again`);
  }
  return found;
}

/** The names of all parts, of which those in `opened` are there; null for files at an address. */
function namesOf({ source }, number, count, opened) {
  const digits = (each) => String(each).padStart(5, "0");
  const name = (part) => `-${digits(part)}-of-${digits(count)}.gguf`;
  const what = `${source}: this is part ${number + 1} of ${count} of a model`;
  if (!source.endsWith(name(number + 1))) {
    throw new GlinferError(`${what}; expected a name that ends in ${name(number + 1)}, by which the others are found; restore its name`);
  }
  const names = Array.from({ length: count }, (_, index) => source.replace(NAME, name(index + 1)));
  const missing = opened ? names.filter((each) => !opened.has(each)) : [];
  const more = missing.length > MOST_NAMED ? ` and ${missing.length - MOST_NAMED} more` : "";
  if (missing.length) throw new GlinferError(`${what}; found no ${missing.slice(0, MOST_NAMED).join(", ")}${more}; choose all parts together`);
  const other = opened && [...opened.keys()].find((each) => !names.includes(each));
  if (other) throw new GlinferError(`${what}, and ${other} does not belong to it; choose the parts of one model`);
  return names;
}

function joined(given, parts) {
  const total = whole(given, TENSORS, 0, 2 ** 31);
  const tensors = new Map();
  for (const [number, { header }] of parts.entries()) {
    for (const [key, value] of [[NUMBER, number], [COUNT, parts.length], [TENSORS, total]]) {
      const found = header.metadata.get(key);
      if (found === value) continue;
      throw new GlinferError(`${header.source}: its ${key} is ${quoted(found)}; expected ${value}, as the other parts of the model have it; get all parts of one model`);
    }
    for (const [name, tensor] of header.tensors) {
      if (tensors.has(name)) throw new GlinferError(`${header.source}: tensor ${quoted(name)} is in another part too; get all parts again`);
      tensors.set(name, tensor);
    }
  }
  if (tensors.size !== total) {
    throw new GlinferError(`${given.source}: its ${parts.length} parts have ${tensors.size} tensors; expected ${total}, as ${TENSORS} says; get all parts again`);
  }
  const [{ file, header }] = parts;
  const bytes = parts.reduce((sum, each) => sum + each.file.bytes, 0);
  const version = parts.map((each) => each.file.version).join(" ");
  const headers = new Uint8Array(parts.reduce((sum, each) => sum + each.header.header.length, 0));
  let at = 0;
  for (const each of parts) {
    headers.set(each.header.header, at);
    at += each.header.header.length;
  }
  return { file: { ...file, name: file.name, bytes, version }, header: { ...header, tensors, header: headers } };
}
