"""Interleaved timing of engines at one context length, after a warm-up.

A temporary slowdown of the machine then affects all engines equally.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from glinfer.engine.progress import Progress
from glinfer.inspect.bench.engines import BatchDecoder, Decoder

BLOCK_TOKENS = 16
"""Tokens that an engine decodes in a turn."""

_PAUSE_SECONDS = 0.02  # before a turn, because threads of other engines still spin after theirs
_PREFILL_SECONDS = 3.0  # time for the counted prefills of one engine at one length, after the first


@dataclass
class Times:
    """Milliseconds of one engine: for a prompt, for a token in each way, and for a step of each batch.

    ``batches`` has a mapping by sampling for each batch.
    """

    prefill: list[float] = field(default_factory=list)
    tokens: dict[tuple[str, bool], list[float]] = field(default_factory=lambda: defaultdict(list))
    batches: list[dict[str, list[float]]] = field(default_factory=list)


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
        """Prepare ``runs`` timed runs of each engine.

        Args:
            engines: the timed engines.
            ids: the prompt, as long as the context.
            runs: timed runs of each.
            on_progress: receives (finished turns, turns).
            batches: the batches of each engine, by its position; default: none.
        """
        self.engines, self.ids, self.runs, self.on_progress = engines, ids, runs, on_progress
        self.batches = batches or [() for _ in engines]
        # The token before the block, if any, is a warm-up; the block ends when the context is full.
        self.count = min(BLOCK_TOKENS, max(1, len(ids) - 1))
        self.start = len(ids) - self.count
        self.done = 0
        together = sum(len(batch.samplings) for held in self.batches for batch in held)
        self.total = (runs + 1) * (sum(1 + len(engine.ways) for engine in engines) + together)
        self.times = [Times(batches=[defaultdict(list) for _ in held]) for held in self.batches]

    def run(self) -> list[Times]:
        """Return the times of each engine, without warm-ups."""
        self._prefill()
        for held in self.batches:
            for batch in held:
                batch.prefill(self.ids)
        for run in range(self.runs + 1):
            for engine, held, times in zip(self.engines, self.batches, self.times, strict=True):
                if run == 1:  # the first ones were warm-ups
                    times.tokens.clear()
                    for steps in times.batches:
                        steps.clear()
                for way, decode in engine.ways.items():
                    time.sleep(_PAUSE_SECONDS)
                    times.tokens[way].append(self._block(engine, decode))
                    self._advance()
                for batch, steps in zip(held, times.batches, strict=True):
                    for sampling in batch.samplings:
                        steps[sampling].append(self._batch_block(batch, sampling))
                        self._advance()
        return self.times

    def _advance(self) -> None:
        self.done += 1
        self.on_progress(self.done, self.total)

    def _block(self, engine: Decoder, decode: Callable[[int, int], list[int]]) -> float:
        """Return milliseconds a token of one block, after a warm-up token."""
        token = self.ids[self.start]
        if self.start > 0:
            engine.rewind(self.start - 1)
            decode(self.ids[self.start - 1], 1)
        engine.rewind(self.start)
        started = time.perf_counter()
        chosen = decode(token, self.count)
        return 1000.0 * (time.perf_counter() - started) / max(1, len(chosen))

    def _batch_block(self, batch: BatchDecoder, sampling: str) -> float:
        """Return milliseconds a step of one block, at the same positions."""
        batch.decode(self.start, 1, sampling)
        started = time.perf_counter()
        chosen = batch.decode(self.start, self.count, sampling)
        return 1000.0 * (time.perf_counter() - started) * len(chosen) / max(1, sum(map(len, chosen)))

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
                    if run > 0:  # the first one is a warm-up: it compiles and allocates
                        found.append(taken)
                self._advance()
