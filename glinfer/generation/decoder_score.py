"""How likely a decoder finds texts, window by window and many tokens in a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glinfer.generation.decoder import token_rows
from glinfer.generation.score import Judge, Numbers, TextScore, Tokens, Window, check_likelihoods, windows_of
from glinfer.models.choice import DecoderPlans
from glinfer.models.decoder import TOKENS
from glinfer.models.decoder_fast import APPENDED, LIKELIEST, LOSSES, POSITION, ROWS, TARGETS
from glinfer.models.session import Session

_MOST_ROWS, _MOST_LOGITS = 128, 1 << 22


class DecoderScorer(Judge):
    """Runs texts through a plan that judges every token, window by window."""

    def __init__(self, plans: DecoderPlans, root: Session) -> None:
        """Bind the plan over the weights of ``root``, with a cache of its own.

        Raises:
            PlanError: it does not fit the renderer.
        """
        self.config, self._flush_every = plans.config, plans.kernels.flush_every
        self.rows = max(1, min(_MOST_ROWS, self.config.max_position_embeddings, _MOST_LOGITS // self.config.vocab_size))
        self.session = root.companion(plans.fast(self.rows, likelihoods=True), ("weight",))

    def score(
        self,
        texts: Sequence[Sequence[int]],
        *,
        stride: int | None = None,
        on_window: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[TextScore]:
        """See :meth:`glinfer.generation.score.Judge.score`."""
        jobs = windows_of(texts, self.config.max_position_embeddings, stride)
        found = [(np.zeros(len(ids) - 1), np.zeros(len(ids) - 1, dtype=np.intp)) for ids in texts]
        for done, window in enumerate(jobs, start=1):
            logprobs, likeliest = self._window(texts[window.text], window)
            kept = slice(window.scored - 1, window.stop)  # the row of a token predicts the next one
            found[window.text][0][kept] = logprobs[window.scored - 1 - window.start :]
            found[window.text][1][kept] = likeliest[window.scored - 1 - window.start :]
            on_window(done, len(jobs))
        return [TextScore(list(ids), *numbers) for ids, numbers in zip(texts, found, strict=True)]

    def _window(self, ids: Sequence[int], window: Window) -> tuple[Numbers, Tokens]:
        """(log-probability of the next token, likeliest) of every token of a window."""
        length = window.stop - window.start
        logprobs, likeliest = np.zeros(length), np.zeros(length, dtype=np.intp)
        for first in range(0, length, self.rows):
            count = min(self.rows, length - first)
            at = window.start + first
            self.session.write(TOKENS, token_rows(ids[at : at + count], self.rows))
            self.session.write(TARGETS, token_rows(ids[at + 1 : at + 1 + count], self.rows))
            values = {POSITION: first, ROWS: count, APPENDED: count * self.config.num_key_value_heads}
            self.session.run(values, flush_every=self._flush_every)
            logprobs[first : first + count] = -self.session.read(LOSSES, rows=count)[:, 0]
            likeliest[first : first + count] = self.session.read(LIKELIEST, rows=count)[:, 0]
        check_likelihoods(logprobs)
        return logprobs, likeliest
