/**
 * An exported model in a worker, for a script that must not block:
 *
 *   import { load } from "./site/glinfer/remote.js";
 *   const model = await load("site/");
 *   for await (const text of model.stream("Once upon a time")) console.log(text);
 */

import { loadThrough } from "./host.js";
import { load as loadHere } from "./model.js";

/**
 * Loads an exported model that continues texts.
 * @param {string|URL} base the address of the exported folder.
 * @param {import("./loading.js").LoadOptions & {worker?: boolean, onLost?: () => void}} [options] see `loadThrough`.
 * @returns {Promise<import("./host.js").RemoteModel>}
 * @throws {GlinferError} the browser lacks something, or a file is missing or damaged.
 */
export function load(base, options = {}) {
  const start = (address) => new Worker(new URL("glinfer/worker.js", address), { type: "module" });
  return loadThrough(base, { load: loadHere, start }, options);
}
