"""Choose filtered tokens on the GPU, with the plan ``choice`` bound over the logits of another session."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.engine.logits import LogitChanges
from glinfer.engine.sampler import SamplingOptions
from glinfer.gl.layouts.flat import LANES, FlatLayout
from glinfer.kernels.fused.allowed import Words
from glinfer.kernels.fused.changes import PENALTIES, WRITE_WORDS, WRITTEN, bias_columns, code_columns
from glinfer.kernels.fused.choice import CHANGES as CHANGE_WORD
from glinfer.kernels.fused.choice import FILTER_WORDS
from glinfer.kernels.fused.rows import SOURCE, fill_choices, row_table
from glinfer.kernels.noise import Drawn
from glinfer.kernels.options import KernelOptions
from glinfer.lower.fused.choice import CHANGES, CHOICE_DRAWS, MASK, TABLE, TEXELS, choice_plan, logits_of
from glinfer.program.session import Session
from glinfer.text.images import without_images

_NONE = LogitChanges()


class ChangeTable:
    """The table of :mod:`glinfer.kernels.fused.changes`, of which a draw writes the texels that have changed."""

    def __init__(self, session: Session, vocab: int) -> None:
        """Use the table of the plan ``choice`` for ``vocab`` tokens."""
        layout = session.texture(CHANGES).layout
        assert isinstance(layout, FlatLayout)
        self._session, self._vocab, self._row_texels = session, vocab, layout.row_texels
        self._numbers = np.zeros((layout.rows, layout.row_texels * LANES), np.float32)
        self._each = self._numbers.reshape(-1).data  # faster than NumPy for single numbers
        self._texels = self._numbers.reshape(-1, LANES)
        # The texels with numbers of each row, and those to write; one may occur twice.
        self._used: list[list[int]] = [[] for _ in self._numbers]
        self._changed: list[int] = []
        self._words = np.zeros((WRITTEN, WRITE_WORDS), np.uint32)
        # The text of each row, how many of its tokens are in the table, and whether further ones change logits.
        self._followed: dict[int, tuple[object, int, bool]] = {}

    def fill(
        self,
        row: int,
        options: SamplingOptions,
        held: Sequence[int],
        changes: LogitChanges | None = None,
        generated: Sequence[int] = (),
    ) -> None:
        """Set a row for a text that holds the tokens ``held`` and has generated ``generated``."""
        numbers, changes, before, first = self._numbers[row], changes or _NONE, self._used[row], row * self._row_texels
        self._texels[before] = 0
        numbers[PENALTIES] = *options.penalty_factors, changes.presence_penalty, changes.frequency_penalty
        numbers[bias_columns(self._vocab)][list(changes.bias)] = list(changes.bias.values())
        # Only the repetition penalty needs tokens that were not generated.
        known = without_images(held) if options.penalises else ()
        tokens, codes = np.array([*known, *generated, *changes.bias], np.int64), numbers[code_columns(self._vocab)]
        codes[tokens[: len(known)]] = 1
        np.add.at(codes, tokens[len(known) : len(known) + len(generated)], 2)
        self._used[row] = [*{first, *(first + 1 + tokens // 2).tolist()}]
        self._changed += before + self._used[row]

    def follow(
        self,
        row: int,
        text: object,
        options: SamplingOptions,
        held: Sequence[int],
        changes: LogitChanges | None,
        generated: Sequence[int],
    ) -> None:
        """Set a row as :meth:`fill` does, but only the new tokens if the row has the same text already.

        Calls with an equal ``text`` are for the same text: ``held`` must only grow by generated tokens.
        """
        before, count, penalised = self._followed.get(row, (None, 0, True))
        if before != text:
            self.fill(row, options, held, changes, generated)
            penalised = options.penalises or (changes or _NONE).penalises
        elif penalised:
            numbers, codes = self._each, row * self._row_texels * LANES + code_columns(self._vocab).start
            for token in held[count:]:
                index = codes + 2 * token
                numbers[index] += 2 if numbers[index] % 2 else 3
                self._used[row].append(index // LANES)
                self._changed.append(index // LANES)
        self._followed[row] = text, len(held), penalised

    def send(self) -> None:
        """Write the changed texels to the texture, with one draw for :data:`WRITTEN` of them."""
        for first in range(0, len(self._changed), WRITTEN):
            changed = np.array(self._changed[first : first + WRITTEN])
            words = self._words[: len(changed)]
            words[:, 0], words[:, LANES:] = changed, self._texels[changed].view(np.uint32)
            self._session.write(TEXELS, words)
            values = {"rows": 1, "row": 0, "slot": 0, "written": len(changed)}
            self._session.run(values, first=CHOICE_DRAWS, read=False)
        self._changed.clear()


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
        self.changes = ChangeTable(self.session, vocab) if changed else None

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
        """Upload the table, the masks and the changes to logits."""
        self.session.require_alive()
        self._texture.upload(self.table)
        if self._mask is not None and masks is not None:
            self._mask.upload(masks)
        if self.changes is not None:
            self.changes.send()

    def run(self, rows: int, *, row: int = 0, slot: int = 0, read: bool = True) -> None:
        """Choose for ``rows`` rows of the table from ``row`` on, and write the picks from ``slot`` on.

        ``read`` is as in :meth:`glinfer.program.session.Session.run`.
        """
        values = {"rows": rows, "row": row, "slot": slot, "written": 1}
        self.session.run(values, draws=CHOICE_DRAWS, read=read)
