// What web/drop makes of GGUF files: a JSON list of jobs in, a line of JSON for each out.
//
//   node dropped.mjs SITE < JOBS      SITE: a folder of `glinfer export-web --drop`
//
// A job has a `file` and, unless only the header is to be read (`header`), a folder `out` for the files of the export; `probes`
// are texts with Python's ids.

import { openAsBlob, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import process from "node:process";

import { openBytes } from "../drop/file.js";
import { readHeader } from "../drop/gguf.js";
import { ggufSource } from "../drop/source.js";
import { GlinferError } from "../glinfer/errors.js";
import { LibraryTokenizer } from "../text/library.js";

const folder = process.argv[2];
const site = {
  text: async (name) => readFileSync(path.join(folder, name), "utf8"),
  async *pieces(name) {
    yield readFileSync(path.join(folder, name));
  },
};
const { drop } = JSON.parse(await site.text("plan.json"));

async function done({ file: name, header, out, probes }) {
  const file = Object.assign(await openAsBlob(name), { name: path.basename(name), lastModified: 0 });
  if (header) {
    await readHeader(await openBytes(file), drop);
    return {};
  }
  const source = await ggufSource(file, site);
  const plan = JSON.parse(await source.text("plan.json"));
  const [{ name: weights, bytes }] = plan.files.weights;
  const parts = [];
  for await (const part of source.parts(weights, bytes)) parts.push(part);
  writeFileSync(path.join(out, weights), Buffer.concat(parts));
  const text = await source.optional("tokenizer.json");
  const tokenizer = text && JSON.parse(text);
  if (probes) for (const first of ["plain", "whole", "later"]) new LibraryTokenizer({ ...tokenizer, probes }, first);
  if (tokenizer) delete tokenizer.library;
  return { plan, tokenizer };
}

for (const job of JSON.parse(readFileSync(0, "utf8"))) {
  let found;
  try {
    found = await done(job);
  } catch (error) {
    if (!(error instanceof GlinferError)) throw error;
    found = { error: error.message };
  }
  process.stdout.write(`${JSON.stringify(found)}\n`);
}
