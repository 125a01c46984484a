import assert from "node:assert/strict";
import test from "node:test";

import { CachedDriver } from "../glinfer/cached.js";
import { bestCandidate, logitsOf } from "../glinfer/choices.js";
import { GlinferError } from "../glinfer/errors.js";
import { generate } from "../glinfer/generate.js";
import { positionOf } from "../glinfer/layouts.js";
import { noiseKey } from "../glinfer/noise.js";
import { NOISE_KEY } from "../glinfer/rows.js";
import { Sampler } from "../glinfer/sampler.js";

const [PIECE, CONTEXT, TAIL, DRAWS] = [8, 40, 7, 12];
const TABLE = { layout: { rows: PIECE, stack: PIECE, row_texels: 2, width: 2, height: PIECE } };
const PICKS = { layout: { kind: "block", rows: CONTEXT, cols: 64, blocks: 1, tiles: 1, pitch: 64, columns: 16, slot_step: 1, block_step: 1, aside: 0, every: 1, width: 64, height: 12 } };

const VOCABULARY = 100;
// A slot is two blocks, one in each of two tiles of 16 blocks.
const LOGITS = { layout: { kind: "block", rows: 2, cols: VOCABULARY, blocks: 2, tiles: 2, pitch: 64, columns: 16, slot_step: 1, block_step: 1, aside: 0, every: 1, width: 128, height: 4 } };

/**
 * A driver over a plan that notes what is run; what it reads back says that each position has chosen its own number, with the
 * score 5, and that the choice at the position `unsure` is.
 */
function driver({ rows = true, longAfter = 0, broken = false, unsure = -1 } = {}) {
  const drafted = { table: 0, most: PIECE, targets: 4, picks: 1, logits: [2, 3, 4, 5], draws: [], run_values: [] };
  const choice = { table: 0, draws: [], run_values: [] };
  const companions = rows ? { rows: { table: 0, least: 4, most: PIECE, targets: 4, tail: TAIL, draws: [], run_values: [] }, choice, drafted, drafted_choice: choice } : {};
  const config = { max_position_embeddings: CONTEXT, vocab_size: VOCABULARY };
  const plan = { companions, model: { config, long_after: longAfter }, draws: Array(DRAWS), head_draws: 2, picks: 1, textures: [TABLE, PICKS, ...Array(4).fill(LOGITS)] };
  const runs = [];
  const reads = [];
  const asked = new Set();
  const replay = {
    plan,
    form: { floats: true, keys: true },
    rowsOf: (name) => plan.companions[name].most,
    companion: (name) => asked.add(name),
    textures: [{ upload: () => assert.ok(asked.size) }],
    run: ({ position, token, strip_first: from, rows: count, row, slot, long }, { companion = null, first = 0, last }) =>
      runs.push(companion ? `${companion} ${from ?? `${row}>${slot}`}+${count}` : `${position}:${token} ${first}-${last ?? DRAWS}${longAfter ? ` by ${long}` : ""}`),
    spoil: () => {},
    read: (texture, width, height, y, x) => {
      reads.push([x, y, width]);
      if (texture >= 2) return logitsTexels(texture - 2);
      const texels = new Float32Array(4 * width * height).fill(broken ? -3.4e38 : 0);
      for (let block = 0; block < width / 4 && !broken; block++) {
        const place = 16 * (y / 4) + x / 4 + block;
        texels.set([5, place, place === unsure ? 1 : 0], 16 * block);
      }
      return texels;
    },
  };
  return { driver: new CachedDriver(plan, replay), runs, reads };
}

/** Texels of a target of logits: row r, in slot r / 4 of target r % 4, finds token 3 · r likeliest. */
function logitsTexels(target) {
  const texels = new Float32Array(4 * LOGITS.layout.width * LOGITS.layout.height);
  for (let slot = 0; slot < LOGITS.layout.rows; slot++) {
    const { x, y, channel } = positionOf(LOGITS.layout, slot, 3 * (4 * slot + target));
    texels[4 * (y * LOGITS.layout.width + x) + channel] = 9;
  }
  return texels;
}

