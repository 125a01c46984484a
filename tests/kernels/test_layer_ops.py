"""What only some families have: norms behind branches, norms of all heads together, bounded scores and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import same_bits
from attention_draw import Run, row_scores_draw, tile_scores_draw
from block_draw import (
    KERNELS,
    at,
    first_rows,
    number_of,
    post_norm_draw,
    product_draw,
    runs_of,
    turn_draw,
    with_kernels,
)
from one_draw import TABLE, BlockDraw, Case, check, in_turn
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.gl.context import Device
from glinfer.kernels.fused.cached import Heads
from glinfer.kernels.fused.rows import POSITION
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.published.linear import soft_cap
from glinfer.program.oracle import allowed_errors

pytestmark = pytest.mark.gl


@with_kernels("llvmpipe", "one by one", "GPU")
def test_norms_behind_branches_agree_with_float64(device: Device, kernels: KernelOptions) -> None:
    """Added to a stream in another texture, or by blending; a row of zeros, and a large one."""
    for cols, adds in ((300, False), ((1, 15, 64, 130)[number_of(kernels) % 4], kernels.blends)):
        one = post_norm_draw(kernels, cols, 19, adds=adds)
        one.arrays["x"][3], one.arrays["x"][5] = 0, one.arrays["x"][5] * 1e4
        check(device, one, *[first_rows(one, rows) for rows in (1, 8, 19)], what=f"{cols}", tolerance=1e-6)


@with_kernels("llvmpipe", "one by one", "GPU")
def test_rounded_norms_agree_with_float64(device: Device, kernels: KernelOptions) -> None:
    """All elements but those that lie half way between two levels; padding counts for no mean."""
    for cols, width in ((300, 300), (64, 60)):
        one = post_norm_draw(kernels, cols, 19, width=width)
        one.arrays["x"][3], one.arrays["x"][5] = 0, one.arrays["x"][5] * 1e4
        one.arrays["x"][:, width:] = 0

        def clear(case: Case, shape: tuple[int, int], one: BlockDraw = one) -> Any:
            near = in_turn(np.asarray(allowed_errors(one.spec, one.given(case), case.values)))
            real = case.real[: len(near), None]
            assert np.count_nonzero(near[real[:, 0]]) < 10
            return real & (near == 0)

        one.promise = clear
        found = check(device, one, *[first_rows(one, rows) for rows in (1, 19)], what=f"{cols}", tolerance=1e-6)
        assert len(np.unique(found[1][7])) > 40
        assert not found[1][3].any()


TURNED = [(Heads(5, 5, 16), 6), (Heads(4, 2, 16), 16), (Heads(3, 1, 80), 66), (Heads(2, 1, 64), 64)]


@tiered(("name", "turns"), [("llvmpipe", True), ("one by one", False), ("GPU", True)])
def test_all_heads_are_normalised_together(device: Device, name: str, turns: bool) -> None:
    kernels = KERNELS[name]
    heads, head_dim = TURNED[number_of(kernels) % len(TURNED)]
    one = turn_draw(kernels, heads, head_dim, 19, whole=True, turns=turns)
    found = check(device, one, *[first_rows(one, rows) for rows in (1, 19)])[1]
    values = slice(heads.kv_floats, 2 * heads.kv_floats)
    assert same_bits(found[:19, values], one.arrays["x"][:19, values]), "values stay as they are"
    alone = turn_draw(kernels, heads, head_dim, whole=True, turns=turns)
    positions = one.arrays[TABLE][:, POSITION] if turns else np.zeros(19)
    cases = [at(int(positions[row]), x=one.arrays["x"][row : row + 1]) for row in range(19)]
    for row, expected in enumerate(alone.run(device, *cases)):
        assert same_bits(found[row], expected[0]), f"row {row}"


@with_kernels("GPU", "one by one")
def test_heads_that_do_not_turn_are_normalised_alone(device: Device, kernels: KernelOptions) -> None:
    heads, head_dim = TURNED[number_of(kernels) % len(TURNED)]
    one = turn_draw(kernels, heads, head_dim, 5, turns=False)
    check(device, one, first_rows(one, 5))


caps_in_kernels = tiered(("name", "cap"), [("llvmpipe", 0.5), ("one by one", 3.0), ("GPU", 50.0)])


@caps_in_kernels
def test_bounded_scores_agree_with_float64(device: Device, name: str, cap: float) -> None:
    """Of one row and of many; what is masked is not bounded."""
    kernels = KERNELS[name]
    options: dict[str, Any] = {"kv": 2, "window": 9, "cap": cap}
    alone = row_scores_draw(kernels, 4, 10, **options)
    cases = [alone.case(Run(0, position)) for position in (0, 5, 70, 139)]
    for found in check(device, alone.one, *cases, tolerance=1e-6):
        seen = found > -1e29
        assert np.abs(found[seen]).max() <= cap
        assert (found[~seen] == np.float32(-1e30)).all()
    many = tile_scores_draw(kernels, 4, 10, 20, **options)
    check(device, many.one, many.case(Run(16, 7, 9), Run(64, 55, 5)), tolerance=1e-6)


def test_a_bound_far_above_changes_little_and_one_below_much() -> None:
    x = np.array([-40.0, -0.1, 0.0, 1e-3, 3.0, 80.0])
    assert np.abs(soft_cap(x, 1e6) - x).max() <= 1e-6
    assert soft_cap(x, 2.0).tolist() == pytest.approx([-2.0, -0.09991676, 0.0, 1e-3, 2 * np.tanh(1.5), 2.0], rel=1e-6)


@caps_in_kernels
def test_bounded_outputs_agree_with_float64(device: Device, name: str, cap: float) -> None:
    """Small ones keep their digits, large ones come to the bound. The errors of sums stay what they are beside it."""
    kernels = KERNELS[name]
    outputs, inputs = ((65, 128), (3, 17), (130, 70))[number_of(kernels) % 3]
    for rows in (9, 0):
        one = product_draw("f32", kernels, outputs, inputs, rows, norm=True, cap=cap)
        one.arrays["x"][2:3] *= 1e-3
        check(device, one, *runs_of(one, 1, 9), tolerance=1e-5)
    large = product_draw("f32", kernels, outputs, inputs, 9, cap=cap)
    large.arrays["x"][1] *= 1e30
    for found in check(device, large, first_rows(large, 9), tolerance=1e-5):
        assert np.abs(found[1]).max() == np.float32(cap)


def test_a_bound_is_no_part_of_sums_that_are_added_up() -> None:
    with pytest.raises(PlanError, match="parts are added up without activation"):
        product_draw("f32", KERNELS["GPU"], 65, 256, 4, adds=True, parts=True, cap=2.0).plan  # noqa: B018
