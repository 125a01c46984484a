"""The plan ``choice``: the choice of tokens with filters, three passes over the logits of another plan.

It is bound as a companion of that plan when it is first needed, and writes into that plan's picks, so that the next run
takes its token from them on the GPU.
"""

from __future__ import annotations

from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.layouts.flat import LANES, FlatLayout
from glinfer.kernels.fused.allowed import mask_words
from glinfer.kernels.fused.changes import WRITE_WORDS, WRITTEN, changes_layout, write_changes
from glinfer.kernels.fused.choice import LISTED, Lists, Ranks, choice_draws, pieces_for
from glinfer.kernels.fused.rows import ROW_WORDS, RowInterleaved
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import RunValue, TensorSpec
from glinfer.lower.fused import rows
from glinfer.lower.fused import token as fast
from glinfer.program.plan import Plan, PlanBuilder

TABLE, MASK, CHANGES, TEXELS = "choice.rows", "choice.mask", "choice.changes", "choice.texels"
CHOICE_DRAWS = 3
"""Draws of a choice; one that writes texels of the table of changes follows them."""
STEPS = 64
"""Rows of the table where the other plan runs one token: one for each of the next steps."""


def logits_of(plan: Plan) -> tuple[TensorSpec, ...]:
    """The logits of the plan ``fast``, a row, or of ``batch`` or ``drafted``, interleaved tensors."""
    if fast.LOGITS in plan.table:
        return (plan.table[fast.LOGITS],)
    return tuple(tensor for tensor in plan.tensors if tensor.name.startswith(f"{rows.LOGITS}."))


def picks_of(plan: Plan) -> TensorSpec:
    """Where a plan leaves its choices."""
    return plan.table[fast.PICKS if fast.LOGITS in plan.table else rows.PICKS]


def choice_plan(
    plan: Plan, *, kernels: KernelOptions, max_texture_size: int, masked: bool = False, changed: bool = False
) -> Plan:
    """The plan ``choice`` for the rows of logits of ``fast``, ``batch`` or ``drafted``.

    Each run reads tables that are written before it: ``choice.rows``, with ``masked`` the allowed tokens in
    ``choice.mask``. With ``changed`` it reads penalties and biases in ``choice.changes``, of which a fourth draw writes
    the texels in ``choice.texels``. Run values: see :func:`glinfer.kernels.fused.choice.choice_draws`, and
    :func:`glinfer.kernels.fused.changes.write_changes`.

    Raises:
        PlanError: a table does not fit a texture.
    """
    logits, picks = logits_of(plan), picks_of(plan)
    count, vocab = logits[0].shape[0] * len(logits), logits[0].shape[1]
    steps = STEPS if fast.LOGITS in plan.table else count
    values = [
        RunValue("rows", 1, count, usual="tokens"),
        RunValue("row", 0, steps - 1),
        RunValue("slot", 0, picks.shape[0] - 1),
        *([RunValue("written", 1, WRITTEN)] if changed else []),
    ]
    builder = PlanBuilder("choice", count, values)
    builder.shared = tuple(tensor.name for tensor in (*logits, picks))

    def laid_out(tensor: TensorSpec, kind: str) -> TensorSpec:
        assert isinstance(tensor.layout, BlockLayout)
        return builder.laid_out(tensor.name, kind, tensor.layout)

    def table(name: str, words: int, rows: int = steps) -> TensorSpec:
        return builder.laid_out(name, "input", RowLayout.of((rows, words), "rgba32ui", max_texture_size))

    def flat(name: str) -> TensorSpec:
        layout = FlatLayout.of((count, LISTED * pieces_for(vocab)), "rgba32f", max_texture_size)
        return builder.laid_out(f"choice.{name}", "activation", layout)

    changes = builder.laid_out(CHANGES, "cache", changes_layout(count, vocab, max_texture_size)) if changed else None
    builder.draw(
        *choice_draws(
            RowInterleaved(tuple(laid_out(each, "input") for each in logits)),
            table(TABLE, ROW_WORDS),
            Lists(*map(flat, Lists._fields)),
            Ranks(*map(flat, Ranks._fields)),
            laid_out(picks, "cache"),
            kernels=kernels,
            mask=table(MASK, mask_words(vocab)) if masked else None,
            changes=changes,
        )
    )
    if changes is not None:
        texels = changes.shape[0] * changes.shape[1] // LANES
        builder.draw(write_changes(table(TEXELS, WRITE_WORDS, WRITTEN), builder.view(changes, texels, LANES)))
    return builder.build(picks.name)
