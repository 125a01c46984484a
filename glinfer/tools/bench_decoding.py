"""How fast tokens come from the fast plan, in one weight format or several, and from other engines beside it.

Everything that is compared holds the same model and is timed in the same call, in short turns: decoding one token
after the other at the end of contexts that are really full, and taking a prompt in. Warm-ups do not count.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.generation.decode import DecodeSession
from glinfer.generation.model import Model, load_model
from glinfer.gl.context import Device
from glinfer.models.plan import Plan
from glinfer.tools.ceiling import CeilingReport
from glinfer.tools.draws import example_ids

BLOCK_TOKENS = 16
"""How many tokens one engine decodes before it is the next one's turn."""

_PAUSE_SECONDS = 0.02  # before a turn: the threads of other engines go on spinning for a while after their own
_PREFILL_SECONDS = 3.0  # for all prefills of one engine at one length

Progress = Callable[[int, int], None]


class Engine(Protocol):
    """What is timed: see :class:`glinfer.tools.peers.Peer`, whose methods these are."""

    @property
    def label(self) -> str:
        """What runs."""

    def prefill(self, ids: Sequence[int]) -> object:
        """Empty the cache and run ``ids``."""

    def decode_greedy(self, token: int, count: int) -> list[int]:
        """Append ``token``, go on greedily, read each choice back."""

    def rewind(self, length: int) -> None:
        """Cut the cache back to its first ``length`` tokens."""


class FastEngine:
    """The fast plan as an engine; ``decode_pipelined`` reads all choices back together."""

    def __init__(self, label: str, session: DecodeSession) -> None:
        """Takes over an empty session."""
        self.label, self.session = label, session

    def prefill(self, ids: Sequence[int]) -> object:
        """Empty the cache, run ``ids``; the logits after the last of them."""
        self.session.rewind(len(self.session))
        self.session.prefill(ids)
        return self.session.logits()

    def decode_greedy(self, token: int, count: int) -> list[int]:
        """Append ``token`` and go on with the likeliest, each read back; the tokens chosen."""
        self.session.step(token)
        return [self.session.generate_ids(1)[0] for _ in range(count)]

    def decode_pipelined(self, token: int, count: int) -> list[int]:
        """The same tokens with one readback for all of them."""
        self.session.step(token)
        return self.session.generate_ids(count)

    def rewind(self, length: int) -> None:
        """Cut the sequence back to its first ``length`` tokens."""
        self.session.rewind(len(self.session) - length)


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


@dataclass(frozen=True)
class EngineReport:
    """What was timed; what only a plan of glinfer has is None for others. Times in seconds, sizes in bytes.

    Attributes:
        label: the engine's name in the rows.
        weights: the weight format.
        draws: draw calls a token.
        programs: distinct compiled programs.
        compile_seconds: from the last weight's upload to the first token: compiling, and running it.
        load_seconds: from the checkpoint's path to a bound plan, on an open device.
        first_token_seconds: from there to a token in Python, the opening of the device included.
        texture_bytes: of all textures, by kind.
        weight_bytes: of the weights that one token has to fetch.
        weight_texture: the texture format that most of them are in.
        kernels: how the passes are shaped.
    """

    label: str
    weights: str | None = None
    draws: int | None = None
    programs: int | None = None
    compile_seconds: float | None = None
    load_seconds: float | None = None
    first_token_seconds: float | None = None
    texture_bytes: dict[str, int] | None = None
    weight_bytes: int | None = None
    weight_texture: str | None = None
    kernels: dict[str, Any] | None = None


@dataclass(frozen=True)
class DecodeRow:
    """One engine at one context length.

    ``decode`` and ``pipelined`` are milliseconds a token with each token read back, and with one readback for all
    of a block; ``prefill`` is milliseconds for ``context`` tokens.
    """

    label: str
    context: int
    decode: Spread
    pipelined: Spread | None
    prefill: Spread
    weight_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """The row, and what follows from it."""
        return {**dataclasses.asdict(self), **self.rates}

    @property
    def rates(self) -> dict[str, float | None]:
        """Tokens a second, and bytes of weights a second: at the better of the two ways to decode."""
        best = min(self.decode.median, self.decode.median if self.pipelined is None else self.pipelined.median)
        return {
            "tokens_per_second": 1000.0 / self.decode.median,
            "prefill_tokens_per_second": 1000.0 * self.context / self.prefill.median,
            "bytes_per_second": None if self.weight_bytes is None else 1000.0 * self.weight_bytes / best,
        }


