/** What the page says of a model: its kind of input, with examples, and its card. */

import { $, button, element, sentence } from "./elements.js";

/**
 * Shows the model's kind of input, with examples to click on.
 * @param {{takes: "chat"|"text"|"ids", examples: string[], vocabulary: number, why?: string}} can see `Page.ready`.
 * @param {(text: string) => void} choose called with an example.
 */
export function invite({ takes, examples, vocabulary, why }, choose) {
  const kinds = {
    chat: "Ask something, or click on one of these. It is a small model: it writes fluently, and often makes things up.",
    text: "This model continues a text; it does not answer questions. Write a beginning, or click on one of these.",
    ids:
      "The words of this model are not on this page, only their numbers (token ids). " +
      `Write some whole numbers from 0 to ${vocabulary - 1}, with spaces between them.`,
  };
  $("message-label").textContent = { chat: "Your message", text: "A text to continue", ids: "Token ids" }[takes];
  $("invitation").textContent = why ? `${kinds[takes]} ${sentence(why)}` : kinds[takes];
  $("examples").replaceChildren(...examples.map((text) => button(text, () => choose(text))));
}

/**
 * Shows facts with their names; those that are not known are left out.
 * @param {[string, string|undefined][]} rows
 */
export function showCard(rows) {
  const known = rows.filter(([, value]) => value);
  const parts = ([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })];
  $("card").replaceChildren(...known.map((row) => element("div", {}, ...parts(row))));
}
