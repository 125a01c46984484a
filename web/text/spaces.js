/** The spaces that Python's `str.strip` knows, which are not quite those of JavaScript. */

const SPACES = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const START = new RegExp(`^[${SPACES}]+`);
const END = new RegExp(`[${SPACES}]+$`);

/** @param {string} text @returns {string} without the spaces that it begins with. */
export function stripStart(text) {
  return text.replace(START, "");
}

/** @param {string} text @returns {string} without the spaces that it ends with. */
export function stripEnd(text) {
  return text.replace(END, "");
}

/** @param {string} text @returns {string} without the spaces around it. */
export function strip(text) {
  return stripStart(stripEnd(text));
}
