/** Questions in a dialog, which Escape and Cancel answer with no. */

import { $ } from "./elements.js";

/**
 * Asks one.
 * @param {string} text the question.
 * @param {{yes: string, value?: string}} how the label of the button that agrees; the text to begin with, where a text is
 *   asked for.
 * @returns {Promise<string|null>} the text, or an empty one where none is asked for; null for no.
 */
export function ask(text, { yes, value }) {
  const dialog = $("ask");
  const field = $("ask-value");
  $("ask-text").textContent = text;
  $("ask-yes").textContent = yes;
  $("ask-field").hidden = value === undefined;
  field.value = value ?? "";
  return new Promise((resolve) => {
    const control = new AbortController();
    const { signal } = control;
    const finish = (answer) => {
      control.abort();
      dialog.close();
      resolve(answer);
    };
    $("ask-yes").addEventListener("click", () => finish(field.value), { signal });
    $("ask-no").addEventListener("click", () => finish(null), { signal });
    dialog.addEventListener("cancel", () => finish(null), { signal });
    const enter = (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault(); // or it would press the button that has the focus next
      finish(field.value);
    };
    field.addEventListener("keydown", enter, { signal });
    dialog.showModal();
    (value === undefined ? $("ask-no") : field).focus();
    field.select();
  });
}

/** Whether a question is open. */
export function asking() {
  return $("ask").open;
}
