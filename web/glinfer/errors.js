const MOST_LETTERS = 60; // of a text that a message shows
const SWITCHES = ["worker", "minimum", "cache", "normalize", "allowSpecial"]; // options that are true or false

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
  if (typeof value === "function") return "a function";
  return value !== null && typeof value === "object" ? (Array.isArray(value) ? "an array" : "an object") : String(value);
}

/**
 * The options that a caller gave; null stands for none.
 * @template T
 * @param {T} given
 * @returns {T}
 * @throws {GlinferError} they are not an object.
 */
export function optionsOf(given) {
  if (given !== null && (typeof given !== "object" || Array.isArray(given))) throw new GlinferError(`the options are ${shown(given)}; expected an object`);
  return given ?? /** @type {any} */ ({});
}

/**
 * Returns options, see `optionsOf`, and refuses those that a function does not have.
 * @template T
 * @param {T} options
 * @param {string[]} known
 * @returns {T}
 * @throws {GlinferError} an option is unknown, or a callback, a switch or a signal is of another type.
 */
export function checkOptions(options, known) {
  const given = optionsOf(options);
  const unknown = Object.keys(given).find((name) => !known.includes(name));
  if (unknown) throw new GlinferError(`unknown option ${unknown}; known: ${known.join(", ")}`);
  const callback = known.find((name) => name.startsWith("on") && !["function", "undefined"].includes(typeof given[name]));
  if (callback) throw new GlinferError(`${callback} is ${shown(given[callback])}; expected a function`);
  const on = SWITCHES.find((name) => !["boolean", "undefined"].includes(typeof given[name]));
  if (on) throw new GlinferError(`${on} is ${shown(given[on])}; expected true or false`);
  const signal = given["signal"] ?? null;
  if (signal !== null && !(signal instanceof AbortSignal)) throw new GlinferError(`signal is ${shown(signal)}; expected that of an AbortController`);
  return given;
}

/**
 * Refuses what are no ids of a vocabulary's tokens.
 * @param {Iterable<number>} ids
 * @param {number} vocabulary its size.
 * @throws {GlinferError} they are not an array, or an id is outside the vocabulary.
 */
export function checkTokens(ids, vocabulary) {
  if (!Array.isArray(ids) && !ArrayBuffer.isView(ids)) throw new GlinferError(`found ${shown(ids)}; expected an array of token ids`);
  for (const id of ids) {
    if (Number.isInteger(id) && id >= 0 && id < vocabulary) continue;
    throw new GlinferError(`found the token ${shown(id)}; expected integers from 0 to ${vocabulary - 1}`);
  }
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
