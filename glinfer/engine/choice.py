"""Choose filtered tokens on the GPU, with the plan ``choice`` bound over the logits of another session."""

from __future__ import annotations

from collections.abc import Sequence

from glinfer.engine.changes import ChangeTable
from glinfer.engine.sampler import SamplingOptions
from glinfer.models.fast.choice import CHANGES, MASK, TABLE, choice_plan, logits_of
from glinfer.models.session import Session
from glinfer.ops.fused.allowed import Words
from glinfer.ops.fused.choice import CHANGES as CHANGE_WORD
from glinfer.ops.fused.choice import FILTER_WORDS
from glinfer.ops.fused.rows import SOURCE, fill_choices, row_table
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import Drawn


class Choice:
    """Chooses tokens from rows of another session's logits, and writes that session's picks.

    ``masked`` restricts the choice to allowed tokens; ``changed`` applies penalties and biases first.

    Attributes:
        session: the bound plan; release it with the other session.
        table: the filters and noise of each row, see :mod:`glinfer.ops.fused.choice`; :meth:`upload` sends it.
        changes: the penalties and biases of each row, with ``changed``.
    """

    def __init__(self, bound: Session, kernels: KernelOptions, *, masked: bool = False, changed: bool = False) -> None:
        """Bind the plan.

        Raises:
            PlanError: the plan does not fit the renderer.
            ShaderError: a shader does not compile.
        """
        edge = bound.device.limits.max_texture_size
        plan = choice_plan(bound.plan, kernels=kernels, max_texture_size=edge, masked=masked, changed=changed)
        self.session = bound.companion(plan)
        self.table = row_table(plan.table[TABLE].shape[0])
        self._texture = self.session.texture(TABLE)
        self._mask = self.session.texture(MASK) if masked else None
        vocab = logits_of(bound.plan)[0].shape[1]
        self.changes = ChangeTable(self.session.texture(CHANGES), vocab) if changed else None

    def write(
        self,
        sources: Sequence[int],
        options: Sequence[SamplingOptions],
        draws: Sequence[Drawn],
        masks: Words | None = None,
        changes: Sequence[int] = (),
    ) -> None:
        """Fill and upload the table, one row for each token to choose.

        Args:
            sources: for each row, the number of its row of logits.
            options: for each row.
            draws: for each row, :attr:`glinfer.engine.sampler.Sampler.draw`.
            masks: for each row, its allowed tokens, see :mod:`glinfer.ops.fused.allowed`.
            changes: for each row, :func:`glinfer.ops.fused.changes.change_word`, if logits change.
        """
        count = len(sources)
        self.table[:count, SOURCE] = sources
        self.table[:count, FILTER_WORDS] = [each.filter_words for each in options]
        self.table[:count, CHANGE_WORD] = changes or 0
        fill_choices(self.table, draws)
        self.upload(masks)

    def upload(self, masks: Words | None = None) -> None:
        """Upload the table and the masks."""
        self.session.require_alive()
        self._texture.upload(self.table)
        if self._mask is not None and masks is not None:
            self._mask.upload(masks)

    def run(self, rows: int, *, row: int = 0, slot: int = 0) -> None:
        """Choose for ``rows`` rows of the table from ``row`` on, and write the picks from ``slot`` on."""
        self.session.run({"rows": rows, "row": row, "slot": slot})
