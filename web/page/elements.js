/** Small things that all parts of the page use. */

/** The element of the page with an id. */
export const $ = (id) => document.getElementById(id);

/**
 * A new element.
 * @param {string} tag
 * @param {object} values its properties, such as `className` and `textContent`.
 * @param {...(Node|string)} children
 * @returns {HTMLElement}
 */
export function element(tag, values = {}, ...children) {
  const made = Object.assign(document.createElement(tag), values);
  made.append(...children);
  return made;
}

/**
 * A button of type "button".
 * @param {string} label
 * @param {() => void} press
 * @param {object} values further properties.
 * @returns {HTMLButtonElement}
 */
export function button(label, press, values = {}) {
  const made = element("button", { type: "button", textContent: label, ...values });
  made.addEventListener("click", press);
  return made;
}

/**
 * The sentence of a problem.
 * @param {string} text
 * @returns {string} with a capital letter, unless it begins with a name such as model.gguf, and a full stop.
 */
export function sentence(text) {
  return text.replace(/^[a-z](?=[a-z']*[\s,;])/, (first) => first.toUpperCase()) + (/[.!?]$/.test(text) ? "" : ".");
}

/**
 * A text that the browser keeps, or null; a window may not use its storage.
 * @param {"localStorage"|"sessionStorage"} storage
 * @param {string} key
 * @returns {string|null}
 */
export function keptText(storage, key) {
  try {
    return globalThis[storage].getItem(key);
  } catch {
    return null;
  }
}

/** Keeps a text, if the window may use its storage; null deletes it. */
export function keepText(storage, key, text) {
  try {
    if (text === null) globalThis[storage].removeItem(key);
    else globalThis[storage].setItem(key, text);
  } catch {
    // it lasts until the page is closed
  }
}
