"""The token loop: ids in, one forward pass and one sampled id at a time out."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.generation.sampler import Sampler, SamplingOptions

Forward = Callable[[Sequence[int]], npt.NDArray[np.float32]]
"""Token ids of the whole sequence → logits [vocab] of the next token."""


@dataclass
class GenerationStats:
    """What a stream has done so far.

    ``finish_reason`` is None while it runs, then ``stop`` (a stop id or stop string), ``length``
    (max_tokens reached), ``context`` (the model's context is full), ``closed``, or ``error`` (an exception
    came through). ``tokens`` counts a stop id too, since it was computed. ``seconds`` counts the model's own
    time, not what the caller did between tokens.
    """

    prompt_tokens: int
    tokens: int = 0
    draws: int = 0
    seconds: float = 0.0
    finish_reason: str | None = None

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over the model's own time; 0 before the first."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def draws_per_token(self) -> float:
        """Draw calls issued for each generated token."""
        return self.draws / self.tokens if self.tokens else 0.0


class TokenStream:
    """An iterator over generated ids; :attr:`stats` is current at any time, :attr:`ids` holds what came out."""

    def __init__(
        self,
        forward: Forward,
        prompt: Sequence[int],
        options: SamplingOptions,
        *,
        max_tokens: int,
        context: int,
        stop_ids: Sequence[int] = (),
        count_draws: Callable[[], int] = lambda: 0,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; nothing runs before the first ``next()``.

        Args:
            forward: runs the model on the whole sequence.
            prompt: checked ids.
            options: how to sample.
            max_tokens: at least 1.
            context: the longest sequence that ``forward`` takes.
            stop_ids: ids that end the stream; they are not yielded.
            count_draws: the device's running count of draw calls.
            on_end: called once when the stream ends, however it ends.

        Raises:
            InputError: ``max_tokens`` is not a whole number of at least 1.
        """
        self.ids: list[int] = []
        self.stats = GenerationStats(prompt_tokens=len(prompt))
        self._forward, self._count_draws, self._on_end = forward, count_draws, on_end
        self._sequence = list(prompt)
        self._sampler = Sampler(options)
        self._max_tokens, self._context = _checked_max_tokens(max_tokens), context
        self._stop_ids = frozenset(stop_ids)

    def __iter__(self) -> Iterator[int]:
        """Iterate over what is still to come."""
        return self

    def __next__(self) -> int:
        """The next generated id."""
        if self.stats.finish_reason is None and self.stats.tokens >= self._max_tokens:
            self.close("length")
        if self.stats.finish_reason is None and len(self._sequence) > self._context:
            self.close("context")
        if self.stats.finish_reason is not None:
            raise StopIteration
        try:
            token = self._step()
        except BaseException:
            self.close("error")
            raise
        if token in self._stop_ids:
            self.close("stop")
            raise StopIteration
        self.ids.append(token)
        return token

    def _step(self) -> int:
        started, draws = time.perf_counter(), self._count_draws()
        logits = self._forward(self._sequence)
        token = self._sampler.sample(logits, self._sequence)
        self._sequence.append(token)
        self.stats.seconds += time.perf_counter() - started
        self.stats.draws += self._count_draws() - draws
        self.stats.tokens += 1
        return token

    def close(self, reason: str = "closed") -> None:
        """End the stream; harmless when repeated."""
        if self.stats.finish_reason is None:
            self.stats.finish_reason = reason
            if self._on_end is not None:
                self._on_end()

    def __enter__(self) -> TokenStream:
        """Use as a context manager: closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _checked_max_tokens(value: object) -> int:
    try:
        # operator.index takes NumPy's whole numbers as well, and no float.
        number = 0 if isinstance(value, (bool, np.bool_)) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"max_tokens is {value!r}; expected a whole number of at least 1")
    return number