const idsOf = (count) => Array.from({ length: count }, (_, place) => place + 50);
const done = (work) => {
  let steps = 0;
  while (!work.next().done) steps += 1;
  return steps;
};

test("prompts run in pieces, few tokens one by one, and the last is left to its last layer or whole", () => {
  const expected = [
    [1, [], "0:50 0-12"],
    [3, ["0:50 0-10", "1:51 0-10"], "2:52 0-12"],
    [4, ["rows 0+4"], "3:53 7-12"],
    [PIECE - 1, ["rows 0+7"], "6:56 7-12"],
    [PIECE, ["rows 0+8"], "7:57 7-12"],
    [PIECE + 1, ["rows 0+8", "rows 8+1"], "8:58 7-12"],
    [CONTEXT, [0, 8, 16, 24, 32].map((from) => `rows ${from}+8`), "39:89 7-12"],
  ];
  for (const [count, prompt, head] of expected) {
    const { driver: made, runs } = driver();
    assert.equal(done(made.catchUp(idsOf(count))), prompt.length);
    made.runHead(idsOf(count), null);
    assert.deepEqual(runs, [...prompt, head]);
    assert.equal(made.cached, count);
  }
});

test("who watches sees the whole token", () => {
  const { driver: made, runs } = driver();
  done(made.catchUp(idsOf(5)));
  made.runHead(idsOf(5), { draw: 1, seen: () => {} });
  assert.equal(runs.at(-1), "4:54 0-12");
});

test("work that ends early goes on where it stopped", () => {
  const { driver: made, runs } = driver();
  made.catchUp(idsOf(20)).next();
  assert.deepEqual([made.cached, made.handedOver], [8, 0]);
  done(made.catchUp(idsOf(20)));
  assert.deepEqual(runs, ["rows 0+8", "rows 8+8", "rows 16+4"]);
});

test("a text that changes to the second set of angles runs again, and choices end before they change", () => {
  const { driver: made, runs } = driver({ longAfter: 10 });
  const greedy = new Sampler({ temperature: 0 });
  done(made.catchUp(idsOf(9)));
  assert.equal(made.choose(idsOf(9), 8, greedy).length, 2); // behind 9 and 10 tokens
  runs.length = 0;
  done(made.catchUp(idsOf(11)));
  made.runHead(idsOf(11), null);
  assert.deepEqual(runs, ["rows 0+8", "rows 8+3", "10:60 7-12 by 1"]);
});

test("several tokens are chosen without a readback in between, and read in as few pieces as their squares lie in", () => {
  const { driver: made, runs, reads } = driver();
  const sampler = new Sampler({ temperature: 0.5, seed: 3 });
  done(made.catchUp(idsOf(13)));
  assert.deepEqual(made.choose(idsOf(13), 6, sampler), [12, 13, 14, 15, 16, 17]);
  assert.deepEqual(runs.slice(2), ["12:62 7-12", ...[13, 14, 15, 16, 17].map((place) => `${place}:-1 0-12`)]);
  assert.deepEqual(reads, [[48, 0, 16], [0, 4, 8]]); // 16 squares lie side by side
  assert.deepEqual([made.cached, sampler.step], [18, 6]);
});

test("with filters more and more tokens are chosen between two readbacks, until a choice is unsure", () => {
  const { driver: made, runs, reads } = driver({ unsure: 16 });
  const sampler = new Sampler({ topK: 5, seed: 3 });
  const held = idsOf(10);
  const choose = (most) => held.push(...made.choose(held, most, sampler));
  done(made.catchUp(held));
  made.runLength = 4;
  choose(8);
  made.runLength = 2;
  for (const most of [8, 8]) choose(most);
  assert.deepEqual([runs.splice(0), reads.length], [[
    "rows 0+8", "rows 8+2", "9:59 7-11", "choice 0>9+1", // alone: its half of the prompt's run is there once
    "10:9 0-11", "choice 0>10+1", "11:-1 0-11", "choice 1>11+1",
    "12:11 0-11", "choice 0>12+1", "13:-1 0-11", "choice 1>13+1", "14:-1 0-11", "choice 2>14+1", "15:-1 0-11", "choice 3>15+1",
  ], 3]);
  const keys = [0, 1, 2, 3].map((row) => made.tables.choice.at(row, NOISE_KEY));
  assert.deepEqual(keys, [3, 4, 5, 6].map((step) => noiseKey(3n, step)));
  assert.deepEqual(made.choose(held, 3, sampler), []);
  assert.deepEqual(runs.splice(0), ["16:15 0-11", "choice 0>16+1", "17:-1 0-11", "choice 1>17+1", "18:-1 0-11", "choice 2>18+1", "16:15 0-12"]);
  assert.deepEqual([made.cached, sampler.step], [17, 7]);
  assert.deepEqual(made.choose(held, 3, sampler), []); // alone now, so that its logits are there
  assert.deepEqual(runs.splice(0), ["16:15 0-11", "choice 0>16+1"]);
  made.runLength = 4;
  held.pop();
  assert.deepEqual(made.choose(held, 4, sampler), [15]); // what is unsure comes with the next call
  assert.deepEqual([made.cached, sampler.step], [17, 8]);
});

