/** Loading a model out of a GGUF file. */

import { GlinferError, optionsOf, shown } from "../glinfer/errors.js";
import { load } from "../glinfer/model.js";
import { fetchSource, folderAddress } from "../glinfer/source.js";
import { ggufSource, keepPlan, keptGguf } from "./source.js";

/**
 * Loads the model of a GGUF file.
 * @param {string|URL} base the address of a site of `glinfer export-web --drop`.
 * @param {{gguf?: File|File[]|string, kept?: string} & Parameters<typeof load>[1]} given `gguf`: the file, all parts of one model, or an address; `kept`: the
 *   fingerprint of one of an earlier visit; the others as in ../glinfer/model.js.
 * @returns {Promise<import("../glinfer/model.js").Model>}
 * @throws {GlinferError} the file cannot be read or is not supported, or the browser lacks something.
 */
export async function loadGguf(base, given = {}) {
  const { gguf, kept, ...options } = optionsOf(given);
  if (!kept && ![gguf ?? []].flat().length) throw new GlinferError("found no file; expected gguf: a File, all parts of a model, or an address");
  const odd = [gguf ?? []].flat().find((each) => typeof each !== "string" && !(each instanceof Blob));
  if (odd !== undefined) throw new GlinferError(`gguf has ${shown(odd)}; expected a File, all parts of a model, or an address`);
  base = folderAddress(base);
  const site = fetchSource(base);
  const source = kept ? await keptGguf(kept, site, base) : await ggufSource(gguf, site);
  const model = await load(base, { ...options, source });
  if (options.cache ?? true) await keepPlan(JSON.parse(await source.text("plan.json")), base);
  return model;
}
