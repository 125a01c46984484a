"""No pass of a plan fetches a texel outside of its texture: not at either end of the context, nor of a cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from made_models import of_family
from outside import draws_outside, telling_shaders
from tiers import tiered

from glinfer.config import ModelConfig
from glinfer.gl.context import open_device
from glinfer.kernels.fused.rows import BASE, POSITION, row_table
from glinfer.kernels.options import KernelOptions, default_kernels
from glinfer.lower.feed import chunk_feed
from glinfer.lower.fused.rows import ROWS, batch_plan, chunk_plan, drafted_plan
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plans import weights_for
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

EVERY, SEQUENCES = 128, 3
"""Slots of a sequence in the caches, and sequences."""


def main(name: str) -> None:
    import tempfile
    import time
    since = time.time()
    made = of_family(name, max_position_embeddings=EVERY)
    config = made.config
    kernels = {"gpu": default_kernels("GPU", 1024.0, "f32"), "llvm": default_kernels("llvmpipe", 1024.0, "f32")}[sys.argv[1]]
    options = PlanOptions(config, "f32", kernels, 2048)
    from glinfer.lower.fused.caches import delta_layers
    rows = 32 if delta_layers(config) else 72
    weights = weights_for(made, "fast", "f32")
    total = EVERY * SEQUENCES
    with tempfile.TemporaryDirectory() as folder, open_device(api="desktop") as device:
        root = telling_shaders(Path(folder))
        def session(plan):
            return Session(plan, weights, device, shader_root=root)
        fast = session(fast_plan(options))
        for position in (0, 1, EVERY - 1):
            print("fast", position, draws_outside(fast, fast.plan.values_for(position + 1, token=5)))
        targets = kernels.rows_per_draw
        plans = {
            "chunk": chunk_plan(options, rows=rows, cache_slots=total, every=EVERY, export_residual=True),
            "score": chunk_plan(options, rows=rows, cache_slots=EVERY, likelihoods=True),
            "drafted": drafted_plan(options, rows=16, cache_slots=EVERY),
        }
        for name, plan in plans.items():
            one = session(plan)
            table = row_table(plan.table[ROWS].shape[0])
            last = 2 * EVERY if name == "chunk" else 0
            n = plan.max_rows
            for base, position, count in ((0, 0, 5), (0, 0, n), (last, 7, n), (last, EVERY - n, n), (last, EVERY - 5, 5)):
                given = chunk_feed(table, [3] * count, position, targets, base)
                one.write(ROWS, table)
                print(name, base, position, count, draws_outside(one, one.plan.values_for(count, **given)))
        plan = batch_plan(options, sequences=SEQUENCES, capacity=EVERY)
        one = session(plan)
        table = row_table(plan.table[ROWS].shape[0])
        table[:SEQUENCES, POSITION] = 0, EVERY - 1, 63
        table[:SEQUENCES, BASE] = 0, EVERY, 2 * EVERY + 64
        one.write(ROWS, table)
        print("batch", draws_outside(one, plan.values_for(SEQUENCES, rows=SEQUENCES, longest=EVERY)))
    print(time.time() - since)

if __name__ == "__main__":
    main(sys.argv[2])
