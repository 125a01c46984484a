const MOST_LETTERS = 60; // of a text that a message shows

/** An error that a user can understand: one clear sentence in `message`. */
export class GlinferError extends Error {
  /** @param {string} message what was found, what was expected, what to do. */
  constructor(message) {
    super(message);
    this.name = "GlinferError";
  }
}

/**
 * A value in a message: texts in quotes, so that "5" is not taken for 5.
 * @param {unknown} value
 * @returns {string}
 */
export function shown(value) {
  if (typeof value === "string") return JSON.stringify(value.length > MOST_LETTERS ? `${value.slice(0, MOST_LETTERS)}…` : value);
  return value !== null && typeof value === "object" ? (Array.isArray(value) ? "an array" : "an object") : String(value);
}

/**
 * Refuses what cannot be tokenized.
 * @param {string} text
 * @throws {GlinferError} it is not a text, or has half a surrogate pair, which UTF-8 cannot express.
 */
export function checkText(text) {
  if (typeof text !== "string") throw new GlinferError(`the text is ${shown(text)}; expected a string`);
  if (/\p{Surrogate}/u.test(text)) throw new GlinferError("the text has half a surrogate pair; expected valid Unicode");
}
