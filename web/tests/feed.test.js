import assert from "node:assert/strict";
import test from "node:test";

import { encodeFeed, runsOf } from "../embedding/feed.js";
import { rowsFeed, TableTexels } from "../glinfer/rows.js";
import { noPython, python } from "./python.js";

const PROGRAM = `
import json, sys
import numpy as np
from glinfer.gl.layouts.blocks import RowLayout
from glinfer.models.feed import chunk_feed, encode_feed
from glinfer.ops.fused.rows import row_table

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

runs, chunks = json.loads(sys.argv[1])
print(json.dumps([[run(*each) for each in runs], [chunk(*each) for each in chunks]]))
`;
const RUNS = [
  [[9, 5, 1], [0, 2, 4], 40, "mean", 64],
  [[9, 5, 1], [0, 2, 0], 0, "cls", 64],
  [[16, 3, 3, 2, 1], [1, 0, 0, 0, 0], 40, "lasttoken", 16],
];
const IDS = Array.from({ length: 20 }, (_, place) => 7 * place + 3);
const PIECES = [[IDS, 0, 4, false], [IDS.slice(2, 15), 20, 4, false], [IDS.slice(1, 2), 33, 4, true], [IDS.slice(0, 7), 60, 8, true]];
const SIZES = [64, 16];
const theirs = noPython ? [[], []] : python(PROGRAM, JSON.stringify([RUNS, SIZES.map((size) => [PIECES, size])]));

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

test("texts go into runs longest first, until rows or places run out", () => {
  const size = { rows: 16, texts: 3, targets: 4 };
  assert.deepEqual(runsOf([1, 9, 4, 16, 1, 5], size), [[3], [1], [5, 2, 0], [4]]);
  assert.deepEqual(runsOf([1, 1, 1, 1], size), [[0, 1, 2], [3]]);
  assert.deepEqual(runsOf([], size), []);
});
