"""Plans of one draw over tensors in blocks, with random contents: what the tests of the fast plan's shaders run.

Whatever a shader has no business to read is NaN: texels between blocks, slots that were never written; only rows of
a cache after the position hold numbers, huge ones, as an earlier and longer run would leave them. The target is full of
NaN as well, so that what a draw leaves unwritten shows, and what it writes beside its own slots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glinfer.gl.blocks import BLOCK_FLOATS, BlockLayout, RowLayout, blocks_for
from glinfer.gl.context import Device
from glinfer.gl.layout import TexelLayout
from glinfer.gl.packing import ConstantLayout, GemvLayout
from glinfer.models.oracle import run_draw
from glinfer.models.plan import Plan, PlanBuilder
from glinfer.models.session import Session
from glinfer.ops.cached import MASKED, SLOT_TOKENS, cached_scores, cached_values, score_slots
from glinfer.ops.embed import embed_token
from glinfer.ops.gemv import gemv
from glinfer.ops.kernels import Kernels
from glinfer.ops.quantise import encode
from glinfer.ops.sample import pick
from glinfer.ops.spec import DrawSpec, RunValue, TensorSpec
from glinfer.tools.tune_rows import ROW_FIELDS

Array = np.ndarray[Any, Any]
Values = Mapping[str, int | float]
OUT = "out"
STALE = 3e38

KERNELS: dict[str, Kernels] = {
    "plain": Kernels(),
    "llvmpipe": Kernels(tiles=4, cover="points", lookup_texture=True),
    "GPU": Kernels(tiles=8, cover="points", unroll=2, part_steps=4, split_values=True, flush_every=6),
    "one by one": Kernels(tiles=4, pitch=20, quad=False, unroll=2),
    "one by one, looked up": Kernels(quad=False, lookup_texture=True, part_steps=2, split_values=True),
    "mantissa": Kernels(tiles=8, pitch=16, unroll=4, part_steps=4, mantissa=True),
    "mantissa, one by one": Kernels(cover="points", quad=False, unroll=4, mantissa=True, lookup_texture=True),
    "small points": Kernels(tiles=2, pitch=32, lookup_texture=True, split_values=True),
}
"""Every field of Kernels in two values or more, and all combinations that renderers get by default."""


@dataclass
class Case:
    """One run: its run values, and the inputs that are others than the draw's own."""

    values: Values
    arrays: Mapping[str, Array] = field(default_factory=dict)


@dataclass
class BlockDraw:
    """A plan of one draw into ``out``, with arrays for everything it reads, and what changes from run to run.

    ``alter`` is given the arrays of one run to change some of them as its run values ask.
    """

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    edge: int = 2048
    arrays: dict[str, Array] = field(default_factory=dict)
    alter: Callable[[dict[str, Array], Values], None] = lambda arrays, values: None

    def __post_init__(self) -> None:
        values = [RunValue(name, low, high) for name, (low, high) in self.ranges.items()]
        self.builder = PlanBuilder("one draw", 1, values)

    def blocks(self, name: str, array: Array, kernels: Kernels) -> TensorSpec:
        """An input, a vector in blocks."""
        self.arrays[name] = array
        return self.builder.laid_out(name, "input", self.dealt(array.shape, kernels))

    def cache(self, name: str, array: Array) -> TensorSpec:
        """An input, many vectors, the same block of all of them together."""
        self.arrays[name] = array
        return self.builder.laid_out(name, "input", BlockLayout.by_block(array.shape, self.edge))

    def weight(self, name: str, array: Array, layout: TexelLayout) -> TensorSpec:
        self.arrays[name] = array
        return self.builder.laid_out(name, "weight", layout)

    def dealt(self, shape: tuple[int, ...], kernels: Kernels) -> BlockLayout:
        return BlockLayout.of((shape[0], shape[1]), self.edge, tiles=kernels.tiles, pitch=kernels.pitch)

    def out(self, layout: BlockLayout) -> TensorSpec:
        return self.builder.laid_out(OUT, "cache", layout)

    def draw(self, spec: DrawSpec) -> BlockDraw:
        self.builder.draw(spec)
        return self

    @property
    def plan(self) -> Plan:
        return self.builder.build()

    @property
    def spec(self) -> DrawSpec:
        return self.plan.draws[0]

    def given(self, case: Case) -> dict[str, Array]:
        """The arrays of one run."""
        arrays = {name: array.copy() for name, array in {**self.arrays, **case.arrays}.items()}
        self.alter(arrays, case.values)
        return arrays

    def expected(self, case: Case) -> Array:
        """What float64 gives."""
        return run_draw(self.spec, self.given(case), case.values)

    def run(self, device: Device, *cases: Case, **options: Any) -> list[Array]:
        """What the GPU writes in each run, one after the other in one session: the rows and columns of its extent."""
        session = Session(self.plan, self.arrays, device, **options)
        found = [self._run(session, case) for case in cases]
        session.release()
        return found

    def _run(self, session: Session, case: Case) -> Array:
        spec, target, values = self.spec, session.texture(OUT), case.values
        layout = target.layout
        assert isinstance(layout, BlockLayout)
        arrays = self.given(case)
        for tensor in self.plan.of_kind("input"):
            texture = session.texture(tensor.name)
            texture.gl.write(poisoned(texture.layout, arrays[tensor.name]))
        target.fill(np.nan)
        if spec.adds and not spec.clears:
            target.gl.write(poisoned(layout, arrays[OUT]))
        assert session.run(values) == 1
        texels = target.framebuffer.read(0, layout.width, layout.height)
        (rows, cols), first = spec.extent(values), spec.first_row(values)
        x, y = layout.places(rows, first)
        floats = texels[y, x].reshape(rows, -1)
        assert np.array_equal(floats[:, cols:], np.zeros_like(floats[:, cols:])), "the padding of a vector is zero"
        if not spec.adds:
            texels[y, x] = np.nan
            assert np.isnan(texels).all(), "something beside the pass's own slots was written"
        return np.array(floats[:, :cols])


