/** Copying to the clipboard. */

import { button, element } from "./elements.js";

const SHOWN = 1500; // milliseconds

/** The way of pages that came without encryption, which browsers keep from the clipboard. */
function copyBySelection(text) {
  const field = element("textarea", { value: text, className: "unseen" });
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  if (!done) throw new Error("the browser does not let this page copy");
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  return copyBySelection(text);
}

/**
 * A button that copies a text, and says whether it did.
 * @param {string} label
 * @param {() => string} textOf asked when it is pressed.
 * @returns {HTMLButtonElement}
 */
export function copyButton(label, textOf) {
  let timer = 0;
  const press = async () => {
    made.textContent = await copy(textOf()).then(() => "Copied", () => "Not copied");
    clearTimeout(timer);
    timer = setTimeout(() => (made.textContent = label), SHOWN);
  };
  const made = button(label, press, { className: "small copy" });
  return made;
}
