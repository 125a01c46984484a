import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const WEB = fileURLToPath(new URL("../", import.meta.url));

/**
 * The modules of the runtime where a site has them, beside the libraries; removed when the process ends.
 * @returns {(name: string) => Promise<object>} imports one of them.
 */
export function laidOut() {
  const folder = mkdtempSync(join(tmpdir(), "glinfer-runtime-"));
  process.on("exit", () => rmSync(folder, { recursive: true }));
  for (const name of ["glinfer", "text", "embedding", "libraries", "texts.js", "library_texts.js", "markdown_answers.js"]) {
    cpSync(join(WEB, name), join(folder, name), { recursive: true });
  }
  writeFileSync(join(folder, "package.json"), '{"type": "module"}');
  return (name) => import(pathToFileURL(join(folder, name)).href);
}
