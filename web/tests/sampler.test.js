import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { gumbelAt, noiseKey } from "../glinfer/noise.js";
import { argmax, Sampler } from "../glinfer/sampler.js";
import { noPython, python } from "./python.js";

const LOGITS = Float32Array.from({ length: 50 }, (_, token) => 3 * Math.sin(token * 7));

const draws = (options, count) => {
  const sampler = new Sampler(options);
  return Array.from({ length: count }, () => sampler.sample(LOGITS));
};

test("greedy takes the largest, the first of equal ones", () => {
  assert.equal(new Sampler({ temperature: 0 }).sample(Float32Array.of(1, 3, 3, 2)), 1);
  assert.equal(argmax(Float32Array.of(-Infinity, -5)), 1);
});

test("top-k and top-p leave only the likeliest", () => {
  const ranked = [...LOGITS.keys()].sort((one, other) => LOGITS[other] - LOGITS[one]);
  const kept = new Set(draws({ topK: 3, temperature: 2, seed: 1 }, 300));
  assert.deepEqual([...kept].sort(), ranked.slice(0, 3).sort());
  assert.deepEqual(new Set(draws({ topP: 1e-6, seed: 1 }, 50)), new Set([ranked[0]]));
});

test("top-p keeps no token after its sum is reached exactly", () => {
  const sampler = new Sampler({ topP: 0.5, seed: 1 });
  const drawn = new Set(Array.from({ length: 60 }, () => sampler.sample(Float32Array.of(1, 1, 1, 1))));
  assert.deepEqual([...drawn].sort(), [0, 1]);
  assert.throws(() => sampler.sample(new Float32Array(4)), { message: "the model's output is broken: all logits are 0" });
});

test("equal seeds draw equal tokens, others do not, and no seed is fresh", () => {
  assert.deepEqual(draws({ seed: 5 }, 30), draws({ seed: 5 }, 30));
  assert.notDeepEqual(draws({ seed: 5 }, 30), draws({ seed: 6 }, 30));
  assert.notDeepEqual(draws({}, 30), draws({}, 30));
});

test("draws are as likely as the softmax says", () => {
  const counts = new Float64Array(3);
  const sampler = new Sampler({ seed: 3 });
  const logits = Float32Array.of(0, Math.log(2), Math.log(7));
  for (let draw = 0; draw < 20000; draw++) counts[sampler.sample(logits)]++;
  [0.1, 0.2, 0.7].forEach((share, token) => assert.ok(Math.abs(counts[token] / 20000 - share) < 0.015));
});

test("bad options and broken logits are refused", () => {
  const wrong = [{ temperature: -1 }, { temperature: NaN }, { topK: 1.5 }, { topP: 2 }, { minP: -0.1 }, { seed: -1 }];
  const texts = [{ temperature: "0.5" }, { topP: "1" }, { minP: "0" }, { repetitionPenalty: "1" }];
  for (const options of [...wrong, ...texts, { repetitionPenalty: 0 }, { repetitionPenalty: NaN }]) {
    assert.throws(() => new Sampler(options), GlinferError);
  }
  assert.throws(() => new Sampler({ seed: "1" }), { message: 'seed is "1"; expected an integer of at least 0; above 2^53 a BigInt' });
  assert.throws(() => new Sampler({ temp: 0 }), { message: /^unknown option temp; known: temperature, / });
  assert.throws(() => new Sampler().sample(Float32Array.of(0, NaN)), GlinferError);
});

const PROGRAM = `
import json, sys
import numpy as np
from glinfer.engine.sampler import Sampler, SamplingOptions, gpu_chooses
from glinfer.kernels.noise import gumbel_at, noise_key
seeds = [0, 1, 2**32 + 7, 2**70 + 3]
noise = [[str(s), t, (k := noise_key(s, t)), gumbel_at(k, np.arange(400)).tolist()] for s in seeds for t in (0, 9)]
rows = [np.array(json.loads(each), dtype=np.float32) for each in sys.argv[1:]]
found = []
options = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
for values in (
    (1.0, 0, 1.0, 0.0, 1.0), (0.7, 5, 1.0, 0.0, 1.0), (1.3, 0, 0.6, 0.0, 1.0), (0.9, 20, 0.8, 0.0, 1.0),
    (1.5, 0, 1.0, 0.3, 1.0), (1.2, 30, 0.95, 0.1, 1.0), (1.0, 0, 1.0, 0.0, 1.7), (1.1, 12, 0.9, 0.05, 1.3),
    (0.0, 0, 1.0, 0.0, 1.5), (0.9, 100, 0.9, 0.0, 0.8), (3.0, 0, 0.999, 0.0, 1.0), (1.0, 0, 1 - 2**-30, 2**-40, 1e30),
    (1.0, 1 << 24, 0.0, 1.0, 1e-30), (1e25, 40, 0.5, 0.1, 1.0), (1e25, 0, 1.0, 0.0, 1.0), (1e38, 0, 1.0, 0.0, 1e-60),
):
    for number, logits in enumerate(rows):
        sampler, history = Sampler(SamplingOptions(**dict(zip(options, values)), seed=11)), [3]
        for _ in range((100, 20)[number]):
            history.append(sampler.sample(logits, history))
        found.append([values, number, history[1:], sampler.options.filter_words.tolist(), gpu_chooses(sampler.options, changes=False)])
print(json.dumps([noise, found]))`;
// Large enough for what Python leaves out of the search; most logits are shared by several tokens, and one has no weight.
const MANY = Float32Array.from({ length: 5000 }, (_, token) => (token % 3 ? Math.round(40 * Math.sin(token * 7)) / 8 : 2 * Math.cos(token * token)));
MANY[77] = -3.4e38;

test("noise and tokens are those that Python draws, bit for bit", { skip: noPython }, () => {
  const rows = [LOGITS, MANY];
  const [noises, texts] = python(PROGRAM, ...rows.map((each) => JSON.stringify([...each])));
  for (const [seed, step, key, noise] of noises) {
    assert.equal(noiseKey(BigInt(seed), step), key);
    noise.forEach((expected, token) => assert.equal(gumbelAt(key, token), expected));
  }
  for (const [values, row, tokens, words, gpuChooses] of texts) {
    const [temperature, topK, topP, minP, repetitionPenalty] = values;
    const sampler = new Sampler({ temperature, topK, topP, minP, repetitionPenalty, seed: 11 });
    const history = [3];
    while (history.length <= tokens.length) history.push(sampler.sample(rows[row], history));
    assert.deepEqual(history.slice(1), tokens, `${values} of row ${row}`);
    assert.deepEqual([sampler.filterWords, sampler.gpuChooses], [words, gpuChooses], String(values));
  }
});
