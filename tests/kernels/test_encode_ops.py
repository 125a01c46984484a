"""The passes of the plan ``encode`` by themselves: norms of the stream, pooling, and attention that looks both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_draw import Attention, Run, tile_scores_draw, tile_values_draw
from block_draw import KERNELS, first_rows, norms_of, over
from one_draw import OUT, TABLE, Array, BlockDraw, Case, check, normal
from tiers import tiered

from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.kernels.fused.norms import normalize_rows
from glinfer.kernels.fused.rows import BASE, LAST, POSITION, row_table
from glinfer.kernels.fused.rowwise import POOLINGS, merge_rows, pool_rows
from glinfer.kernels.options import KernelOptions

pytestmark = pytest.mark.gl


def normalize_draw(kernels: KernelOptions, cols: int, rows: int, *, centred: bool) -> BlockDraw:
    one, slots, capacity = over(kernels, rows)
    x = one.interleaved("x", normal(1, capacity, cols) + np.float32(0.25))
    factors, means = (np.random.default_rng(seed).uniform(0.5, 2.0, capacity).astype(np.float32) for seed in (8, 9))
    by_member = [each[:, None].repeat(4, axis=1) for each in (factors, means)]
    norms = one.cache("norms", norms_of(by_member[0], kernels.rows_per_draw, by_member[1] if centred else None))
    gains = one.row_weight("gains", normal(3, 2 if centred else 1, cols))
    out = one.deal(OUT, slots, cols, "cache")
    return one.draw(normalize_rows(one.of(), x, norms, gains, out, centred=centred))


@tiered(("name", "cols", "centred"), [("llvmpipe", 70, True), ("one by one", 64, False), ("GPU", 70, True)])
def test_a_norm_of_the_stream(device: Device, name: str, cols: int, centred: bool) -> None:
    one = normalize_draw(KERNELS[name], cols, 11, centred=centred)
    check(device, one, first_rows(one, 11), first_rows(one, 3))


def pool_draw(kernels: KernelOptions, cols: int, spans: list[tuple[int, int, int]], how: str) -> tuple[BlockDraw, Case]:
    """Texts at (first row, first token that counts, last token)."""
    count = kernels.rows_per_draw
    rows = max(base + last for base, _, last in spans) + 1
    capacity = -(-rows // count) * count
    slots = -(-len(spans) // count)
    one = BlockDraw(kernels, {"text_slots": (1, slots)}, count=count)
    x = one.interleaved("x", normal(1, capacity, cols))
    one.by_row.clear()
    seen = np.zeros(capacity, bool)
    for base, first, last in spans:
        seen[base + first : base + last + 1] = True
    one.arrays["x"][~seen] = np.nan
    table = one.table(slots * count)
    texts = row_table(slots * count)
    texts[: len(spans), [BASE, POSITION, LAST]] = spans
    out = one.deal(OUT, slots, cols, "cache")
    one.draw(pool_rows(one.of("text_slots"), x, table, out, how=how))
    real = np.arange(slots * count) < len(spans)
    return one, Case({"text_slots": slots}, {TABLE: texts}, real)


@tiered("place", range(2 * len(POOLINGS)), keep=len(POOLINGS))
def test_pooling(device: Device, place: int) -> None:
    kernels, how = KERNELS[("llvmpipe", "plain", "one by one")[place % 3]], list(POOLINGS)[place % len(POOLINGS)]
    spans = [(0, 0, 0), (8, 0, 22), (32, 3, 9), (48, 5, 5), *((56 + 8 * n, n % 2, 3 + n % 4) for n in range(9))]
    one, case = pool_draw(kernels, 70, spans, how)
    check(device, one, case)


@tiered(("name", "cols", "merged"), [("llvmpipe", 20, 4), ("plain", 64, 16), ("one by one", 100, 3), ("GPU", 12, 9)])
def test_neighbouring_rows_become_one(device: Device, name: str, cols: int, merged: int) -> None:
    kernels, rows = KERNELS[name], 11
    count = kernels.rows_per_draw
    slots = -(-rows // count)
    one = BlockDraw(kernels, {"text_slots": (1, slots)}, count=count)
    x = one.interleaved("x", normal(1, slots * count * merged, cols))
    one.by_row.clear()
    out = one.deal(OUT, slots, cols * merged, "cache")
    one.draw(merge_rows(one.of("text_slots"), x, out))
    real = np.arange(slots * count) < rows
    (found,) = check(device, one, Case({"text_slots": slots}, {}, real))
    assert np.array_equal(found[:rows], one.arrays["x"][: rows * merged].reshape(rows, -1))


def test_rows_that_do_not_join() -> None:
    one = BlockDraw(KernelOptions(), {"text_slots": (1, 1)}, count=KernelOptions().rows_per_draw)
    x, out = one.interleaved("x", normal(1, 8, 6)), one.deal(OUT, 1, 12, "cache")
    with pytest.raises(Exception, match="expected a multiple, and whole fours"):
        merge_rows(one.of(), x, out)


def looking_ahead(made: Attention, ahead: int) -> Attention:
    """The same draw of rows that see tokens after their own."""
    spec = made.one.builder._draws.pop()
    made.one.draw(replace(spec, defines=(*spec.defines, ("AHEAD", ahead))))
    made.heads = replace(made.heads, ahead=ahead)
    return made


def seen_by(made: Attention, case: Case) -> Array:
    """[rows, tokens]: whether a row sees a token."""
    table, rows = case.arrays[TABLE].astype(int), int(case.values["rows"])
    tokens = np.arange(int(case.values["groups"]) * BLOCK_FLOATS)
    position, last = table[:rows, POSITION, None], table[:rows, LAST, None]
    seen = (tokens <= np.minimum(position + (made.heads.ahead or 0), last)) & (tokens <= last)
    return seen & (tokens > position - made.heads.window) if made.heads.window else seen


def whole(made: Attention, lengths: list[int], **arrays: Array) -> Case:
    """Texts of these lengths, each from a slot of the cache and of the rows on."""
    count, runs, base = made.one.count, [], 0
    for length in lengths:
        runs.append(Run(base, 0, length))
        base += -(-length // count) * count
    case = made.case(*runs, **arrays)
    groups = max(-(-length // BLOCK_FLOATS) for length in lengths)
    slots = int(case.values["row_slots"])
    return replace(case, values={**case.values, "groups": groups, "score_slots": groups * slots})


LENGTHS = [5, 1, 70, 9]
every_view = tiered(
    ("name", "ahead", "window"),
    [("llvmpipe", 9, 10), ("one by one", 1 << 20, 0), ("GPU", 1 << 20, 0), ("mantissa", 9, 10)],
    keep=2,
)


@every_view
def test_scores_of_texts(device: Device, name: str, ahead: int, window: int) -> None:
    kernels = KERNELS[name]
    made = looking_ahead(tile_scores_draw(kernels, 2, 16, 128, window=window), ahead)
    case = whole(made, LENGTHS)

    def promise(case: Case, shape: tuple[int, int]) -> Array:
        seen = seen_by(made, case) & case.real[: int(case.values["rows"]), None]
        by_head = np.broadcast_to(seen[:, None], (len(seen), 2, seen.shape[1]))
        return by_head.reshape(len(seen), 2, -1, BLOCK_FLOATS).transpose(2, 0, 1, 3).reshape(shape)

    made.one.promise = promise
    (found,) = check(device, made.one, case)
    scores, seen = made.by_head(found, case), seen_by(made, case)
    hidden = ~np.broadcast_to(seen[:, None], scores.shape) & np.isfinite(scores)
    real = np.broadcast_to(case.real[: len(seen), None, None], scores.shape)
    assert (scores[hidden & real] == np.float32(-1e30)).all(), "a token that a row does not see has a score"


@every_view
def test_sums_of_texts(device: Device, name: str, ahead: int, window: int) -> None:
    kernels = KERNELS[name]
    made = looking_ahead(tile_values_draw(kernels, 2, 16, 128, window=window), ahead)
    plain = whole(made, LENGTHS)
    seen = seen_by(made, plain)
    scores: Any = made.random_scores()[: len(seen), :, : seen.shape[1]]
    left = np.where(seen[:, None], scores, np.float32(-1e30))
    padded = np.full((len(made.one.arrays[TABLE]), 2, len(made.cache)), np.float32(-1e30))
    padded[: len(seen), :, : seen.shape[1]] = left
    check(device, made.one, plain.changed(scores=made.grouped(padded, plain)))


def test_a_layout_is_needed() -> None:
    one = BlockDraw(KernelOptions(), {"row_slots": (1, 2)}, count=4)
    x = one.deal("x", 2, 64)
    norms = one.builder.laid_out("norms", "input", BlockLayout.by_block((2, 32), 2048))
    with pytest.raises(Exception, match="norms is not a table of rows"):
        normalize_rows(one.of(), x, norms, norms, x, centred=True)
    with pytest.raises(Exception, match="there is no pooling 'median'"):
        pool_rows(one.of(), x, norms, x, how="median")
