"""The inputs of one run of a plan, filled in here alone: the table of rows, and the run values.

A run of the fast plan over one token has run values alone; runs over many rows have the table too, whose words
:mod:`glinfer.ops.fused.rows` lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glinfer.errors import PlanError
from glinfer.models.fast.rows import ROWS, slots_for
from glinfer.models.fast.token import PICKS
from glinfer.models.plan import Plan
from glinfer.ops.fused.cached import score_slots
from glinfer.ops.fused.rows import BASE, LAST, POSITION, TOKEN, Table, row_table
from glinfer.ops.spec import Array

RunInputs = Mapping[str, Array]
Values = dict[str, int | float]
TOKENS, LAST_ROW = "tokens", "last_row"


def chunk_feed(table: Table, ids: Sequence[int], position: int, targets: int, base: int = 0) -> Values:
    """Fill in tokens that follow each other in one sequence, from ``position`` on, for ``chunk`` and ``score``.

    Padding rows continue the positions; their results and cache slots are ignored.

    Args:
        table: the table of rows to fill in.
        ids: the tokens, at most as many as the plan has rows.
        position: position of the first token in its sequence.
        targets: rows of a slot, one in each render target.
        base: the cache slot at which the sequence begins.

    Returns:
        The run values.
    """
    rows = len(ids)
    slots = slots_for(rows, targets)
    table[: slots * targets, POSITION] = np.arange(position, position + slots * targets)
    table[:rows, TOKEN] = ids
    table[:, BASE] = base
    table[:, LAST] = position + rows - 1
    return chunk_values(rows, position + slots * targets, targets, base + position)


def chunk_values(rows: int, longest: int, targets: int, strip_first: int) -> Values:
    """The run values of ``rows`` rows that see at most ``longest`` tokens each."""
    slots = slots_for(rows, targets)
    return {
        "rows": rows,
        "row_slots": slots,
        "score_slots": score_slots(longest) * slots,
        "strip_first": strip_first,
        LAST_ROW: rows - 1,
    }


def runs(plan: Plan, ids: Sequence[int]) -> list[tuple[RunInputs, Values]]:
    """The inputs and run values of each run over the ids: one run for each token of the fast plan, else a single one.

    Raises:
        PlanError: the plan takes fewer tokens.
    """
    if PICKS in plan.table:
        return [({}, {**plan.values_for(place + 1), "token": int(token)}) for place, token in enumerate(ids)]
    if ROWS in plan.table:
        table = row_table(plan.table[ROWS].shape[0])
        targets = sum(tensor.name.startswith("row.hidden.a.") for tensor in plan.tensors)
        if not 1 <= len(ids) <= plan.max_rows:
            raise PlanError(f"found {len(ids)} tokens; expected 1 to {plan.max_rows}")
        return [({ROWS: table}, chunk_feed(table, ids, 0, targets))]
    rows = np.asarray(ids, dtype=np.int32)[:, None]
    if LAST_ROW in {value.name for value in plan.run_values}:  # rows behind the sequence are padding
        rows = np.pad(rows, [(0, plan.table[TOKENS].shape[0] - len(rows)), (0, 0)])
    return [({TOKENS: rows}, plan.values_for(len(ids)))]