@dataclass(frozen=True)
class DecodeReport:
    """Engines on one machine; ``notes`` say what was left out, ``ceiling`` what this renderer can do at most."""

    plan: str
    renderer: str
    block_tokens: int
    runs: int
    engines: tuple[EngineReport, ...]
    rows: tuple[DecodeRow, ...]
    notes: tuple[str, ...] = ()
    ceiling: CeilingReport | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        rows = [{**row.to_json(), "of_fetch_ceiling": self.of_fetch_ceiling(row)} for row in self.rows]
        ceiling = None if self.ceiling is None else self.ceiling.to_json()
        return {**dataclasses.asdict(self), "rows": rows, "ceiling": ceiling}

    def of_fetch_ceiling(self, row: DecodeRow) -> float | None:
        """Weight bytes a second of a row as a share of what a pass that only fetches reaches; None if not measured."""
        about = next(engine for engine in self.engines if engine.label == row.label)
        reached = row.rates["bytes_per_second"]
        if self.ceiling is None or reached is None or about.weight_texture is None or about.weight_bytes is None:
            return None
        return reached / self.ceiling.fetch(about.weight_texture, about.weight_bytes).bytes_per_second


def load_fast(
    path: str | PathLike[str],
    weights: str,
    device: Device,
    *,
    gelu: str | None = None,
    opening_seconds: float = 0.0,
    on_upload: Progress = lambda done, total: None,
) -> tuple[Model, FastEngine, EngineReport]:
    """Load a model for timing, up to its first token; the model has to be closed.

    Args:
        path: see :func:`glinfer.generation.model.load_model`, as for the other arguments.
        weights: the weight format.
        device: an open device.
        gelu: overrides the checkpoint's form.
        opening_seconds: what opening the device took, a part of the time to the first token.
        on_upload: told (bytes uploaded, bytes in all).
    """
    started = uploaded = time.perf_counter()

    def note(done: int, total: int) -> None:
        nonlocal uploaded
        uploaded = time.perf_counter()
        on_upload(done, total)

    model = load_model(path, plan="fast", weights=weights, gelu=gelu, device=device, on_upload=note)
    try:
        loaded = time.perf_counter()
        session = model.session()
        session.prefill([0])
        session.generate_ids(1)
        ready = time.perf_counter()
    except BaseException:
        model.close()
        raise
    plan, edge = model.plan, device.limits.max_texture_size
    label = f"glinfer {model.weights}"
    sizes = weight_bytes(plan, edge)
    about = EngineReport(
        label=label,
        weights=model.weights,
        draws=len(plan.draws),
        programs=model.bound.program_count,
        compile_seconds=ready - uploaded,
        load_seconds=loaded - started,
        first_token_seconds=opening_seconds + ready - started,
        texture_bytes={kind: plan.texture_bytes(edge, kind) for kind in ("weight", "cache", "activation")},
        weight_bytes=sum(sizes.values()),
        weight_texture=max(sizes, key=lambda name: sizes[name]),
        kernels=dataclasses.asdict(model.kernels),
    )
    return model, FastEngine(label, session), about


def weight_bytes(plan: Plan, max_texture_size: int) -> dict[str, int]:
    """Bytes of weights that one token fetches, by texture format: matrices whole, of each embedding table one row."""
    tables = {draw.input(name) for draw in plan.draws if draw.op == "embed_token" for name in ("wte", "wpe")}
    found: dict[str, int] = {}
    for tensor in plan.of_kind("weight"):
        size = tensor.layout_within(max_texture_size).nbytes
        found.setdefault(tensor.format, 0)
        found[tensor.format] += size // tensor.shape[0] if tensor.name in tables else size
    return found


