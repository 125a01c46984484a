/** Exported models of both kinds: those that continue texts, and those that embed them. */

import { EmbeddingModel, wordsFor } from "./embedding/embed.js";
import { checkSpeculation } from "./glinfer/drafts.js";
import { optionsOf } from "./glinfer/errors.js";
import { computingCanvas, openContext } from "./glinfer/limits.js";
import { loadParts } from "./glinfer/loading.js";
import { Model, textsFor } from "./glinfer/model.js";
import { fetchSource, folderAddress } from "./glinfer/source.js";

/**
 * Loads an exported model into this thread.
 * @param {string|URL} base the address of the exported folder.
 * @param {import("./glinfer/loading.js").LoadOptions & {canvas?: HTMLCanvasElement|OffscreenCanvas}} given
 * @returns {Promise<Model|EmbeddingModel>}
 */
export async function loadAny(base, given = {}) {
  const { canvas = computingCanvas(), ...options } = optionsOf(given);
  checkSpeculation(options.speculate ?? null);
  const address = folderAddress(base);
  const source = fetchSource(address);
  const embeds = (plan) => plan.driver === "encode";
  const texts = (plan, tokenizer) => (embeds(plan) ? { words: wordsFor(plan, tokenizer) } : { form: textsFor(plan, tokenizer) });
  const { plan, replay, tables, texts: found } = await loadParts(openContext(canvas), source, address, texts, options);
  return embeds(plan) ? new EmbeddingModel(replay, tables, found.words, source) : new Model(replay, tables, found.form, source, options);
}
