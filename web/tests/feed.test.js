import assert from "node:assert/strict";
import test from "node:test";

import { encodeFeed, runsOf } from "../embedding/feed.js";
import { rowsFeed, TableTexels } from "../glinfer/rows.js";
import { runValues } from "../glinfer/values.js";
import { noPython, python } from "./python.js";

const PROGRAM = `
import json, sys
import numpy as np
from glinfer.config import ModelConfig
from glinfer.export.plan import run_value_entry
from glinfer.gl.layouts.blocks import RowLayout
from glinfer.lower.plans import plan_for
from glinfer.program.compiled import compile_plan
from glinfer.lower.fused.rows import drafted_plan
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.feed import chunk_feed, encode_feed
from glinfer.lower.options import PlanOptions
from glinfer.program.plan import PlanLimits
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.fused.rows import row_table

def run(lengths, skipped, positions, pooling, size):
    rows, texts = row_table(48), row_table(12)
    encoded = [(list(range(7, 7 + length)), [place % 2 for place in range(length)]) for length in lengths]
    values = encode_feed(rows, texts, encoded, skipped, 4, positions=positions, pooling=pooling)
    layout = RowLayout.of(rows.shape, "rgba32ui", size)
    return [values, layout.pack(rows).ravel().tolist(), texts.ravel().tolist(), [layout.width, layout.height, layout.stack]]

def chunk(pieces, size):
    rows, found = row_table(20), []
    layout = RowLayout.of(rows.shape, "rgba32ui", size)
    for ids, position, targets, long in pieces:
        values = chunk_feed(rows, ids, position, targets, long=long)
        found.append([values, layout.pack(rows).ravel().tolist()])
    return [found, [layout.width, layout.height, layout.stack]]

def derived(targets):
    kernels = KernelOptions(rows_per_draw=targets, split_values=True, cover="quads", largest_cell=4, tiles=2)
    scaling = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 100}
    config = ModelConfig(40, 8, 1, 1, 400, model_type="llama", rope_scaling=tuple(scaling.items()))
    options = PlanOptions(config, "f32", kernels, 4096)
    plans = [fast_plan(options), drafted_plan(options, rows=20, cache_slots=448), plan_for(config, "reference", tokens=400)]
    given = {"token": 3, "noise": 0.5, "inverse_temperature": 1.5, "noise_key": 7, "strip_first": 5}
    runs = [{**given, "position": at, "long": at % 2, "rows": 1 + at % 20, "longest": at + 1} for at in (0, 1, 63, 64, 100, 319, 399)]
    runs.append({**runs[0], "rows": 101 if targets == 1 else 20})
    compiled = [compile_plan(plan, PlanLimits(4096, 8, 32)) for plan in plans]
    entries = [[run_value_entry(value) for value in each.plan.run_values] for each in compiled]
    return [[entry, [[run, each.plan.values(run)] for run in runs if run["rows"] <= each.plan.max_rows]] for entry, each in zip(entries, compiled)]

runs, chunks = json.loads(sys.argv[1])
print(json.dumps([[run(*each) for each in runs], [chunk(*each) for each in chunks], derived(1) + derived(8)]))
`;
const RUNS = [
  [[9, 5, 1], [0, 2, 4], 40, "mean", 64],
  [[9, 5, 1], [0, 2, 0], 0, "cls", 64],
  [[16, 3, 3, 2, 1], [1, 0, 0, 0, 0], 40, "lasttoken", 16],
];
const IDS = Array.from({ length: 20 }, (_, place) => 7 * place + 3);
const PIECES = [[IDS, 0, 4, false], [IDS.slice(2, 15), 20, 4, false], [IDS.slice(1, 2), 33, 4, true], [IDS.slice(0, 7), 60, 8, true]];
const SIZES = [64, 16];
const theirs = noPython ? [[], [], []] : python(PROGRAM, JSON.stringify([RUNS, SIZES.map((size) => [PIECES, size])]));

