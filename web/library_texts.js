/** The texts of a site whose tokenizer is one of Hugging Face's or a GGUF file's; it has the name texts.js there. */

import { GlinferError } from "./glinfer/errors.js";
import { LibraryTokenizer } from "./text/library.js";
import { TemplateForm } from "./text/template.js";

/**
 * The tokenizer and the chat form of a site; see texts.js. What cannot be read here or gives other ids than in Python
 * is left out, and `why` says so.
 */
export function textsOf({ chat, why }, data) {
  let tokenizer = null;
  try {
    tokenizer = new LibraryTokenizer(data, chat ? "plain" : "whole");
    return { tokenizer, form: chat && new TemplateForm(tokenizer, chat), why: why ?? "" };
  } catch (error) {
    if (!(error instanceof GlinferError)) throw error;
    return { tokenizer, form: null, why: error.message };
  }
}
