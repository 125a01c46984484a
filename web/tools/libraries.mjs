// Copies the libraries of pages from npm's folder to libraries/, which the repository keeps: their versions are in
// package.json, and every way of installing glinfer has them.
//
//   node web/tools/libraries.mjs            copies them, after `npm ci`
//   node web/tools/libraries.mjs --check    only compares them, and names those that differ

import { copyFileSync, existsSync, readFileSync } from "node:fs";
import path from "node:path";
import process from "node:process";

import { ROOT } from "./chromium.mjs";

const WEB = path.join(ROOT, "web");
const FILES = {
  "tokenizers.js": "@huggingface/tokenizers/dist/tokenizers.min.mjs",
  LICENSE: "@huggingface/tokenizers/LICENSE",
  "jinja.js": "@huggingface/jinja/dist/index.js",
  "LICENSE.jinja": "@huggingface/jinja/LICENSE",
  "markdown-it.js": "markdown-it/dist/browser/markdown-it.esm.min.mjs",
  "LICENSE.markdown-it": "markdown-it/LICENSE",
  // Packages that are part of the file of markdown-it.
  "LICENSE.entities": "entities/LICENSE",
  "LICENSE.linkify-it": "linkify-it/LICENSE",
  "LICENSE.mdurl": "mdurl/LICENSE",
  "LICENSE.punycode": "punycode.js/LICENSE-MIT.txt",
  "LICENSE.uc.micro": "uc.micro/LICENSE.txt",
};

for (const [name, source] of Object.entries(FILES)) {
  const [kept, given] = [path.join(WEB, "libraries", name), path.join(WEB, "node_modules", source)];
  if (!process.argv.includes("--check")) copyFileSync(given, kept);
  else if (!existsSync(kept) || !readFileSync(kept).equals(readFileSync(given))) {
    console.error(`web/libraries/${name} is not npm's ${source}; run: node web/tools/libraries.mjs`);
    process.exitCode = 1;
  }
}