test("passes choose but where penalties change the logits, or the temperature makes all of them alike", () => {
  const { driver: made } = driver();
  const chosen = (options) => made.chooses(new Sampler(options));
  const others = [{}, { topK: 5 }, { topP: 0.9 }, { minP: 0.1 }, { topK: 5, temperature: 0 }, { temperature: 1e21 }];
  assert.deepEqual(others.map(chosen), Array(6).fill(true));
  assert.deepEqual([{ repetitionPenalty: 1.1 }, { topK: 5, temperature: 1e21 }].map(chosen), [false, false]);
});

test("where no logit is a number nothing was chosen", () => {
  const { driver: made } = driver({ broken: true });
  const sampler = new Sampler({ seed: 3 });
  done(made.catchUp(idsOf(5)));
  assert.throws(() => made.choose(idsOf(5), 2, sampler), GlinferError);
  assert.deepEqual([made.cached, sampler.step], [0, 0]);
});

test("guesses run together with the newest token, up to the first that is wrong", () => {
  const { driver: made, runs, reads } = driver();
  const sampler = new Sampler({ temperature: 0.5, seed: 3 });
  const held = idsOf(13);
  done(made.catchUp(held));
  assert.equal(made.accept(held, [1, 2], sampler), null); // the last token of a prompt is half done
  made.runHead(held, null);
  made.cached = 12; // as if it had come by itself
  runs.length = reads.length = 0;
  // What is read back says that row r has chosen r.
  assert.deepEqual(made.accept(held, [0, 1, 7, 3], sampler), [0, 1, 2]);
  assert.deepEqual([made.cached, sampler.step], [15, 3]);
  const more = [...held, 0, 1, 2];
  assert.deepEqual(made.accept(more, [0, 1], sampler), [0, 1, 2]);
  assert.equal(made.accept([...more, 0, 1, 2], [], sampler), null);
  assert.deepEqual(runs, ["drafted 12+5", "drafted 15+3"]);
  assert.deepEqual(reads, [[0, 0, 20], [0, 0, 12]]);
  const table = made.tables.drafted;
  const keys = [0, 1, 2].map((row) => table.at(row, NOISE_KEY));
  assert.deepEqual(keys, [3, 4, 5].map((step) => noiseKey(3n, step)));
});

test("with filters guesses are chosen by passes, and where a choice is unsure by the logits of its row", () => {
  const { driver: made, runs } = driver({ unsure: 2 });
  const sampler = new Sampler({ topK: 1, seed: 3 });
  made.cached = 12;
  assert.deepEqual(made.accept(idsOf(13), [0, 1, 6, 3], sampler), [0, 1, 6, 3, 4]); // row 2 finds 6 likeliest
  assert.deepEqual(runs, ["drafted 12+5", "drafted_choice 0>0+5"]);
  assert.deepEqual([made.cached, sampler.step], [17, 5]);
});

