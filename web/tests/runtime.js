import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

import { existsSync } from "node:fs";

const WEB = fileURLToPath(new URL("../", import.meta.url));
const LIBRARIES = {
  "libraries/tokenizers.js": "node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs",
  "libraries/jinja.js": "node_modules/@huggingface/jinja/dist/index.js",
  "libraries/markdown-it.js": "node_modules/markdown-it/dist/browser/markdown-it.esm.min.mjs",
};

/** Why tests of what needs the libraries of npm are skipped, or false. */
export const noLibraries = Object.values(LIBRARIES).every((place) => existsSync(join(WEB, place)))
  ? false
  : "@huggingface/tokenizers, @huggingface/jinja and markdown-it are not in web/node_modules; 'make test-web' installs them";

/**
 * The modules of the runtime where a site has them, beside the libraries; removed when the process ends.
 * @returns {(name: string) => Promise<object>} imports one of them.
 */
export function laidOut() {
  const folder = mkdtempSync(join(tmpdir(), "glinfer-runtime-"));
  process.on("exit", () => rmSync(folder, { recursive: true }));
  for (const name of ["glinfer", "text", "embedding", "texts.js", "library_texts.js", "markdown_answers.js"]) {
    cpSync(join(WEB, name), join(folder, name), { recursive: true });
  }
  for (const [name, place] of Object.entries(LIBRARIES)) cpSync(join(WEB, place), join(folder, name));
  writeFileSync(join(folder, "package.json"), '{"type": "module"}');
  return (name) => import(pathToFileURL(join(folder, name)).href);
}
