"""Plans of one draw of attention over a cache, with random contents, and runs over them.

Groups of scores that the pass before leaves out, and rows of a cache that no sequence and no window reaches, are NaN.
Behind a sequence's last token, as far as whole groups of 16 tokens reach, the cache holds huge numbers, as a longer run
would leave them. A slot's last rows may belong to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from block_draw import in_heads
from one_draw import OUT, TABLE, Array, BlockDraw, Case, normal, stale_numbers

from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.kernels.fused.cached import MASKED, SLOT_TOKENS, Heads, cached_scores, cached_values, score_slots, stats_of
from glinfer.kernels.fused.rows import BASE, LAST, POSITION, row_table
from glinfer.kernels.fused.tiles import tile_scores, tile_values
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import TensorSpec
from glinfer.lower.fused.rows import slots_for

STATS = "stats"


def heads_of(heads: int, head_dim: int, kv: int, window: int, cap: float = 0.0) -> Heads:
    return Heads(heads, kv or heads, -(-head_dim // 16) * 16, float(head_dim) ** -0.5, window, cap)


def unseen(position: int, window: int) -> int:
    """How many of the first tokens are in no group of 16 that a window reaches into."""
    return max(0, position - window + 1) // 16 * 16 if window else 0


@dataclass(frozen=True)
class Run:
    """New rows of one sequence: where it begins in the cache, the position of the first, and how many."""

    base: int
    position: int
    rows: int = 1


@dataclass
class Attention:
    """Heads in a cache, and a draw over it; what a run of several sequences holds."""

    one: BlockDraw
    heads: Heads
    cache: Array
    table: TensorSpec | None
    step: int = SLOT_TOKENS
    """How many tokens' scores are written, or left out, together."""

    @property
    def has_stats(self) -> bool:
        """Whether the plan of one row has statistics of scores."""
        return self.one.kernels.split_values and self.one.kernels.quad

    def case(self, *runs: Run, cache: Array | None = None, scores: Array | None = None, **arrays: Array) -> Case:
        """A run; each sequence's rows begin in a slot of their own, and of the last slot some may be nobody's.

        A draw that weighs values gets ``scores`` [rows, heads, tokens], by default random ones, as the pass before
        leaves them.
        """
        count, table, real = self.one.count, [], []
        for run in runs:
            for n in range(slots_for(run.rows, count) * count):
                table.append((run.position + n, run.base, run.position + run.rows - 1))
                real.append(n < run.rows)
        slots, capacity = len(table) // count, len(self.one.arrays[TABLE])
        rows = row_table(capacity)
        rows[: len(table), [POSITION, BASE, LAST]] = table
        groups = max(score_slots(position + 1) for position, *_ in table)
        values = {"rows": len(table), "row_slots": slots, "groups": groups, "score_slots": groups * slots}
        seen = self._seen(runs, self.cache if cache is None else cache)
        case = Case({**values, "position": runs[0].position}, {TABLE: rows, "cache": seen, **arrays})
        case.real = np.pad(real, (0, capacity - len(real))).astype(bool)
        if "scores" not in self.one.parts:
            return case
        left = self.left_by_scores(self.random_scores() if scores is None else scores, case)
        return case.changed(scores=self.grouped(left, case))

    def random_scores(self, scale: float = 3.0) -> Array:
        """Scores [rows, heads, tokens] for as many rows as there may be."""
        return normal(2, len(self.one.arrays[TABLE]), self.heads.count, len(self.cache), scale=scale)

    def held(self, *, in_bytes: bool) -> TensorSpec:
        """The cache as an input; in bytes it has no queries."""
        if not in_bytes:
            return self.one.cache("cache", self.cache)
        self.cache = self.cache[:, : self.heads.queries_at]
        return self.one.in_bytes("cache", self.cache)

    def _seen(self, runs: Sequence[Run], cache: Array) -> Array:
        """The cache with NaN where no sequence or window reaches; behind each one's last token huge numbers and NaN."""
        count, seen = self.one.count, np.full_like(cache, np.nan)
        for run in runs:
            end = run.position + slots_for(run.rows, count) * count
            stale = slice(run.base + self.unseen(run), min(run.base + -(-end // 16) * 16, len(cache)))
            seen[stale] = stale_numbers(cache[stale])
        for run in runs:
            own = slice(run.base + self.unseen(run), run.base + run.position + run.rows)
            seen[own] = cache[own]
        return seen

    def unseen(self, run: Run) -> int:
        """How many of a sequence's first tokens none of the rows' windows comes near."""
        return unseen(run.position, self.heads.window)

    def by_head(self, found: Array, case: Case) -> Array:
        """Scores of all groups and slots as [rows, heads, tokens]."""
        slots, count = int(case.values["row_slots"]), self.one.count
        grouped = found.reshape(-1, slots * count, self.heads.count, SLOT_TOKENS)
        return grouped.transpose(1, 2, 0, 3).reshape(slots * count, self.heads.count, -1)

    def grouped(self, scores: Array, case: Case) -> Array:
        """The reverse: a whole matrix for the draw's scores, NaN behind what is in use."""
        slots, count, height = int(case.values["row_slots"]), self.one.count, int(self.one.ranges["score_slots"][1])
        found = np.full((height * count, self.heads.count * SLOT_TOKENS), np.nan, dtype=np.float32)
        rows = scores[: slots * count].reshape(slots * count, self.heads.count, -1, SLOT_TOKENS)[
            :, :, : int(case.values["groups"])
        ]
        used = rows.transpose(2, 0, 1, 3).reshape(-1, self.heads.count * SLOT_TOKENS)
        found[: len(used)] = used
        return found

    def reached(self, case: Case) -> Array:
        """[rows, tokens]: the scores that are written, groups of tokens that not all rows come before."""
        count, rows = self.one.count, int(case.values["row_slots"]) * self.one.count
        tokens = np.arange(int(case.values["groups"]) * SLOT_TOKENS)
        first = case.arrays[TABLE][:rows:count, POSITION].astype(int).repeat(count)
        return (tokens // self.step * self.step)[None] < first[:, None] + count

    def left_by_scores(self, scores: Array, case: Case) -> Array:
        """Scores [rows, heads, tokens] as the pass before leaves them: masked, and NaN where it writes none.

        There is NaN as well where no window of a slot's rows reaches, which the pass before writes for nobody.
        """
        count, window = self.one.count, self.heads.window
        rows = int(case.values["row_slots"]) * count
        tokens = np.arange(int(case.values["groups"]) * SLOT_TOKENS)
        positions = case.arrays[TABLE][:rows, POSITION].astype(int)
        left = scores[:rows, :, : tokens.size].copy()
        masked = tokens[None] > positions[:, None]
        if window:
            masked |= tokens[None] <= positions[:, None] - window
        left = np.where(masked[:, None], np.float32(MASKED), left)
        first = np.array([unseen(position, window) for position in positions[::count].repeat(count)])
        written = self.reached(case) & (tokens[None] >= first[:, None])
        left = np.where(written[:, None], left, np.float32(np.nan))
        nobody = ~case.real[:rows]
        nobody[::2] = False  # those see what is behind the sequence, and give it weight
        left[nobody] = np.nan
        return left


def _attention(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int,
    cache_slots: int,
    *,
    kv: int = 0,
    window: int = 0,
    cap: float = 0.0,
    edge: int = 2048,
    count: int = 1,
) -> tuple[Attention, int]:
    """Heads and a cache without a draw, for rows ``count`` at a time; the slots of all groups of scores.

    With 0 rows it is for one row alone, without a table.
    """
    capacity, groups = slots_for(rows or 1, count) * count, score_slots(cache_slots)
    slots = capacity // count
    ranges = {"rows": (1, capacity), "row_slots": (1, slots), "groups": (1, groups), "score_slots": (1, groups * slots)}
    if not rows:
        ranges = {"position": (0, cache_slots - 1), "score_slots": (1, groups)}
    one, made = BlockDraw(kernels, ranges, edge, count), heads_of(heads, head_dim, kv, window, cap)
    one.arrays[TABLE] = row_table(capacity)
    table = one.table(capacity) if rows else None
    return Attention(one, made, in_heads(1, cache_slots, made, head_dim), table), groups * slots


def _tile_draw(
    scores: bool,
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int,
    cache_slots: int = 192,
    *,
    sinks: Array | None = None,
    in_bytes: bool = False,
    **options: Any,
) -> Attention:
    """Scores of at most ``rows`` rows, whose queries are inputs of their own, or the weighted sums of values.

    Sums may have ``sinks`` [1, heads].
    """
    count = kernels.rows_per_draw
    made, slots = _attention(kernels, heads, head_dim, rows, cache_slots, count=count, **options)
    one, of, width, made.step = made.one, made.heads, heads * SLOT_TOKENS, 16 if kernels.quad else 4
    capacity = len(one.arrays[TABLE])
    one.alter = _only_keys(of) if scores else _only_values(of)
    whole = made.cache
    cache = made.held(in_bytes=in_bytes)
    if not scores:
        before, out = one.deal("scores", slots, width), one.deal(OUT, capacity // count, of.width, "cache")
        beside = None if sinks is None else one.row_input("sinks", sinks)
        one.draw(tile_values(one.of(), before, cache, made.table, out, of, sinks=beside))
        return made
    queries = np.full((capacity, of.cols), np.nan, dtype=np.float32)
    queries[:, of.queries_at :] = whole[np.arange(capacity) % cache_slots, of.queries_at :]

    def promise(case: Case, shape: tuple[int, int]) -> Array:
        used = int(case.values["row_slots"]) * count
        reached = made.reached(case) & case.real[:used, None]
        whole = np.broadcast_to(reached[:, None], (used, heads, reached.shape[1]))
        return whole.reshape(used, heads, -1, SLOT_TOKENS).transpose(2, 0, 1, 3).reshape(shape)

    one.promise = promise
    q, out = one.interleaved("q", queries), one.deal(OUT, slots, width, "cache")
    one.draw(tile_scores(one.of(), q, cache, made.table, out, of))
    return made


tile_scores_draw = partial(_tile_draw, True)
tile_values_draw = partial(_tile_draw, False)


def _only_keys(heads: Heads) -> Callable[[dict[str, Array], Case], None]:
    def only_keys(arrays: dict[str, Array], case: Case) -> None:
        arrays["cache"][:, heads.kv_floats :] = np.nan

    return only_keys


def _only_values(heads: Heads) -> Callable[[dict[str, Array], Case], None]:
    def only_values(arrays: dict[str, Array], case: Case) -> None:
        arrays["cache"][:, : heads.kv_floats] = arrays["cache"][:, heads.queries_at :] = np.nan
        if STATS in arrays:  # of all scores that the pass before writes, masked ones too
            scores, used = arrays["scores"], int(case.values["score_slots"])
            known = np.where(np.isnan(scores[:used]), MASKED, scores[:used]).astype(np.float64)
            arrays[STATS] = np.full_like(scores, np.nan)
            arrays[STATS][:used] = stats_of(known)

    return only_values


def row_scores_draw(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int = 0,
    cache_slots: int = 192,
    *,
    every: int = 0,
    in_bytes: bool = False,
    **options: Any,
) -> Attention:
    """Scores of one row of each of ``rows`` sequences, or of one row alone, with queries in the cache.

    With ``every`` each such part of the cache has one query alone. Options of a plan that has statistics of scores have
    them here too, of one row.
    """
    made, slots = _attention(kernels, heads, head_dim, rows, cache_slots, **options)
    one, of = made.one, made.heads

    def only_own(arrays: dict[str, Array], case: Case) -> None:
        cache, table = arrays["cache"], arrays[TABLE]
        own = (table[:, BASE] + table[:, POSITION]).astype(int)
        queries = cache[own, of.queries_at :]
        cache[:, of.kv_floats :] = np.nan
        for slot, query in zip(own, queries, strict=True):
            kept = slice(slot // every * every, (slot // every + 1) * every) if every else slice(slot, slot + 1)
            cache[kept, of.queries_at :] = query

    one.alter = only_own
    one.promise = lambda case, shape: np.ones(shape, dtype=bool)
    queries = None
    if in_bytes:
        own = made.cache[: rows or 1].copy()
        own[:, : of.queries_at] = np.nan
        queries, one.alter = one.blocks("queries", own), _only_keys(of)
        cache = made.held(in_bytes=True)
    else:
        layout = BlockLayout.by_block(made.cache.shape, one.edge, aside=of.aside if every else 0, every=every or 1)
        cache = one.whole("cache", made.cache, layout)
    out = one.layout(slots, heads * SLOT_TOKENS)
    stats = None if rows or not made.has_stats else one.builder.laid_out(STATS, "cache", out)
    one.draw(cached_scores(one.of(), cache, one.out(out), of, rows=made.table, queries=queries, stats=stats))
    return made


def row_values_draw(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int = 0,
    cache_slots: int = 192,
    *,
    sinks: Array | None = None,
    in_bytes: bool = False,
    **options: Any,
) -> Attention:
    """Weighted sums of one row of each of ``rows`` sequences, or of one row alone."""
    made, slots = _attention(kernels, heads, head_dim, rows, cache_slots, **options)
    one, width = made.one, heads * SLOT_TOKENS
    one.alter = _only_values(made.heads)
    scores, out = one.deal("scores", slots, width).tensors[0], one.out(one.layout(rows or 1, made.heads.width))
    stats = None if rows or not made.has_stats else one.blocks(STATS, np.zeros((slots, width), np.float32))
    cache = made.held(in_bytes=in_bytes)
    how = {"rows": made.table, "sinks": None if sinks is None else one.row_input("sinks", sinks), "stats": stats}
    one.draw(cached_values(one.of(), scores, cache, out, made.heads, **how))
    return made
