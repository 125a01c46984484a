"""Plans of one draw over the logits of another plan, bound as companions of that plan when they are first needed.

``shortlist`` is for choices that need more than the largest logits, ``allowed`` for the choice among the tokens that a
table of bits allows; a shortlist may take that table too.
"""

from __future__ import annotations

from collections.abc import Sequence

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.models.fast import rows
from glinfer.models.fast import token as fast
from glinfer.models.plan import Plan, PlanBuilder
from glinfer.ops.fused.allowed import mask_words
from glinfer.ops.fused.rows import ROW_WORDS, SOURCE, RowInterleaved, Table, fill_choices
from glinfer.ops.fused.sample import pick_allowed
from glinfer.ops.fused.shortlist import TOKENS_PER_PIECE, pieces_for, shortlist
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import Drawn
from glinfer.ops.spec import RunValue, TensorSpec

TABLE, BEST, FACTS, MASK, PICKS = "choices.rows", "shortlist.best", "shortlist.facts", "choices.mask", "allowed.picks"


def logits_of(plan: Plan) -> tuple[TensorSpec, ...]:
    """The logits of the plan ``fast``, a row, or of ``batch`` or ``drafted``, interleaved tensors."""
    if fast.LOGITS in plan.table:
        return (plan.table[fast.LOGITS],)
    return tuple(tensor for tensor in plan.tensors if tensor.name.startswith(f"{rows.LOGITS}."))


def shortlist_plan(plan: Plan, *, kernels: KernelOptions, max_texture_size: int, masked: bool = False) -> Plan:
    """The shortlists of all rows of ``plan``, whose logits are inputs of this plan.

    Each run reads the table ``choices.rows``, and with ``masked`` the allowed tokens in ``choices.mask``, both of which
    are written before it. Run value: ``rows``, the rows of the tables that are run.

    Args:
        plan: ``fast``, ``batch`` or ``drafted``.
        kernels: how the pass is shaped.
        max_texture_size: of the renderer, in texels.
        masked: whether each row has a table of allowed tokens.

    Raises:
        PlanError: the shortlists do not fit a texture.
    """
    over = _OverLogits("shortlist", plan, max_texture_size, masked=masked)
    shape = over.count, TOKENS_PER_PIECE * pieces_for(over.vocab)
    best, facts = (
        over.builder.laid_out(name, "activation", FlatLayout.of(shape, "rgba32f", max_texture_size))
        for name in (BEST, FACTS)
    )
    over.builder.draw(
        shortlist(
            "shortlist",
            over.logits,
            over.table,
            best,
            facts,
            vocab=over.vocab,
            count="rows",
            kernels=kernels,
            mask=over.mask,
        )
    )
    return over.builder.build()


def allowed_plan(plan: Plan, *, kernels: KernelOptions, max_texture_size: int) -> Plan:
    """The choice among allowed tokens for any rows of ``plan``, whose logits are inputs of this plan.

    Tables, run value and arguments are those of :func:`shortlist_plan` with ``masked``; the candidates of row r of the
    tables are in row r of ``allowed.picks`` [rows, 64].

    Raises:
        PlanError: a table does not fit a texture.
    """
    over = _OverLogits("allowed", plan, max_texture_size, masked=True)
    assert over.mask is not None
    layout = BlockLayout.by_block((over.count, BLOCK_FLOATS), max_texture_size)
    picks = over.builder.laid_out(PICKS, "activation", layout)
    over.builder.draw(
        pick_allowed("pick", over.logits, over.table, over.mask, picks, vocab=over.vocab, count="rows", kernels=kernels)
    )
    return over.builder.build()


class _OverLogits:
    """A plan under construction over the logits of another one, and the tables that say which rows to take and how."""

    def __init__(self, name: str, plan: Plan, max_texture_size: int, *, masked: bool) -> None:
        logits = logits_of(plan)
        count, self.vocab = logits[0].shape[0] * len(logits), logits[0].shape[1]
        self.count = count
        self.builder = PlanBuilder(name, count, [RunValue("rows", 1, count, lambda tokens: min(tokens, count))])
        found = [self.builder.laid_out(each.name, "input", each.layout) for each in logits if each.layout is not None]
        self.logits = RowInterleaved(tuple(found))
        self.table = self._table(TABLE, ROW_WORDS, max_texture_size)
        self.mask = self._table(MASK, mask_words(self.vocab), max_texture_size) if masked else None

    def _table(self, name: str, words: int, max_texture_size: int) -> TensorSpec:
        return self.builder.laid_out(name, "input", RowLayout.of((self.count, words), "rgba32ui", max_texture_size))


def fill_table(table: Table, rows: Sequence[int], draws: Sequence[Drawn]) -> None:
    """Fill the first rows of a table with requests for the shortlists of these rows of the logits."""
    table[: len(rows), SOURCE] = rows
    fill_choices(table, draws)
