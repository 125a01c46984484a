/**
 * Jinja templates with the text that Python's jinja2 makes of them, with transformers' settings. The language is that
 * of @huggingface/jinja; this file implements where its results differ.
 */

import { Environment, Interpreter, parse, tokenize } from "../libraries/jinja.js";
import { strip, stripEnd, stripStart } from "./spaces.js";

const LONGEST_RANGE = 100_000; // as jinja2's sandbox has it
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  ...["January", "February", "March", "April", "May", "June", "July"],
  ...["August", "September", "October", "November", "December"],
];

const METHODS = {
  strip: (text, characters) => stripped(text, characters, true, true),
  lstrip: (text, characters) => stripped(text, characters, true, false),
  rstrip: (text, characters) => stripped(text, characters, false, true),
  capitalize: (text) => {
    const [first = "", ...rest] = text;
    return first.toUpperCase() + rest.join("").toLowerCase();
  },
  title: (text) => text.replace(/\p{Cased}+/gu, (word) => METHODS.capitalize(word)),
  format: (form, ...values) => {
    let next = 0;
    return form.replace(/\{\{|\}\}|\{(\d*)\}|[{}]/g, (all, number) => {
      const at = number || next++;
      if (all.length > 1 && number === undefined) return all[0];
      if (typeof values[at] !== "string") throw new Error(`format fills only the placeholders {} and {0}: ${form}`);
      return values[at];
    });
  },
};
const TEXT_FILTERS = ["capitalize", "lower", "replace", "string", "title", "trim", "upper"]; // write any operand as a text first
const LIST_FILTERS = ["first", "join", "last", "length", "list", "reverse", "sort", "unique"]; // take undefined for an empty list
const LAZY_FILTERS = ["map", "reject", "rejectattr", "select", "selectattr"]; // take anything false for an empty list

const LOOPS = new WeakSet(); // the bodies of loops
const SILENT = ["Set", "Macro", "Comment"]; // statements that make no text

mendTexts();
mendEquality();
mendFilters();
mendKeys();
mendLoops();

/** A program. */
export class Jinja {
  /**
   * @param {string} source
   * @param {(text: string) => string} changed what to write in place of a text of the program; those stay with which others are
   *   compared, searched or changed.
   * @throws {Error} it is none, or needs what the library does not have.
   */
  constructor(source, changed = (text) => text) {
    this.program = mended(parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true })), changed);
  }

  /**
   * The text that it makes.
   * @param {Record<string, unknown>} variables what it can name.
   * @param {Date} now what `strftime_now` tells.
   * @returns {string}
   * @throws {Error} the program raises it, or does what the library does not know.
   */
  render(variables, now = new Date()) {
    const environment = new Environment();
    const constants = { true: true, false: false, none: null, True: true, False: false, None: null };
    for (const [name, value] of Object.entries({ ...constants, ...functionsAt(now), ...variables })) environment.set(name, value);
    return new Interpreter(environment).run(this.program).value;
  }
}

function functionsAt(now) {
  return {
    raise_exception: (message) => {
      throw new Error(message);
    },
    range: (...bounds) => {
      const [start, stop, step = 1] = bounds.length === 1 ? [0, ...bounds] : bounds;
      const count = Math.max(0, Math.ceil((stop - start) / step));
      if (!(count <= LONGEST_RANGE)) throw new Error(`a range of ${count} numbers; expected at most ${LONGEST_RANGE}`);
      return Array.from({ length: count }, (_, index) => start + index * step);
    },
    strftime_now: (form) => dated(now, form),
  };
}

/** Python's `strftime` in the C locale. */
function dated(now, form) {
  const two = (number) => String(number).padStart(2, "0");
  const day = Math.round((new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime() - new Date(now.getFullYear(), 0, 0).getTime()) / 864e5);
  const parts = {
    Y: now.getFullYear(),
    y: two(now.getFullYear() % 100),
    m: two(now.getMonth() + 1),
    d: two(now.getDate()),
    e: String(now.getDate()).padStart(2, " "),
    j: String(day).padStart(3, "0"),
    B: MONTHS[now.getMonth()],
    b: MONTHS[now.getMonth()].slice(0, 3),
    A: DAYS[now.getDay()],
    a: DAYS[now.getDay()].slice(0, 3),
    H: two(now.getHours()),
    I: two(now.getHours() % 12 || 12),
    p: now.getHours() < 12 ? "AM" : "PM",
    M: two(now.getMinutes()),
    S: two(now.getSeconds()),
    "%": "%",
  };
  return form.replace(/%(.)/gs, (all, name) => {
    if (!Object.hasOwn(parts, name)) throw new Error(`strftime_now knows no ${all}`);
    return parts[name];
  });
}

/** A program with `changed` texts, whose loops read their items through the filter `list`. */
function mended(node, changed) {
  if (Array.isArray(node)) return node.map((each) => mended(each, changed));
  if (node instanceof Map) return new Map(Array.from(node, (pair) => mended(pair, changed)));
  if (node === null || typeof node !== "object") return node;
  if (node.type === "StringLiteral") return Object.assign(node, { value: changed(node.value) });
  const compares = node.type === "BinaryExpression" && !["+", "~"].includes(node.operator.value);
  const same = (text) => text;
  for (const [name, value] of Object.entries(node)) {
    const looks = compares || name === "property" || name === "filter" || (name === "args" && node.callee?.type === "MemberExpression");
    node[name] = mended(value, looks ? same : changed);
  }
  if (node.type === "For") {
    LOOPS.add(node.body);
    const [select, name] = node.iterable.type === "SelectExpression" ? [node.iterable, "lhs"] : [node, "iterable"];
    select[name] = { type: "FilterExpression", operand: select[name], filter: { type: "Identifier", value: "list" } };
  }
  return node;
}

