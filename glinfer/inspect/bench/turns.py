"""The turns in which engines are timed: all at one context length, one after the other, over and over.

A machine that slows down for a while then slows all of them. Warm-ups do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from glinfer.inspect.bench.engines import BatchEngine, Engine, FastEngine

BLOCK_TOKENS = 16
"""How many tokens one engine decodes before it is the next one's turn."""

_PAUSE_SECONDS = 0.02  # before a turn: the threads of other engines go on spinning for a while after their own
_PREFILL_SECONDS = 3.0  # for all counted prefills of one engine at one length, but for the first

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Spread:
    """A few measurements of one thing, in milliseconds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    fastest: float
    slowest: float
    samples: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """Of at least one measurement."""
        lower, median, upper = (float(value) for value in np.quantile(times, (0.25, 0.5, 0.75)))
        return cls(median, lower, upper, min(times), max(times), len(times))


@dataclass
class Times:
    """Milliseconds of one engine: of a prompt, of a token in two ways, and of a step of each of its batches."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    pipelined: list[float] = field(default_factory=list)
    batches: list[list[float]] = field(default_factory=list)


class Turns:
    """All engines at one context length: prefill first, which fills the caches, then decoding at their ends."""

    def __init__(
        self,
        engines: Sequence[Engine],
        ids: Sequence[int],
        runs: int,
        on_run: Progress,
        batches: Sequence[Sequence[BatchEngine]] = (),
    ) -> None:
        """So many counted runs of each engine with the prompt ``ids``.

        Args:
            engines: what is timed.
            ids: the prompt, as long as the context.
            runs: counted runs.
            on_run: told (turns taken, turns in all).
            batches: those of each engine, by its place; left out, there are none.
        """
        self.engines, self.ids, self.runs, self.on_run = engines, ids, runs, on_run
        self.batches = batches or [() for _ in engines]
        # One token before the block warms up where there is one; the block ends where the context is full.
        self.count = min(BLOCK_TOKENS, max(1, len(ids) - 1))
        self.start = len(ids) - self.count
        self.done = 0
        self.total = (runs + 1) * (2 * len(engines) + sum(map(len, self.batches)))
        self.times = [Times(batches=[[] for _ in held]) for held in self.batches]

    def run(self) -> list[Times]:
        """The counted times of each engine."""
        self._prefill()
        for held in self.batches:
            for batch in held:
                batch.prefill(self.ids)
        for run in range(self.runs + 1):
            for engine, held, times in zip(self.engines, self.batches, self.times, strict=True):
                time.sleep(_PAUSE_SECONDS)
                taken = [self._block(engine, engine.decode_greedy)]
                if isinstance(engine, FastEngine):
                    taken.append(self._block(engine, engine.decode_pipelined))
                self._advance()
                together = [self._batch_block(batch) for batch in held]
                if run > 0:  # the first ones warm up
                    for found, milliseconds in zip((times.decode, times.pipelined), taken, strict=False):
                        found.append(milliseconds)
                    for found, milliseconds in zip(times.batches, together, strict=True):
                        found.append(milliseconds)
        return self.times

    def _advance(self) -> None:
        self.done += 1
        self.on_run(self.done, self.total)

    def _block(self, engine: Engine, decode: Callable[[int, int], object]) -> float:
        """Milliseconds a token of one block, the first token's warming up excluded."""
        token = self.ids[self.start]
        if self.start > 0:
            engine.rewind(self.start - 1)
            decode(self.ids[self.start - 1], 1)
        engine.rewind(self.start)
        started = time.perf_counter()
        decode(token, self.count)
        return 1000.0 * (time.perf_counter() - started) / self.count

    def _batch_block(self, batch: BatchEngine) -> float:
        """Milliseconds a step of one block, at the same positions."""
        batch.decode_greedy(self.start, 1)
        started = time.perf_counter()
        batch.decode_greedy(self.start, self.count)
        taken = 1000.0 * (time.perf_counter() - started) / self.count
        self._advance()
        return taken

    def _prefill(self) -> None:
        """Milliseconds for the whole prompt; slow engines run fewer times, but once after their warm-up at least."""
        for run in range(self.runs + 1):
            for engine, times in zip(self.engines, self.times, strict=True):
                found = times.prefill
                if run <= 1 or sum(found) + found[-1] < 1000.0 * _PREFILL_SECONDS:
                    time.sleep(_PAUSE_SECONDS)
                    started = time.perf_counter()
                    engine.prefill(self.ids)
                    taken = 1000.0 * (time.perf_counter() - started)
                    if run > 0:  # the first one warms up: it compiles, and allocates
                        found.append(taken)
                self._advance()
