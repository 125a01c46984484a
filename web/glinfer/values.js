/** Numbers that change from run to run: the browser's side of glinfer/gl/values.py. */

import { GlinferError } from "./errors.js";

const OPERATIONS = {
  add: (one, other) => one + other,
  multiply: (one, other) => one * other,
  ceildiv: (one, other) => Math.ceil(one / other),
  min: Math.min,
};

/**
 * The number that an expression of plan.json gives with these run values.
 * @param {number|string|object} expression
 * @param {Record<string, number>} values
 * @returns {number}
 */
export function evaluate(expression, values) {
  if (typeof expression === "string") return values[expression];
  if (typeof expression === "number") return expression;
  const [[operation, [left, right]]] = Object.entries(expression);
  const reached = evaluate(right, values);
  if (operation === "steps") return left.filter(([start]) => start <= reached).at(-1)[1];
  return OPERATIONS[operation](evaluate(left, values), reached);
}

/**
 * A rectangle [x, y, width, height] in texels with these run values.
 * @param {(number|string|object)[]} rectangle expressions.
 * @param {Record<string, number>} values
 * @returns {[number, number, number, number]}
 */
export function rectangleOf([x, y, width, height], values) {
  return [evaluate(x, values), evaluate(y, values), evaluate(width, values), evaluate(height, values)];
}

/**
 * All run values of a run.
 * @param {{run_values: object[]}} plan plan.json, or a companion of it.
 * @param {Record<string, number>} inputs
 * @returns {Record<string, number>}
 * @throws {GlinferError} one is missing or out of range.
 */
export function runValues({ run_values: wanted }, inputs) {
  /** @type {Record<string, number>} */
  const values = {};
  for (const { name, smallest, largest, whole, value } of wanted) {
    const found = (values[name] = value === null ? inputs[name] : evaluate(value, values));
    if (!(found >= smallest && found <= largest) || (whole && !Number.isInteger(found))) {
      throw new GlinferError(`run value ${name} is ${found}; expected ${smallest} to ${largest}`);
    }
  }
  return values;
}
