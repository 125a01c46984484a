"""Plans of one draw over tensors in blocks, with random contents: what the tests of the fast plan's shaders run.

Slots that were never written, columns of a cache that belong to another pass and tokens that no window reaches are NaN;
only rows of a cache after the position hold numbers, huge ones, as an earlier and longer run would leave them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from one_draw import OUT, Array, BlockDraw, Case, normal, stale_numbers
from tiers import tiered

from glinfer.families.layer import Latent
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout, blocks_for
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.kernels.fused.cached import MASKED, SLOT_TOKENS, Heads, cached_scores, cached_values, score_slots, stats_of
from glinfer.kernels.fused.dense import Matrix, RawRows, Turning, shared_parts
from glinfer.kernels.fused.embed import embed
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.fused.low_rank import ADAPTER
from glinfer.kernels.fused.rows import RowInterleaved, padded
from glinfer.kernels.fused.sample import pick
from glinfer.kernels.fused.turn import turn_heads
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import TensorSpec
from glinfer.quant.formats import GROUP_FORMS, WIDE, WORD_FORMATS, block_format
from glinfer.quant.ggml import table_of, words_of
from glinfer.quant.groups import wide_values, wide_words
from glinfer.quant.words import FILE_INTEGERS, decode, encode, integer_words
from qa.kernels.cases.embedding import random_blocks
from qa.kernels.cases.embedding import whole_blocks as blocks_of_type

FLOATS_AND_ROWS = ("f32", "f16", "bf16", "q16", "q8", "i16", "i8")
BLOCKS = (*GROUP_FORMS, WIDE)
"""Formats of products: packed by output, and sorted by groups of 32 inputs."""
STATS = "stats"
POSITIONS = 70
"""Rows of a table of rotary positions."""

KERNELS: dict[str, KernelOptions] = {
    "plain": KernelOptions(),
    "llvmpipe": KernelOptions(tiles=4, cover="points", lookup_texture=True),
    "GPU": KernelOptions(
        tiles=8,
        cover="points",
        unroll=2,
        part_steps=4,
        split_norms=True,
        split_inner=True,
        split_values=True,
        flush_every=6,
        fused=True,
    ),
    "one by one": KernelOptions(tiles=4, pitch=20, quad=False, unroll=2),
    "one by one, looked up": KernelOptions(
        quad=False, lookup_texture=True, part_steps=2, split_norms=True, split_inner=True, split_values=True
    ),
    "mantissa": KernelOptions(tiles=8, pitch=16, unroll=2, part_steps=4, mantissa=True),
    "mantissa, one by one": KernelOptions(
        cover="points", quad=False, unroll=4, mantissa=True, lookup_texture=True, fused=True
    ),
    "small points": KernelOptions(tiles=2, pitch=32, lookup_texture=True, split_values=True),
}
"""Every field of KernelOptions in two values or more, and all combinations that renderers get by default."""


def kernels_of(table: Mapping[str, KernelOptions]) -> Callable[..., Any]:
    """A mark that runs a test with the named options; the fast suite takes the first of them."""
    return lambda *names: tiered("kernels", [pytest.param(table[name], id=name) for name in names])


with_kernels = kernels_of(KERNELS)


def whole_blocks(weights: str, inputs: int) -> int:
    """The next number of inputs that is a whole number of a format's blocks; a wide matrix has blocks of 32."""
    return blocks_of_type("Q4_0" if weights == WIDE else weights, inputs)


def large_and_small(outputs: int, inputs: int) -> Array:
    """Weights with large, small and zero rows."""
    matrix = normal(2, outputs, inputs, scale=inputs**-0.5)
    matrix *= 10.0 ** np.random.default_rng(3).integers(-2, 2, (outputs, 1)).astype(np.float32)
    matrix[np.random.default_rng(4).random(outputs) < 0.1] = 0
    return matrix


