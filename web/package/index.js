/**
 * Language models of `glinfer export-web` in a page: they run on WebGL2 in a worker, and nothing leaves the computer.
 *
 *   const model = await load("site/");
 *   for await (const piece of model.stream("Once upon a time", { maxTokens: 50 })) console.log(piece);
 */

import { loadThrough, RemoteModel } from "./glinfer/host.js";
import { GlinferError } from "./glinfer/errors.js";
import { forget } from "./glinfer/kept.js";
import { loadAny } from "./any.js";

export { forget, GlinferError, RemoteModel };

/**
 * Loads an exported model, which may continue texts or embed them.
 * @param {string|URL} base the address of the exported folder.
 * @param {import("./glinfer/loading.js").LoadOptions & {worker?: boolean, onLost?: () => void}} [options] `worker: false`
 *   computes in this thread, as does a browser whose workers have no WebGL2; `onLost` is called when the browser takes the
 *   graphics context away.
 * @returns {Promise<RemoteModel>}
 * @throws {GlinferError} the browser lacks something, or a file is missing or damaged.
 */
export function load(base, options = {}) {
  const start = () => new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  return loadThrough(base, { load: loadAny, start }, options);
}
