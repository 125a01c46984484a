"""Choose filtered tokens on the GPU, with the plan ``choice`` bound over the logits of another session."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glinfer.engine.logits import LogitChanges
from glinfer.engine.sampler import SamplingOptions
from glinfer.gl.layouts.flat import LANES, FlatLayout
from glinfer.gl.texture import Texture
from glinfer.kernels.fused.allowed import Words
from glinfer.kernels.fused.changes import PENALTIES, bias_columns, code_columns
from glinfer.kernels.fused.choice import CHANGES as CHANGE_WORD
from glinfer.kernels.fused.choice import FILTER_WORDS
from glinfer.kernels.fused.rows import SOURCE, fill_choices, row_table
from glinfer.kernels.noise import Drawn
from glinfer.kernels.options import KernelOptions
from glinfer.lower.fused.choice import CHANGES, MASK, TABLE, choice_plan, logits_of
from glinfer.program.session import Session
from glinfer.text.images import without_images

_NONE = LogitChanges()


class ChangeTable:
    """Writes rows of the table of :mod:`glinfer.kernels.fused.changes`; for a known text only its new tokens."""

    def __init__(self, texture: Texture, vocab: int) -> None:
        """Use the texture of a table for ``vocab`` tokens."""
        assert isinstance(texture.layout, FlatLayout)
        layout, self.texture, self._vocab = texture.layout, texture, vocab
        self._lines = layout.row_texels // layout.width  # of a row
        self._numbers = np.zeros((layout.rows, layout.row_texels * LANES), np.float32)
        self._texels = self._numbers.reshape(-1, layout.width, LANES)
        # The text of each row, and how many of its tokens are in the table.
        self._followed: dict[int, tuple[object, int]] = {}

    def fill(
        self,
        row: int,
        options: SamplingOptions,
        held: Sequence[int],
        changes: LogitChanges | None = None,
        generated: Sequence[int] = (),
    ) -> None:
        """Write a row for a text that holds the tokens ``held`` and has generated ``generated``."""
        numbers, changes = self._numbers[row], changes or _NONE
        numbers[:] = 0
        numbers[PENALTIES] = *options.penalty_factors, changes.presence_penalty, changes.frequency_penalty
        numbers[bias_columns(self._vocab)][list(changes.bias)] = list(changes.bias.values())
        codes = numbers[code_columns(self._vocab)]
        codes[np.asarray(without_images(held), np.int64)] = 1
        codes += 2 * np.bincount(np.asarray(generated, np.int64), minlength=self._vocab)
        line = row * self._lines
        self.texture.upload_lines(line, self._texels[line : line + self._lines])

    def follow(
        self,
        row: int,
        text: object,
        options: SamplingOptions,
        held: Sequence[int],
        changes: LogitChanges | None,
        generated: Sequence[int],
    ) -> None:
        """Write a row as :meth:`fill` does, but only the new tokens if the row has the same text already.

        Calls with an equal ``text`` are for the same text: ``held`` must only grow by generated tokens. Tokens whose
        codes would change no logit are not written: all without penalties, repeated ones without a frequency penalty.
        """
        before, count = self._followed.get(row, (None, 0))
        if before != text:
            self.fill(row, options, held, changes, generated)
        else:
            numbers, columns = self._numbers.reshape(-1), self._numbers.shape[1]
            repetition, _, presence, frequency = self._numbers[row, PENALTIES]
            enough = math.inf if frequency else 2 if presence else 1 if repetition != 1 else 0
            for token in held[count:]:
                place = row * columns + code_columns(self._vocab).start + 2 * token
                if numbers[place] >= enough:
                    continue
                numbers[place] += 2 if numbers[place] % 2 else 3
                line, column = divmod(place // LANES, self._texels.shape[1])
                self.texture.upload_lines(line, self._texels[line : line + 1, column : column + 1], column)
        self._followed[row] = text, len(held)


class Choice:
    """Chooses tokens from rows of another session's logits, and writes that session's picks.

    ``masked`` restricts the choice to allowed tokens; ``changed`` applies penalties and biases first, with the table
    ``changes``. ``session`` is released with the other one. ``table`` has the filters and noise of each row, see
    :mod:`glinfer.kernels.fused.choice`; :meth:`upload` sends it.
    """

    def __init__(self, bound: Session, kernels: KernelOptions, *, masked: bool = False, changed: bool = False) -> None:
        """Bind the plan; PlanError if it does not fit the renderer, ShaderError if a shader does not compile."""
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
        """Fill and upload the table, one row for each token to choose, from the row ``sources`` of the logits.

        ``draws`` are :attr:`glinfer.engine.sampler.Sampler.draw` of each; ``masks`` its allowed tokens, see
        :mod:`glinfer.kernels.fused.allowed`; ``changes`` its :func:`glinfer.kernels.fused.changes.change_word`.
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

    def run(self, rows: int, *, row: int = 0, slot: int = 0, read: bool = True) -> None:
        """Choose for ``rows`` rows of the table from ``row`` on, and write the picks from ``slot`` on.

        ``read`` is as in :meth:`glinfer.program.session.Session.run`.
        """
        self.session.run({"rows": rows, "row": row, "slot": slot}, read=read)
