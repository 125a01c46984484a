"""The fast plan's ops on the GPU against their float64 oracles, on shapes, kernels and values chosen to break them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_draw import Run, row_scores_draw, row_values_draw
from block_draw import (
    BLOCKS,
    FLOATS_AND_ROWS,
    GQA,
    GROUP_SIZES,
    KERNELS,
    PADDED,
    SHARED,
    at,
    embed_draw,
    pick_draw,
    product_draw,
    runs_of,
    weight_numbers,
    whole_blocks,
    with_kernels,
)
from one_draw import TOLERANCE, Array, Case, check, normal
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.gl.context import Device, Limits, open_device
from glinfer.kernels.fused.cached import MASKED, SLOT_TOKENS
from glinfer.kernels.fused.sample import best_candidate
from glinfer.kernels.options import KernelOptions, without_blending
from glinfer.program.oracle import relative_error
from glinfer.quant.formats import GROUP_FORMS as BLOCK_FORMS

pytestmark = pytest.mark.gl

WEIGHTS = FLOATS_AND_ROWS
PLAIN = KERNELS["plain"]
FORMATS = (*WEIGHTS, *BLOCKS)

# Outputs and inputs: one of each, less than a quad, whole and ragged blocks of 64, more of one than of the other.
SIZES = [(1, 1), (3, 17), (64, 64), (65, 128), (130, 70), (16, 300), (301, 36), (67, 260)]
FORMS: list[dict[str, Any]] = [
    {},
    {"norm": True, "activation": "gelu_new"},
    {"residual": True},
    {"adds": True, "parts": True},
    {"norm": True, "slots": 5},
    {"activation": "gelu", "residual": True},
    {"norm": True},
    {"adds": True, "parts": True},
    {"norm": True, "gain": True},
    {"norm": True, "gain": True, "centred": True, "activation": "gelu_new"},
    {"norm": True, "gain": True, "gated": True, "activation": "silu"},
    {"norm": True, "turn": GQA, "slots": 9},
    {"norm": True, "gain": True, "centred": True, "turn": PADDED},
    {"gated": True, "activation": "gelu", "residual": True},
]
SHARED_FORMS: list[dict[str, Any]] = [
    {"norm": True, "slots": 5, "parts": True},
    {"raw": True},
    {"adds": True, "parts": True, "finishes": "gelu_new"},
    {"norm": True, "turn": GQA, "slots": 9, "parts": True},
    {"raw": True, "gain": True, "centred": True},
    {"adds": True, "parts": True, "finishes": "silu", "gate_before": True},
    {"norm": True, "gain": True, "centred": True, "slots": 3, "parts": True},
    {"raw": True, "gated": True},
    {"adds": True, "parts": True, "finishes": "gelu", "gate_before": True, "sums_before": True},
]
"""Products that instances share although a norm, an activation or a gate is behind them."""


# gemm of one row


@tiered("place", range(len(FORMATS)), keep=(0, 3, 6, 9, 12, 18, 21, 24, 27))
def test_products_agree_with_float64(device: Device, place: int) -> None:
    """Every format, in turn with kernels, sizes and forms; test_rows_ops.py keeps other formats fast."""
    weights = FORMATS[place]
    forms = [*FORMS, *SHARED_FORMS]
    form = forms[7 * place % len(forms)]
    shares = list(KERNELS) if form in FORMS else ("GPU", "one by one, looked up", "mantissa")
    name = shares[(place // 3 + 6) % len(shares)]
    # The mean of one input leaves nothing but the errors of rounding.
    outputs, inputs = SIZES[place % len(SIZES)] if place < len(WEIGHTS) else GROUP_SIZES[place % len(GROUP_SIZES)]
    outputs, inputs = (3, 17) if inputs == 1 and form.get("centred") else (outputs, inputs)
    inputs = whole_blocks(weights, inputs) if weights in BLOCKS else inputs
    one = product_draw(weights, KERNELS[name], outputs, inputs, **form)
    check(device, one, *runs_of(one), what=f"{weights} {outputs}×{inputs} {form} {name}")


@tiered(("weights", "outputs", "inputs", "edge"), [("q8", 700, 300, 256), ("Q4_K", 1400, 1024, 320)])
def test_products_with_several_lines_in_a_row_agree_with_float64(
    device: Device, weights: str, outputs: int, inputs: int, edge: int
) -> None:
    """Where a matrix has more lines than a texture is high they stand side by side."""
    one = product_draw(weights, PLAIN, outputs, inputs, norm=True, edge=edge)
    assert dict(one.spec.defines)["WEIGHT_COLUMNS"] == 2
    check(device, one, at(0))


@tiered(("weights", "kernels"), [("f32", "plain"), ("q8", "mantissa"), ("Q4_0", "plain")], keep=2)
def test_long_sums_stay_accurate(device: Device, weights: str, kernels: str) -> None:
    # By way of the mantissa the lowest bits are lost, 2^-24 of the largest weight, all the same way.
    tolerance = 2 * TOLERANCE if KERNELS[kernels].mantissa else TOLERANCE
    inputs = 2048 + (256 if weights in BLOCKS else 1)
    check(device, product_draw(weights, KERNELS[kernels], 5, inputs), at(0), tolerance=tolerance)


def test_the_activation_comes_before_the_residual(device: Device) -> None:
    one = product_draw("f32", PLAIN, 1, 1, activation="gelu_new", residual=True)
    one.arrays |= {name: np.full((1, 1), value, np.float32) for name, value in (("x", 1), ("c", -101), ("r", 7))}
    one.arrays["w"][:] = [[1, 0, 0, 0]]
    assert one.run(device, at(0))[0] == 7.0  # gelu(1 - 101) + 7; any other order gives -93 or a gelu of 7


def test_the_mean_is_that_of_layer_norm(device: Device) -> None:
    """Against LayerNorm itself (Ba et al. 2016), written out; rows far from zero, too."""
    one = product_draw("Q4_1", PLAIN, 70, 96, norm=True, gain=True, centred=True)
    numbers = weight_numbers(one.arrays["w"], None, "Q4_1", 96)
    rows = [normal(20 + place, 1, 96) + np.float32(offset) for place, offset in enumerate((0, 1, -8))]
    for x, found in zip(rows, one.run(device, *[at(0, x=x) for x in rows]), strict=True):
        wide = x.astype(np.float64)
        normed = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5) * one.arrays["g"]
        assert relative_error(found, normed @ numbers.T + one.arrays["c"][:, -1]) <= 1e-4


# Attention


# Heads, their width and slots of the cache: one head of one float, narrow heads, several quads, more than a block.
HEADS = [(1, 1, 64), (3, 5, 128), (1, 16, 192), (8, 8, 64), (2, 64, 192), (1, 80, 256), (5, 17, 192), (4, 32, 128)]
POSITIONS = (0, 1, 2, 3, 4, 5, 62, 63, 64, 65, 127, 128, 139)
scores_and_values = pytest.mark.parametrize("make", [row_scores_draw, row_values_draw], ids=["scores", "values"])


@tiered("name", ["llvmpipe", "GPU", "one by one, looked up", "mantissa, one by one"])
@scores_and_values
def test_attention_agrees_with_float64_at_every_position(device: Device, name: str, make: Any) -> None:
    number = list(KERNELS).index(name)
    heads, width, slots = HEADS[(number + 2 * (make is row_scores_draw)) % len(HEADS)]
    made = make(KERNELS[name], heads, width, cache_slots=slots)
    cases = [made.case(Run(0, position)) for position in (*POSITIONS, slots - 1) if position < slots]
    check(device, made.one, *cases, what=f"{heads} heads of {width} in {slots}")


@tiered("place", range(len(SHARED)), keep=2)
@scores_and_values
def test_attention_of_shared_heads_in_windows_agrees_with_float64(device: Device, place: int, make: Any) -> None:
    """The query of the last token alone is there, as in a cache that keeps one, or in a slot of its own."""
    kernels = KERNELS[("GPU", "one by one", "plain", "mantissa", "one by one, looked up", "small points")[place]]
    kept = {"every": 192} if kernels.quad and make is row_scores_draw else {}
    made = make(kernels, **SHARED[place], **kept)
    cases = [made.case(Run(0, position)) for position in (*POSITIONS, 19, 20, 35, 36)]
    check(device, made.one, *cases, what=f"{SHARED[place]}")


def test_scores_that_a_token_does_not_see_are_masked_and_others_are_products(device: Device) -> None:
    for name, window in (("plain", 0), ("one by one", 7)):
        made = row_scores_draw(KERNELS[name], 2, 4, window=window)
        for position in (0, 5, 7, 70, 129):
            (found,) = check(device, made.one, made.case(Run(0, position)))
            tokens = found.reshape(-1, 2, SLOT_TOKENS).transpose(1, 0, 2).reshape(2, -1)
            seen = np.arange(tokens.shape[1])
            seen = (seen <= position) & (seen > position - (window or 1000))
            assert (tokens[:, ~seen] == np.float32(MASKED)).all()
            assert (np.abs(tokens[:, seen]) < 100).all()


@tiered("name", ["plain", "one by one"])
@scores_and_values
def test_each_head_sees_its_own_columns_alone(device: Device, name: str, make: Any) -> None:
    """A head is told apart by making all others enormous; two heads share each of keys and values."""
    made, cases = make(KERNELS[name], 4, 16, kv=2), []
    for head in range(4):
        others = np.ones(made.heads.cols, dtype=bool)
        own = (head // 2, 2 + head // 2, made.heads.queries_at // 16 + head)
        others[[16 * each + np.arange(16) for each in own]] = False
        cases.append(made.case(Run(0, 69), cache=np.where(others, np.float32(1e20), made.cache)))
    for head, (found, case) in enumerate(zip(made.one.run(device, *cases), cases, strict=True)):
        width = SLOT_TOKENS if make is row_scores_draw else 16
        parts = (whole.reshape(-1, 4, width)[:, head] for whole in (found, made.one.expected(case)))
        assert relative_error(*parts) <= TOLERANCE, f"head {head}"


@with_kernels("GPU", "mantissa", "one by one")
def test_equal_scores_give_the_mean_of_the_values(device: Device, kernels: KernelOptions) -> None:
    made = row_values_draw(kernels, 2, 16)
    levels = [
        np.full_like(made.random_scores(), level) for level in (0.0, 0.3, 90.0, -90.0, 1e4, -1e4, -3e6, -1e25, 1e25)
    ]
    cases = [made.case(Run(0, position), scores=level) for level in levels for position in (0, 2, 66)]
    values = made.cache[:, 32:64].astype(np.float64)
    for case, found in zip(cases, check(device, made.one, *cases), strict=True):
        mean = values[: int(case.values["position"]) + 1].mean(axis=0)
        assert np.abs(found[0] - mean).max() <= 1e-6


@tiered("name", ["GPU", "one by one"])
def test_scores_of_every_size_give_exact_weights(device: Device, name: str) -> None:
    """Peaks are rounded up to integers: scores on both sides of one, near together and far apart."""
    made = row_values_draw(KERNELS[name], 2, 16)
    given = [made.random_scores() * np.float32(by) for by in (1e-3, 0.3, 10, 300, 1e8)]
    given += [made.random_scores() + np.float32(by) for by in (-3e5, -5e6, 5e6)]
    check(device, made.one, *[made.case(Run(0, 69), scores=scores) for scores in given])


@tiered(("name", "window"), [("one by one", 20), ("GPU", 0), ("llvmpipe", 20)])
def test_sinks_take_their_part_of_the_weights(device: Device, name: str, window: int) -> None:
    """Smaller than all scores, among them, and larger than all; on both sides of integers."""
    sinks = np.array([[-40, -3.5, 0], [2, 2.0001, 1.9999], [9, 40, 1e4], [-1e6, 0.5, -1e30]], np.float32)
    made = row_values_draw(KERNELS[name], 3, 17, kv=1, window=window, sinks=sinks[:1])
    check(device, made.one, *[made.case(Run(0, at), sinks=each[None]) for at in (0, 5, 63, 139) for each in sinks])


# embed_token


def embedding(token: int, position: int) -> Case:
    return Case({"token": token, "position": position})


@tiered(
    ("name", "size", "edge"),
    [
        ("llvmpipe", (37, 11, 70), 2048),
        ("llvmpipe", (1, 1, 1), 2048),
        ("plain", (300, 200, 30), 128),
        ("one by one", (37, 11, 70), 2048),
        ("GPU", (37, 11, 70), 2048),
        ("llvmpipe", (40, 40, 65), 2048),
    ],
    keep=3,
)
def test_embeddings_agree_with_float64(device: Device, name: str, size: tuple[int, int, int], edge: int) -> None:
    """Of odd sizes, and of tables in several stacks; the first and last rows of each, and tokens chosen before."""
    (vocab, context, _), kernels = size, KERNELS[name]
    one = embed_draw(kernels, *size, weights="f16" if kernels.lookup_texture else "f32", edge=edge)
    assert dict(one.spec.defines)["WTE_STACK"] == min(vocab, edge)
    rows = {(0, 0), (vocab - 1, context - 1), (vocab // 2, context // 3), (-1, context // 2), (-1, context - 1)}
    rows |= {(127, 127), (128, 128)} if edge == 128 else set()
    check(device, one, *[embedding(token, position) for token, position in rows if token >= 0 or position > 0])


@tiered("place", range(0, len(BLOCK_FORMS), 2), keep=(2, 7))
def test_embeddings_out_of_blocks_are_the_table_rounded_once(device: Device, place: int) -> None:
    """Every row and column of a table that a product may read as well; scaled, or with positions."""
    weights, positions = list(BLOCK_FORMS)[place], place % 4 == 0
    inputs, scale = whole_blocks(weights, 160), 1.0 if positions else 2.5
    kernels = KERNELS["plain" if positions else "one by one, looked up"]
    one = embed_draw(kernels, 67, 5, inputs, weights=weights, scale=scale, positions=positions)
    runs = [embedding(token, 3) for token in (0, 1, 17, 33, 63, 64, 66)]
    table = weight_numbers(one.arrays["wte"], None, weights, inputs)
    for case, found in zip(runs, check(device, one, *runs, tolerance=3e-7), strict=True):
        row = table[int(case.values["token"])] * scale + (one.arrays["wpe"][3] if positions else 0)
        assert np.abs(found[0] - row).max() <= 3e-7 * np.abs(row).max()
    check(device, one, embedding(-1, 4), tolerance=3e-7)


def test_every_position_takes_the_choice_of_the_one_before(device: Device) -> None:
    one = embed_draw(PLAIN, 37, 12, 8)
    candidates = one.arrays["picks"]
    scores = candidates.reshape(12, 16, 4)[..., 0]
    assert any((row == row.max()).sum() > 1 for row in scores), "there are ties, which the lowest id wins"
    chosen = [best_candidate(row) for row in candidates]
    assert len(set(chosen)) > 5
    found = check(device, one, *[embedding(-1, position) for position in range(1, 12)])
    for position, (token, row) in enumerate(zip(chosen[:-1], found, strict=True), start=1):
        assert np.array_equal(row[0], one.arrays["wte"][token] + one.arrays["wpe"][position])


# pick


def greedy(position: int = 0, **arrays: Array) -> Case:
    return Case({"noise": 0.0, "inverse_temperature": 1.0, "noise_key": 0, "position": position}, arrays)


@tiered(("name", "vocab"), [("plain", 1), ("llvmpipe", 300), ("one by one", 67), ("small points", 1100)], keep=(1, 2))
def test_candidates_are_the_best_of_each_lane(device: Device, name: str, vocab: int) -> None:
    one = pick_draw(KERNELS[name], vocab)
    cases = greedy(), greedy(2)
    for case, found in zip(cases, one.run(device, *cases), strict=True):
        assert np.array_equal(found, one.expected(case))
        assert best_candidate(found[0]) == int(one.arrays["x"][0].argmax())


def test_of_equal_logits_the_lowest_id_wins_whatever_their_size(device: Device) -> None:
    one = pick_draw(KERNELS["llvmpipe"], 300)
    equal: list[list[int]] = [[7, 8], [8, 7 + 64], [0, 299], [64, 128, 63], list(range(300)), [141], [141]]
    levels = [(-3.0, 1.5)] * 5 + [(-3e38, -2.7e38), (-1e30, 1e30)]
    cases = []
    for ids, (low, high) in zip(equal, levels, strict=True):
        logits = np.full((1, 300), low, dtype=np.float32)
        logits[0, ids] = high
        cases.append(greedy(x=logits))
    for ids, case, found in zip(equal, cases, one.run(device, *cases), strict=True):
        assert np.array_equal(found, one.expected(case))
        assert best_candidate(found[0]) == min(ids)


# Limits and OpenGLs


def test_everything_runs_within_what_webgl2_guarantees() -> None:
    with open_device(limits=Limits.webgl2_minimum()) as device:
        assert device.limits.max_point_size == 1.0
        assert not device.limits.float_targets
        kernels = without_blending(KERNELS["small points"])
        check(device, product_draw("q16", kernels, 130, 140, norm=True), at(0))
        made, split = (row_values_draw(each, 3, 20) for each in (kernels, KERNELS["small points"]))
        check(device, made.one, made.case(Run(0, 0)), made.case(Run(0, 129)))
        with pytest.raises(PlanError, match="adds by blending, which needs float targets; choose others"):
            split.one.run(device, split.case(Run(0, 0)))
        check(device, embed_draw(kernels, 2500, 40, 30), embedding(2499, 39))


@pytest.mark.desktop
def test_desktop_opengl_gives_the_same() -> None:
    kernels = KERNELS["GPU"]
    with open_device(api="desktop") as device:
        check(device, product_draw("q8", kernels, 70, 130, adds=True, parts=True), at(0))
        made = row_values_draw(kernels, 2, 17)
        check(device, made.one, made.case(Run(0, 0)), made.case(Run(0, 65)))
        check(device, embed_draw(kernels, 7, 5, 70), embedding(-1, 3))
