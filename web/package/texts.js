/** The texts of any site; see gab_texts.js, which has the name texts.js in sites of Gab's tokenizers, and library_texts.js. */

import { textsOf as ofGab } from "./gab_texts.js";
import { textsOf as ofLibrary } from "./library_texts.js";

/**
 * The tokenizer and the chat form of a site.
 * @param {object} about `model` of plan.json.
 * @param {object|null} data the site's tokenizer.json, if it has one.
 * @returns {ReturnType<typeof ofGab>}
 * @throws {GlinferError} the tokenizer is of another kind.
 */
export function textsOf(about, data) {
  return data?.kind === "library" ? ofLibrary(about, data) : ofGab(about, data);
}