/** A JavaScript value as the library has it. */
function valueOf(value) {
  return new Environment().set("value", value);
}

/** Gives the texts of the library the methods that Python's have. */
function mendTexts() {
  const prototype = Object.getPrototypeOf(valueOf(""));
  const { get } = Object.getOwnPropertyDescriptor(prototype, "builtins");
  Object.defineProperty(prototype, "builtins", {
    get() {
      const own = Object.entries(METHODS).map(([name, method]) => [name, valueOf((...given) => method(this.value, ...given))]);
      return new Map([...get.call(this), ...own, ["length", valueOf(Array.from(this.value).length)]]);
    },
  });
}

/** Makes a text equal to texts alone: JavaScript's `==` takes an empty one for false. */
function mendEquality() {
  const evaluate = Interpreter.prototype.evaluateBinaryExpression;
  Interpreter.prototype.evaluateBinaryExpression = function (node, scope) {
    if (node.operator.value === "==" || node.operator.value === "!=") {
      const texts = [node.left, node.right].filter((each) => this.evaluate(each, scope).type === "StringValue");
      if (texts.length === 1) return valueOf(node.operator.value === "!=");
    }
    return evaluate.call(this, node, scope);
  };
}

/** Gives filters the operands that jinja2 gives them: texts of values, items of texts, nothing of an undefined value. */
function mendFilters() {
  const apply = Interpreter.prototype.applyFilter;
  Interpreter.prototype.applyFilter = function (operand, filter, scope) {
    const name = (filter.callee ?? filter).value;
    const isEmpty = LIST_FILTERS.includes(name) ? operand.type === "UndefinedValue" : LAZY_FILTERS.includes(name) && !operand.__bool__().value;
    let given = isEmpty ? valueOf([]) : operand;
    if (name === "list" && operand.type === "StringValue") given = valueOf(Array.from(operand.value));
    if (name === "list" && operand.type === "ObjectValue") given = operand.keys();
    if (TEXT_FILTERS.includes(name)) given = valueOf(written({}, operand));
    if (name !== "trim") return apply.call(this, given, filter, scope) ?? valueOf(undefined);
    const [[characters]] = this.evaluateArguments(filter.args ?? [], scope);
    return valueOf(METHODS.strip(given.value, characters?.value));
  };
}

/** Allows mappings with numbers as keys, which the library refuses; they have the filter `dictsort` only. */
function mendKeys() {
  const evaluate = Interpreter.prototype.evaluate;
  const list = (values) => Object.assign(valueOf([]), { value: values });
  const refuse = () => {
    throw new Error("a mapping with numbers as keys; expected only dictsort to read it");
  };
  Interpreter.prototype.evaluate = function (node, scope) {
    if (node?.type !== "ObjectLiteral" || !node.value.size) return evaluate.call(this, node, scope);
    if (!Array.from(node.value.keys()).every((key) => key.type === "IntegerLiteral")) return evaluate.call(this, node, scope);
    const pairs = Array.from(new Map(Array.from(node.value, ([key, value]) => [key.value, this.evaluate(value, scope)])));
    const sorted = pairs.sort(([one], [other]) => one - other).map(([key, value]) => list([valueOf(key), value]));
    const dictsort = Object.assign(valueOf(refuse), { value: (given) => (given.length ? refuse() : list(sorted)) });
    return Object.defineProperty(Object.assign(valueOf({}), { _builtins: new Map([["dictsort", dictsort]]) }), "value", { get: refuse });
  };
}

/** Gives iterations variables of their own, and what they wrote before `break` and `continue`; writes constants as Python. */
function mendLoops() {
  const kinds = ["Break", "Continue"].map((type) => {
    try {
      return new Interpreter().evaluate({ type });
    } catch (error) {
      return error.constructor;
    }
  });
  const [Break, Continue] = kinds;
  const ended = new WeakSet(); // the scopes of loops that were left
  Interpreter.prototype.evaluateBlock = function (statements, scope) {
    const isLoop = LOOPS.has(statements);
    if (isLoop && ended.has(scope)) throw new Break();
    // What an iteration sets, the next one does not see.
    const own = isLoop ? new Environment(scope) : scope;
    let text = "";
    try {
      for (const statement of statements) text += written(statement, this.evaluate(statement, own));
    } catch (error) {
      if (!(error instanceof Break || error instanceof Continue)) throw error;
      text += error.written ?? "";
      if (!isLoop) throw Object.assign(error, { written: text });
      if (error instanceof Break) ended.add(scope);
    }
    return valueOf(text);
  };
}

function written(statement, value) {
  switch (value.type) {
    case "UndefinedValue":
      return "";
    case "NullValue":
      return SILENT.includes(statement.type) ? "" : "None";
    case "BooleanValue":
      return value.value ? "True" : "False";
    default:
      return value.toString();
  }
}

function stripped(text, characters, start, end) {
  if (characters === undefined || characters === null) {
    if (start && end) return strip(text);
    return start ? stripStart(text) : stripEnd(text);
  }
  const letters = Array.from(text);
  const among = new Set(characters);
  let [from, to] = [0, letters.length];
  while (start && from < to && among.has(letters[from])) from++;
  while (end && to > from && among.has(letters[to - 1])) to--;
  return letters.slice(from, to).join("");
}
