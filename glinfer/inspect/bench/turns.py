"""Interleaved timing of engines at one context length: each takes its turn, over and over, after a warm-up.

A machine that slows down for a while slows all engines alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from glinfer.engine.progress import Progress
from glinfer.inspect.bench.engines import BatchDecoder, Decoder, FastDecoder

BLOCK_TOKENS = 16
"""Tokens that an engine decodes in a turn."""

_PAUSE_SECONDS = 0.02  # before a turn, because threads of other engines spin for a while after theirs
_PREFILL_SECONDS = 3.0  # time for the counted prefills of one engine at one length, after the first


@dataclass
class Times:
    """Milliseconds of one engine: for a prompt, for a token in two ways, and for a step of each of its batches."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    pipelined: list[float] = field(default_factory=list)
    batches: list[list[float]] = field(default_factory=list)


class Turns:
    """Times all engines at one context length: prefill, which fills the caches, then decoding at their ends."""

    def __init__(
        self,
        engines: Sequence[Decoder],
        ids: Sequence[int],
        runs: int,
        on_progress: Progress,
        batches: Sequence[Sequence[BatchDecoder]] = (),
    ) -> None:
        """Prepare ``runs`` counted runs of each engine.

        Args:
            engines: the timed engines.
            ids: the prompt, as long as the context.
            runs: counted runs of each.
            on_progress: receives (finished turns, turns).
            batches: the batches of each engine, by its position; default: none.
        """
        self.engines, self.ids, self.runs, self.on_progress = engines, ids, runs, on_progress
        self.batches = batches or [() for _ in engines]
        # One token before the block warms up where there is one; the block ends where the context is full.
        self.count = min(BLOCK_TOKENS, max(1, len(ids) - 1))
        self.start = len(ids) - self.count
        self.done = 0
        self.total = (runs + 1) * (2 * len(engines) + sum(map(len, self.batches)))
        self.times = [Times(batches=[[] for _ in held]) for held in self.batches]

    def run(self) -> list[Times]:
        """Return the counted times of each engine."""
        self._prefill()
        for held in self.batches:
            for batch in held:
                batch.prefill(self.ids)
        for run in range(self.runs + 1):
            for engine, held, times in zip(self.engines, self.batches, self.times, strict=True):
                time.sleep(_PAUSE_SECONDS)
                taken = [self._block(engine, engine.decode_greedy)]
                if isinstance(engine, FastDecoder):
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
        self.on_progress(self.done, self.total)

    def _block(self, engine: Decoder, decode: Callable[[int, int], object]) -> float:
        """Return milliseconds a token of one block, after a warm-up token."""
        token = self.ids[self.start]
        if self.start > 0:
            engine.rewind(self.start - 1)
            decode(self.ids[self.start - 1], 1)
        engine.rewind(self.start)
        started = time.perf_counter()
        decode(token, self.count)
        return 1000.0 * (time.perf_counter() - started) / self.count

    def _batch_block(self, batch: BatchDecoder) -> float:
        """Return milliseconds a step of one block, at the same positions."""
        batch.decode_greedy(self.start, 1)
        started = time.perf_counter()
        batch.decode_greedy(self.start, self.count)
        taken = 1000.0 * (time.perf_counter() - started) / self.count
        self._advance()
        return taken

    def _prefill(self) -> None:
        """Time the whole prompt; slow engines run fewer times, but at least once after their warm-up."""
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