def random_words(weights: str, outputs: int, inputs: int) -> Array:
    """The words of a matrix in GGML's blocks, random ones, and some rows of zeros; of a wide one, of all in turn."""
    random = np.random.default_rng(2)
    if weights == WIDE:
        forms = [form for form in GROUP_FORMS if not inputs % block_format(form).weights]
        by_form = [wide_words(random_blocks(random, form, outputs, inputs), form) for form in forms]
        return np.stack([by_form[row % len(forms)][row] for row in range(outputs)])
    blocks = random_blocks(random, weights, outputs, inputs)
    blocks[random.random(outputs) < 0.1] = 0
    return words_of(blocks, weights)


def matrix_of(
    one: BlockDraw,
    weights: str,
    outputs: int,
    inputs: int,
    *,
    gain: bool = False,
    centred: bool = False,
    gated: bool = False,
    bias_read: bool = True,
) -> Matrix:
    """A packed matrix ``w``, its constants ``c`` and the gain ``g`` of its inputs.

    Constants are no part of the draw where they have nothing but a bias and ``bias_read`` says that it is not read.

    A gated matrix has a whole block of each of its two halves for each block of outputs, the rest of them zeros. The
    sums of centred ones are those of the weights times the gain.
    """
    rows, scales = 2 * BLOCK_FLOATS * blocks_for(outputs) if gated else outputs, None
    quad, edge = one.kernels.quad, one.edge
    unused = gated & (np.arange(rows) // (2 * BLOCK_FLOATS) * BLOCK_FLOATS + np.arange(rows) % BLOCK_FLOATS >= outputs)
    layout: TexelLayout
    if weights in BLOCKS:
        words = random_words(weights, rows, inputs)
        words[unused] = 0
        layout = GroupedLayout.of(rows, inputs, weights, quad, edge)
    else:
        floats = large_and_small(rows, inputs)
        floats[unused] = 0
        words, scales = encode_or_keep(floats, weights)
        layout = GemvLayout.of(rows, inputs, weights, quad, edge)
    factors = np.random.default_rng(10).uniform(-1.5, 2.0, (1, inputs)).astype(np.float32)
    gains = one.row_weight("g", factors) if gain else None
    parts = [normal(5, rows, 1)]
    parts[0][unused] = 0
    weight = one.weight("w", words, layout)
    consts = ConstantLayout.of(rows, scales is not None, quad, edge, sums=centred)
    if centred:
        numbers = weight_numbers(words, scales, weights, inputs) * (factors if gain else 1)
        parts.insert(0, numbers.sum(axis=1, keepdims=True).astype(np.float32))
    if scales is not None:
        parts.insert(0, scales)
    if bias_read or len(parts) > 1:
        return Matrix(weight, one.weight("c", np.concatenate(parts, axis=1), consts), inputs, gains, gated)
    unread = TensorSpec("c", (rows, consts.cols), "weight", consts.format.name, consts)
    return Matrix(weight, unread, inputs, gains, gated)


def encode_or_keep(floats: Array, weights: str) -> tuple[Array, Array | None]:
    """The words and scales of weights; of formats that only files have, of whole numbers with a scale a row."""
    if weights not in FILE_INTEGERS:
        return encode(floats, weights)
    largest = (1 << (WORD_FORMATS[weights].bits - 1)) - 1
    steps = np.maximum(np.abs(floats).max(axis=1), np.float32(1e-9)) / np.float32(largest)
    return integer_words(np.rint(floats / steps[:, None]).astype(np.int32), steps, weights)


def weight_numbers(words: Array, scales: Array | None, weights: str, inputs: int) -> Array:
    """The weights [rows, inputs] that words stand for, float64."""
    if weights == WIDE:
        return wide_values(words)
    if weights in GROUP_FORMS:
        return table_of(words, block_format(weights).number, inputs)
    return decode(words, scales, weights, inputs)


def turning_of(one: BlockDraw, heads: Heads, *, turns: bool = True, **how: bool) -> Turning:
    """Rotary positions for heads; without ``turns`` only where heads lie; ``how`` is for rows of images."""
    if not turns:
        return Turning(None, heads.kv_floats, heads.queries_at, heads.floats)
    angles = np.random.default_rng(11).uniform(-4, 4, (POSITIONS, heads.floats // 2))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(POSITIONS, -1).astype(np.float32)
    return Turning(one.row_weight("rope", table), heads.kv_floats, heads.queries_at, **how)


def head_gains(one: BlockDraw, heads: Heads, head_dim: int, *, whole: bool = False) -> TensorSpec:
    """Gains of the norms of queries and keys, zeros behind each head; with ``whole`` of all heads."""
    count = heads.count if whole else 1
    gains = np.zeros((2, count, heads.floats), dtype=np.float32)
    gains[..., :head_dim] = 1 + normal(3, 2, count, head_dim, scale=0.3)
    gains[0, heads.kv if whole else 1 :] = 0
    return one.row_weight("gains", gains.reshape(2, -1))


def heads_of(heads: int, head_dim: int, kv: int, window: int, cap: float = 0.0) -> Heads:
    return Heads(heads, kv or heads, -(-head_dim // 16) * 16, float(head_dim) ** -0.5, window, cap)


def gemv_draw(
    weights: str,
    kernels: KernelOptions,
    outputs: int,
    inputs: int,
    *,
    norm: bool = False,
    gain: bool = False,
    centred: bool = False,
    gated: bool = False,
    turn: Heads | None = None,
    residual: bool = False,
    adds: bool = False,
    slots: int = 0,
    shared: bool = False,
    raw: bool = False,
    finishes: str = "",
    gate_before: bool = False,
    sums_before: bool = False,
    adapt: Callable[[BlockDraw, Matrix, int], Matrix] = lambda one, matrix, rows: matrix,
    adapters: int = 0,
    edge: int = 2048,
    **finish: Any,
) -> BlockDraw:
    """A product, with activation and cap as ``finish`` says.

    With ``slots``, into a cache; with ``adds``, in parts; with ``turn``, of a row of such heads.

    With ``shared`` instances share it although there is a norm, into a slot that is cleared; with ``raw`` they share
    its bare sums. With ``finishes`` its input are bare sums that it finishes by this activation. ``adapt`` may change
    the matrix.
    """
    outputs = turn.cols if turn else outputs
    ranges = {
        "position": (0, (slots or (POSITIONS if turn else 1)) - 1),
        **({ADAPTER: (0, adapters)} if adapters else {}),
    }
    one = BlockDraw(kernels, ranges, edge)
    x: RowInterleaved | RawRows = (
        RowInterleaved((one.blocks("x", normal(1, 1, inputs) + np.float32(0.25)),))
        if not finishes
        else (raw_row_of(one, inputs, finishes, gated=gate_before, sums=sums_before))
    )
    added = RowInterleaved((one.blocks("r", normal(6, 1, outputs)),)) if residual else None
    if adds:
        one.arrays[OUT] = normal(7, 1, outputs)
    aside = turn.aside if turn else 0
    in_cache = BlockLayout.by_block((max(slots, 1), outputs), edge, aside=aside, every=max(slots, 1))
    matrix = matrix_of(one, weights, outputs, inputs, gain=gain, centred=centred, gated=gated, bias_read=not raw)
    matrix = adapt(one, matrix, 1)
    outputs = RawRows.floats(matrix) if raw else outputs
    return one.draw(
        gemm(
            one.of(),
            x,
            matrix,
            one.out(in_cache if slots else one.layout(1, outputs)),
            alone=True,
            first="position" if slots else 0,
            norm_eps=1e-5 if norm else None,
            turning=turning_of(one, turn) if turn else None,
            residual=added,
            **finish,
            adds=adds or shared or raw,
            parts=shared_parts(matrix, kernels.part_steps) if adds or shared or raw else 1,
            clears="all" if raw else "rows" if shared else "",
            raw=raw,
        )
    )


def raw_row_of(one: BlockDraw, inputs: int, activation: str, *, gated: bool, sums: bool) -> RawRows:
    """Bare sums of a product of 40 inputs, whose mean is 0.2 and whose squares are 1.5 on average."""
    width, rows = 40, 2 * BLOCK_FLOATS * blocks_for(inputs) if gated else inputs
    numbers = np.zeros((1, BLOCK_FLOATS * (blocks_for(rows) + 1)), dtype=np.float32)
    numbers[:, :rows] = normal(12, 1, rows, scale=3)
    numbers[0, -BLOCK_FLOATS:].reshape(-1, 4)[:, :2] = 1.5 * width, 0.2 * width
    layout = ConstantLayout.of(rows, False, one.kernels.quad, one.edge, sums=sums)
    biased = not gated
    consts = TensorSpec("before", (rows, layout.cols), "weight", layout.format.name, layout)
    if biased or layout.cols == 1:
        consts = one.weight("before", normal(13, rows, layout.cols), layout)
    matrix = Matrix(consts, consts, width, gated=gated, biased=biased)
    return RawRows(RowInterleaved((one.blocks("x", numbers),)), matrix, activation, 1e-5)


def in_heads(seed: int, rows: int, heads: Heads, head_dim: int, latent: Latent | None = None) -> Array:
    """Rows k | v | q of heads of ``head_dim`` elements, zeros behind each head; NaN between values and queries.

    A ``latent`` has the vector of queries in the next whole block.
    """
    random = normal(seed, rows, heads.cols)
    keys = random[:, : 2 * heads.kv_floats].reshape(rows, -1, heads.floats)
    queries = random[:, heads.queries_at :].reshape(rows, -1, heads.floats)
    keys[..., head_dim:], queries[..., head_dim:] = 0, 0
    random[:, 2 * heads.kv_floats : heads.queries_at] = np.nan
    if latent is None:
        return random
    between = np.zeros((rows, padded(heads.cols) - heads.cols), np.float32)
    return np.concatenate([random, between, normal(seed + 1, rows, latent.query_rank)], axis=1)


def turn_draw(
    kernels: KernelOptions,
    heads: Heads,
    head_dim: int,
    *,
    slots: int = 0,
    aside: bool = False,
    edge: int = 2048,
    **how: Any,
) -> BlockDraw:
    """Keys and queries of one row normalised and turned, as ``how`` says, into a cache with ``slots``."""
    one = BlockDraw(kernels, {"position": (0, (slots or POSITIONS) - 1)}, edge)
    x = one.blocks("x", np.nan_to_num(in_heads(1, 1, heads, head_dim, how.get("latent"))))
    kept = BlockLayout.by_block((max(slots, 1), heads.cols), edge, aside=heads.aside * aside, every=max(slots, 1))
    out = one.out(kept if slots else one.layout(1, heads.cols))
    where = {"rows": None, "first": "position" if slots else 0}
    return turned(one, heads, head_dim, RowInterleaved((x,)), RowInterleaved((out,)), where, 1, **how)


def turned(
    one: BlockDraw,
    heads: Heads,
    head_dim: int,
    x: RowInterleaved,
    out: RowInterleaved,
    where: Mapping[str, Any],
    slots: int | str,
    *,
    whole: bool = False,
    turns: bool = True,
    turned_first: bool = False,
    latent: Latent | None = None,
    **how: bool,
) -> BlockDraw:
    """The draw that normalises and turns heads."""
    gains, turning = head_gains(one, heads, head_dim, whole=whole), turning_of(one, heads, turns=turns, **how)
    norm: dict[str, Any] = {"head_dim": head_dim, "eps": 1e-5, "whole": whole, "turned_first": turned_first}
    norm |= {"latent": latent, "low_at": padded(heads.cols)}
    return one.draw(turn_heads(one.of(slots), x, gains, turning, out, **norm, **where))


def only_queries(rows: Array, heads: Heads) -> Array:
    """Rows with NaN for keys and values."""
    found = rows.copy()
    found[:, : heads.queries_at] = np.nan
    return found


def unseen(position: int, window: int) -> int:
    """How many of the first tokens are in no group of 16 that a window reaches into."""
    return max(0, position - window + 1) // 16 * 16 if window else 0


@dataclass
class Cached:
    """Poisons the arrays of one query's attention, of its scores over ``keys`` or of the values that they weigh.

    With ``aside`` the cache keeps one query alone.
    """

    heads: Heads
    keys: bool
    aside: bool

    def __call__(self, arrays: dict[str, Array], case: Case) -> None:
        """What other passes read; what is after the position, and what no window reaches.

        In the cache there are huge numbers of an earlier run after the position, in the scores nothing ever written.
        """
        position, cache, heads = int(case.values["position"]), arrays["cache"], self.heads
        first = unseen(position, heads.window)
        cache[position + 1 :] = stale_numbers(cache[position + 1 :])
        cache[:first] = np.nan
        query = cache[position, heads.queries_at :].copy()
        cache[:, heads.queries_at :] = np.nan
        if self.keys:
            cache[slice(None) if self.aside else position, heads.queries_at :] = query
            cache[:, heads.kv_floats : heads.queries_at] = np.nan
            return
        cache[:, : heads.kv_floats] = np.nan
        by_token = arrays["scores"].reshape(len(arrays["scores"]), -1, SLOT_TOKENS)
        token = SLOT_TOKENS * np.arange(len(by_token))[:, None, None] + np.arange(SLOT_TOKENS)
        token = np.broadcast_to(token, by_token.shape)
        by_token[(token > position) | (heads.window > 0) & (token <= position - heads.window)] = MASKED
        arrays[STATS] = stats_of(arrays["scores"].astype(np.float64)).astype(np.float32)
        by_token[token < first] = np.nan
        for name in ("scores", STATS):
            arrays[name][score_slots(position + 1) :] = np.nan


def _attention(
    keys: bool,
    kernels: KernelOptions,
    heads: int,
    head_dim: int,
    context: int,
    *,
    kv: int = 0,
    window: int = 0,
    cap: float = 0.0,
    aside: bool = False,
    spread: float = 3.0,
    sinks: Array | None = None,
    in_bytes: bool = False,
) -> BlockDraw:
    """The scores of one query against the ``keys`` of a cache of ``context`` positions, or the sums of its values.

    Sums may have ``sinks`` [1, heads]. Options of a plan that has statistics of scores have them here too.
    """
    slots, made = score_slots(context), heads_of(heads, head_dim, kv, window, cap)
    one, every = BlockDraw(kernels, {"position": (0, context - 1), "score_slots": (1, slots)}), slots * SLOT_TOKENS
    one.alter = Cached(made, keys, aside)
    rows, width, queries = in_heads(1, every, made, head_dim), heads * BLOCK_FLOATS, None
    if in_bytes:
        cache = one.in_bytes("cache", rows[:, : made.queries_at])
        queries = one.blocks("queries", only_queries(rows[:1], made)) if keys else None
    else:
        layout = BlockLayout.by_block((every, made.cols), one.edge, aside=made.aside * aside, every=every)
        cache = one.whole("cache", rows, layout)
    stats, layout = None, one.layout(slots, width)
    if kernels.split_values and kernels.quad:
        stats = one.builder.laid_out(STATS, "cache" if keys else "input", layout)
    if keys:
        return one.draw(cached_scores(one.of(), cache, one.out(layout), made, queries=queries, stats=stats))
    scores, out = one.blocks("scores", normal(2, slots, width, scale=spread)), one.out(one.layout(1, made.width))
    beside = None if sinks is None else one.row_input("sinks", sinks)
    return one.draw(cached_values(one.of(), scores, cache, out, made, sinks=beside, stats=stats))


scores_draw = partial(_attention, True)
values_draw = partial(_attention, False)


def at(position: int, **arrays: Array) -> Case:
    """A run at a position."""
    return Case({"position": position, "score_slots": position // SLOT_TOKENS + 1}, arrays)


def tables_of(
    one: BlockDraw, vocab: int, context: int, dim: int, *, weights: str = "f32", positions: bool = True
) -> tuple[TensorSpec, TensorSpec | None]:
    """Tables of embeddings ``wte``, of floats, halves or GGML's blocks, and of positions ``wpe``."""
    tables: list[TensorSpec] = []
    for seed, (name, rows) in enumerate((("wte", vocab), ("wpe", context))[: 1 + positions]):
        layout: TexelLayout
        if name == "wte" and weights in GROUP_FORMS:
            table: Array = words_of(random_blocks(np.random.default_rng(8), weights, vocab, dim), weights)
            layout = GroupedLayout.of(vocab, dim, weights, one.kernels.quad, one.edge)
        else:
            halves = weights == "f16"
            table = normal(seed, rows, dim).astype(np.float16 if halves else np.float32)
            layout = RowLayout.of(table.shape, "rgba16f" if halves else "rgba32f", one.edge)
        tables.append(one.weight(name, table, layout))
    return tables[0], tables[1] if positions else None


def embed_draw(
    kernels: KernelOptions,
    vocab: int,
    context: int,
    dim: int,
    *,
    weights: str = "f32",
    scale: float = 1.0,
    positions: bool = True,
    edge: int = 2048,
) -> BlockDraw:
    """One token's embedding; the candidates of each position are random, with ties."""
    one = BlockDraw(kernels, {"token": (-1, vocab - 1), "position": (0, context - 1)}, edge)
    tables = tables_of(one, vocab, context, dim, weights=weights, positions=positions)
    candidates = np.zeros((context, 16, 4), dtype=np.float32)
    random = np.random.default_rng(9)
    candidates[..., 0] = random.integers(-3, 3, (context, 16))
    candidates[..., 1] = random.integers(0, vocab, (context, 16))
    picks = one.cache("picks", candidates.reshape(context, 64))
    out = RowInterleaved((one.out(one.layout(1, dim)),))
    return one.draw(embed(one.of(), *tables, picks, out, scale=scale))


def pick_draw(kernels: KernelOptions, vocab: int, scale: float = 3.0) -> BlockDraw:
    """The choice of a token, into one of three slots."""
    ranges = {"noise": (0.0, 1.0), "inverse_temperature": (0.0, 1e9), "noise_key": (0, 2**32 - 1)}
    one = BlockDraw(kernels, {**ranges, "position": (0, 2)})
    logits = RowInterleaved((one.blocks("logits", normal(1, 1, vocab, scale=scale)),))
    out = one.out(BlockLayout.by_block((3, BLOCK_FLOATS), 2048))
    return one.draw(pick(one.of(), logits, out, first="position"))


# Outputs and inputs: inputs that fill no round of 128 and no block of 64; outputs of no whole blocks, and of several.
GROUP_SIZES = [(70, 32), (3, 160), (130, 96), (64, 128), (1, 64), (67, 288), (16, 32), (65, 160)]
# Heads of keys that as many of queries share, and windows: of one token, less than a group of 16 or 64 tokens, a whole
# group, and more than the context or cache.
SHARED = [
    {"heads": 4, "kv": 2, "head_dim": 16, "window": 20},
    {"heads": 3, "kv": 1, "head_dim": 24, "window": 1},
    {"heads": 6, "kv": 3, "head_dim": 80, "window": 64},
    {"heads": 2, "kv": 2, "head_dim": 33, "window": 7},
    {"heads": 8, "kv": 2, "head_dim": 16, "window": 300},
    {"heads": 5, "kv": 1, "head_dim": 64, "window": 0},
]
GQA = Heads(4, 2, 16)
PADDED = Heads(3, 1, 32, window=20)
"""Two heads of queries to each of keys; three to one, of up to 32 elements."""
