"""Companions of the fast plan in a browser: further plans that the runtime replays.

``rows`` runs a piece of a prompt, as :mod:`glinfer.engine.prefill` does in Python. ``choice`` chooses a token with
filters, as :mod:`glinfer.engine.run.choice` does. ``drafted`` checks drafts, as
:meth:`glinfer.engine.run.decode.DecodeSession.accept` does, and ``drafted_choice`` chooses tokens of its rows with
filters.
"""

from __future__ import annotations

from dataclasses import replace

from glinfer.engine.prefill import DRAFT_ROWS, MAX_SINGLE_TOKENS, Prefill
from glinfer.errors import PlanError
from glinfer.export.plan import Companion
from glinfer.lower.fused.caches import cache_slots
from glinfer.lower.fused.choice import TABLE, choice_plan, logits_of
from glinfer.lower.fused.rows import PICKS, ROWS, drafted_plan
from glinfer.lower.options import PlanOptions
from glinfer.program.plan import Plan

PIECE = 64
"""Limit for the prompt tokens of one run, see docs/performance.md."""


def companions_of(options: PlanOptions, plan: Plan) -> list[Companion]:
    """The companions of a model's fast plan."""
    found, drafted = [_rows(options, plan), _choice("choice", plan, options)], _drafted(options)
    if drafted is None:
        return found
    choice = _choice("drafted_choice", drafted.plan, options)
    return [*found, drafted, replace(choice, over=drafted.name, on_demand=True)]


def _rows(options: PlanOptions, plan: Plan) -> Companion:
    """The plan ``chunk``: at least ``least`` new tokens run in pieces of ``most``, ``targets`` rows to a slot.

    For the last token, draws of ``plan`` from ``tail`` on remain.
    """
    kernels = replace(options.kernels, chunk=min(options.kernels.chunk, PIECE))
    made = Prefill(replace(options, kernels=kernels)).plan()
    facts = {
        "least": MAX_SINGLE_TOKENS + 1,
        "most": made.max_rows,
        "targets": kernels.rows_per_draw,
        "tail": plan.last_layer,
    }
    return Companion("rows", made, facts, {"table": ROWS})


def _drafted(options: PlanOptions) -> Companion | None:
    """The plan ``drafted`` of ``most`` rows, ``targets`` to a slot; None if it does not fit the textures."""
    rows = DRAFT_ROWS[-1]
    try:
        made = drafted_plan(options, rows=rows, cache_slots=cache_slots(options.config))
    except PlanError:
        return None
    facts = {"most": rows, "targets": options.kernels.rows_per_draw}
    inputs = {"table": ROWS, "picks": PICKS, "logits": [tensor.name for tensor in logits_of(made)]}
    return Companion("drafted", made, facts, inputs, on_demand=True)


def _choice(name: str, plan: Plan, options: PlanOptions) -> Companion:
    """The plan ``choice``, which reads the logits of ``plan`` and writes its picks."""
    made = choice_plan(plan, kernels=options.kernels, max_texture_size=options.max_texture_size)
    return Companion(name, made, {}, {"table": TABLE})