test("the tables of a run are those that Python fills in", { skip: noPython }, () => {
  for (const [index, [lengths, skipped, positions, pooling]] of RUNS.entries()) {
    const [values, rows, texts, [width, height, stack]] = theirs[0][index];
    const tables = {
      rows: new TableTexels({ rows: 48, stack, row_texels: 2, width, height }),
      texts: new TableTexels({ rows: 12, stack: 12, row_texels: 2, width: 2, height: 12 }),
    };
    encodeFeed(tables, [{ ids: Array(48).fill(1), skipped: 0 }], { targets: 4, positions, pooling }); // what was there before
    const encoded = lengths.map((length, text) => ({
      ids: Array.from({ length }, (_, place) => 7 + place),
      types: Array.from({ length }, (_, place) => place % 2),
      skipped: skipped[text],
    }));
    assert.deepEqual(encodeFeed(tables, encoded, { targets: 4, positions, pooling }), values);
    const used = 8 * values.rows;
    const read = (table, count) => Array.from({ length: count }, (_, at) => table.at(Math.floor(at / 8), at % 8));
    assert.deepEqual(read(tables.rows, used), read(new TableTexels(tables.rows.layout, rows), used));
    assert.deepEqual(Array.from(tables.texts.texels), texts);
  }
});

test("the table of a piece of a prompt is the one that Python fills in", { skip: noPython }, () => {
  for (const [found, [width, height, stack]] of theirs[1]) {
    const layout = { rows: 20, stack, row_texels: 2, width, height };
    const table = new TableTexels(layout);
    PIECES.forEach(([given, position, targets, long], piece) => {
      const [values, texels] = found[piece];
      assert.deepEqual(rowsFeed(table, given, position, { targets, long }), values);
      const expected = new TableTexels(layout, texels);
      for (let row = 0; row < 20; row++) {
        for (let word = 0; word < 8; word++) {
          const padding = word === 0 && row >= given.length; // what token stands there does not matter
          if (!padding && !(word === 1 && row >= targets * Math.ceil(given.length / targets))) {
            assert.equal(table.at(row, word), expected.at(row, word), `piece ${piece}, row ${row}, word ${word}`);
          }
        }
      }
    });
  }
});

test("run values follow from the inputs of a run as in Python", { skip: noPython }, () => {
  const found = theirs[2].flatMap(([entries, runs]) => runs.map(([inputs]) => runValues({ run_values: entries }, inputs)));
  assert.deepEqual(JSON.parse(JSON.stringify(found)), theirs[2].flatMap(([, runs]) => runs.map(([, values]) => values)));
  const names = ["score_slots", "row_slots", "score_groups", "last_row", "angles", "cells.0.each"];
  for (const name of names) assert.ok(new Set(found.map((values) => values[name])).size > 3, name);
  assert.ok(JSON.stringify(theirs[2]).includes('"steps"'));
});

test("a run value that is missing or out of range is refused", () => {
  const one = { name: "rows", smallest: 1, largest: 8, whole: true, value: null };
  const plan = { run_values: [one, { ...one, name: "last", smallest: 0, value: { add: ["rows", -2] } }] };
  assert.deepEqual(runValues(plan, { rows: 8, last: 3 }), { rows: 8, last: 6 });
  for (const [inputs, found] of [[{}, "rows is undefined"], [{ rows: 9 }, "rows is 9"], [{ rows: 2.5 }, "rows is 2.5"], [{ rows: 1 }, "last is -1"]]) {
    assert.throws(() => runValues(plan, inputs), { message: new RegExp(`run value ${found}; expected`) });
  }
});

test("texts go into runs longest first, until rows or places run out", () => {
  let rows = 16;
  const runs = (lengths) => [...runsOf(lengths, { rows: () => rows, texts: 3, targets: 4 })];
  assert.deepEqual(runs([1, 9, 4, 16, 1, 5]), [[3], [1], [5, 2, 0], [4]]);
  assert.deepEqual(runs([1, 1, 1, 1]), [[0, 1, 2], [3]]);
  assert.deepEqual(runs([]), []);
  rows = 8; // on a slow device; a text is not cut
  assert.deepEqual(runs([1, 9, 4, 16, 1, 5]), [[3], [1], [5], [2, 0], [4]]);
});