def contexts_within(config: ModelConfig, contexts: Sequence[int]) -> tuple[list[int], list[str]]:
    """The context lengths that a model has, in order, and a note for each that is left out.

    Raises:
        InputError: none is left, or one is below 1.
    """
    longest = config.max_position_embeddings
    if any(context < 1 for context in contexts):
        raise InputError(f"found a context of {min(contexts)} tokens; expected at least 1")
    kept = sorted({context for context in contexts if context <= longest})
    if not kept:
        raise InputError(f"no context is left to time; expected some within 1 to {longest}, the context of this model")
    dropped = sorted(set(contexts) - set(kept))
    return kept, [f"a context of {context} tokens is left out: this model holds {longest}" for context in dropped]


def bench_decoding(
    engines: Sequence[tuple[Engine, EngineReport]],
    config: ModelConfig,
    contexts: Sequence[int],
    runs: int,
    *,
    renderer: str,
    on_run: Progress = lambda done, total: None,
) -> DecodeReport:
    """Time engines that hold the same model, in turns.

    Raises:
        InputError: there is nothing to time, or no context that the model has.
    """
    if runs < 1 or not engines:
        raise InputError(f"found {runs} runs of {len(engines)} engines; expected at least one of each")
    kept, notes = contexts_within(config, contexts)
    rows = []
    for place, context in enumerate(kept):
        ids = [int(token) for token in example_ids(config, context)]

        def advance(done: int, total: int, place: int = place) -> None:
            on_run(place * total + done, len(kept) * total)

        timed = _Timing([engine for engine, _ in engines], ids, runs, advance).run()
        rows += [
            dataclasses.replace(row, label=about.label, weight_bytes=about.weight_bytes)
            for row, (_, about) in zip(timed, engines, strict=True)
        ]
    reports = tuple(about for _, about in engines)
    return DecodeReport("fast", renderer, BLOCK_TOKENS, runs, reports, tuple(rows), tuple(notes))


class _Timing:
    """All engines at one context length: prefill first, which fills the caches, then decoding at their ends."""

    def __init__(self, engines: Sequence[Engine], ids: Sequence[int], runs: int, on_run: Progress) -> None:
        self.engines, self.ids, self.runs, self.on_run = engines, ids, runs, on_run
        # One token before the block warms up where there is one; the block ends where the context is full.
        self.count = min(BLOCK_TOKENS, max(1, len(ids) - 1))
        self.start = len(ids) - self.count
        self.done = 0

    def run(self) -> list[DecodeRow]:
        """A row for each engine."""
        prefill = self._prefill()
        decode: list[list[float]] = [[] for _ in self.engines]
        pipelined: list[list[float]] = [[] for _ in self.engines]
        for run in range(self.runs + 1):
            for place, engine in enumerate(self.engines):
                time.sleep(_PAUSE_SECONDS)
                taken = self._block(engine, engine.decode_greedy)
                together = self._block(engine, engine.decode_pipelined) if isinstance(engine, FastEngine) else None
                if run > 0:  # the first ones warm up
                    decode[place].append(taken)
                    pipelined[place] += [] if together is None else [together]
                self._advance()
        return [
            DecodeRow(
                label=engine.label,
                context=len(self.ids),
                decode=Spread.of(decode[place]),
                pipelined=Spread.of(pipelined[place]) if pipelined[place] else None,
                prefill=Spread.of(prefill[place]),
                weight_bytes=None,
            )
            for place, engine in enumerate(self.engines)
        ]

    def _advance(self) -> None:
        self.done += 1
        self.on_run(self.done, 2 * (self.runs + 1) * len(self.engines))

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

    def _prefill(self) -> list[list[float]]:
        """Milliseconds for the whole prompt, by engine; slow ones run fewer times."""
        times: list[list[float]] = [[] for _ in self.engines]
        for run in range(self.runs + 1):
            for found, engine in zip(times, self.engines, strict=True):
                if run == 0 or sum(found) + found[-1] < 1000.0 * _PREFILL_SECONDS:
                    time.sleep(_PAUSE_SECONDS)
                    started = time.perf_counter()
                    engine.prefill(self.ids)
                    found.append(1000.0 * (time.perf_counter() - started))
                self._advance()
        return [found[1:] or found for found in times]  # the first one warms up
