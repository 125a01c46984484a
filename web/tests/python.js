import { spawnSync } from "node:child_process";
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const PYTHON = `${ROOT}.venv/bin/python`;

/** Why tests that ask the Python side are skipped, or false. */
export const noPython = existsSync(PYTHON) ? false : "there is no .venv/bin/python with glinfer";

/** What a Python program prints as JSON. */
export function python(program, ...given) {
  const options = { cwd: ROOT, encoding: "utf-8", maxBuffer: 1 << 28 };
  const { status, stdout, stderr } = spawnSync(PYTHON, ["-c", program, ...given], options);
  if (status !== 0) throw new Error(stderr);
  return JSON.parse(stdout);
}

/** What a Python program beside the tests prints as JSON, which may be long. */
export function written(file, ...given) {
  const path = fileURLToPath(new URL(file, import.meta.url));
  const folder = mkdtempSync(join(tmpdir(), "glinfer-python-"));
  const out = openSync(join(folder, "out.json"), "w");
  try {
    const stdio = ["ignore", out, "pipe"];
    const { status, stderr } = spawnSync(PYTHON, [path, ...given.map(String)], { cwd: ROOT, encoding: "utf-8", stdio });
    if (status !== 0) throw new Error(stderr);
    return JSON.parse(readFileSync(join(folder, "out.json"), "utf-8"));
  } finally {
    closeSync(out);
    rmSync(folder, { recursive: true });
  }
}

/** The path of a file in the repository's neighbour `shared/`. */
export function sharedFile(name) {
  return fileURLToPath(new URL(`../../../shared/${name}`, import.meta.url));
}
