import assert from "node:assert/strict";
import test from "node:test";

import { checkSpeculation, DRAFT_ROWS, Ngrams, RunTimes, Speculation } from "../glinfer/drafts.js";
import { GlinferError } from "../glinfer/errors.js";
import { noPython, python } from "./python.js";

const guess = (ids, count = 4) => {
  const ngrams = new Ngrams();
  return ngrams.offer(ids) === null ? null : ngrams.draft(count);
};

test("three tokens have to repeat; the longest match counts, of equal ones the newest", () => {
  assert.deepEqual(guess([1, 2, 3, 9, 8, 7, 6, 5, 1, 2, 3]), [9, 8, 7, 6]);
  for (const ids of [[], [1], [1, 2, 3], [1, 2, 9, 8, 1, 2], [0, 2, 3, 9, 1, 2, 3]]) assert.equal(guess(ids), null);
  assert.deepEqual(guess([4, 1, 2, 3, 10, 1, 2, 3, 11, 4, 1, 2, 3], 1), [10]);
  assert.deepEqual(guess([1, 2, 3, 10, 1, 2, 3, 11, 1, 2, 3], 1), [11]);
  assert.deepEqual(guess([5, 1, 2, 1, 2, 1], 5), [2, 1, 2, 1, 2]);
});

/** Texts that grow, are cut and go on, of few different tokens. */
function sequences() {
  let state = 7;
  const random = (below) => (state = (state * 1103515245 + 12345) % 2147483648) % below;
  const found = [];
  for (let ids = []; found.length < 300; ) {
    if (random(9) === 0) ids = ids.slice(0, random(ids.length + 1));
    const from = random(ids.length + 1);
    ids = [...ids, ...(random(2) ? ids.slice(from, from + 40) : Array.from({ length: 5 }, () => random(6)))];
    if (ids.length > 300) ids = ids.slice(150);
    found.push(ids);
  }
  return found;
}

test("guesses are Python's", { skip: noPython }, () => {
  const program = `
import json, sys
from glinfer.engine.run.drafts import Ngrams
from glinfer.engine.sampler import Sampler
ngrams, found = Ngrams(), []
for ids in json.loads(sys.argv[1]):
    kind = ngrams.offer(ids)
    found.append([kind, None if kind is None else ngrams.draft(ids, 15, Sampler())])
print(json.dumps(found))`;
  const given = sequences();
  const ngrams = new Ngrams();
  const found = given.map((ids) => {
    const kind = ngrams.offer(ids);
    return [kind, kind === null ? null : ngrams.draft(15)];
  });
  assert.ok(found.filter(([kind]) => kind !== null).length > 50);
  assert.deepEqual(found, python(program, JSON.stringify(given)));
});

test("the first run warms up, others give a median, and what was not timed is estimated", () => {
  const times = new RunTimes();
  assert.equal(times.of(16), null);
  for (const each of [9, 2, 3, 50]) times.note(1, each);
  assert.equal(times.of(1), 3);
  for (let run = 0; run < 20; run++) times.note(1, 2);
  assert.deepEqual(DRAFT_ROWS.map((rows) => times.of(rows)), [2, 3, 4.5]);
  for (const each of [5, 5]) times.note(8, each);
  assert.deepEqual(DRAFT_ROWS.map((rows) => times.of(rows)), [2, 5, 7.5]);
});

const FLAT = { 1: 1, 4: 1, 8: 1.2, 16: 1.5 };
const STEEP = { 1: 1, 4: 4, 8: 8, 16: 16 };

/** A model and a drafter on a machine whose runs take so long by their rows; `right` is the part of guesses that is right. */
class Machine {
  constructor(times, right, prior = 2 / 3) {
    Object.assign(this, { times, right, likely: prior, now: 0, drafted: 0, watched: false, ids: [1], lengths: [] });
    this.speculation = new Speculation(this, new RunTimes(), () => this.now);
  }

  offer = () => 0;
  prior = () => this.likely;

  draft(count) {
    this.now += count * (this.times[0] ?? 0);
    return Array(count).fill(0);
  }

  choose(count) {
    this.lengths.push(0);
    this.now += count * this.times[1];
    return Array(count).fill(0);
  }

  accept(draft) {
    this.drafted += draft.length;
    this.lengths.push(draft.length);
    this.now += this.times[DRAFT_ROWS.find((rows) => rows > draft.length)];
    return Array(Math.floor(this.right * draft.length) + 1).fill(0);
  }

  /** The lengths of so many drafts. */
  run(count, given = {}) {
    this.lengths.length = 0;
    for (let run = 0; run < count; run++) this.speculation.choose(this, null, { most: 100, chunk: 8, ready: true, ...given });
    return this.lengths;
  }
}

const drafts = (lengths) => lengths.filter(Boolean).length;

test("drafts are as long as pays, and left out where they do not", () => {
  assert.deepEqual(new Machine(FLAT, 1).run(3).slice(0, 2), [0, 0]);
  assert.deepEqual(new Set(new Machine(FLAT, 1).run(60).slice(-20)), new Set([15]));
  assert.deepEqual(new Set(new Machine(FLAT, 0.34).run(60).slice(-20)), new Set([3]));
  const steep = new Machine(STEEP, 0);
  steep.run(100);
  assert.ok(drafts(steep.run(400)) <= 4);
  const slow = new Machine({ ...FLAT, 0: 2 }, 1); // whose drafts take long
  slow.run(100);
  assert.ok(drafts(slow.run(400)) <= 4);
});

test("wrong drafts are tried again after longer and longer, and come back once they are right", () => {
  const machine = new Machine({ 1: 1, 4: 1.4, 8: 2, 16: 3 }, 0);
  const tried = machine.run(600).flatMap((length, place) => (length ? [place] : []));
  assert.deepEqual(tried.slice(1).map((place, index) => place - tried[index]).slice(-4), [33, 65, 129, 257]);
  machine.right = 1;
  assert.deepEqual(new Set(machine.run(600).slice(-50)), new Set([15]));
});

test("a draft is no longer than what is wanted, and behind a prompt there is none", () => {
  const machine = new Machine(FLAT, 1);
  assert.deepEqual(new Set(machine.run(9, { ready: false })), new Set([0]));
  assert.equal(machine.speculation.times.of(1), null);
  machine.run(60);
  assert.deepEqual([14, 3, 1].map((most) => machine.run(1, { most })[0]), [13, 2, 0]);
});

test("several tokens come together where no draft is likely", () => {
  const machine = new Machine(STEEP, 0);
  machine.run(1);
  assert.equal(machine.now, 1);
  machine.run(100);
  const before = machine.now;
  assert.deepEqual(machine.run(1), [0]);
  assert.equal(Math.round(machine.now - before), 8);
});

test("there is one way to guess", () => {
  assert.deepEqual(["ngram", null].map(checkSpeculation), ["ngram", null]);
  for (const each of ["ngrams", true, undefined, 1]) assert.throws(() => checkSpeculation(each), GlinferError);
});
