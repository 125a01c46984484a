"""The choice of tokens with filters on the GPU: the plan ``choice`` bound over the logits of another session."""

from __future__ import annotations

from collections.abc import Sequence

from glinfer.engine.changes import ChangeTable
from glinfer.engine.sampler import SamplingOptions
from glinfer.models.fast.choice import CHANGES, MASK, TABLE, choice_plan, logits_of, picks_of
from glinfer.models.session import Session
from glinfer.ops.fused.allowed import Words
from glinfer.ops.fused.choice import CHANGES as CHANGE_WORD
from glinfer.ops.fused.choice import FILTER_WORDS
from glinfer.ops.fused.rows import SOURCE, fill_choices, row_table
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import Drawn


class Choice:
    """Chooses tokens of rows of another session's logits, into that session's picks; with ``masked`` allowed ones only.

    With ``changed`` the logits of each row may change first, by penalties and biases.

    Attributes:
        session: release it when the other session is released.
        table: how the token of each row is chosen, see :mod:`glinfer.ops.fused.choice`; :meth:`upload` sends it.
        changes: the changes to each row, with ``changed``.
    """

    def __init__(self, bound: Session, kernels: KernelOptions, *, masked: bool = False, changed: bool = False) -> None:
        """Bind the plan.

        Raises:
            PlanError: it does not fit the renderer.
            ShaderError: a shader does not compile.
        """
        edge = bound.device.limits.max_texture_size
        plan = choice_plan(bound.plan, kernels=kernels, max_texture_size=edge, masked=masked, changed=changed)
        shared = [*(each.name for each in logits_of(bound.plan)), picks_of(bound.plan).name]
        self.session = bound.companion(plan, (), names=shared)
        self.table = row_table(plan.table[TABLE].shape[0])
        self._texture = self.session.texture(TABLE)
        self._mask = self.session.texture(MASK) if masked else None
        vocab = logits_of(bound.plan)[0].shape[1]
        self.changes = ChangeTable(self.session.texture(CHANGES), vocab) if changed else None
        self._values = plan.values_for(1)

    def write(
        self,
        sources: Sequence[int],
        options: Sequence[SamplingOptions],
        draws: Sequence[Drawn],
        masks: Words | None = None,
        changes: Sequence[int] = (),
    ) -> None:
        """Say how the tokens of rows are chosen, before they are run.

        Args:
            sources: the numbers of the rows of logits.
            options: of each row.
            draws: of each row, :attr:`glinfer.engine.sampler.Sampler.draw`.
            masks: the allowed tokens of each row, see :mod:`glinfer.ops.fused.allowed`.
            changes: :func:`glinfer.ops.fused.changes.change_word` of each row, if their logits change.
        """
        count = len(sources)
        self.table[:count, SOURCE] = sources
        self.table[:count, FILTER_WORDS] = [each.filter_words for each in options]
        self.table[:count, CHANGE_WORD] = changes or 0
        fill_choices(self.table, draws)
        self.upload(masks)

    def upload(self, masks: Words | None = None) -> None:
        """Send the table, and the masks."""
        self.session.require_alive()
        self._texture.upload(self.table)
        if self._mask is not None and masks is not None:
            self._mask.upload(masks)

    def run(self, rows: int, *, row: int = 0, slot: int = 0) -> None:
        """Choose for ``rows`` rows of the table from ``row`` on, into the picks from ``slot`` on."""
        self._values.update(rows=rows, row=row, slot=slot)
        self.session.run(self._values)
