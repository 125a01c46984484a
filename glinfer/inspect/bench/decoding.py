"""Benchmark of decoding and prefill: the fast plan in several weight formats, and other engines of the same model.

Timed in short interleaved blocks are decoding at the end of full contexts, prefill of a prompt, and decoding of many
sequences together, for each sampling.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any

from glinfer.config import ModelConfig
from glinfer.engine.defaults import USUAL
from glinfer.engine.loading import load_model, prepare
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report
from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.bench.engines import BOTH, GREEDY, BatchDecoder, Decoder, FastDecoder, Samplings
from glinfer.inspect.bench.limits import Limit, batch_work, fetched_bytes, limit_of, prompt_work, token_work
from glinfer.inspect.ceiling import CeilingReport
from glinfer.inspect.draws import example_ids
from glinfer.inspect.timing import Spread, Work, interleaved
from glinfer.program.stages import STAGES, stage, stage_times
from glinfer.quant.formats import DEFAULT_CACHE

BLOCK_TOKENS = 16
"""Tokens that an engine decodes in a turn."""
_PAUSE_SECONDS = 0.02
_PREFILL_SECONDS = 3.0  # time for the counted prefills of one engine at one length


@dataclass(frozen=True)
class EngineReport:
    """One timed engine; times in seconds, sizes in bytes; None where glinfer does not know another engine.

    ``load_seconds`` is from the checkpoint's path to a bound plan on an open device, ``compile_seconds`` from the last
    upload to the first token, ``first_token_seconds`` from the path to a token in Python, with opening the device.
    ``weight_bytes`` are what one token fetches, ``weight_texture`` the format of most of them, ``texture_bytes`` the
    decoding plan's by kind, ``startup`` the stages :data:`glinfer.program.stages.STAGES` up to the first token.
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
    startup: dict[str, float] | None = None


@dataclass(frozen=True)
class DecodeRow(Report):
    """One engine at one context length, with one sampling.

    ``decode`` and ``pipelined`` are milliseconds a token with each token read back, and with one readback for a block;
    ``of_greedy`` is the speed relative to greedy decoding, each by its faster way; ``prefill`` is milliseconds from a
    prompt of ``context`` tokens to the next token's logits in Python, for any sampling. The limits are lower bounds of
    a token and of the prompt; None for other engines, and if no ceilings were measured.
    """

    derived = ("tokens_per_second", "prefill_tokens_per_second", "bytes_per_second")

    label: str
    context: int
    sampling: str
    decode: Spread
    pipelined: Spread | None
    of_greedy: float
    prefill: Spread
    weight_bytes: int | None
    token_limit: Limit | None = None
    prefill_limit: Limit | None = None
    of_fetch_ceiling: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed with each token read back."""
        return 1000.0 / self.decode.median

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prefill speed."""
        return 1000.0 * self.context / self.prefill.median

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes of weights a second, by the faster way to decode."""
        return None if self.weight_bytes is None else 1000.0 * self.weight_bytes / _best(self.decode, self.pipelined)


@dataclass(frozen=True)
class BatchRow(Report):
    """Several sequences decoded together with one sampling, at the context length of one of the engine's rows.

    ``step`` is milliseconds for one token of each, read back; ``of_greedy`` the speed relative to greedy decoding;
    ``single_tokens_per_second`` the speed of that :class:`DecodeRow`, None if one text was not timed with this
    sampling; ``draws`` the draw calls of a step, and ``limit`` its lower bounds, if ceilings were measured.
    """

    derived = ("tokens_per_second", "times_single")

    label: str
    context: int
    sequences: int
    sampling: str
    step: Spread
    of_greedy: float
    single_tokens_per_second: float | None
    draws: int
    limit: Limit | None = None

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed of all sequences together."""
        return 1000.0 * self.sequences / self.step.median

    @property
    def times_single(self) -> float | None:
        """Speed relative to a single sequence, read token by token."""
        single = self.single_tokens_per_second
        return None if single is None else self.tokens_per_second / single


@dataclass(frozen=True)
class DecodeReport(Report):
    """Engines on one machine.

    ``notes`` list omissions, ``ceiling`` has the renderer's ceilings, ``origin`` the commit of a hub's model, and
    ``samplings`` all options of each sampling by name.
    """

    plan: str
    renderer: str
    block_tokens: int
    runs: int
    engines: tuple[EngineReport, ...]
    rows: tuple[DecodeRow, ...]
    notes: tuple[str, ...] = ()
    ceiling: CeilingReport | None = None
    batch: tuple[BatchRow, ...] = ()
    origin: dict[str, str] | None = None
    samplings: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class TimedEngine:
    """An engine with its facts, and batches of it that are timed next to its one sequence."""

    decoder: Decoder
    about: EngineReport
    batches: list[BatchDecoder] = field(default_factory=list)

    def close(self) -> None:
        """Release batches and decoder; harmless when repeated."""
        for batch in self.batches:
            batch.close()
        self.decoder.close()


