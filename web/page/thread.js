/**
 * The worker that computes for the page. It is a script of the page too, the first one, so that the worker loads its modules
 * while the page loads its own.
 */

import { startWorker } from "../glinfer/threads.js";

// A page with all its files in it has no worker's, and gives its files only to itself.
const whole = document.querySelector("script[data-file]") !== null;
const threaded = new URLSearchParams(location.search).get("worker") !== "0" && !whole;

const start = () => startWorker(() => new Worker(new URL("page/worker.js", document.baseURI), { type: "module" }));

let begun = threaded ? start() : null;

/**
 * A worker that nobody else has.
 * @returns {Promise<import("../glinfer/threads.js").Link|null>} null where the page is to compute by itself.
 */
export async function takeThread() {
  if (!threaded) return null;
  const taken = begun ?? start();
  begun = null;
  return taken;
}
