// What the scripts that open a browser share: where Chromium is, and playwright-core, which drives it.

import { existsSync } from "node:fs";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

/** The root of the repository. */
export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
/** WebGL2 in software, or by another backend of ANGLE that GLINFER_ANGLE names; also for root in a container. */
export const FLAGS = [
  `--use-angle=${process.env.GLINFER_ANGLE ?? "swiftshader"}`,
  "--enable-unsafe-swiftshader",
  "--ignore-gpu-blocklist",
  "--no-sandbox",
];

/** Prints why and ends the script; a missing program does not count as a failure. */
export function skip(why) {
  console.log(`skipped: ${why}`);
  process.exit(0);
}

/** The path of Chromium; GLINFER_CHROMIUM names another one. */
export function findChromium() {
  const names = [process.env.GLINFER_CHROMIUM, "chromium", "chromium-browser", "google-chrome"].filter(Boolean);
  const folders = (process.env.PATH ?? "").split(path.delimiter);
  const paths = names.flatMap((name) => (name.includes("/") ? [name] : folders.map((each) => path.join(each, name))));
  return paths.find(existsSync) ?? skip("there is no Chromium; name one with GLINFER_CHROMIUM");
}

/** Playwright's way to start a Chromium. */
export async function playwright() {
  try {
    return (await import("playwright-core")).chromium;
  } catch {
    return skip("playwright-core is not installed; run: npm ci --ignore-scripts --prefix web");
  }
}