def load_fast(
    path: str | PathLike[str] | Checkpoint,
    weights: str,
    device: Device,
    *,
    cache: str = DEFAULT_CACHE,
    gelu: str | None = None,
    opening_seconds: float = 0.0,
    imports_seconds: float = 0.0,
    samplings: Samplings = BOTH,
    zeros: bool = False,
    on_progress: Progress = no_progress,
) -> tuple[Model, TimedEngine]:
    """Load a model for timing, up to its first token; the caller closes the engine, and so the model.

    ``path`` is a checkpoint, or a path for :func:`glinfer.engine.loading.load_model`. ``opening_seconds`` went into the
    device and count as time to the first token; ``imports_seconds`` before that count only in ``startup``. ``zeros``:
    all weights may be 0. ``on_progress`` receives (uploaded bytes, bytes).
    """
    started = uploaded = time.perf_counter()

    def note(done: int, total: int) -> None:
        nonlocal uploaded
        uploaded = time.perf_counter()
        on_progress(done, total)

    with stage_times() as times:
        if isinstance(path, Checkpoint):
            with stage("plan"):
                prepared = prepare(path, device, "fast", weights, cache=cache)
            engine = prepared.bind(device, on_upload=note)
            model = Model(engine, no_tokenizer="random weights have no tokenizer; use token ids", sampling=USUAL)
        else:
            model = load_model(path, weights=weights, cache=cache, gelu=gelu, device=device, on_upload=note)
    model.engine.nan_guard.zeros = zeros
    try:
        loaded = time.perf_counter()
        session = model.session()
        session.prefill([0])
        session.generate_ids(1)
        ready = time.perf_counter()
    except BaseException:
        model.close()
        raise
    times |= {"imports": imports_seconds, "context": opening_seconds, "first token": ready - loaded}
    plan, edge = model.plan, device.limits.max_texture_size
    label = f"glinfer {model.weights}"
    sizes = fetched_bytes(plan, edge, sequences=0)
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
        startup={name: times[name] for name in STAGES if name in times},
    )
    return model, TimedEngine(FastDecoder(label, model, samplings), about)


def texture_formats(models: Iterable[Model]) -> list[str]:
    """List the texture formats that some models fetch; limits need their ceilings."""
    works = [work(model, 1) for model in models for work in (token_work, prompt_work)]
    return list(dict.fromkeys(name for work in works for name, size in work.fetched.items() if size))


def with_limits(report: DecodeReport, models: Mapping[str, Model], ceiling: CeilingReport) -> DecodeReport:
    """Add ceilings to a report, and lower bounds to each figure of these models, which are given by label.

    The bounds of a token are those of the first one in a block, which sees the fewest tokens.
    """
    rows, batch = list[DecodeRow](), list[BatchRow]()
    engines = {about.label: about for about in report.engines}
    for row in report.rows:
        if (model := models.get(row.label)) is not None:
            token = limit_of(token_work(model, _first(row.context)), ceiling)
            prompt = limit_of(prompt_work(model, row.context), ceiling)
            about, share = engines[row.label], None
            if about.weight_texture and about.weight_bytes and row.bytes_per_second:
                peak = ceiling.fetch(about.weight_texture, about.weight_bytes).bytes_per_second
                share = row.bytes_per_second / peak
            row = dataclasses.replace(row, token_limit=token, prefill_limit=prompt, of_fetch_ceiling=share)
        rows.append(row)
    for step in report.batch:
        work = batch_work(models[step.label], _first(step.context), step.sequences, step.draws)
        batch.append(dataclasses.replace(step, limit=limit_of(work, ceiling)))
    return dataclasses.replace(report, ceiling=ceiling, rows=tuple(rows), batch=tuple(batch))


def _first(context: int) -> int:
    return max(1, context - BLOCK_TOKENS + 1)


def contexts_within(config: ModelConfig, contexts: Sequence[int]) -> tuple[list[int], list[str]]:
    """Sort the context lengths that a model supports, with a note for each that it does not.

    InputError if none remains, or one is below 1.
    """
    longest = config.max_position_embeddings
    if any(context < 1 for context in contexts):
        raise InputError(f"found a context of {min(contexts)} tokens; expected at least 1")
    kept = sorted({context for context in contexts if context <= longest})
    if not kept:
        raise InputError(f"found no context within this model's; expected lengths from 1 to {longest}")
    dropped = sorted(set(contexts) - set(kept))
    return kept, [f"a context of {context} tokens is skipped: this model supports {longest}" for context in dropped]


