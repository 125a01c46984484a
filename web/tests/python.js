import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const PYTHON = `${ROOT}.venv/bin/python`;

/** Why tests that ask the Python side are skipped, or false. */
export const noPython = existsSync(PYTHON) ? false : "there is no .venv/bin/python with glinfer";

/** What a Python program prints as JSON. */
export function python(program, ...given) {
  return run(["-c", program, ...given]);
}

/** What a Python program beside the tests prints as JSON. */
export function written(file, ...given) {
  const path = fileURLToPath(new URL(file, import.meta.url));
  return run([path, ...given.map(String)]);
}

function run(command) {
  const { status, stdout, stderr } = spawnSync(PYTHON, command, { cwd: ROOT, encoding: "utf-8", maxBuffer: 2 ** 29 });
  if (status !== 0) throw new Error(stderr);
  return JSON.parse(stdout);
}

/** The path of a file in the repository's neighbour `shared/`. */
export function sharedFile(name) {
  return fileURLToPath(new URL(`../../../shared/${name}`, import.meta.url));
}
