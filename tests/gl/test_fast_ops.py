"""The fast plan's ops on the GPU against their float64 oracles, on shapes, kernels and values chosen to break them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from block_draw import (
    KERNELS,
    STALE,
    BlockDraw,
    Case,
    at,
    embed_draw,
    gemv_draw,
    pick_draw,
    scores_draw,
    values_draw,
    varied_fields,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.program import shader_root
from glinfer.models.oracle import relative_error
from glinfer.ops.cached import MASKED, SLOT_TOKENS
from glinfer.ops.kernels import Kernels
from glinfer.ops.sample import best_candidate

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-5
WEIGHTS = ("f32", "f16", "q16", "q8")
PLAIN = KERNELS["plain"]
every_kernel = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS)

# Outputs and inputs: one of each, less than a quad, whole and ragged blocks of 64, more of one than of the other.
SIZES = [(1, 1), (3, 17), (64, 64), (65, 128), (130, 70), (16, 300), (301, 36), (67, 260)]
FORMS: list[dict[str, Any]] = [
    {},
    {"norm": True, "activation": "gelu_new"},
    {"residual": True},
    {"adds": True},
    {"norm": True, "slots": 5},
    {"activation": "gelu", "residual": True},
    {"norm": True},
    {"adds": True},
]


def check(device: Device, one: BlockDraw, *cases: Case, what: str = "", tolerance: float = TOLERANCE) -> list[Array]:
    found = one.run(device, *cases)
    for case, result in zip(cases, found, strict=True):
        expected, name = one.expected(case), f"{what} {dict(case.values)}"
        assert result.shape == expected.shape
        assert np.isfinite(result).all(), f"{name}: {np.argwhere(~np.isfinite(result))[:5].tolist()} are not finite"
        error = relative_error(result, expected)
        assert error <= tolerance, f"{name}: off by {error:.2e}"
    return found


def test_the_table_of_kernels_varies_every_field() -> None:
    assert min(varied_fields().values()) >= 2, varied_fields()


# gemv


@pytest.mark.parametrize("weights", WEIGHTS)
def test_products_agree_with_float64(device: Device, weights: str) -> None:
    """All kernels, all sizes, all forms, not each with each: over the four formats every pair of two comes up."""
    turn = WEIGHTS.index(weights)
    for number, (name, kernels) in enumerate(KERNELS.items()):
        if weights == "f16" and number % 2:  # llvmpipe takes long to compile it
            continue
        form = FORMS[(number + turn) % len(FORMS)]
        outputs, inputs = SIZES[(3 * number + 2 * turn) % len(SIZES)]
        one = gemv_draw(weights, kernels, outputs, inputs, **form)
        places = {0, form.get("slots", 1) - 1}
        check(device, one, *map(at, places), what=f"{weights} {outputs}×{inputs} {form} {name}")


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_products_agree_with_float64(device: Device, data: st.DataObject) -> None:
    weights, form = data.draw(st.sampled_from(WEIGHTS), "weights"), data.draw(st.sampled_from(FORMS), "form")
    kernels = dataclasses.replace(KERNELS[data.draw(st.sampled_from(sorted(KERNELS)), "kernels")], unroll=1)
    outputs, inputs = data.draw(st.integers(1, 150), "outputs"), data.draw(st.integers(1, 150), "inputs")
    check(device, gemv_draw(weights, kernels, outputs, inputs, **form), at(form.get("slots", 1) // 2))


@pytest.mark.parametrize("weights", ["f32", "q8"])
def test_products_in_several_stacks_agree_with_float64(device: Device, weights: str) -> None:
    """Where a matrix is higher than a texture its blocks lie in stacks side by side."""
    one = gemv_draw(weights, PLAIN, 700, 300, norm=True, edge=256)
    assert dict(one.spec.defines)["WEIGHT_STACK"] == 6, "of 11 blocks"
    check(device, one, at(0))


@pytest.mark.parametrize(
    ("weights", "kernels"), [("f32", "plain"), ("f16", "plain"), ("q16", "mantissa"), ("q8", "mantissa")]
)
def test_long_sums_stay_accurate(device: Device, weights: str, kernels: str) -> None:
    # By way of the mantissa the lowest bits are lost, 2^-24 of the largest weight, all the same way.
    tolerance = 2 * TOLERANCE if KERNELS[kernels].mantissa else TOLERANCE
    check(device, gemv_draw(weights, KERNELS[kernels], 5, 2049), at(0), tolerance=tolerance)


def test_a_product_adds_to_what_is_there(device: Device) -> None:
    """In one instance and in several, the bias once."""
    for part_steps, instances in ((4, 4), (0, 1)):
        one = gemv_draw("f32", dataclasses.replace(PLAIN, part_steps=part_steps), 3, 256, adds=True)
        one.arrays["x"][:] = 0
        assert one.spec.instances == instances
        assert np.array_equal(one.run(device, at(0))[0], one.arrays["out"] + one.arrays["c"][:, -1])


def test_the_activation_comes_before_the_residual(device: Device) -> None:
    one = gemv_draw("f32", PLAIN, 1, 1, activation="gelu_new", residual=True)
    one.arrays |= {name: np.full((1, 1), value, np.float32) for name, value in (("x", 1), ("c", -101), ("r", 7))}
    one.arrays["w"][:] = [[1, 0, 0, 0]]
    assert one.run(device, at(0))[0] == 7.0  # gelu(1 - 101) + 7; any other order gives -93 or a gelu of 7


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_product_of_a_unit_vector_is_a_column_and_of_zero_the_bias(device: Device, weights: str) -> None:
    one = gemv_draw(weights, KERNELS["llvmpipe"], 70, 70)
    unit = np.eye(70, dtype=np.float32)
    check(device, one, *[at(0, x=unit[column : column + 1]) for column in (0, 5, 15, 16, 64, 69)])
    zero = at(0, x=np.zeros((1, 70), np.float32))
    assert np.array_equal(one.run(device, zero)[0][0], one.arrays["c"][:, -1])


# Attention


# Heads, their width and the context: one head of one float, narrow heads, several quads, more than a block.
HEADS = [(1, 1, 1), (3, 5, 70), (1, 16, 129), (8, 8, 64), (2, 64, 140), (1, 80, 200), (5, 17, 129), (4, 32, 66)]
POSITIONS = (0, 1, 2, 3, 4, 5, 62, 63, 64, 65, 127, 128, 139)


@every_kernel
@pytest.mark.parametrize("make", [scores_draw, values_draw])
def test_attention_agrees_with_float64_at_every_position(device: Device, kernels: Kernels, make: Any) -> None:
    number = list(KERNELS.values()).index(kernels)
    heads, width, context = HEADS[(number + 2 * (make is scores_draw)) % len(HEADS)]
    cases = [at(position) for position in (*POSITIONS, context - 1) if position < context]
    check(device, make(kernels, heads, width, context), *cases, what=f"{heads} heads of {width} in {context}")


def test_scores_after_the_position_are_masked_and_before_are_products(device: Device) -> None:
    for position in (0, 70, 129):
        (found,) = check(device, scores_draw(PLAIN, 3, 4, 130), at(position))
        tokens = found.reshape(-1, 3, SLOT_TOKENS).transpose(1, 0, 2).reshape(3, -1)
        assert (tokens[:, position + 1 :] == np.float32(MASKED)).all()
        assert (np.abs(tokens[:, : position + 1]) < 100).all()


@pytest.mark.parametrize("name", ["plain", "GPU", "one by one"])
@pytest.mark.parametrize("make", [scores_draw, values_draw])
def test_each_head_sees_its_own_columns_alone(device: Device, name: str, make: Any) -> None:
    """A head is told apart by making all others enormous."""
    one = make(KERNELS[name], 3, 16, 70)
    cases = []
    for head in range(3):
        others = np.ones((3, 3, 16), dtype=bool)
        others[:, head] = False
        cases.append(at(69, cache=np.where(others.reshape(-1), np.float32(1e20), one.arrays["cache"])))
    for head, (found, case) in enumerate(zip(one.run(device, *cases), cases, strict=True)):
        width = SLOT_TOKENS if make is scores_draw else 16
        own = (whole.reshape(-1, 3, width)[:, head] for whole in (found, one.expected(case)))
        assert relative_error(*own) <= TOLERANCE, f"head {head}"


@every_kernel
def test_equal_scores_give_the_mean_of_the_values(device: Device, kernels: Kernels) -> None:
    one = values_draw(kernels, 2, 16, 70)
    levels = [np.full_like(one.arrays["scores"], level) for level in (0.0, 0.3, 90.0, -90.0, 1e4, -1e4)]
    cases = [at(position, scores=level) for level in levels for position in (0, 2, 66)]
    values = one.arrays["cache"].reshape(-1, 3, 32)[:, 2].astype(np.float64)
    for case, found in zip(cases, check(device, one, *cases), strict=True):
        mean = values[: int(case.values["position"]) + 1].mean(axis=0)
        assert np.abs(found[0] - mean).max() <= 1e-6


@every_kernel
def test_one_enormous_score_takes_it_all_wherever_it_is(device: Device, kernels: Kernels) -> None:
    one, tokens, cases = values_draw(kernels, 2, 16, 70), (0, 1, 3, 6, 63, 64, 69), []
    for token in tokens:
        scores = np.clip(one.arrays["scores"], -5, 5)
        scores.reshape(2, 2, SLOT_TOKENS)[token // SLOT_TOKENS, :, token % SLOT_TOKENS] = 1e4
        cases.append(at(69, scores=scores))
    for token, found in zip(tokens, one.run(device, *cases), strict=True):
        exact = one.arrays["cache"].reshape(-1, 3, 32)[token, 2]
        assert np.abs(found[0] - exact).max() <= 1e-6, f"token {token}"


@pytest.mark.parametrize("name", ["plain", "GPU", "one by one"])
def test_scores_of_every_size_give_exact_weights(device: Device, name: str) -> None:
    """Peaks are rounded up to whole numbers: scores on both sides of one, near together and far apart."""
    one = values_draw(KERNELS[name], 3, 16, 100)
    check(device, one, *[at(99, scores=one.arrays["scores"] * np.float32(by)) for by in (1e-3, 0.3, 10, 300)])


def test_what_is_stale_is_seen_where_it_counts(device: Device) -> None:
    """That the tests above can fail: the huge numbers after the position, one place earlier."""
    for make in (scores_draw, values_draw):
        one = make(PLAIN, 1, 16, 70)
        cache = one.arrays["cache"].copy()
        cache[20] = STALE
        before, after = one.run(device, at(20), at(20, cache=cache))
        assert not np.array_equal(before, after)


# embed_token


def embedding(token: int, position: int) -> Case:
    return Case({"token": token, "position": position})


@every_kernel
def test_embeddings_agree_with_float64(device: Device, kernels: Kernels) -> None:
    one = embed_draw(kernels, 37, 11, 70, halves=kernels.lookup_texture)
    runs = [(0, 0), (36, 10), (5, 3), (-1, 1), (-1, 10)]
    check(device, one, *[embedding(token, position) for token, position in runs])


@pytest.mark.parametrize(("vocab", "context", "dim"), [(1, 1, 1), (3, 2, 3), (5, 3, 4), (40, 40, 65)])
def test_embeddings_of_odd_sizes_agree_with_float64(device: Device, vocab: int, context: int, dim: int) -> None:
    one = embed_draw(KERNELS["llvmpipe"], vocab, context, dim)
    check(device, one, embedding(vocab - 1, context - 1), embedding(0, 0))


def test_tables_in_several_stacks_agree_with_float64(device: Device) -> None:
    one = embed_draw(PLAIN, 300, 200, 30, edge=128)
    assert dict(one.spec.defines)["WTE_STACK"] == 128
    runs = [(0, 0), (127, 127), (128, 128), (299, 199), (-1, 130)]
    check(device, one, *[embedding(token, position) for token, position in runs])


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


@pytest.mark.parametrize(
    ("name", "vocab"), [("plain", 1), ("llvmpipe", 300), ("one by one", 67), ("small points", 1100)]
)
def test_candidates_are_the_best_of_each_lane(device: Device, name: str, vocab: int) -> None:
    one = pick_draw(KERNELS[name], vocab)
    cases = greedy(), greedy(2)
    for case, found in zip(cases, one.run(device, *cases), strict=True):
        assert np.array_equal(found, one.expected(case))
        assert best_candidate(found[0]) == int(one.arrays["logits"][0].argmax())


def test_of_equal_logits_the_lowest_id_wins(device: Device) -> None:
    one = pick_draw(KERNELS["llvmpipe"], 300)
    equal: list[list[int]] = [[7, 8], [8, 7 + 64], [0, 299], [64, 128, 63], list(range(300))]
    cases = []
    for ids in equal:
        logits = np.full((1, 300), -3.0, dtype=np.float32)
        logits[0, ids] = 1.5
        cases.append(greedy(logits=logits))
    for ids, case, found in zip(equal, cases, one.run(device, *cases), strict=True):
        assert np.array_equal(found, one.expected(case))
        assert best_candidate(found[0]) == min(ids)


def test_logits_of_any_size_are_compared(device: Device) -> None:
    one, cases = pick_draw(KERNELS["llvmpipe"], 300), []
    for level in (-1e30, -3e38, 1e30, -100.0):
        logits = np.full((1, 300), level, dtype=np.float32)
        logits[0, 141] *= np.float32(0.9 if level < 0 else 1.1)
        cases.append(greedy(logits=logits))
    for case, found in zip(cases, one.run(device, *cases), strict=True):
        assert np.array_equal(found, one.expected(case))
        assert best_candidate(found[0]) == 141


# Limits and OpenGLs


def test_everything_runs_within_what_webgl2_guarantees() -> None:
    with open_device(limits=Limits.webgl2_minimum()) as device:
        assert device.limits.max_point_size == 1.0
        kernels = KERNELS["small points"]
        check(device, gemv_draw("q16", kernels, 130, 140, norm=True), at(0))
        check(device, scores_draw(kernels, 3, 20, 130), at(0), at(129))
        check(device, values_draw(kernels, 3, 20, 130), at(0), at(129))
        check(device, embed_draw(kernels, 2500, 40, 30), embedding(2499, 39))


@pytest.mark.desktop
@pytest.mark.parametrize(("name", "weights"), [("GPU", "q8"), ("plain", "f16")])
def test_desktop_opengl_gives_the_same(name: str, weights: str) -> None:
    kernels = KERNELS[name]
    with open_device(api="desktop") as device:
        check(device, gemv_draw(weights, kernels, 70, 130, adds=True), at(0))
        check(device, scores_draw(kernels, 2, 17, 66), at(0), at(65))
        check(device, values_draw(kernels, 2, 17, 66), at(0), at(65))
        check(device, embed_draw(kernels, 7, 5, 70), embedding(-1, 3))


def test_shaders_of_blocks_ask_for_full_precision() -> None:
    """Without it a phone computes with 16 bits. Elsewhere nothing would show."""
    text = (shader_root() / "common" / "blocks.glsl").read_text("utf-8")
    for kind in ("float", "int", "sampler2D", "usampler2D"):
        assert re.search(rf"^precision highp {kind};$", text, re.MULTILINE), kind
