/**
 * Thoughts between marks such as `<think>` and `</think>`, which a template names; the browser's side of
 * glinfer/text/marks.py. Bytes are texts here, of one character for each.
 */

const THOUGHTS = [
  ["<think>", "</think>"],
  ["<seed:think>", "</seed:think>"],
  ["[THINK]", "[/THINK]"],
  ["<thought>", "</thought>"],
  ["<|START_THINKING|>", "<|END_THINKING|>"],
  ["<|inner_prefix|>", "<|inner_suffix|>"],
];
/** @type {[string, string]} */
const ANSWER = ["<answer>", "</answer>"];
/** @type {Record<string, [string, string]>} */
const ANSWERS = { "<response></response>": ["<response>", "</response>"], "</answer>": ANSWER, "<|extra_0|>": ANSWER, hy_Assistant: ANSWER };
const SPACE_BEFORE = /^[ \t-\r]+/;
const SPACE_AFTER = /[ \t-\r]+$/;

/** @typedef {import("./library.js").LibraryTokenizer} LibraryTokenizer */
/** @typedef {{opening: string, closing: string, answer: [string, string]}} Marks the texts around thoughts, and around an answer, or empty ones. */

/**
 * The marks that a template names: the first pair of which it has one text; or null.
 * @param {string} source
 * @returns {Marks|null}
 */
export function marksOf(source) {
  const [opening, closing] = THOUGHTS.find((pair) => pair.some((mark) => source.includes(mark))) ?? [];
  const named = Object.keys(ANSWERS).find((text) => source.includes(text));
  return opening ? { opening, closing, answer: named ? ANSWERS[named] : ["", ""] } : null;
}

function bytesOf(id, tokenizer) {
  return atob(tokenizer.pieces[id] ?? "");
}

/** Whether ids end with a mark, and perhaps white space. */
export function endsWith(ids, mark, tokenizer) {
  let end = "";
  for (let index = ids.length - 1; index >= 0 && end.trim().length < mark.length; index--) end = bytesOf(ids[index], tokenizer) + end;
  return end.replace(SPACE_AFTER, "").endsWith(mark);
}

/** Sorts the tokens of a reply by its marks; see `MarkedReply` in glinfer/text/marks.py. */
export class MarkedReply {
  /**
   * @param {Marks} marks
   * @param {boolean} think whether the prompt begins thoughts.
   * @param {LibraryTokenizer} tokenizer
   */
  constructor({ opening, closing, answer }, think, tokenizer) {
    const [first, last] = answer;
    this.tokenizer = tokenizer;
    this.openings = first ? [opening, first] : [opening];
    /** @type {Record<string, [string, string[]]>} what follows a mark, and the marks that end it */
    this.after = {
      [first]: ["answer", [`\n${last}`, last]],
      [last]: ["answer", []],
      [`\n${last}`]: ["answer", []],
      [closing]: ["answer", []],
      [opening]: ["thinking", [closing]],
    };
    this.kind = think ? "thinking" : "answer";
    this.closings = think ? [closing] : [];
    this.isMarked = think;
    this.begins = true; // thoughts or an answer have no text yet
    this.held = []; // bytes of tokens and their ids; null where a mark has cut a token
  }

  /** @returns {[string, number][]} the tokens that are now certain, each after its kind. */
  push(id) {
    const data = bytesOf(id, this.tokenizer);
    if (data) this.held.push([data, id]);
    const shown = [];
    for (;;) {
      const [size, mark] = this.next();
      shown.push(...this.taken(size));
      if (!mark) return shown;
      this.cut(mark.length);
      [this.kind, this.closings] = this.after[mark];
      this.begins = this.isMarked = true;
    }
  }

  /** @returns {[string, number][]} the tokens that were held back. */
  finish() {
    return this.taken(this.held.reduce((sum, [data]) => sum + data.length, 0));
  }

  /** @returns {[number, string]} the number of held bytes before a mark, and the mark; empty without a complete one. */
  next() {
    const data = this.held.map(([bytes]) => bytes).join("");
    const start = this.begins ? data.length - data.replace(SPACE_BEFORE, "").length : -1;
    for (let at = 0; at < data.length; at++) {
      for (const mark of at === start ? [...this.closings, ...this.openings] : this.closings) {
        if (data.startsWith(mark, at)) return [at, mark];
        if (mark.startsWith(data.slice(at))) return [at, ""];
      }
    }
    return [data.length, ""];
  }

  /** Takes bytes: the tokens to show. */
  taken(size) {
    const shown = [];
    for (const [whole, id] of this.cut(size)) {
      const skips = this.begins && this.isMarked;
      const data = skips && id === null ? whole.replace(SPACE_BEFORE, "") : whole;
      this.begins &&= !data.replace(SPACE_BEFORE, "");
      if (this.begins && this.isMarked) continue;
      const ids = id === null ? this.idsOf(data) : [id];
      shown.push(...ids.filter((each) => !this.tokenizer.controlIds.has(each)).map((each) => [this.kind, each]));
    }
    return shown;
  }

  /** Takes bytes off the held tokens; a token that they cut has no id any more. */
  cut(size) {
    const found = [];
    for (let left = size; left > 0; ) {
      let [data, id] = this.held.shift();
      if (data.length > left) {
        this.held.unshift([data.slice(left), null]);
        [data, id] = [data.slice(0, left), null];
      }
      found.push([data, id]);
      left -= data.length;
    }
    return found;
  }

  idsOf(data) {
    const text = new TextDecoder().decode(Uint8Array.from(data, (letter) => letter.charCodeAt(0)));
    return this.tokenizer.pipeline("later").ids(text);
  }
}
