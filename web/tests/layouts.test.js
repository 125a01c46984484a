import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { Cells, elementOf, firstSlots, placeOf, region, slotRectangles, vertexCount, viewport } from "../glinfer/layouts.js";
import { noPython, python } from "./python.js";

const BLOCK = {
  kind: "block", rows: 3, cols: 200, width: 16, height: 12, blocks: 4, tiles: 1, pitch: 16, columns: 4, slot_step: 4,
  block_step: 1, aside: 0, every: 1,
};
// Three slots of two blocks that are kept of each, and two of which there is one for every two slots.
const CACHE = {
  kind: "block", rows: 3, cols: 250, width: 16, height: 12, blocks: 4, tiles: 1, pitch: 16, columns: 4, slot_step: 1,
  block_step: 4, aside: 2, every: 2,
};

test("a region that is not there is refused", () => {
  assert.throws(() => region(BLOCK, 4, 200), GlinferError);
  assert.throws(() => region({ kind: "packed", rows: 4, cols: 4, width: 4, height: 4 }, 1, 1), /packed/);
});

test("the rectangles of a slot hold its blocks and nothing else", () => {
  const cache = { ...CACHE, rows: 4, height: 12, every: 4 };
  const found = new Set();
  for (const [x, y, width, height] of slotRectangles(cache, 2)) {
    for (let i = 0; i < width * height; i++) found.add(`${x + (i % width)} ${y + Math.floor(i / width)}`);
  }
  const places = Array.from({ length: 250 }, (_, col) => placeOf(cache, 2, col)).map(({ x, y }) => `${x} ${y}`);
  assert.equal(found.size, 4 * 16);
  assert.ok(places.every((place) => found.has(place)));
  assert.deepEqual(slotRectangles({ ...BLOCK, columns: 16, slot_step: 1, block_step: 16 }, 1), [[4, 0, 4, 16]]);
});

test("what each cover draws", () => {
  const draw = { cover: "triangle", size: ["rows", 200], points: 0, largest_cell: 0, layout: BLOCK };
  assert.deepEqual(viewport(draw, BLOCK, { rows: 1 }), [0, 0, 16, 4]);
  assert.equal(vertexCount(draw, BLOCK, { rows: 1 }, null), 3);
  assert.deepEqual(viewport({ ...draw, cover: "points" }, BLOCK, { rows: 2 }), [0, 0, 16, 12]);
  assert.equal(vertexCount({ ...draw, cover: "points" }, BLOCK, { rows: 2 }, null), 8);
  assert.equal(vertexCount({ ...draw, cover: "quads" }, BLOCK, { rows: 2 }, null), 48);
  assert.deepEqual(viewport({ ...draw, cover: "strip" }, BLOCK, { rows: 2, strip_first: 3 }), [12, 0, 8, 12]);
  assert.equal(vertexCount({ ...draw, cover: "quads" }, CACHE, { rows: 1 }, null), 24); // queries are written too
  assert.deepEqual(viewport({ ...draw, cover: "strip" }, CACHE, { rows: 1, strip_first: 2 }), [8, 0, 4, 8]);
  assert.equal(Cells.of(CACHE, 3, 1).count, 8); // but not by cells: the last line of blocks is left out
  assert.equal(vertexCount({ ...draw, cover: "scatter", points: "many" }, BLOCK, { many: 7 }, null), 7);
  assert.equal(vertexCount({ ...draw, cover: "quads" }, BLOCK, { rows: 2 }, new Cells(2, 2, 3, 3)), 18);
});

