"""The plan ``shortlist``: one draw over the logits of another plan, for choices that need more than the largest.

It is bound as a companion of that plan when it is first needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.gl.layouts.blocks import RowLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.models.fast import rows
from glinfer.models.fast import token as fast
from glinfer.models.plan import Plan, PlanBuilder
from glinfer.ops.fused.rows import INVERSE_TEMPERATURE, NOISE, NOISE_KEY, ROW_WORDS, SOURCE, RowInterleaved, Table
from glinfer.ops.fused.shortlist import TOKENS_PER_PIECE, pieces_for, shortlist
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import RunValue, TensorSpec

TABLE, BEST, FACTS = "shortlist.rows", "shortlist.best", "shortlist.facts"
Drawn = tuple[int, float] | None
"""(noise key, 1 / temperature) of a token that is drawn; None for the likeliest token."""


def logits_of(plan: Plan) -> tuple[TensorSpec, ...]:
    """The logits of the plan ``fast``, a row, or of ``batch``, interleaved tensors."""
    if fast.LOGITS in plan.table:
        return (plan.table[fast.LOGITS],)
    return tuple(tensor for tensor in plan.tensors if tensor.name.startswith(f"{rows.LOGITS}."))


def shortlist_plan(plan: Plan, *, kernels: KernelOptions, max_texture_size: int) -> Plan:
    """The shortlists of all rows of ``plan``, whose logits are inputs of this plan.

    Each run reads the table ``shortlist.rows``, which is written before it. Run value: ``rows``, the rows of the table
    that are run.

    Args:
        plan: ``fast`` or ``batch``.
        kernels: how the pass is shaped.
        max_texture_size: of the renderer, in texels.

    Raises:
        PlanError: the shortlists do not fit a texture.
    """
    logits = logits_of(plan)
    count, vocab = logits[0].shape[0] * len(logits), logits[0].shape[1]
    builder = PlanBuilder("shortlist", count, [RunValue("rows", 1, count, lambda tokens: min(tokens, count))])
    found = [builder.laid_out(each.name, "input", each.layout) for each in logits if each.layout is not None]
    table = builder.laid_out(TABLE, "input", RowLayout.of((count, ROW_WORDS), "rgba32ui", max_texture_size))
    shape = count, TOKENS_PER_PIECE * pieces_for(vocab)
    best, facts = (
        builder.laid_out(name, "activation", FlatLayout.of(shape, "rgba32f", max_texture_size))
        for name in (BEST, FACTS)
    )
    builder.draw(
        shortlist(
            "shortlist", RowInterleaved(tuple(found)), table, best, facts, vocab=vocab, count="rows", kernels=kernels
        )
    )
    return builder.build()


def fill_table(table: Table, rows: Sequence[int], draws: Sequence[Drawn]) -> None:
    """Fill the first rows of a table with requests for the shortlists of these rows of the logits."""
    for row, source, drawn in zip(table, rows, draws, strict=False):
        key, inverse_temperature = (0, 1.0) if drawn is None else drawn
        row[SOURCE], row[NOISE], row[NOISE_KEY] = source, drawn is not None, key
        row[INVERSE_TEMPERATURE] = np.float32(inverse_temperature).view(np.uint32)
