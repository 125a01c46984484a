import assert from "node:assert/strict";
import test from "node:test";

import { Sampler } from "../glinfer/sampler.js";
import { sampleShortlist, Shortlist } from "../glinfer/shortlist.js";
import { noPython, python } from "./python.js";

const PROGRAM = `
import base64, json, sys
import numpy as np
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.engine.shortlist import sample_shortlist
from glinfer.ops.fused.shortlist import Shortlist, _pieces, pieces_for
coded = lambda array: base64.b64encode(np.ascontiguousarray(array, np.float32).tobytes()).decode()
names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
random, rows = np.random.default_rng(4), []
for vocab, spread in ((5000, 4.0), (5000, 0.3), (700, 2.0)):
    logits = (spread * random.standard_normal(vocab)).astype(np.float32)
    history = random.integers(0, vocab, 40).tolist() + np.argsort(-logits)[:9].tolist()
    found = []
    for values in json.loads(sys.argv[1]):
        sampler = Sampler(SamplingOptions(**dict(zip(names, values)), seed=5))
        steps = []
        for step in range(4):
            sampler.step = step
            key, inverse = sampler.draw or (0, 1.0)
            pair = _pieces(logits, pieces_for(vocab), sampler.draw is not None, np.float32(inverse), key)
            best, facts = pair.astype(np.float32)
            told = sample_shortlist(sampler, Shortlist(vocab, best.reshape(-1, 4), facts.reshape(-1, 4)), history)
            sampler.step = step
            facts = facts.reshape(-1, 4)
            steps.append([told, sampler.sample(logits, history), coded(facts[:, 3])])
        found.append([values, coded(facts), steps])
    rows.append([vocab, history, coded(logits), coded(best), found])
print(json.dumps(rows))
`;
const floats = (base64) => new Float32Array(Uint8Array.from(Buffer.from(base64, "base64")).buffer);
const OPTIONS = [
  [0, 0, 1, 0, 1], [0, 0, 1, 0, 1.3], [0.7, 40, 1, 0, 1], [0.7, 0, 0.9, 0, 1], [0.8, 40, 0.95, 0.05, 1.1], [1, 0, 1, 0.1, 1],
  [1, 0, 1, 0, 1.2], [0.9, 100, 0.9, 0, 0.8], [1.5, 0, 0.5, 0, 1.5], [3, 0, 0.999, 0, 1], [1, 600, 1, 0, 1],
];

test("a shortlist gives the token that it gives in Python, or leaves it open where Python does", { skip: noPython }, () => {
  let [told, open] = [0, 0];
  for (const [vocabulary, history, logits, best, cases] of python(PROGRAM, JSON.stringify(OPTIONS))) {
    for (const [values, first, steps] of cases) {
      const [temperature, topK, topP, minP, repetitionPenalty] = values;
      const sampler = new Sampler({ temperature, topK, topP, minP, repetitionPenalty, seed: 5 });
      const facts = floats(first);
      steps.forEach(([expected, sampled, drawn], step) => {
        floats(drawn).forEach((score, piece) => (facts[4 * piece + 3] = score));
        sampler.step = step;
        const what = `${vocabulary} tokens, ${values}, step ${step}`;
        assert.equal(sampleShortlist(sampler, new Shortlist(vocabulary, floats(best), facts), history), expected, what);
        assert.equal(sampler.step, step + (expected === null ? 0 : 1), what);
        if (expected === null) open += 1;
        else told += 1;
        if (expected !== null) assert.equal(expected, sampled, what);
        sampler.step = step;
        assert.equal(sampler.sample(floats(logits), history), sampled, what);
      });
    }
  }
  assert.ok(told > 60 && open > 5, `${told} told, ${open} left open`);
});

test("a broken row of logits is left to the sampler, which says so", () => {
  const best = new Float32Array(4 * 64).fill(1);
  const facts = new Float32Array(4 * 64);
  facts[2] = -1; // one of the piece's logits is no number
  assert.equal(sampleShortlist(new Sampler({ topK: 3 }), new Shortlist(300, best, facts)), null);
  assert.equal(sampleShortlist(new Sampler({ topK: 3 }), new Shortlist(300, best.fill(Infinity), facts.fill(0))), null);
});
