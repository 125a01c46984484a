import assert from "node:assert/strict";
import test from "node:test";

import { Pace, texelsOf } from "../glinfer/pace.js";

const weight = (width, height) => ({ spec: { kind: "weight", width, height } });
const product = (...textures) => ({ program: { spec: { fragment: "gemm.frag" } }, textures: [{ spec: { kind: "activation", width: 9, height: 9 } }, ...textures] });
const TEXELS = texelsOf([product(weight(1000, 300), weight(1, 10)), { ...product(weight(9e3, 9e3)), program: { spec: { fragment: "embed_rows.frag" } } }, product(weight(100, 10))]);

test("products count with the texels of their weights", () => {
  assert.deepEqual(TEXELS, { all: 301_010, largest: 300_010 });
  assert.deepEqual(texelsOf([]), { all: 0, largest: 0 });
});

test("a run has as many rows as the slowest draw computes in 50 ms", () => {
  const { now } = performance;
  let time = 0;
  performance.now = () => time;
  try {
    const pace = new Pace();
    assert.equal(pace.rows(TEXELS, 64, 8), 16, "a slow device is assumed");
    assert.equal(pace.rows({ largest: 0 }, 64, 8), 64);
    const run = (rows, milliseconds) => {
      pace.begin(rows * TEXELS.all);
      const measured = pace.measure();
      time += milliseconds;
      measured();
    };
    run(16, 30);
    assert.equal(pace.rows(TEXELS, 64, 8), 24, "26 rows in whole steps");
    run(16, 1600);
    assert.equal(pace.rows(TEXELS, 64, 8), 8, "one step at least");
    run(8, 1);
    assert.equal(pace.rows(TEXELS, 64, 8), 64);
    // A run that is issued while another one is computed begins when that one ends.
    pace.begin(16 * TEXELS.all);
    const first = pace.measure();
    pace.begin(16 * TEXELS.all);
    const second = pace.measure();
    time += 900;
    first();
    time += 30;
    second();
    assert.equal(pace.rows(TEXELS, 64, 8), 24);
    pace.measure()();
    assert.equal(pace.rows(TEXELS, 64, 8), 24, "waiting for nothing measures nothing");
  } finally {
    performance.now = now;
  }
});
