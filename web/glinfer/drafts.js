/**
 * Drafts of the next tokens, and how many of them are worth a run; the text is the same without them. The browser's
 * side of glinfer/engine/run/drafts.py, which explains the method and the numbers.
 */

import { GlinferError, shown } from "./errors.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./sampler.js").Sampler} Sampler */

const NGRAM = "ngram";
const MIN_MATCH = 3; // tokens that have to repeat before what followed them is drafted
const MAX_MATCH = 32; // most tokens that are compared
const MAX_MATCHES = 32; // newest matches that are searched for the longest
/** Rows of a run of drafted tokens: a run takes the time of the next larger of these. */
export const DRAFT_ROWS = [4, 8, 16];
const KEPT_TIMES = 9;
const DECAY = 0.9; // factor of the old acceptances for each new one
const PRIOR_TRIED = 3; // number of tries that the prior probability counts for
const GROWTH = 1.5; // time of an untimed run, relative to one of half the rows
const [PATIENCE, MAX_PATIENCE] = [8, 256];
const IDLE = 8; // tokens in a row without an accepted draft, after which drafts are looked for less often

/**
 * Returns a valid way to draft.
 * @param {string|null} speculate
 * @returns {string|null}
 * @throws {GlinferError} there is no such way.
 */
export function checkSpeculation(speculate) {
  if (speculate === null || speculate === NGRAM) return speculate;
  throw new GlinferError(`speculate is ${shown(speculate)}; expected "${NGRAM}", or null`);
}

/** Prompt lookup: what followed the longest earlier match of the newest tokens; of equal matches the newest. */
export class Ngrams {
  constructor() {
    this.ids = [];
    this.ends = new Map();
    this.start = 0;
  }

  /**
   * The kind of draft that can be made after these tokens: the length of the match, rounded down to a power of two. Null
   * for none.
   * @param {number[]} ids
   * @returns {number|null}
   */
  offer(ids) {
    this.learn(ids);
    const known = this.ids;
    const end = known.length;
    // The newest match is the sequence's own end.
    const ends = (this.ends.get(this.keyBefore(end)) ?? []).slice(-MAX_MATCHES - 1, -1);
    let best = 0;
    for (const start of ends.reverse()) {
      let length = MIN_MATCH;
      while (length < Math.min(start, MAX_MATCH) && known[start - length - 1] === known[end - length - 1]) length += 1;
      if (length > best) [best, this.start] = [length, start];
    }
    return best ? 32 - Math.clz32(best) : null;
  }

  /**
   * The prior probability that a token of a kind of draft is right.
   * @param {number} kind
   * @returns {number}
   */
  prior(kind) {
    const equal = Math.max(MIN_MATCH, 2 ** (kind - 1));
    return (equal + 1) / (equal + 2);
  }

  /**
   * Drafts; called after `offer`. A match that reaches the end of the sequence repeats itself.
   * @param {number} count
   * @returns {number[]}
   */
  draft(count) {
    const found = this.ids.slice(this.start, this.start + count);
    const period = this.ids.length - this.start;
    while (found.length < count) found.push(found[found.length - period]);
    return found;
  }

  /** Indexes where each short run of tokens ends; anew if tokens were removed. */
  learn(ids) {
    if (this.ids.some((id, index) => id !== ids[index])) {
      this.ids = [];
      this.ends.clear();
    }
    for (const id of ids.slice(this.ids.length)) {
      this.ids.push(id);
      if (this.ids.length < MIN_MATCH) continue;
      const key = this.keyBefore(this.ids.length);
      if (!this.ends.has(key)) this.ends.set(key, []);
      this.ends.get(key).push(this.ids.length);
    }
  }

  keyBefore(end) {
    return this.ids.slice(Math.max(0, end - MIN_MATCH), end).join();
  }
}

/** The time of a model's runs in this browser: medians of the newest runs, by their number of rows. */
export class RunTimes {
  constructor() {
    this.times = new Map();
  }

  /**
   * Notes a run; the first of a kind warms up and is left out.
   * @param {number} rows 1 is a token without a draft, 0 the drafting of one token.
   * @param {number} milliseconds
   */
  note(rows, milliseconds) {
    const known = this.times.get(rows);
    if (known) this.times.set(rows, [...known, milliseconds].slice(-KEPT_TIMES));
    else this.times.set(rows, []);
  }

