"""Companions of the fast plan in a browser: the plans that the runtime replays besides the one of a token.

``rows`` runs a piece of a prompt, as :mod:`glinfer.engine.prefill` does in Python.
"""

from __future__ import annotations

from dataclasses import replace

from glinfer.engine.prefill import MAX_SINGLE_TOKENS, Prefill
from glinfer.export.plan import Companion
from glinfer.models.fast.rows import ROWS
from glinfer.models.fast.token import HIDDEN, tail_draws
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan

PIECE = 64
"""Tokens of a prompt that one run takes at most, see docs/performance.md."""


def companions_of(options: PlanOptions, plan: Plan) -> list[Companion]:
    """The companions of a model's fast plan.

    Args:
        options: how the plans are built.
        plan: the fast plan.

    Raises:
        PlanError: a plan does not fit the textures.
    """
    return [_rows(options, plan)]


def _rows(options: PlanOptions, plan: Plan) -> Companion:
    """The plan ``chunk``: ``least`` new tokens or more run in pieces, of ``most`` each, ``targets`` rows to a slot.

    Draws of ``plan`` from ``tail`` on remain for the last token of the last piece.
    """
    kernels = replace(options.kernels, chunk=min(options.kernels.chunk, PIECE))
    made = Prefill(replace(options, kernels=kernels)).plan()
    facts = {
        "least": MAX_SINGLE_TOKENS + 1,
        "most": made.max_rows,
        "targets": kernels.rows_per_draw,
        "tail": len(plan.draws) - tail_draws(plan, options.config),
    }
    return Companion("rows", made, facts, {"table": ROWS}, names=(HIDDEN,))
