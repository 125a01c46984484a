"""How fast tokens come from the fast plan, in one weight format or several, and from other engines beside it.

Everything that is compared holds the same model and is timed in the same call, in short turns: decoding one token
after the other at the end of contexts that are really full, taking a prompt in, and decoding many sequences together.
Warm-ups do not count.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from glinfer.config import ModelConfig
from glinfer.engine.loading import load_model, prepare
from glinfer.engine.model import Loaded, Model
from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.bench.engines import BatchEngine, Engine, FastEngine
from glinfer.inspect.bench.turns import BLOCK_TOKENS, Progress, Spread, Times, Turns
from glinfer.inspect.ceiling import CeilingReport
from glinfer.inspect.draws import example_ids
from glinfer.models.plan import Plan
from glinfer.quant.formats import DEFAULT_CACHE

_TABLES = {"wte", "wpe", "rope", "weight"}
"""Samplers of weights of which a token needs one row, unless a product has them."""


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
        texture_bytes: of the textures of the plan that decodes, by kind.
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
    of a block; ``prefill`` is milliseconds from a prompt of ``context`` tokens to the next one's logits in Python.
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
class BatchRow:
    """So many sequences decoded together at one context length, the same as in a :class:`DecodeRow` of the engine.

    ``step`` is milliseconds for one token of each, read back; ``single_tokens_per_second`` what that row has reached.
    """

    label: str
    context: int
    sequences: int
    step: Spread
    single_tokens_per_second: float

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return 1000.0 * self.sequences / self.step.median

    @property
    def times_single(self) -> float:
        """How many times as many as one sequence alone, read token by token."""
        return self.tokens_per_second / self.single_tokens_per_second

    def to_json(self) -> dict[str, Any]:
        """The row, and what follows from it."""
        rates = {"tokens_per_second": self.tokens_per_second, "times_single": self.times_single}
        return {**dataclasses.asdict(self), **rates}


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
    batch: tuple[BatchRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        rows = [{**row.to_json(), "of_fetch_ceiling": self.of_fetch_ceiling(row)} for row in self.rows]
        ceiling = None if self.ceiling is None else self.ceiling.to_json()
        batch = [row.to_json() for row in self.batch]
        return {**dataclasses.asdict(self), "rows": rows, "batch": batch, "ceiling": ceiling}

    def of_fetch_ceiling(self, row: DecodeRow) -> float | None:
        """Weight bytes a second of a row as a share of what a pass that only fetches reaches; None if not measured."""
        about = next(engine for engine in self.engines if engine.label == row.label)
        reached = row.rates["bytes_per_second"]
        if self.ceiling is None or reached is None or about.weight_texture is None or about.weight_bytes is None:
            return None
        return reached / self.ceiling.fetch(about.weight_texture, about.weight_bytes).bytes_per_second


def load_fast(
    path: str | PathLike[str] | Checkpoint,
    weights: str,
    device: Device,
    *,
    cache: str = DEFAULT_CACHE,
    gelu: str | None = None,
    opening_seconds: float = 0.0,
    on_upload: Progress = lambda done, total: None,
) -> tuple[Model, FastEngine, EngineReport]:
    """Load a model for timing, up to its first token; the model has to be closed.

    Args:
        path: see :func:`glinfer.engine.loading.load_model`, as for the other arguments; or a checkpoint.
        weights: the weight format.
        device: an open device.
        cache: the format of keys and values.
        gelu: overrides the checkpoint's form.
        opening_seconds: what opening the device took, a part of the time to the first token.
        on_upload: told (bytes uploaded, bytes in all).
    """
    started = uploaded = time.perf_counter()

    def note(done: int, total: int) -> None:
        nonlocal uploaded
        uploaded = time.perf_counter()
        on_upload(done, total)

    if isinstance(path, Checkpoint):
        engine = prepare(path, device, "fast", weights, cache=cache).bind(device, on_upload=note)
        model = Model(Loaded(engine, None, "weights that are noise have no tokenizer; use token ids", (), False))
    else:
        model = load_model(path, weights=weights, cache=cache, gelu=gelu, device=device, on_upload=note)
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
    uses = [(draw.op, sampler, tensor) for draw in plan.draws for sampler, tensor in draw.inputs]
    # Embeddings that are the vocabulary's matrix too are fetched whole by its product.
    multiplied = {tensor for op, sampler, tensor in uses if op == "gemv" and sampler == "weight"}
    tables = {tensor for _, sampler, tensor in uses if sampler in _TABLES} - multiplied
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


def batch_context(kept: Sequence[int], wanted: int) -> int:
    """The context length at which batches are timed: the one wanted, or else the longest below it that is timed."""
    return max((context for context in kept if context <= wanted), default=min(kept))


def bench_decoding(
    engines: Sequence[tuple[Engine, EngineReport]],
    config: ModelConfig,
    contexts: Sequence[int],
    runs: int,
    *,
    renderer: str,
    batches: Mapping[str, Sequence[BatchEngine]] | None = None,
    batches_at: int = 0,
    on_run: Progress = lambda done, total: None,
) -> DecodeReport:
    """Time engines that hold the same model, in turns.

    Args:
        engines: what is timed, each with what is known of it.
        config: the model's shape.
        contexts: in tokens; those beyond the model's context are left out.
        runs: counted runs of each.
        renderer: for the report.
        batches: by the label of an engine, what takes turns with it; room for ``batches_at`` tokens in each sequence.
        batches_at: the context length at which they do; see :func:`batch_context`.
        on_run: told (turns taken, turns in all) of one context length after the other.

    Raises:
        InputError: there is nothing to time, or no context that the model has.
    """
    if runs < 1 or not engines:
        raise InputError(f"found {runs} runs of {len(engines)} engines; expected at least one of each")
    kept, notes = contexts_within(config, contexts)
    rows, together = list[DecodeRow](), list[BatchRow]()
    for place, context in enumerate(kept):
        ids = [int(token) for token in example_ids(config, context)]

        def advance(done: int, total: int, place: int = place) -> None:
            on_run(place * total + done, len(kept) * total)

        here = batches if batches is not None and context == batches_at else {}
        held = [here.get(about.label, ()) for _, about in engines]
        timed = Turns([engine for engine, _ in engines], ids, runs, advance, held).run()
        for times, beside, (_, about) in zip(timed, held, engines, strict=True):
            rows.append(_row(about, context, times))
            single = rows[-1].rates["tokens_per_second"] or 0.0
            together += [
                BatchRow(about.label, context, batch.sequences, Spread.of(found), single)
                for batch, found in zip(beside, times.batches, strict=True)
            ]
    reports = tuple(about for _, about in engines)
    return DecodeReport("fast", renderer, BLOCK_TOKENS, runs, reports, tuple(rows), tuple(notes), batch=tuple(together))


def _row(about: EngineReport, context: int, times: Times) -> DecodeRow:
    return DecodeRow(
        label=about.label,
        context=context,
        decode=Spread.of(times.decode),
        pipelined=Spread.of(times.pipelined) if times.pipelined else None,
        prefill=Spread.of(times.prefill),
        weight_bytes=about.weight_bytes,
    )
