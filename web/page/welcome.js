/** How the page describes a model: its kind of input, with examples, and its card. */

import { $, button, element, sentence } from "./elements.js";

const SOFTWARE = /SwiftShader|llvmpipe|softpipe|Basic Render/i;

/**
 * Shows the model's kind of input, with examples to click on, and what to expect of a slow renderer.
 * @param {{takes: "chat"|"text"|"ids", examples: string[], vocabulary: number, why?: string, renderer?: string}} can see
 *   `Page.ready`.
 * @param {(text: string) => void} choose called with an example.
 */
export function invite({ takes, examples, vocabulary, why, renderer }, choose) {
  const kinds = {
    chat: "Ask a question, or choose one of these. This is a small model: it writes fluently, but often makes things up.",
    text: "This model continues a text; it does not answer questions. Write the start of one, or choose one of these.",
    ids:
      "This model has no tokenizer here, so it works with numbers (token ids). " +
      `Write integers from 0 to ${vocabulary - 1}, separated by spaces.`,
  };
  const label = { chat: "Your message", text: "Text to continue", ids: "Token ids" }[takes];
  $("message-label").textContent = $("message").placeholder = label;
  $("slow").hidden = !SOFTWARE.test(renderer ?? "");
  $("invitation").textContent = why ? `${kinds[takes]} ${sentence(why)}` : kinds[takes];
  $("examples").replaceChildren(...examples.map((text) => button(text, () => choose(text))));
}

/**
 * Shows facts with their names, except unknown ones.
 * @param {[string, string|undefined][]} rows
 */
export function showCard(rows) {
  const known = rows.filter(([, value]) => value);
  const parts = ([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })];
  $("card").replaceChildren(...known.map((row) => element("div", {}, ...parts(row))));
}
