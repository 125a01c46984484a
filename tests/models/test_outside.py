"""No pass of a plan fetches a texel outside of its texture, at either end of the context and of a cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from made_models import of_family
from outside import draws_outside, telling_shaders

from glinfer.engine.prefill import DRAFT_ROWS
from glinfer.gl.context import open_device
from glinfer.kernels.fused.rows import BASE, POSITION, Table, row_table
from glinfer.kernels.options import default_kernels
from glinfer.lower.feed import chunk_feed
from glinfer.lower.fused.rows import ROWS, batch_plan, chunk_plan, drafted_plan
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plans import weights_for
from glinfer.program.plan import Plan
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

EVERY = 128
"""Slots of a sequence in the caches."""
BEYOND = 16
"""Positions after those that a cache has room for, which padding rows have."""


@pytest.mark.slow
def test_no_fetch_is_outside_of_its_texture(tmp_path: Path) -> None:
    """Of prompts that exceed a ring, drafts and texts at both ends of a sequence, and a batch with an idle slot."""
    made, kernels = of_family("lfm2", max_position_embeddings=EVERY + BEYOND), default_kernels("GPU", 1024.0, "f32")
    options, weights = PlanOptions(made.config, "f32", kernels, 2048), weights_for(made, "fast", "f32")
    root, found = telling_shaders(tmp_path), list[object]()
    with open_device(api="desktop") as device:

        def run(plan: Plan, inputs: Iterable[Mapping[str, int | float]], table: Table | None = None) -> None:
            session = Session(plan, weights, device, shader_root=root)
            for each in inputs:  # which may change the table
                if table is not None:
                    session.write(ROWS, table)
                found.extend((plan.name, each, draw) for draw in draws_outside(session, each))
            session.release()

        plan = fast_plan(options)
        run(plan, [plan.values_for(count, token=5) for count in (1, 2, EVERY + BEYOND)])
        for last, plan in (
            (2 * EVERY, chunk_plan(options, rows=72, cache_slots=3 * EVERY, every=EVERY, export_residual=True)),
            (0, chunk_plan(options, rows=72, cache_slots=EVERY, likelihoods=True)),
            (0, drafted_plan(options, rows=DRAFT_ROWS[-1], cache_slots=EVERY)),
        ):
            rows, table = plan.max_rows, row_table(plan.table[ROWS].shape[0])
            cases = (0, 0, 5), (0, 0, rows), (last, 7, rows), (last, EVERY - rows, rows), (last, EVERY - 5, 5)
            feeds = ((rows, chunk_feed(table, [5] * rows, place, 8, base)) for base, place, rows in cases)
            run(plan, (plan.values_for(rows, **given) for rows, given in feeds), table)
        plan = batch_plan(options, sequences=3, capacity=EVERY)
        table = row_table(plan.table[ROWS].shape[0])
        table[:3, POSITION], table[:3, BASE] = (0, EVERY - 1, 63), (0, EVERY, 2 * EVERY + 64)
        run(plan, [plan.values_for(3, rows=3, longest=EVERY)], table)
    assert not found