def poisoned(layout: TexelLayout, matrix: Array) -> Array:
    """Texels of a matrix in blocks, NaN wherever no block lies."""
    assert isinstance(layout, BlockLayout)
    texels = np.full((layout.height, layout.width, 4), np.nan, dtype=np.float32)
    x, y = layout.places(layout.rows)
    packed = layout.pack(matrix)
    texels[y, x] = packed[y, x]
    return texels


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Random numbers around 0."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def gemv_draw(
    weights: str,
    kernels: Kernels,
    outputs: int,
    inputs: int,
    *,
    norm: bool = False,
    residual: bool = False,
    activation: str = "none",
    adds: bool = False,
    slots: int = 0,
    edge: int = 2048,
) -> BlockDraw:
    """A product with large, small and zero rows. With ``slots``, into a cache; with ``adds``, in parts."""
    one = BlockDraw({"position": (0, max(slots, 1) - 1)}, edge)
    matrix = normal(2, outputs, inputs, scale=inputs**-0.5)
    matrix *= 10.0 ** np.random.default_rng(3).integers(-2, 2, (outputs, 1)).astype(np.float32)
    matrix[np.random.default_rng(4).random(outputs) < 0.1] = 0
    words, scales = encode(matrix, weights)
    bias = normal(5, outputs, 1)
    consts = bias if scales is None else np.concatenate([scales, bias], axis=1)
    x = one.blocks("x", normal(1, 1, inputs) + np.float32(0.25), kernels)
    added = one.blocks("r", normal(6, 1, outputs), kernels) if residual else None
    if adds:
        one.arrays[OUT] = normal(7, 1, outputs)
    layout = BlockLayout.by_block((slots, outputs), edge) if slots else one.dealt((1, outputs), kernels)
    steps = 4 * blocks_for(inputs)
    shared_by = steps // np.gcd(steps, kernels.part_steps) if adds and kernels.part_steps else 1
    return one.draw(
        gemv(
            "draw",
            "draw",
            x,
            one.weight("w", words, GemvLayout.of(outputs, inputs, weights, kernels.quad, edge)),
            one.weight("c", consts, ConstantLayout.of(outputs, scales is not None, kernels.quad, edge)),
            one.out(layout),
            first="position" if slots else 0,
            norm_eps=1e-5 if norm else None,
            residual=added,
            activation=activation,
            kernels=kernels,
            adds=adds,
            parts=int(shared_by),
        )
    )


def _leave_stale(arrays: dict[str, Array], values: Values) -> None:
    """What is after the position: in the cache huge numbers of an earlier run, in the scores nothing ever written."""
    position = int(values["position"])
    stale = arrays["cache"][position + 1 :]
    arrays["cache"][position + 1 :] = np.where(stale < 0, -STALE, STALE)
    if "scores" in arrays:
        by_token = arrays["scores"].reshape(len(arrays["scores"]), -1, SLOT_TOKENS)
        token = SLOT_TOKENS * np.arange(len(by_token))[:, None, None] + np.arange(SLOT_TOKENS)
        by_token[np.broadcast_to(token > position, by_token.shape)] = MASKED
        arrays["scores"][score_slots(position + 1) :] = np.nan


