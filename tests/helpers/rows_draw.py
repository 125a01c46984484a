"""Plans of one draw over many rows, with random contents: what the tests of those passes' shaders run.

Whatever a shader has no business to read is NaN: texels between blocks, slots and rows behind those in use, columns of
another part, groups of scores that the pass before leaves out, and rows of a cache that no sequence and no window
reaches. Behind a sequence's last token, as far as whole groups of 16 tokens reach, the cache holds huge numbers, as a
longer run would leave them. The targets are full of NaN too, and only what a pass promises is looked at: cells may
reach over blocks behind the last slot, a slot's last rows may belong to nobody, and nothing else may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from block_draw import (
    OUT,
    POSITIONS,
    STALE,
    in_heads,
    matrix_of,
    normal,
    poisoned,
    rope_of,
    tables_of,
    unseen,
)

from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout, blocks_for
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.gl.replay import Cells
from glinfer.models.fast.rows import slots_for
from glinfer.models.oracle import run_draw, written_rows
from glinfer.models.plan import Plan, PlanBuilder
from glinfer.models.session import Session
from glinfer.ops.fused.cached import MASKED, SLOT_TOKENS, Heads, cached_scores, cached_values, score_slots
from glinfer.ops.fused.dense import Turning, shared_parts
from glinfer.ops.fused.embed import embed_rows
from glinfer.ops.fused.gemm import gemm
from glinfer.ops.fused.norms import norm_floats, row_norms
from glinfer.ops.fused.rows import (
    BASE,
    CHOSEN,
    INVERSE_TEMPERATURE,
    NOISE,
    NOISE_KEY,
    POSITION,
    ROW_WORDS,
    TOKEN,
    WANTED,
    RowInterleaved,
    row_table,
)
from glinfer.ops.fused.sample import pick_rows
from glinfer.ops.fused.score import score_rows
from glinfer.ops.fused.tiles import store_rows, take_row, tile_scores, tile_values
from glinfer.ops.fused.turn import turn_heads
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import DrawSpec, RunValue, TensorSpec

Array = np.ndarray[Any, Any]
Values = Mapping[str, int | float]
TABLE, EPS = "rows", 1e-5

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


@dataclass
class Case:
    """One run: its run values, which rows are anybody's, and the inputs that are others than the draw's own."""

    values: Values
    real: Array
    arrays: Mapping[str, Array] = field(default_factory=dict)


@dataclass
class RowsDraw:
    """A plan of one draw of ``count`` rows at a time into ``out``, with arrays for everything it reads.

    Arrays are whole matrices by name, also of what is dealt to several tensors. ``alter`` is given those of one run to
    change some of them as it asks, ``promise`` says which numbers of the result a run must have written.
    """

    count: int
    ranges: Mapping[str, tuple[float, float]]
    edge: int = 2048
    arrays: dict[str, Array] = field(default_factory=dict)
    by_row: set[str] = field(default_factory=set)
    alter: Callable[[dict[str, Array], Case], None] = lambda arrays, case: None
    promise: Callable[[Case, tuple[int, int]], Array] | None = None

    def __post_init__(self) -> None:
        values = [RunValue(name, low, high) for name, (low, high) in self.ranges.items()]
        self.builder, self.parts = PlanBuilder("one draw", 1, values), dict[str, int]()

    def layout(self, shape: tuple[int, int], kernels: KernelOptions) -> BlockLayout:
        return BlockLayout.of(shape, self.edge, tiles=kernels.tiles, pitch=kernels.pitch)

    def deal(self, name: str, slots: int, cols: int, kernels: KernelOptions, kind: str = "input") -> RowInterleaved:
        """A matrix without an array of its own."""
        self.parts[name], layout = self.count, self.layout((slots, cols), kernels)
        return RowInterleaved(tuple(self.builder.laid_out(f"{name}.{n}", kind, layout) for n in range(self.count)))

    def interleaved(self, name: str, array: Array, kernels: KernelOptions) -> RowInterleaved:
        """An input whose rows are the run's."""
        self.arrays[name] = array
        self.by_row.add(name)
        return self.deal(name, len(array) // self.count, array.shape[1], kernels)

    def whole(self, name: str, array: Array, layout: TexelLayout, kind: str = "input") -> TensorSpec:
        self.arrays[name] = array
        return self.builder.laid_out(name, kind, layout)

    def cache(self, name: str, array: Array) -> TensorSpec:
        return self.whole(name, array, BlockLayout.by_block(array.shape, self.edge))

    def weight(self, name: str, array: Array, layout: TexelLayout) -> TensorSpec:
        return self.whole(name, array, layout, "weight")

    def table(self, rows: int) -> TensorSpec:
        return self.whole(TABLE, row_table(rows), RowLayout.of((rows, ROW_WORDS), "rgba32ui", self.edge))

    def out(self, layout: BlockLayout) -> TensorSpec:
        return self.builder.laid_out(OUT, "cache", layout)

    def draw(self, spec: DrawSpec) -> RowsDraw:
        self.builder.draw(spec)
        return self

    @property
    def plan(self) -> Plan:
        return self.builder.build()

    @property
    def spec(self) -> DrawSpec:
        return self.plan.draws[0]

    def given(self, case: Case) -> dict[str, Array]:
        """The arrays of one run by tensor name."""
        arrays = {name: array.copy() for name, array in {**self.arrays, **case.arrays}.items()}
        for name in self.by_row:
            arrays[name][~case.real] = np.nan
        self.alter(arrays, case)
        given = {name: array for name, array in arrays.items() if name not in self.parts}
        for name, array in arrays.items():
            given.update({f"{name}.{n}": array[n :: self.parts[name]] for n in range(self.parts.get(name, 0))})
        return given

    def promised(self, case: Case, shape: tuple[int, int]) -> Array:
        """Which numbers of the result matter: those of real rows, unless the draw has it otherwise."""
        if self.promise is not None:
            return self.promise(case, shape)
        return np.broadcast_to(case.real[: shape[0], None], shape)

    def expected(self, case: Case) -> Array:
        """What float64 gives: the rows of all targets in turn."""
        given = self.given(case)
        if "score_slots" in case.values:  # an oracle takes what the pass before has written, and no more
            used = {name: given[name][: int(case.values["score_slots"])] for name in given if "scores" in name}
            given.update(used)
        with np.errstate(all="ignore"):
            return in_turn(run_draw(self.spec, given, case.values))

    def run(self, device: Device, *cases: Case) -> list[Array]:
        """What the GPU writes in each run, one after the other in one session."""
        session = Session(self.plan, self.given(cases[0]), device)
        found = [self._run(session, case) for case in cases]
        session.release()
        return found

    def _run(self, session: Session, case: Case) -> Array:
        spec, arrays = self.spec, self.given(case)
        for tensor in self.plan.of_kind("input"):
            texture = session.texture(tensor.name)
            if isinstance(texture.layout, BlockLayout):
                texture.gl.write(poisoned(texture.layout, arrays[tensor.name]))
            else:
                session.write(tensor.name, arrays[tensor.name])
        before = []
        for name in spec.outputs:
            target = session.texture(name)
            layout = target.layout
            assert isinstance(layout, BlockLayout)
            held = arrays.get(name, np.full((layout.rows, layout.cols), np.nan, np.float32))
            before.append(poisoned(layout, held))
            target.gl.write(before[-1])
        assert session.run(case.values) == 1
        places = written_rows(spec, {name: arrays[name] for _, name in spec.inputs}, case.values)
        found, cols = [], spec.extent(case.values)[1]
        for name, held in zip(spec.outputs, before, strict=True):
            texels = session.texture(name).framebuffer.read(0, layout.width, layout.height)
            beside = ~self._covered(layout, places, case.values)
            left = np.zeros_like(held) if spec.clears else held
            same = texels.view(np.uint32) == left.view(np.uint32)
            assert same[beside].all(), f"{name}: something that the pass does not write has changed"
            x, y = layout.places(layout.rows)
            found.append(texels[y, x].reshape(layout.rows, -1)[places])
        rows = in_turn(found[0] if len(found) == 1 else np.stack(found))
        promised = self.promised(case, (len(rows), cols))
        padding = slice(cols, BLOCK_FLOATS * blocks_for(cols))
        assert not rows[promised.any(axis=1), padding].any(), "the padding of a vector is zero"
        return rows[:, :cols]

    def _covered(self, layout: BlockLayout, places: Array, values: Values) -> Array:
        """[height, width]: the texels that the pass may write."""
        covered = np.zeros((layout.height, layout.width), dtype=bool)
        if not self.spec.largest_cell:
            x, y = layout.places(layout.rows)
            covered[y[places], x[places]] = True
            return covered
        cells = Cells.of(layout, self.spec.extent(values)[0], self.spec.largest_cell)
        for tile in range(layout.tiles):
            left, up = tile * layout.pitch, 4 * cells.edge * (cells.each // cells.across)
            covered[:up, left : left + 4 * cells.edge * cells.across] = True
        return covered


def in_turn(parts: Array) -> Array:
    """[targets, slots, cols] → [slots · targets, cols], or the matrix itself of one target."""
    return parts if parts.ndim == 2 else parts.transpose(1, 0, 2).reshape(-1, parts.shape[2])


def first_rows(one: RowsDraw, rows: int, /, **arrays: Array) -> Case:
    """A run over so many rows."""
    real = np.arange(_capacity(one)) < rows
    slots = slots_for(rows, one.count)
    return Case({"rows": rows, "row_slots": slots}, real, arrays)


def _capacity(one: RowsDraw) -> int:
    return max(len(one.arrays[name]) for name in (*one.by_row, *({TABLE} & set(one.arrays))))


def _counted(count: int, capacity: int) -> dict[str, tuple[float, float]]:
    return {"rows": (1, capacity), "row_slots": (1, slots_for(capacity, count))}


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
    activation: str = "none",
    adds: bool = False,
    parts: bool = False,
    together: bool = False,
    edge: int = 2048,
) -> RowsDraw:
    """A product for at most so many rows, rounded up to whole slots, with the weights of ``gemv_draw``."""
    slots, outputs = slots_for(rows, kernels.rows_per_draw), turn.cols if turn else outputs
    capacity = slots * kernels.rows_per_draw
    one = RowsDraw(kernels.rows_per_draw, _counted(kernels.rows_per_draw, capacity), edge)
    array = normal(1, capacity, inputs) + np.float32(0.25)
    if together:
        one.by_row.add("x")
        x: Any = one.whole("x", array, one.layout(array.shape, kernels))
    else:
        x = one.interleaved("x", array, kernels)
    left = None
    if norms:
        factors = np.random.default_rng(8).uniform(0.5, 2.0, capacity).astype(np.float32)
        means = array.mean(axis=1, dtype=np.float64).astype(np.float32)[:, None].repeat(4, axis=1)
        of_rows = norms_of(factors[:, None].repeat(4, axis=1), kernels.rows_per_draw, means if centred else None)
        left = one.cache("norms", of_rows)
        one.alter = _without_norms
    matrix = matrix_of(
        one.weight, weights, kernels, outputs, inputs, gain=gain, centred=centred, gated=gated, edge=edge
    )
    table, turning = None, None
    if turn is not None:
        table = one.table(capacity)
        one.arrays[TABLE][:, POSITION] = np.random.default_rng(12).integers(0, POSITIONS, capacity)
        turning = Turning(one.weight("rope", *rope_of(turn, edge)), turn.kv_floats, turn.queries_at)
    if adds:
        one.arrays[OUT] = normal(7, capacity, outputs)
        one.by_row.add(OUT)
    return one.draw(
        gemm(
            "draw",
            "draw",
            x,
            matrix,
            one.deal(OUT, slots, outputs, kernels, "cache"),
            slots="row_slots",
            norm_eps=EPS if norm else None,
            norms=left,
            turning=turning,
            rows=table,
            residual=one.interleaved("r", normal(6, capacity, outputs), kernels) if residual else None,
            activation=activation,
            kernels=kernels,
            parts=shared_parts(matrix, kernels.part_steps) if parts else 1,
            adds=adds,
        )
    )


def turn_draw(kernels: KernelOptions, heads: Heads, head_dim: int, rows: int, edge: int = 2048) -> RowsDraw:
    """Keys and queries of rows normalised and turned, each by its own position."""
    slots = slots_for(rows, kernels.rows_per_draw)
    capacity = slots * kernels.rows_per_draw
    one = RowsDraw(kernels.rows_per_draw, _counted(kernels.rows_per_draw, capacity), edge)
    x, table = one.interleaved("x", np.nan_to_num(in_heads(1, capacity, heads, head_dim)), kernels), one.table(capacity)
    one.arrays[TABLE][:, POSITION] = np.random.default_rng(12).integers(0, POSITIONS, capacity)
    gains = np.zeros((2, heads.floats), dtype=np.float32)
    gains[:, :head_dim] = 1 + normal(3, 2, head_dim, scale=0.3)
    return one.draw(
        turn_heads(
            "draw",
            x,
            one.weight("gains", gains, RowLayout.of(gains.shape, "rgba32f", edge)),
            Turning(one.weight("rope", *rope_of(heads, edge)), heads.kv_floats, heads.queries_at),
            one.deal(OUT, slots, heads.cols, kernels, "cache"),
            head_dim=head_dim,
            eps=EPS,
            rows=table,
            slots="row_slots",
            kernels=kernels,
        )
    )


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
) -> RowsDraw:
    """What a product behind a norm takes, of at most so many rows."""
    slots = slots_for(rows, kernels.rows_per_draw)
    one = RowsDraw(kernels.rows_per_draw, _counted(kernels.rows_per_draw, slots * kernels.rows_per_draw))
    x = one.interleaved("x", normal(1, slots * kernels.rows_per_draw, cols) + np.float32(0.25), kernels)
    out = one.out(BlockLayout.by_block((slots, norm_floats(kernels.rows_per_draw, centred=centred)), one.edge))
    one.promise = lambda case, shape: promised_norms(case.real, kernels.rows_per_draw, centred=centred)[: shape[0]]
    return one.draw(
        row_norms(
            "draw",
            "draw",
            x,
            out,
            slots="row_slots",
            eps=EPS,
            centred=centred,
            grouped=grouped,
            kernels=kernels,
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
    edge: int = 2048,
) -> RowsDraw:
    """The embeddings of random tokens at random positions; with ``chosen`` every other one was chosen before."""
    slots = slots_for(rows, kernels.rows_per_draw)
    one = RowsDraw(kernels.rows_per_draw, _counted(kernels.rows_per_draw, slots * kernels.rows_per_draw), edge)
    table, random = one.table(slots * kernels.rows_per_draw), np.random.default_rng(9)
    one.arrays[TABLE][:, TOKEN] = random.integers(0, vocab, slots * kernels.rows_per_draw)
    one.arrays[TABLE][:, POSITION] = random.integers(0, context, slots * kernels.rows_per_draw)
    tables = tables_of(
        one.weight, vocab, context, dim, quad=kernels.quad, weights=weights, positions=positions, edge=edge
    )
    out, picks = one.deal(OUT, slots, dim, kernels, "cache"), None
    if chosen:
        candidates = np.zeros((len(one.arrays[TABLE]), BLOCK_FLOATS // 4, 4), np.float32)
        candidates[..., 0] = random.integers(0, 5, candidates.shape[:2])  # with equal scores among them
        candidates[..., 1] = random.integers(0, vocab, candidates.shape[:2])
        picks = one.cache("picks", candidates.reshape(-1, BLOCK_FLOATS))
        one.arrays[TABLE][::2, TOKEN] = CHOSEN
    options: dict[str, Any] = {"slots": "row_slots", "picks": picks, "scale": scale, "kernels": kernels}
    return one.draw(embed_rows("draw", table, *tables, out, **options))


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
) -> RowsDraw:
    """Rows into a cache that is full of known numbers; the last ``aside`` blocks are kept once for ``every`` slots."""
    slots = slots_for(rows, kernels.rows_per_draw)
    capacity = slots * kernels.rows_per_draw
    one = RowsDraw(
        kernels.rows_per_draw, {**_counted(kernels.rows_per_draw, capacity), "strip_first": (0, cache_slots - 1)}, edge
    )
    x, table = one.interleaved("x", normal(1, capacity, cols), kernels), one.table(capacity)
    cache = one.out(BlockLayout.by_block((cache_slots, cols), edge, aside=aside, every=every))
    one.arrays[OUT] = normal(2, cache_slots, cols)
    return one.draw(store_rows("draw", x, table, cache, together=together, kernels=kernels))


def stored(one: RowsDraw, places: Sequence[tuple[int, int]]) -> Case:
    """A run that puts row after row to (base, position)."""
    case = first_rows(one, len(places))
    table = one.arrays[TABLE].copy()
    table[: len(places), [BASE, POSITION]] = places
    return Case({**case.values, "strip_first": sum(places[0])}, case.real, {TABLE: table})


def take_draw(kernels: KernelOptions, cols: int, rows: int) -> RowsDraw:
    """One of many rows by itself."""
    slots = slots_for(rows, kernels.rows_per_draw)
    one = RowsDraw(kernels.rows_per_draw, {"last_row": (0, slots * kernels.rows_per_draw - 1)})
    x = one.interleaved("x", normal(1, slots * kernels.rows_per_draw, cols), kernels)
    one.promise = lambda case, shape: np.ones(shape, dtype=bool)
    return one.draw(take_row("draw", x, one.out(one.layout((1, cols), kernels)), kernels=kernels))


def taken(one: RowsDraw, row: int) -> Case:
    """A run that takes one row, which is the only one that is anybody's."""
    return Case({"last_row": row}, np.arange(len(one.arrays["x"])) == row)


def score_draw(kernels: KernelOptions, vocab: int, rows: int, scale: float = 3.0) -> RowsDraw:
    """The parts of the likelihoods of random tokens."""
    slots = slots_for(rows, kernels.rows_per_draw)
    capacity = slots * kernels.rows_per_draw
    one = RowsDraw(kernels.rows_per_draw, _counted(kernels.rows_per_draw, capacity))
    logits, table = one.interleaved("x", normal(1, capacity, vocab, scale=scale), kernels), one.table(capacity)
    one.arrays[TABLE][:, WANTED] = np.random.default_rng(2).integers(0, vocab, capacity)
    out = one.deal(OUT, slots, BLOCK_FLOATS, kernels, "cache")
    return one.draw(score_rows("draw", logits, table, out, vocab=vocab, slots="row_slots", kernels=kernels))


def pick_draw(kernels: KernelOptions, vocab: int, rows: int, scale: float = 3.0) -> RowsDraw:
    """The candidates of rows, every other one with noise, at temperatures and keys of their own."""
    capacity = slots_for(rows, kernels.rows_per_draw) * kernels.rows_per_draw
    one, random = RowsDraw(kernels.rows_per_draw, _counted(kernels.rows_per_draw, capacity)), np.random.default_rng(2)
    logits, table = one.interleaved("x", normal(1, capacity, vocab, scale=scale), kernels), one.table(capacity)
    inverse = random.uniform(0.5, 3.0, capacity).astype(np.float32)
    one.arrays[TABLE][:, NOISE_KEY] = random.integers(0, 2**32, capacity, dtype=np.uint32)
    one.arrays[TABLE][:, INVERSE_TEMPERATURE] = inverse.view(np.uint32)
    one.arrays[TABLE][:, NOISE] = np.arange(capacity) % 2
    out = one.out(BlockLayout.by_block((capacity, BLOCK_FLOATS), one.edge))
    return one.draw(pick_rows("draw", logits, table, out, vocab=vocab, count="rows", kernels=kernels))


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

    one: RowsDraw
    heads: Heads
    cache: Array
    table: TensorSpec

    def case(self, *runs: Run, cache: Array | None = None, **arrays: Array) -> Case:
        """A run; each sequence's rows begin in a slot of their own, and of the last slot some may be nobody's."""
        count, table, real = self.one.count, [], []
        for run in runs:
            for n in range(slots_for(run.rows, count) * count):
                table.append((run.position + n, run.base))
                real.append(n < run.rows)
        slots, capacity = len(table) // count, len(self.one.arrays[TABLE])
        rows = row_table(capacity)
        rows[: len(table), [POSITION, BASE]] = table
        groups = max(score_slots(position + 1) for position, _ in table)
        return Case(
            {"rows": len(table), "row_slots": slots, "groups": groups, "score_slots": groups * slots},
            np.pad(real, (0, capacity - len(real))).astype(bool),
            {TABLE: rows, "cache": self._seen(runs, self.cache if cache is None else cache), **arrays},
        )

    def _seen(self, runs: Sequence[Run], cache: Array) -> Array:
        """The cache with NaN where no sequence or window reaches, and huge numbers behind each one's last token."""
        count, seen = self.one.count, np.full_like(cache, np.nan)
        for run in runs:
            end = run.position + slots_for(run.rows, count) * count
            stale = slice(run.base + self.unseen(run), min(run.base + -(-end // 16) * 16, len(cache)))
            seen[stale] = np.where(cache[stale] < 0, -STALE, STALE)
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
        left[~case.real[:rows]] = np.nan
        return left


def _attention(
    heads: int, head_dim: int, rows: int, cache_slots: int, edge: int, count: int, kv: int, window: int
) -> Attention:
    capacity = slots_for(rows, count) * count
    slots = capacity // count
    groups = score_slots(cache_slots)
    one = RowsDraw(
        count,
        {**_counted(count, capacity), "groups": (1, groups), "score_slots": (1, groups * slots)},
        edge,
    )
    made = Heads(heads, kv or heads, -(-head_dim // 16) * 16, float(head_dim) ** -0.5, window)
    return Attention(one, made, in_heads(1, cache_slots, made, head_dim), one.table(capacity))


def tile_scores_draw(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int,
    cache_slots: int = 192,
    *,
    kv: int = 0,
    window: int = 0,
    edge: int = 2048,
) -> Attention:
    """Scores of at most so many rows, ``kernels.rows_per_draw`` at a time; their queries are inputs of their own."""
    count = kernels.rows_per_draw
    made = _attention(heads, head_dim, rows, cache_slots, edge, count, kv, window)
    one, step, of = made.one, 16 if kernels.quad else 4, made.heads
    capacity = len(one.arrays[TABLE])
    queries = np.full((capacity, of.cols), np.nan, dtype=np.float32)
    queries[:, of.queries_at :] = made.cache[np.arange(capacity) % cache_slots, of.queries_at :]

    def only_keys(arrays: dict[str, Array], case: Case) -> None:
        arrays["cache"][:, of.kv_floats :] = np.nan

    def promise(case: Case, shape: tuple[int, int]) -> Array:
        slots = int(case.values["row_slots"])
        reached = made.reached(case, step) & case.real[: slots * count, None]
        whole = np.broadcast_to(reached[:, None], (slots * count, heads, reached.shape[1]))
        grouped = whole.reshape(slots * count, heads, -1, SLOT_TOKENS).transpose(2, 0, 1, 3)
        return grouped.reshape(shape)

    one.alter, one.promise = only_keys, promise
    groups = score_slots(cache_slots)
    one.draw(
        tile_scores(
            "draw",
            one.interleaved("q", queries, kernels),
            one.cache("cache", made.cache),
            made.table,
            one.deal(OUT, groups * capacity // count, heads * SLOT_TOKENS, kernels, "cache"),
            of,
            kernels=kernels,
        )
    )
    return made


def _only_values(heads: Heads) -> Callable[[dict[str, Array], Case], None]:
    def only_values(arrays: dict[str, Array], case: Case) -> None:
        arrays["cache"][:, : heads.kv_floats] = arrays["cache"][:, heads.queries_at :] = np.nan

    return only_values


def tile_values_draw(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int,
    cache_slots: int = 192,
    *,
    kv: int = 0,
    window: int = 0,
    edge: int = 2048,
) -> Attention:
    """Weighted sums of at most so many rows; the case has to bring ``scores``, see :func:`with_scores`."""
    made = _attention(heads, head_dim, rows, cache_slots, edge, kernels.rows_per_draw, kv, window)
    one, slots = made.one, len(made.one.arrays[TABLE]) // kernels.rows_per_draw
    one.alter = _only_values(made.heads)
    one.draw(
        tile_values(
            "draw",
            one.deal("scores", score_slots(cache_slots) * slots, heads * SLOT_TOKENS, kernels),
            one.cache("cache", made.cache),
            made.table,
            one.deal(OUT, slots, made.heads.width, kernels, "cache"),
            made.heads,
            kernels=kernels,
        )
    )
    return made


def row_scores_draw(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int,
    cache_slots: int = 192,
    *,
    kv: int = 0,
    window: int = 0,
    every: int = 0,
) -> Attention:
    """Scores of one row of each of exactly so many sequences, the queries in the cache.

    With ``every`` each such part of the cache has one query alone.
    """
    made = _attention(heads, head_dim, rows, cache_slots, 2048, 1, kv, window)
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
    out = one.out(one.layout((score_slots(cache_slots) * rows, heads * SLOT_TOKENS), kernels))
    layout = BlockLayout.by_block(made.cache.shape, one.edge, aside=of.aside if every else 0, every=every or 1)
    cache = one.whole("cache", made.cache, layout)
    one.draw(cached_scores("draw", cache, out, of, kernels=kernels, rows=made.table))
    return made


def row_values_draw(
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    rows: int,
    cache_slots: int = 192,
    *,
    kv: int = 0,
    window: int = 0,
) -> Attention:
    """Weighted sums of one row of each of exactly so many sequences."""
    made = _attention(heads, head_dim, rows, cache_slots, 2048, 1, kv, window)
    one = made.one
    one.alter = _only_values(made.heads)
    scores = one.deal("scores", score_slots(cache_slots) * rows, heads * SLOT_TOKENS, kernels).tensors[0]
    out, cache = one.out(one.layout((rows, made.heads.width), kernels)), one.cache("cache", made.cache)
    one.draw(cached_values("draw", scores, cache, out, made.heads, kernels=kernels, rows=made.table))
    return made


def with_scores(made: Attention, case: Case, scores: Array, step: int) -> Case:
    """The run with scores [rows, heads, tokens] as the pass before leaves them."""
    left = made.left_by_scores(scores, case, step)
    return Case(case.values, case.real, {**case.arrays, "scores": made.grouped(left, case)})


def random_scores(made: Attention, scale: float = 3.0) -> Array:
    """Scores [rows, heads, tokens] for as many rows as there may be."""
    return normal(2, len(made.one.arrays[TABLE]), made.heads.count, len(made.cache), scale=scale)
