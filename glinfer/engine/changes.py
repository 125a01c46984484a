"""The table of penalties and biases of rows of logits, updated as the texts of the rows grow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.engine.logits import LogitChanges
from glinfer.engine.sampler import SamplingOptions
from glinfer.gl.layouts.flat import LANES, FlatLayout
from glinfer.gl.texture import Texture
from glinfer.ops.fused.changes import PENALTIES, bias_columns, code_columns

_NONE = LogitChanges()


class ChangeTable:
    """Writes rows of the table of :mod:`glinfer.ops.fused.changes`; for a known text only its new tokens."""

    def __init__(self, texture: Texture, vocab: int) -> None:
        """Use the texture of a table for ``vocab`` tokens."""
        assert isinstance(texture.layout, FlatLayout)
        layout, self._texture, self._vocab = texture.layout, texture, vocab
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
        codes[np.asarray(held, np.int64)] = 1
        codes += 2 * np.bincount(np.asarray(generated, np.int64), minlength=self._vocab)
        self._upload(row * self._lines, self._lines)

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

        Calls with an equal ``text`` are for the same text: ``held`` must only grow by generated tokens.
        """
        before, count = self._followed.get(row, (None, 0))
        if before != text:
            self.fill(row, options, held, changes, generated)
        else:
            numbers, columns = self._numbers.reshape(-1), self._numbers.shape[1]
            for token in held[count:]:
                place = row * columns + code_columns(self._vocab).start + 2 * token
                numbers[place] += 2 if numbers[place] % 2 else 3
                self._upload(place // (LANES * self._texels.shape[1]), 1)
        self._followed[row] = text, len(held)

    def _upload(self, line: int, lines: int) -> None:
        self._texture.upload_lines(line, self._texels[line : line + lines])
