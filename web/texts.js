/**
 * The texts of a site whose tokenizer is Gab's, or that takes token ids. Sites of other tokenizers have library_texts.js
 * instead of this one, and two libraries of npm.
 */

import { GabForm } from "./glinfer/chat.js";
import { Tokenizer } from "./glinfer/tokenizer.js";

/** @typedef {import("./glinfer/chat.js").ChatForm} ChatForm */

/**
 * The tokenizer and the chat form of a site.
 * @param {object} about `model` of plan.json.
 * @param {object|null} data the site's tokenizer.json, if it has one.
 * @returns {{tokenizer: import("./glinfer/tokenizer.js").AnyTokenizer|null, form: ChatForm|null, why: string}} `form`: null where texts are continued;
 *   `why`: what the export or the browser lacks to do more, as part of a sentence; empty where there is nothing.
 * @throws {GlinferError} the tokenizer is of another kind.
 */
export function textsOf({ chat, stop_ids: stopIds, why }, data) {
  const tokenizer = data && new Tokenizer(data);
  return { tokenizer, form: tokenizer && chat ? new GabForm(tokenizer, chat, stopIds) : null, why: why ?? "" };
}
