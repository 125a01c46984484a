"""Plans of one draw over many rows, with random contents: what the tests of those passes' shaders run.

Slots and rows behind those in use, columns of another part, groups of scores that the pass before leaves out, and rows
of a cache that no sequence and no window reaches are NaN. Behind a sequence's last token, as far as whole groups of 16
tokens reach, the cache holds huge numbers, as a longer run would leave them. Cells may reach over blocks behind the
last slot, and a slot's last rows may belong to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from block_draw import (
    POSITIONS,
    heads_of,
    in_heads,
    kernels_of,
    matrix_of,
    only_queries,
    tables_of,
    turned,
    turning_of,
    unseen,
)
from one_draw import OUT, TABLE, Array, BlockDraw, Case, normal, stale_numbers

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BYTES, BlockLayout
from glinfer.kernels.fused.cached import MASKED, SLOT_TOKENS, Heads, cached_scores, cached_values, score_slots
from glinfer.kernels.fused.dense import Matrix, shared_parts
from glinfer.kernels.fused.embed import add_images, embed
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.fused.norms import norm_floats, post_norm, row_norms
from glinfer.kernels.fused.rows import (
    BACK,
    BASE,
    CHOSEN,
    INVERSE_TEMPERATURE,
    LAST,
    NOISE,
    NOISE_KEY,
    POSITION,
    TOKEN,
    WANTED,
    row_table,
)
from glinfer.kernels.fused.sample import pick
from glinfer.kernels.fused.score import score_rows
from glinfer.kernels.fused.tiles import store_rows, take_row, tile_scores, tile_values
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import TensorSpec
from glinfer.lower.fused.rows import slots_for

EPS = 1e-5

KERNELS: dict[str, KernelOptions] = {
    "plain": KernelOptions(),
    "llvmpipe": KernelOptions(
        tiles=4, cover="points", lookup_texture=True, rows_per_draw=8, largest_cell=4, blends=True
    ),
    "GPU": KernelOptions(
        tiles=8, cover="points", part_steps=4, split_values=True, rows_per_draw=8, blends=True, fused=True
    ),
    "one by one": KernelOptions(tiles=4, pitch=20, quad=False, rows_per_draw=2, largest_cell=4),
    "one by one, looked up": KernelOptions(
        cover="points", quad=False, lookup_texture=True, rows_per_draw=1, split_values=True
    ),
    "mantissa": KernelOptions(tiles=8, pitch=16, mantissa=True, part_steps=4, largest_cell=2),
    "mantissa, one by one": KernelOptions(
        cover="points", quad=False, mantissa=True, lookup_texture=True, rows_per_draw=2, largest_cell=4, fused=True
    ),
    "small points": KernelOptions(
        tiles=2, pitch=32, lookup_texture=True, split_values=True, rows_per_draw=1, largest_cell=4
    ),
}
"""Every field that passes over many rows look at in two values or more, and what renderers get by default."""
with_kernels = kernels_of(KERNELS)


def first_rows(one: BlockDraw, rows: int, /, **arrays: Array) -> Case:
    """A run over so many rows."""
    capacity = max(len(one.arrays[name]) for name in (*one.by_row, *({TABLE} & set(one.arrays))))
    real, slots = np.arange(capacity) < rows, slots_for(rows, one.count)
    return Case({"rows": rows, "row_slots": slots}, arrays, real)


def over(
    kernels: KernelOptions, rows: int, edge: int = 2048, **further: tuple[float, float]
) -> tuple[BlockDraw, int, int]:
    """A plan over at most so many rows, rounded up to whole slots: the slots, and the rows that they hold."""
    count = kernels.rows_per_draw
    slots = slots_for(rows, count)
    ranges = {"rows": (1, slots * count), "row_slots": (1, slots), **further}
    return BlockDraw(kernels, ranges, edge, count), slots, slots * count


def gemm_draw(
    weights: str,
    kernels: KernelOptions,
    outputs: int,
    inputs: int,
    rows: int,
    *,
    norm: bool = False,
    norms: bool = False,
    gain: bool = False,
    centred: bool = False,
    gated: bool = False,
    turn: Heads | None = None,
    residual: bool = False,
    adds: bool = False,
    parts: bool = False,
    together: bool = False,
    adapt: Callable[[BlockDraw, Matrix, int], Matrix] = lambda one, matrix, rows: matrix,
    edge: int = 2048,
    **finish: Any,
) -> BlockDraw:
    """A product of ``rows`` rows, rounded up to whole slots, with weights and finish of ``gemv_draw``."""
    one, slots, capacity = over(kernels, rows, edge)
    outputs = turn.cols if turn else outputs
    array = normal(1, capacity, inputs) + np.float32(0.25)
    if together:
        one.by_row.add("x")
        x: Any = one.blocks("x", array)
    else:
        x = one.interleaved("x", array)
    left = None
    if norms:
        factors = np.random.default_rng(8).uniform(0.5, 2.0, capacity).astype(np.float32)
        means = array.mean(axis=1, dtype=np.float64).astype(np.float32)[:, None].repeat(4, axis=1)
        of_rows = norms_of(factors[:, None].repeat(4, axis=1), kernels.rows_per_draw, means if centred else None)
        left = one.cache("norms", of_rows)
        one.alter = _without_norms
    matrix = adapt(one, matrix_of(one, weights, outputs, inputs, gain=gain, centred=centred, gated=gated), capacity)
    table = _at_random(one, capacity) if turn else None
    if adds:
        one.arrays[OUT] = normal(7, capacity, outputs)
        one.by_row.add(OUT)
    return one.draw(
        gemm(
            one.of("row_slots"),
            x,
            matrix,
            one.deal(OUT, slots, outputs, "cache"),
            norm_eps=EPS if norm else None,
            norms=left,
            turning=turning_of(one, turn) if turn else None,
            rows=table,
            residual=one.interleaved("r", normal(6, capacity, outputs)) if residual else None,
            **finish,
            parts=shared_parts(matrix, kernels.part_steps) if parts else 1,
            adds=adds,
        )
    )


def _at_random(one: BlockDraw, capacity: int) -> TensorSpec:
    """The table of rows, each at a position of its own."""
    table = one.table(capacity)
    one.arrays[TABLE][:, POSITION] = np.random.default_rng(12).integers(0, POSITIONS, capacity)
    return table


def turn_draw(
    kernels: KernelOptions, heads: Heads, head_dim: int, rows: int, edge: int = 2048, **how: Any
) -> BlockDraw:
    """Keys and queries of rows normalised and turned, each by its own position, or as ``how`` says."""
    one, slots, capacity = over(kernels, rows, edge)
    x = one.interleaved("x", np.nan_to_num(in_heads(1, capacity, heads, head_dim, how.get("latent"))))
    table = _at_random(one, capacity) if how.get("turns", True) else one.table(capacity)
    if how.get("back"):
        one.arrays[TABLE][:, NOISE] = BACK * (one.arrays[TABLE][:, POSITION] // 2) + np.arange(capacity) % 4
    out, where = one.deal(OUT, slots, heads.cols, "cache"), {"rows": table}
    return turned(one, heads, head_dim, x, out, where, "row_slots", **how)


def _without_norms(arrays: dict[str, Array], case: Case) -> None:
    """Of rows that are nobody's the pass before may leave anything."""
    norms, count = arrays["norms"], len(case.real) // len(arrays["norms"])
    norms[~promised_norms(case.real, count, centred=norms.shape[1] > norm_floats(count))] = np.nan