const PROGRAM = `
import json
import numpy as np
from glinfer.export.plan import layout_entry
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.gl.replay import Cells
plain = [Layout.of((5, 7), "r32f", 64), Layout.of((5, 70), "r32f", 64), FlatLayout.of((9, 30), "rgba32f", 64)]
activations = [*plain, *(BlockLayout.of((3, 700), 512, tiles=tiles, pitch=pitch) for tiles in (1, 2, 4) for pitch in (16, 64))]
activations += [BlockLayout.by_block((40, 200), 512), BlockLayout.by_block((300, 130), 256)]
activations += [BlockLayout.by_block((rows, 330), 256, aside=aside, every=every) for rows, aside, every in ((64, 2, 64), (150, 3, 50))]
cases = []
for layout in activations:
    numbers = np.arange(layout.rows * layout.cols).reshape(layout.rows, layout.cols) + 1
    texels = layout.pack(numbers.astype(np.float32)).astype(int).reshape(-1).tolist()
    case = {"layout": layout_entry(layout), "texels": texels, "channels": layout.format.channels, "cells": [], "strip": None}
    case["regions"] = [layout.region(rows, layout.cols) for rows in range(1, layout.rows + 1)]
    if isinstance(layout, BlockLayout):
        case["strip"] = layout.kept_height
        for rows in range(1, layout.rows + 1):
            for largest in (1, 2, 4, 8, 16):
                cells = Cells.of(layout, rows, largest)
                case["cells"].append([rows, largest, [cells.edge, cells.across, cells.each, cells.count]])
    cases.append(case)
weights = [*plain, RowLayout.of((70, 10), "rgba16f", 64), RowLayout.of((3, 9), "rgba32f", 64)]
weights += [GemvLayout.of(150, 70, form, False, size) for form in ("f32", "f16", "q8", "q16") for size in (256, 4096)]
weights += [ConstantLayout.of(150, scales, False, 256, sums=sums) for scales in (False, True) for sums in (False, True)]
packed = []
for layout in weights:
    dtype = np.dtype(layout.format.dtype)
    parts = np.indices((layout.rows, layout.cols))
    rows, cols = (layout.pack((part + 1).astype(dtype)).astype(int).reshape(-1).tolist() for part in parts)
    packed.append({"layout": layout_entry(layout), "channels": layout.format.channels, "rows": rows, "cols": cols})
groups = []
for form in ("Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "wide"):
    layout = GroupedLayout.of(70, 512, form, False, 512)
    found = {}
    for row in (0, 1, 6, 31, 33, 69):
        words = np.zeros((layout.rows, layout.cols), np.uint32)
        words[row] = 0x77777777
        found[row] = np.flatnonzero(layout.pack(words).reshape(-1)).tolist()
    groups.append({"layout": layout_entry(layout), "found": found})
print(json.dumps({"cases": cases, "packed": packed, "groups": groups}))`;
const theirs = noPython ? null : python(PROGRAM);

test("regions, places and cells are those of Python", { skip: noPython }, () => {
  for (const { layout, texels, channels, regions, cells, strip } of theirs.cases) {
    regions.forEach((expected, index) => assert.deepEqual(region(layout, index + 1, layout.cols), expected));
    for (let row = 0; row < layout.rows; row++) {
      for (let col = 0; col < layout.cols; col++) {
        const { x, y, channel } = placeOf(layout, row, col);
        // Of what is kept aside the last slot that was written is there.
        const aside = layout.aside && col >= 64 * (layout.blocks - layout.aside);
        const there = aside ? Math.min(layout.rows, row - (row % layout.every) + layout.every) - 1 : row;
        assert.equal(texels[(y * regions.at(-1)[0] + x) * channels + channel], there * layout.cols + col + 1);
      }
    }
    if (strip) assert.equal(viewport({ cover: "strip", size: [1, 1] }, layout, { strip_first: 0 })[3], strip);
    for (const [rows, largest, [edge, across, each, count]] of cells) {
      assert.deepEqual({ ...Cells.of(layout, rows, largest) }, { edge, across, each, count });
    }
  }
});

test("elements of weights lie where Python packs them", { skip: noPython }, () => {
  const { packed, groups } = theirs;
  const placed = (layout, channels, index) => {
    const texel = Math.floor(index / channels);
    return elementOf(layout, texel % layout.width, Math.floor(texel / layout.width), index % channels);
  };
  for (const { layout, channels, rows, cols } of packed) {
    rows.forEach((row, index) => {
      const expected = row === 0 ? null : { row: row - 1, col: cols[index] - 1 };
      assert.deepEqual(placed(layout, channels, index), expected, JSON.stringify(layout));
    });
  }
  for (const { layout, found } of groups) {
    for (const [row, places] of Object.entries(found)) {
      assert.ok(places.length > 4);
      for (const place of places) {
        const texel = Math.floor(place / 4) % layout.line >> 3;
        const paired = texel >= layout.paired[0] && texel < layout.paired[1];
        assert.deepEqual(placed(layout, 4, place), { row: row - (paired ? row % 2 : 0), col: null }, JSON.stringify(layout));
      }
    }
  }
});

test("the first slots of a cache lie in the rectangles that are said", () => {
  const cache = { kind: "block", tiles: 1, pitch: 128, width: 128, columns: 32, slot_step: 1, aside: 1, every: 64 };
  for (const [rows, block_step] of [[32, 32], [64, 64]]) {
    const layout = { ...cache, rows, cols: 192, blocks: 3, block_step, height: 16 };
    const inside = new Set();
    for (const [left, bottom, width, height] of firstSlots(layout, 5)) {
      for (let y = bottom; y < bottom + height; y++) for (let x = left; x < left + width; x++) inside.add(`${x} ${y}`);
    }
    const texels = new Set();
    for (let row = 0; row < 5; row++) {
      for (let col = 0; col < 128; col++) {
        const { x, y } = placeOf(layout, row, col);
        texels.add(`${x} ${y}`);
      }
    }
    assert.deepEqual([...inside].sort(), [...texels].sort());
    assert.equal(firstSlots(layout, 33), null);
  }
  assert.equal(firstSlots({ ...cache, kind: "flat" }, 1), null);
});
