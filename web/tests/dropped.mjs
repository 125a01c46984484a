// What web/drop makes of GGUF files: a JSON list of jobs in, a line of JSON for each out.
//
//   node dropped.mjs SITE < JOBS      SITE: a folder of `glinfer export-web --drop`
//
// A job has a `file`, or a list of all parts of one, and, unless only the header is to be read (`header`), a folder `out` for the files of the export; `probes`
// are texts with Python's ids. A job with a `program` gets its plan for some `blocks`.

import { openAsBlob, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import process from "node:process";
import { text } from "node:stream/consumers";
import { gunzipSync } from "node:zlib";

import { openBytes } from "../drop/file.js";
import { readHeader } from "../drop/gguf.js";
import { programFor } from "../drop/programs.js";
import { repeated } from "../drop/repeat.js";
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

async function done({ file: name, header, out, probes, ...given }) {
  if (given.program) return { plan: withoutFile(given) };
  const files = await Promise.all(
    [name].flat().map(async (each) => Object.assign(await openAsBlob(each), { name: path.basename(each), lastModified: 0 })),
  );
  if (header) {
    await readHeader(await openBytes(files[0]), drop);
    return {};
  }
  const source = await ggufSource(files, site);
  const plan = JSON.parse(await source.text("plan.json"));
  const [{ name: weights, bytes }] = plan.files.weights;
  const parts = [];
  for await (const part of source.parts(weights, bytes)) parts.push(part);
  writeFileSync(path.join(out, weights), Buffer.concat(parts));
  const found = await source.optional("tokenizer.json");
  const tokenizer = found && JSON.parse(found);
  if (probes) for (const first of ["plain", "whole", "later"]) new LibraryTokenizer({ ...tokenizer, probes }, first);
  if (tokenizer) delete tokenizer.library;
  return { plan, tokenizer };
}

/** The plan of a program for a file with so many blocks, whose tensors need not be there. */
function withoutFile({ program: path_, architecture, blocks }) {
  const program = JSON.parse(gunzipSync(readFileSync(path.join(folder, path_))));
  const tensors = repeated(program, blocks).tensors;
  const found = Object.entries({ ...tensors, ...(program.factors && { "rope_freqs.weight": [program.factors.length] }) });
  const header = { source: path_, tensors: new Map(found.map(([name, shape]) => [name, { type: "Q8_0", shape }])) };
  header.metadata = new Map([["general.architecture", architecture], [`${architecture}.block_count`, blocks]]); // prettier-ignore
  return programFor(header, program, drop).plan;
}

for (const job of JSON.parse(await text(process.stdin))) {
  let found;
  try {
    found = await done(job);
  } catch (error) {
    if (!(error instanceof GlinferError)) throw error;
    found = { error: error.message };
  }
  process.stdout.write(`${JSON.stringify(found)}\n`);
}