def norms_of(factors: Array, count: int, means: Array | None = None) -> Array:
    """The norms [slots, floats] of rows [rows, 4] as row_norms leaves them, one for each member of a quad."""
    quads = -(-count // 4)
    by_member = [_by_quad(factors, count, quads if means is None else 2)]
    if means is not None:
        by_member.append(_by_quad(means, count, quads))
    return np.concatenate(by_member, axis=1)


def _by_quad(numbers: Array, count: int, quads: int) -> Array:
    padded = np.zeros((len(numbers) // count, 4 * quads, 4), dtype=np.float32)
    padded[:, :count] = numbers.reshape(-1, count, 4)
    return np.ascontiguousarray(padded.reshape(-1, quads, 4, 4).transpose(0, 1, 3, 2)).reshape(len(padded), -1)


def members_of(norms: Array, count: int) -> Array:
    """The reverse, of the factors alone."""
    by_row = norms.reshape(len(norms), -1, 4, 4).transpose(0, 1, 3, 2).reshape(len(norms), -1, 4)
    return by_row[:, :count].reshape(-1, 4)


def promised_norms(real: Array, count: int, *, centred: bool = False) -> Array:
    """Which norms, and with ``centred`` which means, are those of real rows."""
    by_member = np.broadcast_to(real[:, None], (len(real), 4))
    return norms_of(by_member, count, by_member if centred else None).astype(bool)


def norms_draw(
    kernels: KernelOptions, cols: int, rows: int, *, centred: bool = False, grouped: bool = False
) -> BlockDraw:
    """What a product behind a norm takes, of at most so many rows."""
    one, slots, capacity = over(kernels, rows)
    x = one.interleaved("x", normal(1, capacity, cols) + np.float32(0.25))
    out = one.out(BlockLayout.by_block((slots, norm_floats(kernels.rows_per_draw, centred=centred)), one.edge))
    one.promise = lambda case, shape: promised_norms(case.real, kernels.rows_per_draw, centred=centred)[: shape[0]]
    return one.draw(row_norms(one.of("row_slots"), x, out, eps=EPS, centred=centred, grouped=grouped))


def post_norm_draw(kernels: KernelOptions, cols: int, rows: int, *, adds: bool = False, width: int = 0) -> BlockDraw:
    """Rows normalised and added to a residual stream, or to what the target holds, or rounded."""
    one, slots, capacity = over(kernels, rows)
    x = one.interleaved("x", normal(1, capacity, cols))
    if adds:
        one.arrays[OUT] = normal(7, capacity, cols)
        one.by_row.add(OUT)
    return one.draw(
        post_norm(
            one.of("row_slots"),
            x,
            one.row_weight("gain", 1 + normal(2, 1, cols, scale=0.3)),
            one.deal(OUT, slots, cols, "cache"),
            residual=None if adds or width else one.interleaved("r", normal(6, capacity, cols)),
            eps=EPS,
            width=width,
        )
    )


def embed_draw(
    kernels: KernelOptions,
    vocab: int,
    context: int,
    dim: int,
    rows: int,
    *,
    weights: str = "f32",
    scale: float = 1.0,
    positions: bool = True,
    chosen: bool = False,
    images: bool = False,
    edge: int = 2048,
) -> BlockDraw:
    """The embeddings of random tokens at random positions; with ``chosen`` every other one was chosen before.

    With ``images`` every third one is a row of an image.
    """
    one, slots, capacity = over(kernels, rows, edge)
    table, random = one.table(capacity), np.random.default_rng(9)
    one.arrays[TABLE][:, TOKEN] = random.integers(0, vocab, capacity)
    one.arrays[TABLE][:, POSITION] = random.integers(0, context, capacity)
    tables = tables_of(one, vocab, context, dim, weights=weights, positions=positions)
    out, picks = one.deal(OUT, slots, dim, "cache"), None
    if chosen:
        candidates = np.zeros((len(one.arrays[TABLE]), BLOCK_FLOATS // 4, 4), np.float32)
        candidates[..., 0] = random.integers(0, 5, candidates.shape[:2])  # with equal scores among them
        candidates[..., 1] = random.integers(0, vocab, candidates.shape[:2])
        picks = one.cache("picks", candidates.reshape(-1, BLOCK_FLOATS))
        one.arrays[TABLE][::2, TOKEN] = CHOSEN
    pictures = one.row_weight("images", normal(5, capacity, dim)) if images else None
    if images:
        one.arrays[TABLE][::3, TOKEN] = vocab + np.arange(len(one.arrays[TABLE][::3]))
    return one.draw(embed(one.of("row_slots"), *tables, picks, out, table, images=pictures, scale=scale))


def images_draw(kernels: KernelOptions, dim: int, rows: int) -> BlockDraw:
    """Random rows, to every third of which the row of an image is added."""
    one, slots, capacity = over(kernels, rows, 2048)
    table, x = one.table(capacity), one.interleaved("x", normal(1, capacity, dim))
    one.arrays[TABLE][::3, TOKEN] = 64 + np.arange(len(one.arrays[TABLE][::3]))
    images, out = one.row_weight("images", normal(5, capacity, dim)), one.deal(OUT, slots, dim, "cache")
    return one.draw(add_images(one.of("row_slots"), table, x, images, out, tokens=64))


def store_draw(
    kernels: KernelOptions,
    cols: int,
    rows: int,
    cache_slots: int,
    *,
    together: bool,
    aside: int = 0,
    every: int = 1,
    edge: int = 2048,
    in_bytes: bool = False,
) -> BlockDraw:
    """Rows into a cache that is full of known numbers; the last ``aside`` blocks are kept once for ``every`` slots.

    One ``in_bytes`` has ten columns less than the rows.
    """
    one, _, capacity = over(kernels, rows, edge, strip_first=(0, cache_slots - 1))
    x, table = one.interleaved("x", normal(1, capacity, cols)), one.table(capacity)
    kept, form = (cols - 10, BYTES) if in_bytes else (cols, "rgba32f")
    cache = one.out(BlockLayout.by_block((cache_slots, kept), edge, aside=aside, every=every, format_name=form))
    one.arrays[OUT] = normal(2, cache_slots, kept)
    return one.draw(store_rows(one.of("rows"), x, cache, table, together=together))


def stored(one: BlockDraw, places: Sequence[tuple[int, int]]) -> Case:
    """A run that puts row after row to (base, position)."""
    case = first_rows(one, len(places))
    table = one.arrays[TABLE].copy()
    table[: len(places), [BASE, POSITION]] = places
    return Case({**case.values, "strip_first": sum(places[0])}, {TABLE: table}, case.real)


def take_draw(kernels: KernelOptions, cols: int, rows: int) -> BlockDraw:
    """One of many rows by itself."""
    count = kernels.rows_per_draw
    capacity = slots_for(rows, count) * count
    one = BlockDraw(kernels, {"last_row": (0, capacity - 1)}, count=count)
    x = one.interleaved("x", normal(1, capacity, cols))
    one.promise = lambda case, shape: np.ones(shape, dtype=bool)
    return one.draw(take_row(one.of(), x, one.out(one.layout(1, cols))))


def taken(one: BlockDraw, row: int) -> Case:
    """A run that takes one row, which is the only one that is anybody's."""
    return Case({"last_row": row}, real=np.arange(len(one.arrays["x"])) == row)


def score_draw(kernels: KernelOptions, vocab: int, rows: int, scale: float = 3.0) -> BlockDraw:
    """The parts of the likelihoods of random tokens."""
    one, slots, capacity = over(kernels, rows)
    logits, table = one.interleaved("x", normal(1, capacity, vocab, scale=scale)), one.table(capacity)
    one.arrays[TABLE][:, WANTED] = np.random.default_rng(2).integers(0, vocab, capacity)
    out = one.deal(OUT, slots, BLOCK_FLOATS, "cache")
    return one.draw(score_rows(one.of("row_slots"), logits, table, out))


def pick_draw(kernels: KernelOptions, vocab: int, rows: int, scale: float = 3.0) -> BlockDraw:
    """The candidates of rows, every other one with noise, at temperatures and keys of their own."""
    (one, _, capacity), random = over(kernels, rows), np.random.default_rng(2)
    logits, table = one.interleaved("x", normal(1, capacity, vocab, scale=scale)), one.table(capacity)
    inverse = random.uniform(0.5, 3.0, capacity).astype(np.float32)
    one.arrays[TABLE][:, NOISE_KEY] = random.integers(0, 2**32, capacity, dtype=np.uint32)
    one.arrays[TABLE][:, INVERSE_TEMPERATURE] = inverse.view(np.uint32)
    one.arrays[TABLE][:, NOISE] = np.arange(capacity) % 2
    out = one.out(BlockLayout.by_block((capacity, BLOCK_FLOATS), one.edge))
    return one.draw(pick(one.of("rows"), logits, out, table))


# Attention: sequences in one cache, each with some new rows


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
    table: TensorSpec

    def case(self, *runs: Run, cache: Array | None = None, **arrays: Array) -> Case:
        """A run; each sequence's rows begin in a slot of their own, and of the last slot some may be nobody's."""
        count, table, real = self.one.count, [], []
        for run in runs:
            for n in range(slots_for(run.rows, count) * count):
                table.append((run.position + n, run.base, run.position + run.rows - 1))
                real.append(n < run.rows)
        slots, capacity = len(table) // count, len(self.one.arrays[TABLE])
        rows = row_table(capacity)
        rows[: len(table), [POSITION, BASE, LAST]] = table
        groups = max(score_slots(position + 1) for position, *_ in table)
        return Case(
            {"rows": len(table), "row_slots": slots, "groups": groups, "score_slots": groups * slots},
            {TABLE: rows, "cache": self._seen(runs, self.cache if cache is None else cache), **arrays},
            np.pad(real, (0, capacity - len(real))).astype(bool),
        )

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

    def reached(self, case: Case, step: int) -> Array:
        """[rows, tokens]: the scores that are written, groups of ``step`` tokens that not all rows come before."""
        count, rows = self.one.count, int(case.values["row_slots"]) * self.one.count
        tokens = np.arange(int(case.values["groups"]) * SLOT_TOKENS)
        first = case.arrays[TABLE][:rows:count, POSITION].astype(int).repeat(count)
        return (tokens // step * step)[None] < first[:, None] + count

    def left_by_scores(self, scores: Array, case: Case, step: int) -> Array:
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
        written = self.reached(case, step) & (tokens[None] >= first[:, None])
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
    """Heads and a cache without a draw, for rows ``count`` at a time; the slots of all groups of scores."""
    capacity, groups = slots_for(rows, count) * count, score_slots(cache_slots)
    slots = capacity // count
    ranges = {"rows": (1, capacity), "row_slots": (1, slots), "groups": (1, groups), "score_slots": (1, groups * slots)}
    one, made = BlockDraw(kernels, ranges, edge, count), heads_of(heads, head_dim, kv, window, cap)
    return Attention(one, made, in_heads(1, cache_slots, made, head_dim), one.table(capacity)), groups * slots


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
    """Scores of at most so many rows, whose queries are inputs of their own, or the weighted sums of values.

    For sums the case has to bring ``scores``, see :func:`with_scores`, and they may have ``sinks`` [1, heads].
    """
    count = kernels.rows_per_draw
    made, slots = _attention(kernels, heads, head_dim, rows, cache_slots, count=count, **options)
    one, of, width = made.one, made.heads, heads * SLOT_TOKENS
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
        reached = made.reached(case, 16 if kernels.quad else 4) & case.real[:used, None]
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

    return only_values


def row_scores_draw(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int,
    cache_slots: int = 192,
    *,
    every: int = 0,
    in_bytes: bool = False,
    **options: int,
) -> Attention:
    """Scores of one row of each of exactly so many sequences, the queries in the cache.

    With ``every`` each such part of the cache has one query alone.
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
        own = only_queries(made.cache[:rows], of)
        queries, one.alter = one.whole("queries", own, one.layout(*own.shape)), _only_keys(of)
        cache = made.held(in_bytes=True)
    else:
        layout = BlockLayout.by_block(made.cache.shape, one.edge, aside=of.aside if every else 0, every=every or 1)
        cache = one.whole("cache", made.cache, layout)
    out = one.out(one.layout(slots, heads * SLOT_TOKENS))
    one.draw(cached_scores(one.of(), cache, out, of, rows=made.table, queries=queries))
    return made


def row_values_draw(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int,
    cache_slots: int = 192,
    *,
    sinks: Array | None = None,
    in_bytes: bool = False,
    **options: int,
) -> Attention:
    """Weighted sums of one row of each of exactly so many sequences."""
    made, slots = _attention(kernels, heads, head_dim, rows, cache_slots, **options)
    one = made.one
    one.alter = _only_values(made.heads)
    scores, out = one.deal("scores", slots, heads * SLOT_TOKENS).tensors[0], one.out(one.layout(rows, made.heads.width))
    cache = made.held(in_bytes=in_bytes)
    beside = None if sinks is None else one.row_input("sinks", sinks)
    one.draw(cached_values(one.of(), scores, cache, out, made.heads, rows=made.table, sinks=beside))
    return made


def with_scores(made: Attention, case: Case, scores: Array, step: int) -> Case:
    """The run with scores [rows, heads, tokens] as the pass before leaves them."""
    left = made.left_by_scores(scores, case, step)
    return case.changed(scores=made.grouped(left, case))


def random_scores(made: Attention, scale: float = 3.0) -> Array:
    """Scores [rows, heads, tokens] for as many rows as there may be."""
    return normal(2, len(made.one.arrays[TABLE]), made.heads.count, len(made.cache), scale=scale)