  /**
   * The time of a run of `rows` rows, estimated where none was timed; null before the first token was timed.
   * @param {number} rows
   * @returns {number|null}
   */
  of(rows) {
    const found = this.times.get(rows) ?? [];
    if (found.length) return median(found);
    if (rows <= 1) return null;
    const index = DRAFT_ROWS.indexOf(rows);
    // A few rows take hardly longer than one, so a draft is worth a try.
    const fewer = this.of(index ? DRAFT_ROWS[index - 1] : 1);
    return fewer === null ? null : fewer * (index ? GROWTH : 1);
  }
}

function median(numbers) {
  const sorted = numbers.toSorted((one, other) => one - other);
  const half = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** How often drafted tokens of one kind were right, and how long to pause while they do not pay. */
class Odds {
  constructor(right) {
    this.right = right;
    this.tried = PRIOR_TRIED;
    this.skipped = 0;
    this.patience = PATIENCE;
  }

  /** The expected number of tokens of a run with `drafted` drafted tokens. */
  tokens(drafted) {
    const each = this.right / this.tried; // the probability that a token is right where all before it were
    let sum = 0;
    for (let count = 0; count <= drafted; count++) sum += each ** count;
    return sum;
  }

  note(drafted, accepted) {
    this.right = DECAY * this.right + accepted;
    this.tried = DECAY * this.tried + Math.min(drafted, accepted + 1);
  }

  /** Whether a kind that does not pay is tried again: after twice as many chances each time. */
  retries() {
    this.skipped += 1;
    if (this.skipped <= this.patience) return false;
    this.skipped = 0;
    this.patience = Math.min(2 * this.patience, MAX_PATIENCE);
    return true;
  }
}

/** Chooses the tokens of one text with the drafts of a drafter, each as long as pays best. */
export class Speculation {
  /**
   * @param {Pick<Ngrams, "offer"|"prior"|"draft">} drafter
   * @param {RunTimes} times those of the model, which its texts share.
   * @param {() => number} clock milliseconds.
   */
  constructor(drafter, times, clock = () => performance.now()) {
    this.drafter = drafter;
    this.times = times;
    this.clock = clock;
    this.odds = new Map();
    this.draftTimes = new RunTimes();
    this.idle = 0;
  }

  /**
   * Chooses and appends 1 to `most` tokens, the same that `model.choose` would.
   * @param {Pick<Model, "ids"|"drafted"|"choose"|"accept">} model
   * @param {Sampler} sampler
   * @param {{most: number, chunk: number, ready: boolean}} how `most`: at most the room of the model; `chunk`: how many tokens
   *   may be chosen together where no draft is likely; `ready`: whether the tokens were run before. Directly after a
   *   prompt nothing is drafted or timed.
   * @returns {number[]}
   */
  choose(model, sampler, { most, chunk, ready }) {
    const kind = ready && most > 1 ? this.drafter.offer(model.ids) : null;
    const length = kind === null ? 0 : this.length(this.oddsOf(kind), most - 1);
    if (length) return this.accept(model, sampler, kind, length);
    this.idle += 1;
    const started = this.clock();
    const chosen = model.choose(this.idle > IDLE ? Math.min(chunk, most) : 1, sampler);
    if (ready) this.times.note(1, (this.clock() - started) / chosen.length);
    return chosen;
  }

  /** Drafts `length` tokens and checks them. */
  accept(model, sampler, kind, length) {
    const started = this.clock();
    const draft = this.drafter.draft(length);
    const drafted = this.clock();
    this.draftTimes.note(0, (drafted - started) / length);
    const before = model.drafted;
    const chosen = model.accept(draft, sampler);
    this.idle = chosen.length > 1 ? 0 : this.idle + 1;
    if (model.drafted > before) {
      this.oddsOf(kind).note(length, chosen.length - 1);
      this.times.note(DRAFT_ROWS.find((rows) => rows > length), this.clock() - drafted);
    }
    return chosen;
  }

  oddsOf(kind) {
    if (!this.odds.has(kind)) this.odds.set(kind, new Odds(PRIOR_TRIED * this.drafter.prior(kind)));
    return this.odds.get(kind);
  }

  /** The draft length with the most tokens a second; 0 where single tokens are as fast. */
  length(odds, most) {
    const single = this.times.of(1);
    if (single === null) return 0;
    let [best, length] = [0, 0];
    for (const rows of DRAFT_ROWS) {
      const drafted = Math.min(rows - 1, most);
      const rate = odds.tokens(drafted) / (this.times.of(rows) + drafted * (this.draftTimes.of(0) ?? 0));
      if (rate > best) [best, length] = [rate, drafted];
    }
    if (best * single > 1) {
      odds.patience = PATIENCE;
      return length;
    }
    return odds.retries() ? length : 0;
  }
}
