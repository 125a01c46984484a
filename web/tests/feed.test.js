import assert from "node:assert/strict";
import test from "node:test";

import { encodeFeed, runsOf } from "../embedding/feed.js";
import { rowsFeed, TableTexels } from "../glinfer/rows.js";
import { noPython, python } from "./python.js";

const PROGRAM = `
import json, sys
import numpy as np
from glinfer.gl.layouts.blocks import RowLayout
from glinfer.models.feed import encode_feed
from glinfer.ops.fused.rows import row_table
lengths, skipped, positions, pooling, size = json.loads(sys.argv[1])
rows, texts = row_table(48), row_table(12)
encoded = [(list(range(7, 7 + length)), [place % 2 for place in range(length)]) for length in lengths]
values = encode_feed(rows, texts, encoded, skipped, 4, positions=positions, pooling=pooling)
layout = RowLayout.of(rows.shape, "rgba32ui", size)
print(json.dumps([values, layout.pack(rows).ravel().tolist(), texts.ravel().tolist(), [layout.width, layout.height, layout.stack]]))
`;

test("the tables of a run are those that Python fills in", { skip: noPython }, () => {
  const cases = [
    [[9, 5, 1], [0, 2, 4], 40, "mean", 64],
    [[9, 5, 1], [0, 2, 0], 0, "cls", 64],
    [[16, 3, 3, 2, 1], [1, 0, 0, 0, 0], 40, "lasttoken", 16],
  ];
  for (const given of cases) {
    const [lengths, skipped, positions, pooling] = given;
    const [values, rows, texts, [width, height, stack]] = python(PROGRAM, JSON.stringify(given));
    const tables = {
      rows: new TableTexels({ rows: 48, stack, row_texels: 2, width, height }),
      texts: new TableTexels({ rows: 12, stack: 12, row_texels: 2, width: 2, height: 12 }),
    };
    encodeFeed(tables, [{ ids: Array(48).fill(1), skipped: 0 }], { targets: 4, positions, pooling }); // what was there before
    const encoded = lengths.map((length, index) => ({
      ids: Array.from({ length }, (_, place) => 7 + place),
      types: Array.from({ length }, (_, place) => place % 2),
      skipped: skipped[index],
    }));
    assert.deepEqual(encodeFeed(tables, encoded, { targets: 4, positions, pooling }), values);
    const used = 8 * values.rows;
    const read = (table, count) => Array.from({ length: count }, (_, at) => table.at(Math.floor(at / 8), at % 8));
    assert.deepEqual(read(tables.rows, used), read(new TableTexels(tables.rows.layout, rows), used));
    assert.deepEqual(Array.from(tables.texts.texels), texts);
  }
});

const CHUNK = `
import json, sys
from glinfer.gl.layouts.blocks import RowLayout
from glinfer.models.feed import chunk_feed
from glinfer.ops.fused.rows import row_table
pieces, size = json.loads(sys.argv[1])
rows, found = row_table(20), []
layout = RowLayout.of(rows.shape, "rgba32ui", size)
for ids, position, targets, long in pieces:
    values = chunk_feed(rows, ids, position, targets, long=long)
    found.append([values, layout.pack(rows).ravel().tolist()])
print(json.dumps([found, [layout.width, layout.height, layout.stack]]))
`;

test("the table of a piece of a prompt is the one that Python fills in", { skip: noPython }, () => {
  const ids = Array.from({ length: 20 }, (_, place) => 7 * place + 3);
  const pieces = [[ids, 0, 4, false], [ids.slice(2, 15), 20, 4, false], [ids.slice(1, 2), 33, 4, true], [ids.slice(0, 7), 60, 8, true]];
  for (const size of [64, 16]) {
    const [found, [width, height, stack]] = python(CHUNK, JSON.stringify([pieces, size]));
    const layout = { rows: 20, stack, row_texels: 2, width, height };
    const table = new TableTexels(layout);
    pieces.forEach(([given, position, targets, long], piece) => {
      const [values, texels] = found[piece];
      assert.deepEqual(rowsFeed(table, given, position, { targets, long }), values);
      const theirs = new TableTexels(layout, texels);
      for (let row = 0; row < 20; row++) {
        for (let word = 0; word < 8; word++) {
          const padding = word === 0 && row >= given.length; // what token stands there does not matter
          if (!padding && !(word === 1 && row >= targets * Math.ceil(given.length / targets))) {
            assert.equal(table.at(row, word), theirs.at(row, word), `piece ${piece}, row ${row}, word ${word}`);
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
