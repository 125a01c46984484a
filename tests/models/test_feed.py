"""What runs are given: one run a token of the fast plan, a table of rows of others, and padding that hurts nobody."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import tiny

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.kernels.fused.rows import POSITION, TOKEN
from glinfer.kernels.options import KernelOptions
from glinfer.lower.feed import runs
from glinfer.lower.fused.rows import ROWS, chunk_plan, drafted_plan
from glinfer.lower.options import PlanOptions

IDS = [3, 1, 4, 1, 5, 9]


def chunk(config: ModelConfig, rows: int, targets: int = 4) -> Any:
    return chunk_plan(
        PlanOptions(config, weights="f32", kernels=KernelOptions(rows_per_draw=targets), max_texture_size=2048),
        rows=rows,
        cache_slots=64,
    )


@pytest.mark.parametrize(("family", "targets"), [("gab", 4), ("llama", 1), ("llama", 8)])
def test_a_chunk_is_one_run_with_a_table(family: str, targets: int) -> None:
    plan = chunk(tiny(family), 20, targets)
    ((inputs, values),) = runs(plan, IDS)
    slots = -(-6 // targets)
    expected = {"longest": slots * targets, "rows": 6, "row_slots": slots, "score_slots": slots}
    assert values == {**expected, "strip_first": 0, "last_row": 5}
    for value in plan.run_values:
        value.check(values[value.name])
    table = inputs[ROWS]
    assert table.shape == plan.table[ROWS].shape
    assert table[:6, TOKEN].tolist() == IDS
    assert table[: slots * targets, POSITION].tolist() == list(range(slots * targets))
    for tokens in ([], [1] * 21):
        with pytest.raises(PlanError, match=rf"\Afound {len(tokens)} tokens; expected 1 to 20\Z"):
            runs(plan, tokens)


def test_run_values_of_rows_follow_from_the_inputs() -> None:
    config, by_targets = ModelConfig(19, 24, 3, 2, 130), {}
    for targets in (1, 4, 8):
        kernels = KernelOptions(rows_per_draw=targets, split_values=True)
        options = PlanOptions(config, weights="f32", kernels=kernels, max_texture_size=2048)
        by_targets[targets] = drafted_plan(options, rows=8, cache_slots=192)
    for rows, longest, targets, slots, groups in (
        *((1, 1, 4, 1, 1), (4, 64, 4, 1, 1), (5, 64, 4, 2, 2), (8, 65, 8, 1, 2), (3, 129, 1, 3, 9)),
    ):
        inputs = {"rows": rows, "longest": longest, "strip_first": 9}
        found = by_targets[targets].values({**inputs, "row_slots": 5})  # one that follows from others is not given
        assert found == {
            **inputs,
            "row_slots": slots,
            "score_slots": groups,
            "last_row": rows - 1,
            "score_groups": groups // slots,
        }
    with pytest.raises(PlanError, match=r"\Alongest is None; expected an integer from 1 to 134\Z"):
        by_targets[4].values({"rows": 1, "strip_first": 0})
    with pytest.raises(PlanError, match=r"\Alongest is 135; expected an integer from 1 to 134\Z"):
        by_targets[4].values({"rows": 1, "strip_first": 0, "longest": 135})
