"""What runs the sequences of a scheduler: :class:`Executor`, and the steps that it issues and reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from glinfer.closing import Closing
from glinfer.config import ModelConfig
from glinfer.engine.requests import Running
from glinfer.gl.readback import Readback


class Step(NamedTuple):
    """An issued run of one token of each of the ``active`` sequences, by slot; its results are not read yet.

    The GPU chooses the next tokens of those ``picked``. ``run`` is the run's number.
    """

    active: dict[int, Running]
    picked: dict[int, Running]
    run: int = 0
    draws: int = 0
    picks: Readback | None = None

    @property
    def by_gpu(self) -> bool:
        """Whether the GPU chooses the next tokens of all sequences."""
        return self.active.keys() <= self.picked.keys()


class Choices(NamedTuple):
    """The outcome of a step, by slot: chosen tokens, errors that end sequences, and dead ends of structures.

    Slots in ``again`` must rerun their last token, because the next step has overwritten the logits they need.
    """

    chosen: dict[int, int]
    broken: dict[int, Exception]
    dead: set[int]
    again: set[int]


class Executor(Closing):
    """Runs up to ``slots`` sequences, each in its own slot: many in a Batch, one Alone.

    Attributes:
        capacity: the tokens of a slot, prompt and continuation together.
        piece: prompt tokens of one run.
        same_sums: whether decoding and prefill add in the same order, so that their keys and values are the same bits.
    """

    config: ModelConfig
    slots: int
    capacity: int
    piece: int
    same_sums = True

    @property
    @abstractmethod
    def draws_issued(self) -> int:
        """Draw calls issued so far."""

    @abstractmethod
    def run_prompt(self, slot: int, each: Running, most: int) -> tuple[int, int]:
        """Run at most ``most`` uncached tokens of a sequence; returns (their number, the rows that they took)."""

    @abstractmethod
    def run(self, active: dict[int, Running], ahead: Collection[int], ends: Sequence[int]) -> Step:
        """Issue a step of the ``active`` sequences, by their slots, without waiting for it.

        The previous step is still choosing the newest token of the slots in ``ahead``. ``ends`` has the first row
        of each slot's cache that may be overwritten.
        """

    @abstractmethod
    def choices(self, step: Step) -> Choices:
        """Wait for a step, and find the next tokens of its unfinished sequences."""

    def is_long(self, tokens: int) -> bool:
        """Whether a sequence of ``tokens`` tokens uses the second set of angles, in models with two."""
        return False

    def copy(self, source: int, target: int, rows: int) -> None:
        """Copy what caches hold of the first ``rows`` tokens between slots."""

    def usable(self, slot: int, tokens: int) -> int:
        """The cached tokens of a slot that remain if a sequence continues after its first ``tokens``: all or none."""
        return tokens

    def leave(self, each: Running) -> None:
        """Forget what was computed after the end of a sequence."""
