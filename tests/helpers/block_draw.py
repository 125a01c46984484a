"""Plans of one draw over tensors in blocks, with random contents: what the tests of the fast plans' shaders run.

A draw computes one row alone, at a run value's position, or many rows of a table. Slots and rows behind those in use,
and columns of another part, are NaN. Cells may reach over blocks behind the last slot, and a slot's last rows may
belong to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from one_draw import OUT, TABLE, Array, BlockDraw, Case, normal
from tiers import tiered

from glinfer.families.layer import Latent
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BYTES, BlockLayout, RowLayout, blocks_for
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.kernels.fused.cached import Heads
from glinfer.kernels.fused.dense import Matrix, RawRows, Rotation, shared_parts
from glinfer.kernels.fused.embed import add_images, embed
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.fused.low_rank import ADAPTER
from glinfer.kernels.fused.norms import norm_floats, post_norm, row_norms
from glinfer.kernels.fused.rows import (
    BACK,
    BASE,
    CHOSEN,
    INVERSE_TEMPERATURE,
    NOISE,
    NOISE_KEY,
    POSITION,
    TOKEN,
    WANTED,
    RowInterleaved,
    padded,
)
from glinfer.kernels.fused.sample import pick
from glinfer.kernels.fused.score import score_rows
from glinfer.kernels.fused.tiles import store_rows, take_row
from glinfer.kernels.fused.turn import turn_heads
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import TensorSpec
from glinfer.lower.fused.rows import slots_for
from glinfer.quant.formats import GROUP_FORMS, WIDE, WORD_FORMATS, block_format
from glinfer.quant.ggml import table_of, words_of
from glinfer.quant.groups import wide_values, wide_words
from glinfer.quant.words import FILE_INTEGERS, decode, encode, integer_words
from qa.kernels.cases.embedding import random_blocks
from qa.kernels.cases.embedding import whole_blocks as blocks_of_type

FLOATS_AND_ROWS = ("f32", "f16", "bf16", "q16", "q8", "i16", "i8")
BLOCKS = (*GROUP_FORMS, WIDE)
"""Formats of products: packed by output, and sorted by groups of 32 inputs."""
POSITIONS = 70
"""Rows of a table of rotary positions."""
EPS = 1e-5

KERNELS: dict[str, KernelOptions] = {
    "plain": KernelOptions(),
    "llvmpipe": KernelOptions(
        tiles=4, cover="points", lookup_texture=True, rows_per_draw=8, largest_cell=4, blends=True
    ),
    "GPU": KernelOptions(
        **{"tiles": 8, "cover": "points", "unroll": 2, "part_steps": 4, "rows_per_draw": 8, "blends": True},
        **{"split_norms": True, "split_inner": True, "split_values": True, "flush_every": 6, "fused": True},
    ),
    "one by one": KernelOptions(tiles=4, pitch=20, quad=False, unroll=2, rows_per_draw=2, largest_cell=4),
    "one by one, looked up": KernelOptions(
        **{"cover": "points", "quad": False, "lookup_texture": True, "part_steps": 2, "rows_per_draw": 1},
        **{"split_norms": True, "split_inner": True, "split_values": True},
    ),
    "mantissa": KernelOptions(tiles=8, pitch=16, unroll=2, part_steps=4, mantissa=True, largest_cell=2),
    "mantissa, one by one": KernelOptions(
        **{"cover": "points", "quad": False, "unroll": 4, "mantissa": True, "lookup_texture": True, "fused": True},
        **{"rows_per_draw": 2, "largest_cell": 4},
    ),
    "small points": KernelOptions(
        tiles=2, pitch=32, lookup_texture=True, split_values=True, rows_per_draw=1, largest_cell=4
    ),
}
"""Every field of KernelOptions in two values or more, and all combinations that renderers get by default."""
number_of = list(KERNELS.values()).index


def with_kernels(*names: str) -> Any:
    """Mark a test to run with the named options; the fast suite takes the first of them."""
    return tiered("kernels", [pytest.param(KERNELS[name], id=name) for name in names])


def over(
    kernels: KernelOptions, rows: int, edge: int = 2048, **further: tuple[float, float]
) -> tuple[BlockDraw, int, int]:
    """A plan over at most ``rows`` rows, rounded up to whole slots; with the number of slots and of their rows.

    With 0 rows it is over one row alone.
    """
    if not rows:
        return BlockDraw(kernels, further, edge), 1, 1
    count = kernels.rows_per_draw
    slots = slots_for(rows, count)
    ranges = {"rows": (1, slots * count), "row_slots": (1, slots), **further}
    return BlockDraw(kernels, ranges, edge, count), slots, slots * count


def first_rows(one: BlockDraw, rows: int, /, **arrays: Array) -> Case:
    """A run over ``rows`` rows."""
    capacity = max(len(one.arrays[name]) for name in (*one.by_row, *({TABLE} & set(one.arrays))))
    real, slots = np.arange(capacity) < rows, slots_for(rows, one.count)
    return Case({"rows": rows, "row_slots": slots}, arrays, real)


def at(position: int, **arrays: Array) -> Case:
    """A run of one row at a position."""
    return Case({"position": position}, arrays)


def runs_of(one: BlockDraw, *rows: int) -> list[Case]:
    """Runs over each number of ``rows``, or of one row alone at its first and its last position."""
    if "position" in one.ranges:
        return [at(position) for position in sorted({0, int(one.ranges["position"][1])})]
    return [first_rows(one, each) for each in rows]


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
    """The words and scales of weights; of formats that only files have, of integers with a scale a row."""
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


def rotation_of(one: BlockDraw, heads: Heads, *, turns: bool = True, **how: bool) -> Rotation:
    """Rotary positions for heads; without ``turns`` only where heads lie; ``how`` is for rows of images."""
    if not turns:
        return Rotation(None, heads.kv_floats, heads.queries_at, heads.floats)
    angles = np.random.default_rng(11).uniform(-4, 4, (POSITIONS, heads.floats // 2))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(POSITIONS, -1).astype(np.float32)
    return Rotation(one.row_weight("rope", table), heads.kv_floats, heads.queries_at, **how)


def head_gains(one: BlockDraw, heads: Heads, head_dim: int, *, whole: bool = False) -> TensorSpec:
    """Gains of the norms of queries and keys, zeros behind each head; with ``whole`` of all heads."""
    count = heads.count if whole else 1
    gains = np.zeros((2, count, heads.floats), dtype=np.float32)
    gains[..., :head_dim] = 1 + normal(3, 2, count, head_dim, scale=0.3)
    gains[0, heads.kv if whole else 1 :] = 0
    return one.row_weight("gains", gains.reshape(2, -1))


def heads_of(heads: int, head_dim: int, kv: int, window: int, cap: float = 0.0) -> Heads:
    return Heads(heads, kv or heads, -(-head_dim // 16) * 16, float(head_dim) ** -0.5, window, cap)


def product_draw(
    weights: str,
    kernels: KernelOptions,
    outputs: int,
    inputs: int,
    rows: int = 0,
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
    raw: bool = False,
    slots: int = 0,
    finishes: str = "",
    gate_before: bool = False,
    sums_before: bool = False,
    together: bool = False,
    adapt: Callable[[BlockDraw, Matrix, int], Matrix] = lambda one, matrix, rows: matrix,
    adapters: int = 0,
    edge: int = 2048,
    **finish: Any,
) -> BlockDraw:
    """A product of one row, or of ``rows`` rows, with activation and cap as ``finish`` says.

    With ``turn`` it is of rows of such heads; with ``norms`` a pass before has left the norms of rows, and with
    ``together`` rows are in one tensor. With ``adds`` it is added to the target. With ``parts`` instances share it, and
    the target is cleared unless it adds; with ``raw`` they share its bare sums.

    One row may go into a cache with ``slots``. With ``finishes`` its input are bare sums that it finishes by this
    activation. ``adapt`` may change the matrix.
    """
    outputs = turn.cols if turn else outputs
    last = (slots or (POSITIONS if turn else 1)) - 1
    ranges = {} if rows else {"position": (0, last), **({ADAPTER: (0, adapters)} if adapters else {})}
    one, filled, capacity = over(kernels, rows, edge, **ranges)
    array = normal(1, capacity, inputs) + np.float32(0.25)
    if finishes:
        x: Any = raw_row_of(one, inputs, finishes, gated=gate_before, sums=sums_before)
    elif together:
        one.by_row.add("x")
        x = one.blocks("x", array)
    else:
        x = one.interleaved("x", array)
    left = None
    if norms:
        factors = np.random.default_rng(8).uniform(0.5, 2.0, capacity).astype(np.float32)
        means = array.mean(axis=1, dtype=np.float64).astype(np.float32)[:, None].repeat(4, axis=1)
        of_rows = norms_of(factors[:, None].repeat(4, axis=1), kernels.rows_per_draw, means if centred else None)
        left = one.cache("norms", of_rows)
        one.alter = _without_norms
    added = one.interleaved("r", normal(6, capacity, outputs)) if residual else None
    if adds:
        one.arrays[OUT] = normal(7, capacity, outputs)
        one.by_row.add(OUT)
    matrix = matrix_of(one, weights, outputs, inputs, gain=gain, centred=centred, gated=gated, bias_read=not raw)
    matrix = adapt(one, matrix, capacity)
    outputs, aside = RawRows.floats(matrix) if raw else outputs, turn.aside if turn else 0
    in_cache = BlockLayout.by_block((slots or 1, outputs), edge, aside=aside, every=slots or 1)
    return one.draw(
        gemm(
            one.of(),
            x,
            matrix,
            one.out(in_cache) if slots else one.deal(OUT, filled, outputs, "cache"),
            alone=not rows,
            first="position" if slots else 0,
            norm_eps=EPS if norm else None,
            norms=left,
            rotation=rotation_of(one, turn) if turn else None,
            rows=_at_random(one, capacity) if turn and rows else None,
            residual=added,
            **finish,
            adds=adds or parts or raw,
            parts=shared_parts(matrix, kernels.part_steps) if parts or raw else 1,
            clears="all" if raw else "rows" if parts and not adds else "",
            raw=raw,
        )
    )


def _at_random(one: BlockDraw, capacity: int) -> TensorSpec:
    """The table of rows, each at a position of its own."""
    table = one.table(capacity)
    one.arrays[TABLE][:, POSITION] = np.random.default_rng(12).integers(0, POSITIONS, capacity)
    return table


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
    rows: int = 0,
    *,
    slots: int = 0,
    aside: bool = False,
    edge: int = 2048,
    whole: bool = False,
    turns: bool = True,
    rotated_first: bool = False,
    latent: Latent | None = None,
    **how: bool,
) -> BlockDraw:
    """Keys and queries normalised and turned, of rows by the position of each, or of one, maybe into ``slots``."""
    ranges = {} if rows else {"position": (0, (slots or POSITIONS) - 1)}
    one, filled, capacity = over(kernels, rows, edge, **ranges)
    x, table = one.interleaved("x", np.nan_to_num(in_heads(1, capacity, heads, head_dim, latent))), None
    if rows:
        table = _at_random(one, capacity) if turns else one.table(capacity)
    if how.get("back"):
        one.arrays[TABLE][:, NOISE] = BACK * (one.arrays[TABLE][:, POSITION] // 2) + np.arange(capacity) % 4
    kept = BlockLayout.by_block((slots or 1, heads.cols), edge, aside=heads.aside * aside, every=slots or 1)
    out = RowInterleaved((one.out(kept),)) if slots else one.deal(OUT, filled, heads.cols, "cache")
    gains, rotation = head_gains(one, heads, head_dim, whole=whole), rotation_of(one, heads, turns=turns, **how)
    norm: dict[str, Any] = {"head_dim": head_dim, "eps": EPS, "whole": whole, "rotated_first": rotated_first}
    norm |= {"latent": latent, "low_at": padded(heads.cols)}
    where: dict[str, Any] = {"rows": table, "first": "position" if slots else 0}
    return one.draw(turn_heads(one.of(), x, gains, rotation, out, **norm, **where))


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
    """What a product behind a norm takes, of at most ``rows`` rows."""
    one, slots, capacity = over(kernels, rows)
    x = one.interleaved("x", normal(1, capacity, cols) + np.float32(0.25))
    out = one.out(BlockLayout.by_block((slots, norm_floats(kernels.rows_per_draw, centred=centred)), one.edge))
    one.promise = lambda case, shape: promised_norms(case.real, kernels.rows_per_draw, centred=centred)[: shape[0]]
    return one.draw(row_norms(one.of(), x, out, eps=EPS, centred=centred, grouped=grouped))


def post_norm_draw(kernels: KernelOptions, cols: int, rows: int, *, adds: bool = False, width: int = 0) -> BlockDraw:
    """Rows normalised and added to a residual stream, or to what the target holds, or rounded."""
    one, slots, capacity = over(kernels, rows)
    x = one.interleaved("x", normal(1, capacity, cols))
    if adds:
        one.arrays[OUT] = normal(7, capacity, cols)
        one.by_row.add(OUT)
    return one.draw(
        post_norm(
            one.of(),
            x,
            one.row_weight("gain", 1 + normal(2, 1, cols, scale=0.3)),
            one.deal(OUT, slots, cols, "cache"),
            residual=None if adds or width else one.interleaved("r", normal(6, capacity, cols)),
            eps=EPS,
            width=width,
        )
    )


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
    rows: int = 0,
    *,
    weights: str = "f32",
    scale: float = 1.0,
    positions: bool = True,
    chosen: bool = False,
    images: bool = False,
    edge: int = 2048,
) -> BlockDraw:
    """The embedding of one token, or of random tokens at random positions.

    With ``chosen`` every other one was chosen before, and with ``images`` every third one is a row of an image. The
    candidates of each position are random, with ties.
    """
    ranges = {} if rows else {"token": (-1, vocab - 1), "position": (0, context - 1)}
    (one, slots, capacity), random = over(kernels, rows, edge, **ranges), np.random.default_rng(9)
    table = picks = None
    if rows:
        table, words = one.table(capacity), one.arrays[TABLE]
        words[:, TOKEN] = random.integers(0, vocab, capacity)
        words[:, POSITION] = random.integers(0, context, capacity)
    if chosen or not rows:
        candidates = np.zeros((capacity if rows else context, BLOCK_FLOATS // 4, 4), np.float32)
        candidates[..., 0] = random.integers(0, 5, candidates.shape[:2])
        candidates[..., 1] = random.integers(0, vocab, candidates.shape[:2])
        picks = one.cache("picks", candidates.reshape(-1, BLOCK_FLOATS))
    if chosen:
        words[::2, TOKEN] = CHOSEN
    pictures = one.row_weight("images", normal(5, capacity, dim)) if images else None
    if images:
        words[::3, TOKEN] = vocab + np.arange(len(words[::3]))
    tables = tables_of(one, vocab, context, dim, weights=weights, positions=positions)
    out = one.deal(OUT, slots, dim, "cache")
    return one.draw(embed(one.of(), *tables, picks, out, table, images=pictures, scale=scale))


def images_draw(kernels: KernelOptions, dim: int, rows: int) -> BlockDraw:
    """Random rows, to every third of which the row of an image is added."""
    one, slots, capacity = over(kernels, rows, 2048)
    table, x = one.table(capacity), one.interleaved("x", normal(1, capacity, dim))
    one.arrays[TABLE][::3, TOKEN] = 64 + np.arange(len(one.arrays[TABLE][::3]))
    images, out = one.row_weight("images", normal(5, capacity, dim)), one.deal(OUT, slots, dim, "cache")
    return one.draw(add_images(one.of(), table, x, images, out, tokens=64))


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
    return one.draw(score_rows(one.of(), logits, table, out))


def pick_draw(kernels: KernelOptions, vocab: int, rows: int = 0, scale: float = 3.0) -> BlockDraw:
    """The choice of a token, into one of three slots; or of rows, every other one with noise, each in its own way."""
    how = {"noise": (0.0, 1.0), "inverse_temperature": (0.0, 1e9), "noise_key": (0, 2**32 - 1), "position": (0, 2)}
    one, _, capacity = over(kernels, rows, **({} if rows else how))
    logits = one.interleaved("x", normal(1, capacity, vocab, scale=scale))
    out = one.out(BlockLayout.by_block((capacity if rows else 3, BLOCK_FLOATS), one.edge))
    if not rows:
        return one.draw(pick(one.of(), logits, out, first="position"))
    table, words, random = one.table(capacity), one.arrays[TABLE], np.random.default_rng(2)
    words[:, INVERSE_TEMPERATURE] = random.uniform(0.5, 3.0, capacity).astype(np.float32).view(np.uint32)
    words[:, NOISE_KEY] = random.integers(0, 2**32, capacity, dtype=np.uint32)
    words[:, NOISE] = np.arange(capacity) % 2
    return one.draw(pick(one.of("rows"), logits, out, table))


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
