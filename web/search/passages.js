/** Texts as passages, and which of them are nearest to a query. Plain values, nothing of the page. */

const PARAGRAPHS = /\n[^\S\n]*(?:\n[^\S\n]*)+/g;
const SENTENCE_END = /(?<=[.!?…。！？]["'”’»)\]]*)\s+|(?<=[。！？])|\n/g;

/**
 * The paragraphs of a text, those that do not fit cut at ends of sentences, else between words.
 * @param {string} text
 * @param {(passage: string) => boolean} fits whether a model takes all of a passage.
 * @returns {{text: string, line: number}[]} without spaces around them; lines count from 1.
 */
export function passagesOf(text, fits) {
  const found = [];
  const lines = text.replace(/\r\n?/g, "\n");
  let [at, line] = [0, 1];
  const add = (end) => {
    const paragraph = lines.slice(at, end);
    const blank = paragraph.match(/^\s*/)[0];
    let begins = line + newlines(blank);
    for (const piece of pieces(paragraph.slice(blank.length), fits)) {
      if (piece.trim()) found.push({ text: piece.trim(), line: begins });
      begins += newlines(piece);
    }
    line += newlines(paragraph);
  };
  for (const { index, 0: gap } of lines.matchAll(PARAGRAPHS)) {
    add(index);
    line += newlines(gap);
    at = index + gap.length;
  }
  add(lines.length);
  return found;
}

function newlines(text) {
  return text.split("\n").length - 1;
}

/** Pieces of a text that fit, all of it together. */
function pieces(text, fits) {
  if (!text.trim()) return [];
  if ((text.length < 3 && [...text].length < 2) || fits(text.trim())) return [text];
  const cut = middleOf(text);
  return [...pieces(text.slice(0, cut), fits), ...pieces(text.slice(cut), fits)];
}

/** The best cut near the middle of a text. */
function middleOf(text) {
  const half = text.length / 2;
  for (const pattern of [SENTENCE_END, /\s+/g]) {
    const ends = Array.from(text.matchAll(pattern), ({ index, 0: gap }) => index + gap.length);
    const inside = ends.filter((end) => end > text.length / 8 && end < text.length - text.length / 8);
    if (inside.length) return inside.reduce((best, end) => (Math.abs(end - half) < Math.abs(best - half) ? end : best));
  }
  const cut = Math.floor(half);
  return /[\udc00-\udfff]/.test(text[cut]) && text.length > 2 ? cut + 1 : cut; // no pair of surrogates is parted
}

/**
 * The vectors nearest to another one.
 * @param {Float32Array} query
 * @param {Float32Array[]} vectors
 * @param {number} count most results.
 * @returns {{index: number, score: number}[]} best first; of equal ones the first.
 */
export function nearest(query, vectors, count) {
  const scores = vectors.map((vector, index) => ({ index, score: vector.reduce((sum, each, at) => sum + each * query[at], 0) }));
  return scores.sort((one, other) => other.score - one.score || one.index - other.index).slice(0, count);
}
