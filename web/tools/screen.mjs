// What browsers without Playwright are started with: processes that say when they are ready, and a display of Xvfb.

import { spawn } from "node:child_process";
import process from "node:process";

/** What a stream says once it matches; an error if the process ends before. */
function said(stream, pattern, ended, what) {
  return new Promise((resolve, reject) => {
    let text = "";
    stream.on("data", (data) => {
      text += data;
      const found = pattern.exec(text);
      if (found) resolve(found[1]);
    });
    ended.then(() => reject(new Error(`${what} ended at once: ${text.trim().slice(-400)}`)));
  });
}

/** A process, what it says on a pipe if one is named, and a promise of its end. */
export function start(program, options, environment, { pipe = null, pattern = null } = {}) {
  const stdio = ["ignore", "ignore", pipe === 2 ? "pipe" : "ignore", ...(pipe === 3 ? ["pipe"] : [])];
  const started = spawn(program, options, { stdio, env: { ...process.env, ...environment } });
  const ended = new Promise((resolve) => ["close", "error"].forEach((name) => started.once(name, resolve)));
  return { started, ended, told: pipe === null ? null : said(started.stdio[pipe], pattern, ended, program) };
}

/** A display of its own, without which some browsers have no WebGL, and what ends it. */
export async function startScreen() {
  const screen = start("Xvfb", ["-displayfd", "3", "-nolisten", "tcp"], {}, { pipe: 3, pattern: /(\d+)\n/ });
  const display = `:${await screen.told}`;
  const close = async () => {
    screen.started.kill();
    await screen.ended;
  };
  return { display, close };
}