test("with a penalty the rows of guesses are read, and no more guesses run than there are rows", () => {
  const { driver: made, runs } = driver();
  const sampler = new Sampler({ topK: 1, repetitionPenalty: 1.5 });
  made.cached = 4;
  assert.deepEqual(made.accept(idsOf(5), [0, 3, 6, 9, 12, 15, 18, 21, 24], sampler), [0, 3, 6, 9, 12, 15, 18, 21]);
  assert.deepEqual(runs, [`drafted 4+${PIECE}`]);
  assert.deepEqual([made.cached, sampler.step], [12, 8]);
  const logits = logitsOf(made.replay, 3, 1);
  assert.deepEqual([logits.length, logits.indexOf(9)], [VOCABULARY, 15]);
});

test("where a row of guesses is no number nothing was chosen", () => {
  const { driver: made } = driver({ broken: true });
  const sampler = new Sampler({ seed: 3 });
  made.cached = 4;
  assert.throws(() => made.accept(idsOf(5), [0], sampler), GlinferError);
  assert.deepEqual([made.cached, sampler.step], [0, 0]);
});

test("guesses end before a text changes to the second set of angles", () => {
  const { driver: made, runs } = driver({ longAfter: 10 });
  made.cached = 7;
  assert.equal(made.accept(idsOf(8), [0, 1, 2, 3, 4], new Sampler({ temperature: 0 })).length, 3); // behind 8, 9 and 10 tokens
  assert.deepEqual(runs, ["drafted 7+3"]);
});

test("of candidates the largest score wins, and of equal ones the lowest id", () => {
  const texels = new Float32Array(4 * 8 * 4).fill(-3.4e38);
  const put = (x, y, score, id) => texels.set([score, id], 4 * (8 * y + x));
  put(1, 2, 3, 40);
  put(0, 3, 3, 9);
  put(2, 0, 2, 1);
  put(5, 1, 7, 2); // of the other block
  assert.equal(bestCandidate(texels, 8, 0), 9);
  assert.equal(bestCandidate(texels, 8, 1), 2);
  texels.set([7, 3, 1], 4 * (8 * 2 + 6)); // as good, and unsure
  assert.equal(bestCandidate(texels, 8, 1), null);
});

/** A model that chooses 0, 1, 2 … */
function counting() {
  const model = { ids: [], ahead: 0, asked: [], replay: { finished: async () => {} } };
  model.hold = function* (ids) {
    model.ids = [...ids];
    yield;
  };
  model.choose = (most, sampler, watch) => {
    model.asked.push(watch ? "watched" : most);
    const chosen = Array.from({ length: watch ? 1 : most }, (_, place) => model.ids.length - 2 + place);
    model.ids.push(...chosen);
    return chosen;
  };
  model.rewind = (count) => (model.ids.length -= count);
  return model;
}

const written = async (model, options, take = Infinity) => {
  const found = [];
  const signal = new AbortController().signal;
  for await (const id of generate(model, null, { prompt: [7, 8], count: 30, stops: () => false, signal, ...options })) {
    found.push(id);
    if (found.length === take) break;
  }
  return found;
};

test("tokens that were chosen behind the end of a text, or of a loop, are taken back", async () => {
  const [whole, stopped, left] = [counting(), counting(), counting()];
  assert.deepEqual(await written(whole, {}), Array.from({ length: 30 }, (_, place) => place));
  assert.deepEqual([whole.asked.reduce((one, other) => one + other), whole.ahead], [30, 0]);
  assert.equal(whole.asked[0], 1); // how long one takes is not known yet
  assert.ok(Math.max(...whole.asked) <= 8 && whole.asked.length < 30);
  assert.deepEqual(await written(stopped, { stops: (id) => id === 3 }), [0, 1, 2, 3]);
  assert.deepEqual(stopped.ids, [7, 8, 0, 1, 2, 3]);
  await written(left, {}, 5);
  assert.deepEqual(left.ids, [7, 8, 0, 1, 2, 3, 4]);
  assert.equal(left.ahead, left.asked.reduce((one, other) => one + other) - 5);
});

test("what somebody else holds meanwhile is not taken back, and an end that is asked for is heard behind a piece", async () => {
  const model = counting();
  await written(model, { stops: (id) => id === 2 && Boolean((model.ids = [1])) });
  assert.deepEqual(model.ids, [1]);
  const ended = new AbortController();
  ended.abort();
  assert.deepEqual(await written(counting(), { signal: ended.signal }), []);
});
