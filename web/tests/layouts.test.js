import assert from "node:assert/strict";
import test from "node:test";

import { elementOf, firstSlots, linesOf, positionOf } from "../glinfer/layouts.js";
import { noPython, python } from "./python.js";

const PROGRAM = `
import json
import numpy as np
from glinfer.export.plan import layout_entry
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
plain = [Layout.of((5, 7), "r32f", 64), Layout.of((5, 70), "r32f", 64), FlatLayout.of((9, 30), "rgba32f", 64)]
activations = [*plain, *(BlockLayout.of((3, 700), 512, tiles=tiles, pitch=pitch) for tiles in (1, 2, 4) for pitch in (16, 64))]
activations += [BlockLayout.by_block((40, 200), 512), BlockLayout.by_block((300, 130), 256)]
cases = []
for layout in activations:
    numbers = np.arange(layout.rows * layout.cols).reshape(layout.rows, layout.cols) + 1
    texels = layout.pack(numbers.astype(np.float32)).astype(int).reshape(-1).tolist()
    case = {"layout": layout_entry(layout), "texels": texels, "channels": layout.format.channels}
    case["regions"] = [layout.region(rows, layout.cols) for rows in range(1, layout.rows + 1)]
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

test("lines and places are those of Python", { skip: noPython }, () => {
  for (const { layout, texels, channels, regions } of theirs.cases) {
    regions.forEach(([width, height], index) => assert.deepEqual([layout.width, linesOf(layout, index + 1)], [width, height]));
    for (let row = 0; row < layout.rows; row++) {
      for (let col = 0; col < layout.cols; col++) {
        const { x, y, channel } = positionOf(layout, row, col);
        assert.equal(texels[(y * layout.width + x) * channels + channel], row * layout.cols + col + 1);
      }
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
        const { x, y } = positionOf(layout, row, col);
        texels.add(`${x} ${y}`);
      }
    }
    assert.deepEqual([...inside].sort(), [...texels].sort());
    assert.equal(firstSlots(layout, 33), null);
  }
  assert.equal(firstSlots({ ...cache, kind: "flat" }, 1), null);
});
