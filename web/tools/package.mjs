// Makes the npm package `glinfer` of the runtime: package/ with the modules that it needs, the two libraries of npm, and
// types that TypeScript's checker makes of the comments.
//
//   node web/tools/package.mjs [OUT]      OUT: web/dist/glinfer if left out; `npm pack` there makes the archive
//   node web/tools/package.mjs --check    only checks the types
//
// OUT is a new folder, or an earlier package, which is made anew. What the checker finds is printed, and the exit status is 1.

import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import process from "node:process";

import { ROOT, skip } from "./chromium.mjs";

const WEB = path.join(ROOT, "web");
/** What the package has, by its name there. */
const FILES = {
  "": "package",
  glinfer: "glinfer",
  text: "text",
  embedding: "embedding",
  "gab_texts.js": "texts.js",
  "library_texts.js": "library_texts.js",
  "libraries/tokenizers.js": "libraries/tokenizers.js",
  "libraries/LICENSE": "libraries/LICENSE",
  "libraries/jinja.js": "libraries/jinja.js",
  "libraries/LICENSE.jinja": "libraries/LICENSE.jinja",
  LICENSE: "../LICENSE",
};
const NOT_THERE = ["glinfer/worker.js", "glinfer/remote.js"]; // beside a site; the package has its own
const COMPILER = {
  allowJs: true,
  checkJs: true,
  target: "es2023",
  module: "nodenext",
  lib: ["es2023", "dom", "dom.iterable", "dom.asynciterable"],
  types: [],
  strict: false,
  maxNodeModuleJsDepth: 0,
};

/** Puts the files of the package together. */
function lay(folder) {
  for (const [name, source] of Object.entries(FILES)) {
    mkdirSync(path.dirname(path.join(folder, name)), { recursive: true });
    cpSync(path.join(WEB, source), path.join(folder, name), { recursive: true });
  }
  for (const name of NOT_THERE) rmSync(path.join(folder, name));
}

/** Runs TypeScript over the folder. */
function compile(folder, options) {
  const settings = path.join(folder, "tsconfig.json");
  const compilerOptions = { ...COMPILER, ...options };
  writeFileSync(settings, JSON.stringify({ compilerOptions, include: ["**/*.js"], exclude: ["libraries/*.js"] }));
  const tsc = path.join(WEB, "node_modules/typescript/bin/tsc");
  const { status, stdout } = spawnSync(process.execPath, [tsc, "--pretty", "false", "-p", settings], { encoding: "utf8" });
  rmSync(settings);
  if (status === 0) return;
  console.error(stdout.trim());
  process.exit(1);
}

const [argument = path.join(WEB, "dist/glinfer")] = process.argv.slice(2);
const lacks = [...Object.values(FILES), "node_modules/typescript"].find((source) => !existsSync(path.join(WEB, source)));
const only = argument === "--check";
if (lacks) {
  const why = `web/${lacks} is not there; run: npm ci --ignore-scripts --prefix web`;
  if (only) skip(why);
  console.error(why);
  process.exit(1);
}
const folder = only ? mkdtempSync(path.join(tmpdir(), "glinfer-package-")) : path.resolve(argument);
if (!only && (argument.startsWith("-") || (existsSync(folder) && !existsSync(path.join(folder, "gab_texts.js"))))) {
  console.error(`found ${argument}; expected a new folder, an earlier package, or --check`);
  process.exit(1);
}
try {
  if (!only) rmSync(folder, { recursive: true, force: true });
  lay(folder);
  compile(folder, only ? { noEmit: true } : { declaration: true, emitDeclarationOnly: true, checkJs: false, strictNullChecks: true });
} finally {
  if (only) rmSync(folder, { recursive: true, force: true });
}