def batch_context(kept: Sequence[int], wanted: int) -> int:
    """Choose the context length of batches: the wanted one, else the longest timed one below it."""
    return max((context for context in kept if context <= wanted), default=min(kept))


def bench_decoding(
    engines: Sequence[TimedEngine],
    config: ModelConfig,
    contexts: Sequence[int],
    runs: int,
    *,
    renderer: str,
    batches_at: int = 0,
    on_progress: Progress = no_progress,
) -> DecodeReport:
    """Time engines that hold the same model, interleaved, at contexts within the model's.

    Batches have space for ``batches_at`` tokens in each sequence, and are timed at that context, see
    :func:`batch_context`. ``on_progress`` receives (finished turns, turns).
    """
    rows, together = list[DecodeRow](), list[BatchRow]()
    for index, context in enumerate(contexts):
        ids = example_ids(config, context).tolist()

        def advance(done: int, total: int, index: int = index) -> None:
            on_progress(index * total + done, len(contexts) * total)

        prefills = [Work(partial(each.decoder.prefill, ids), seconds=_PREFILL_SECONDS) for each in engines]
        prompts = interleaved(prefills, runs, pause=_PAUSE_SECONDS)
        works: dict[tuple[object, Any], Work] = {}  # by (decoder, way), and (batch, sampling)
        for each in engines:
            works |= {
                (each.decoder, way): _block(each.decoder, decode, ids) for way, decode in each.decoder.ways.items()
            }
            for batch in each.batches if context == batches_at else ():
                batch.prefill(ids)
                works |= {(batch, name): _batch_block(batch, ids, name) for name in batch.samplings}
        times = interleaved(list(works.values()), runs, pause=_PAUSE_SECONDS, on_progress=advance)
        spreads = {key: Spread.of(found) for key, found in zip(works, times, strict=True)}
        for each, prompt in zip(engines, prompts, strict=True):
            alone = _rows(each, context, spreads, Spread.of(prompt))
            rows += alone
            single = {row.sampling: row.tokens_per_second for row in alone}
            together += [
                BatchRow(
                    *(each.about.label, context, batch.sequences, name, spreads[batch, name]),
                    of_greedy=spreads[batch, GREEDY].median / spreads[batch, name].median,
                    single_tokens_per_second=single.get(name),
                    draws=batch.draws,
                )
                for batch in (each.batches if context == batches_at else ())
                for name in batch.samplings
            ]
    reports = tuple(each.about for each in engines)
    return DecodeReport("fast", renderer, BLOCK_TOKENS, runs, reports, tuple(rows), batch=tuple(together))


def _block_of(ids: Sequence[int]) -> tuple[int, int]:
    """Return (start, tokens) of the timed block, which ends when the context is full, after a warm-up token if any."""
    count = min(BLOCK_TOKENS, max(1, len(ids) - 1))
    return len(ids) - count, count


def _block(engine: Decoder, decode: Callable[[int, int], list[int]], ids: Sequence[int]) -> Work:
    """Time a token of one block of one sequence."""
    start, count = _block_of(ids)

    def prepare() -> None:
        if start > 0:
            engine.rewind(start - 1)
            decode(ids[start - 1], 1)
        engine.rewind(start)

    return Work(lambda: len(decode(ids[start], count)), prepare)


def _batch_block(batch: BatchDecoder, ids: Sequence[int], sampling: str) -> Work:
    """Time a step of one block of a batch, at the same positions."""
    start, count = _block_of(ids)

    def run() -> float:
        chosen = batch.decode(start, count, sampling)
        return sum(map(len, chosen)) / len(chosen)

    return Work(run, lambda: batch.decode(start, 1, sampling))


def _rows(
    engine: TimedEngine, context: int, spreads: Mapping[tuple[object, Any], Spread], prefill: Spread
) -> list[DecodeRow]:
    decoder, about = engine.decoder, engine.about
    both = {
        name: (spreads[decoder, (name, False)], spreads.get((decoder, (name, True))))
        for name, pipelined in decoder.ways
        if not pipelined
    }
    return [
        DecodeRow(
            label=about.label,
            context=context,
            sampling=name,
            decode=decode,
            pipelined=pipelined,
            of_greedy=_best(*both[GREEDY]) / _best(decode, pipelined),
            prefill=prefill,
            weight_bytes=about.weight_bytes,
        )
        for name, (decode, pipelined) in both.items()
    ]


def _best(decode: Spread, pipelined: Spread | None) -> float:
    return decode.median if pipelined is None else min(decode.median, pipelined.median)
