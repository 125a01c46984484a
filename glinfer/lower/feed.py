"""The inputs of one run of a plan: the table of rows, and the run values that do not follow from others.

A run of the fast plan over one token has no table. :mod:`glinfer.kernels.fused.rows` lists the words of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glinfer.errors import PlanError
from glinfer.kernels.fused.rows import BACK, BASE, DRAWN, LAST, LEARNED, LONG, NOISE, POSITION, TOKEN, Table, row_table
from glinfer.kernels.spec import Array
from glinfer.lower.fused.encode import TEXTS
from glinfer.lower.fused.rows import ROWS, slots_for
from glinfer.lower.fused.token import PICKS
from glinfer.program.plan import Plan

RunInputs = Mapping[str, Array]
Values = dict[str, int | float]
Encoded = tuple[Sequence[int], Sequence[int]]
"""The ids and the types of a text's tokens."""
TOKENS, LAST_ROW = "tokens", "last_row"


def chunk_feed(
    table: Table,
    ids: Sequence[int],
    position: int,
    targets: int,
    base: int = 0,
    *,
    long: bool = False,
    back: int = 0,
) -> Values:
    """Fill in tokens that follow each other in one sequence, from ``position`` on, for ``chunk`` and ``score``.

    Padding rows continue the positions; their results and cache slots are ignored.

    Args:
        table, ids: the table of rows to fill in, and at most as many tokens.
        position: position of the first token in its sequence.
        targets: rows of a slot, one in each render target.
        base: the cache slot at which the sequence begins.
        long: whether they have the second set of angles.
        back: by how much the positions of their angles are below theirs.

    Returns:
        The inputs of the run, without its adapter.
    """
    rows = len(ids)
    slots = slots_for(rows, targets)
    table[: slots * targets, POSITION] = np.arange(position, position + slots * targets)
    table[:rows, TOKEN] = ids
    table[:, BASE] = base
    table[:, LAST] = position + rows - 1
    table[:, NOISE] = table[:, NOISE] & DRAWN | LONG * long | BACK * back
    return {"rows": rows, "longest": position + slots * targets, "strip_first": base + position}


def encode_feed(
    rows: Table,
    texts: Table,
    encoded: Sequence[Encoded],
    skipped: Sequence[int],
    targets: int,
    *,
    positions: int,
    pooling: str = "mean",
) -> Values:
    """Fill in texts for the plan ``encode``, each from a new slot on.

    Args:
        rows, texts: the tables to fill in.
        encoded: token ids and token types of each text, no more than the tables have room for.
        skipped: tokens at the beginning of each text that do not count for its vector.
        targets: rows of a slot, one in each render target.
        positions: learned positions of the model; 0 where they are rotary.
        pooling: the model's, which says which tokens count.
    """
    first, longest = 0, 0
    texts[:] = 0
    for index, ((ids, types), uncounted) in enumerate(zip(encoded, skipped, strict=True)):
        count, padded = len(ids), rows_of(len(ids), targets)
        last, own = count - 1, rows[first : first + padded]
        own[:, POSITION], own[:, BASE], own[:, LAST] = np.arange(padded), first, last
        own[:, TOKEN] = own[:, LEARNED] = 0
        own[:count, TOKEN] = ids
        own[:count, LEARNED] = np.asarray(types) * positions + np.arange(count) if positions else types
        counted = {"cls": (0, 0), "lasttoken": (last, last)}.get(pooling, (min(uncounted, last), last))
        texts[index, [BASE, POSITION, LAST]] = first, *counted
        first, longest = first + padded, max(longest, count)
    return {"rows": first, "longest": longest, "strip_first": 0, "texts": len(encoded)}


def rows_of(tokens: int, targets: int) -> int:
    """Rows of a text of ``tokens`` tokens: whole slots."""
    return targets * slots_for(tokens, targets)


def runs(plan: Plan, ids: Sequence[int], first: int = 0) -> list[tuple[RunInputs, Values]]:
    """The inputs and run values of each run over the ids: one run for each token of the fast plan, else a single one.

    ``first`` is the position of the first id in plans for tokens that follow each other, over caches of those before.

    Raises:
        PlanError: the plan takes fewer tokens.
    """
    if PICKS in plan.table:
        long = int(plan.is_long(len(ids)))  # all have the set of the last one
        return [({}, plan.values_for(length, token=int(token), long=long)) for length, token in enumerate(ids, 1)]
    if ROWS in plan.table:
        table = row_table(plan.table[ROWS].shape[0])
        targets = sum(tensor.name.startswith("row.hidden.a.") for tensor in plan.tensors)
        if not 1 <= len(ids) <= plan.max_rows:
            raise PlanError(f"found {len(ids)} tokens; expected 1 to {plan.max_rows}")
        if TEXTS in plan.table:
            texts = row_table(plan.table[TEXTS].shape[0])
            # Tokens of the first type: their rows are positions, or all alike.
            given = encode_feed(
                table, texts, [(ids, [0] * len(ids))], [0], targets, positions=int("rope" not in plan.table)
            )
            return [({ROWS: table, TEXTS: texts}, plan.values_for(len(ids), **given))]
        given = chunk_feed(table, ids, first, targets, long=plan.is_long(len(ids)))
        return [({ROWS: table}, plan.values_for(len(ids), **given))]
    rows = np.asarray(ids, dtype=np.int32)[:, None]
    if LAST_ROW in {value.name for value in plan.run_values}:  # rows after the sequence are padding
        rows = np.pad(rows, [(0, plan.table[TOKENS].shape[0] - len(rows)), (0, 0)])
    return [({TOKENS: rows}, plan.values_for(len(ids)))]