def _cached(heads: int, head_dim: int, context: int) -> tuple[BlockDraw, TensorSpec, int]:
    floats, slots = -(-head_dim // 16) * 16, score_slots(context)
    one = BlockDraw({"position": (0, context - 1), "score_slots": (1, slots)})
    cache = np.zeros((slots * SLOT_TOKENS, 3, heads, floats), dtype=np.float32)
    cache[..., :head_dim] = normal(1, *cache.shape[:3], head_dim)
    one.alter = _leave_stale
    return one, one.cache("cache", cache.reshape(slots * SLOT_TOKENS, -1)), floats


def scores_draw(kernels: Kernels, heads: int, head_dim: int, context: int) -> BlockDraw:
    """The scores of one query against a cache of ``context`` positions."""
    one, cache, floats = _cached(heads, head_dim, context)
    out = one.out(one.dealt((score_slots(context), heads * BLOCK_FLOATS), kernels))
    return one.draw(cached_scores("draw", cache, out, heads=heads, head_floats=floats, kernels=kernels))


def values_draw(kernels: Kernels, heads: int, head_dim: int, context: int, spread: float = 3.0) -> BlockDraw:
    """The weighted sums over a cache of ``context`` positions."""
    one, cache, floats = _cached(heads, head_dim, context)
    scores = one.blocks("scores", normal(2, score_slots(context), heads * BLOCK_FLOATS, scale=spread), kernels)
    out = one.out(one.dealt((1, heads * floats), kernels))
    return one.draw(cached_values("draw", scores, cache, out, heads=heads, head_floats=floats, kernels=kernels))


def at(position: int, **arrays: Array) -> Case:
    """A run at a position."""
    return Case({"position": position, "score_slots": position // SLOT_TOKENS + 1}, arrays)


def embed_draw(
    kernels: Kernels, vocab: int, context: int, dim: int, *, halves: bool = False, edge: int = 2048
) -> BlockDraw:
    """One token's embedding; the candidates of each position are random, with ties."""
    one = BlockDraw({"token": (-1, vocab - 1), "position": (0, context - 1)}, edge)
    tables = []
    for seed, (name, rows) in enumerate((("wte", vocab), ("wpe", context))):
        table = normal(seed, rows, dim).astype(np.float16 if halves else np.float32)
        layout = RowLayout.of(table.shape, "rgba16f" if halves else "rgba32f", edge)
        tables.append(one.weight(name, table, layout))
    candidates = np.zeros((context, 16, 4), dtype=np.float32)
    random = np.random.default_rng(9)
    candidates[..., 0] = random.integers(-3, 3, (context, 16))
    candidates[..., 1] = random.integers(0, vocab, (context, 16))
    picks = one.cache("picks", candidates.reshape(context, 64))
    out = one.out(one.dealt((1, dim), kernels))
    return one.draw(embed_token("draw", *tables, picks, out, kernels=kernels))


def pick_draw(kernels: Kernels, vocab: int, scale: float = 3.0) -> BlockDraw:
    """The choice of a token, into one of three slots."""
    ranges = {"noise": (0.0, 1.0), "inverse_temperature": (0.0, 1e9), "noise_key": (0, 2**32 - 1)}
    one = BlockDraw({**ranges, "position": (0, 2)})
    logits = one.blocks("logits", normal(1, 1, vocab, scale=scale), kernels)
    out = one.out(BlockLayout.by_block((3, BLOCK_FLOATS), 2048))
    return one.draw(pick("draw", logits, out, vocab=vocab, first="position", kernels=kernels))


def every_form() -> dict[str, Callable[[], BlockDraw]]:
    """Every op with every define that its builder can set or leave out, by a name for messages."""
    forms: dict[str, Callable[[], BlockDraw]] = {}
    for name, kernels in KERNELS.items():
        for weights in ("f32", "f16", "q16", "q8"):
            options: dict[str, Any] = {
                "plain": {"norm": True, "activation": "gelu_new"},
                "llvmpipe": {"residual": True},
                "GPU": {"adds": True},
                "one by one": {"norm": True, "slots": 3},
                "mantissa": {"adds": True},
                "small points": {"activation": "gelu", "residual": True},
            }.get(name, {})
            forms[f"gemv {weights}, {name}"] = lambda kernels=kernels, weights=weights, options=options: gemv_draw(
                weights, kernels, 70, 130, **options
            )
        forms[f"cached_scores, {name}"] = lambda kernels=kernels: scores_draw(kernels, 2, 17, 65)
        forms[f"cached_values, {name}"] = lambda kernels=kernels: values_draw(kernels, 2, 17, 65)
        forms[f"embed_token, {name}"] = lambda kernels=kernels: embed_draw(kernels, 7, 5, 70)
        forms[f"pick, {name}"] = lambda kernels=kernels: pick_draw(kernels, 70)
    return forms


def varied_fields() -> dict[str, int]:
    """How many values each field of Kernels that shapes the passes of a single row of a model takes in the table."""
    return {
        field.name: len({getattr(kernels, field.name) for kernels in KERNELS.values()})
        for field in dataclasses.fields(Kernels)
        if field.name not in (*ROW_FIELDS, "products")
    }
