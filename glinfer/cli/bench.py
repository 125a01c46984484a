"""``glinfer bench``: speed of decoding and prefill."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import (
    check_one_source,
    loaded,
    opened,
    opened_drafts,
    parse_ids,
    print_json,
    progress,
    say,
    shape_from_options,
    show,
    show_table,
)
from glinfer.engine.fetching import described_model, found_model, origin_report
from glinfer.engine.loading import random_weights, read_model
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_folder, write_demo
from glinfer.errors import InputError
from glinfer.formats import Checkpoint, random_packed_checkpoint
from glinfer.formats.files import AnyPath
from glinfer.formats.packed import PACKED_FORMATS
from glinfer.formats.sampling import NAMES
from glinfer.gl.context import Device, Limits
from glinfer.inspect.bench.decoding import (
    DecodeReport,
    EngineReport,
    TimedEngine,
    batch_context,
    bench_decoding,
    contexts_within,
    load_fast,
    texture_formats,
    with_limits,
)
from glinfer.inspect.bench.drafting import DraftReport, bench_drafts
from glinfer.inspect.bench.engines import (
    BOTH,
    DEFAULT,
    EVERY_OPTION,
    GREEDY,
    BatchDecoder,
    Decoder,
    room_for,
    structured,
)
from glinfer.inspect.bench.limits import Limit
from glinfer.inspect.bench.reference import BenchReport, bench
from glinfer.inspect.ceiling import FETCHED, CeilingReport, measure_ceilings, measure_products
from glinfer.inspect.tables import Column, Table, megabytes
from glinfer.inspect.timing import ms_text
from glinfer.lower.plans import DEFAULT_PLAN, DEFAULT_WEIGHTS, PLANS, check_choice
from glinfer.terminal import emit

_LENGTHS = "1,8,64"
_CONTEXTS = "32,128,512,2000"
_SHORT_SECONDS = 0.002  # duration of a sample, without --ceiling
_ON_ZEROS = "the weights were not downloaded and are zeros: only greedy decoding is meaningful"
_BATCHES_AT = 128  # context length of batches without --contexts

_REFERENCE = (
    *(Column("tokens", "tokens", ""), Column("draws", "draws", ""), Column("median ms", "median_ms", ",.2f")),
    *(Column("fastest", "fastest_ms", ",.2f"), Column("slowest", "slowest_ms", ",.2f")),
    Column("tok/s", "tokens_per_second", ",.2f"),
)
_DRAFTS = (
    *(Column("text", "task"), Column("", "sampling"), Column("tokens", "tokens", "")),
    *(
        Column("ms/token", "plain", str),
        Column("with drafts", "with_drafts", str),
        Column("speedup", "times_plain", ".2f"),
    ),
    *(Column("accepted", "accepted", ""), Column("of", "drafted", "")),
    Column("same text", lambda row: "yes" if row.same else "NO"),
)
_SAMPLING, _TOKENS = Column("sampling", "sampling"), Column("tokens", "context", "")
_RATE, _OF_GREEDY = Column("tok/s", "tokens_per_second", ",.1f"), Column("of greedy", "of_greedy", ".0%")
_DECODING = (
    *(Column("decoding", "label"), _SAMPLING, _TOKENS, Column("ms/token", "decode", str), _RATE),
    *(Column("pipelined", "pipelined", str), _OF_GREEDY),
    Column("GB/s", lambda row: None if row.bytes_per_second is None else row.bytes_per_second / 1e9, ",.1f"),
)
_PREFILL = (
    *(Column("prompt to logits", "label"), _TOKENS, Column("ms", "prefill", str)),
    Column("tok/s", "prefill_tokens_per_second", ",.0f"),
)
_BATCH = (
    *(Column("batch", "label"), _SAMPLING, _TOKENS),
    *(Column("sequences", "sequences", ""), Column("ms/step", "step", str)),
    *(Column("total tok/s", "tokens_per_second", ",.1f"), _OF_GREEDY, Column("× single", "times_single", ",.2f")),
)
_LIMITS = "limits, ms", "figure", "tokens", "fetching", "multiplying", "passes", "limit", "median", "of the limit"
_FETCHING = (
    *(Column("fetching", lambda rate: rate.format.upper()), Column("texture", "texture_bytes", megabytes)),
    Column("G texels/s", lambda rate: rate.texels_per_second / 1e9, ",.2f"),
    Column("GB/s", lambda rate: rate.bytes_per_second / 1e9, ",.1f"),
    Column("function", "function"),
)

OpenEngines = Callable[[Checkpoint], Sequence[Decoder]]
"""Loads a checkpoint into other engines, timed interleaved with the fast plan; the benchmark closes them."""


@click.command("bench")
@click.argument("model", type=opt.FILE, required=False)
@opt.config_option
@click.option("--plan", type=click.Choice(PLANS), default=DEFAULT_PLAN, show_default=True, help="Plan to time.")
@click.option(
    "--weights", metavar="F[,F…]", help=f"Weight formats of the fast plan, interleaved. Default: {DEFAULT_WEIGHTS}."
)
@click.option(
    "--stored",
    metavar="F[,F]",
    help="File format of the random weights of --config, such as BF16; a second format is for experts.",
)
@opt.cache_option
@click.option(
    "--contexts", metavar="N[,N…]", help=f"Tokens in the fast plan's cache and in prompts. Default: {_CONTEXTS}."
)
@click.option(
    "--batch",
    metavar="N[,N…]",
    help=f"Also decode N sequences together, at the first of --contexts. Default: {_BATCHES_AT} tokens.",
)
@click.option("--every-option", is_flag=True, help="Also time further sampling options, such as penalties.")
@click.option("--lengths", metavar="N[,N…]", help=f"Sequence lengths of the reference plan. Default: {_LENGTHS}.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Timed runs of each.")
@click.option(
    "--ceiling",
    is_flag=True,
    help="Also measure the renderer's peak rates, and compare the large matrix products with them.",
)
@click.option(
    "--json-schema",
    "schema",
    type=opt.FILE,
    metavar="FILE",
    help="Also time text that matches the JSON schema in FILE.",
)
@click.option(
    "--no-fetch",
    is_flag=True,
    help="Do not download the weights of a hub's MODEL; time zeros of its shape and formats.",
)
@opt.draft_options
@opt.gelu_option
@opt.device_options
@opt.json_option
def bench_command(**options: Any) -> None:
    """Benchmark MODEL: print the median, fastest and slowest run.

    The fast plan decodes blocks of tokens at the end of full contexts, with each token read back and with one
    readback for the block (pipelined). It also processes prompts as long as the contexts, until the next token's
    logits are in Python. Tokens are chosen by the model's default sampling and by greedy decoding. The reference plan
    runs whole forward passes and chooses no token. All runs are interleaved, and warm-ups are not counted. Without
    MODEL, the random weights of 'glinfer demo' are used, or another shape with --config; speed does not depend on them.

    --every-option adds temperature 0.7 without filters, the same with min_p 0.05, and default sampling with a
    repetition penalty of 1.1. With --batch it also adds presence and frequency penalties of 0.5, a logit_bias, and 5
    logprobs per token. --json-schema adds default sampling under a mask that allows any text, to show the cost of a
    mask. It also adds text that matches the schema, where forced tokens need no sampling.

    Each time of the fast plan is compared with its limit, the largest of three lower bounds: the time of its fetches,
    of its multiply-adds, and of as many empty passes. The last lines break down the time from the start of the process
    to the first token.

    --speculate and --draft time texts with and without drafts instead: three that copy from their prompts and one that
    does not, each with greedy decoding and with the model's default sampling.

    \b
    glinfer bench shakespeare --weights f32,q8 --ceiling
    glinfer bench shakespeare --contexts 128 --batch 1,8,32
    glinfer bench shakespeare --contexts 128 --batch 32 --every-option
    glinfer bench model.gguf --speculate ngram --runs 3
    glinfer bench model.gguf --json-schema person.json
    glinfer bench --config family=llama,blocks=24,dim=1024 --weights f16,q8
    glinfer bench --config gpt-oss-20b/config.json --stored BF16,MXFP4
    """
    run_bench(BenchOptions(**options))


@dataclass(frozen=True)
class BenchOptions:
    """The options of :data:`bench_command`; ``open_others`` opens engines that are timed with the fast plan."""

    model: str | None
    config_text: str | None
    plan: str
    weights: str | None
    stored: str | None
    cache: str
    contexts: str | None
    batch: str | None
    every_option: bool
    lengths: str | None
    runs: int
    ceiling: bool
    schema: str | None
    no_fetch: bool
    speculate: str | None
    draft: str | None
    gelu: str | None
    device: str | None
    api: str | None
    limits: Limits | None
    as_json: bool
    open_others: OpenEngines | None = None

    @property
    def loading(self) -> dict[str, Any]:
        """How models are loaded."""
        return {name: getattr(self, name) for name in ("cache", "gelu", "device", "api", "limits")}

    def only_fast(self, **further: object) -> str | None:
        """The first given option that only the benchmark of the fast plan has, or that is in ``further``."""
        given: dict[str, object] = {"contexts": self.contexts, "batch": self.batch, "json-schema": self.schema}
        given |= {"every-option": self.every_option or None, "ceiling": self.ceiling or None}
        given |= {"config": self.config_text, **further}
        return next((name for name, value in given.items() if value is not None), None)


def run_bench(options: BenchOptions) -> None:
    """Time a model and print the results.

    Raises:
        InputError: an option is invalid, or belongs to the other plan.
    """
    plan, others = options.plan, options.open_others
    drafts = opt.take_drafts({"speculate": options.speculate, "draft": options.draft})
    check_choice(plan, DEFAULT_WEIGHTS, options.cache)
    check_one_source(options.model, options.config_text, needed=False)
    if options.stored is not None and options.config_text is None:
        raise InputError("--stored is the format of random weights; add --config, or leave out --stored")
    more = drafts or options.every_option or options.schema is not None or plan == "reference" or others
    if options.no_fetch and (more or options.model is None):
        raise InputError(
            "--no-fetch times only the fast plan of a MODEL, on zeros; leave out --no-fetch or the other options"
        )
    if drafts:
        _bench_drafts(options, drafts)
    elif plan == "reference":
        _bench_reference(options)
    else:
        _bench_fast(options)


def _bench_fast(options: BenchOptions) -> None:
    if options.lengths is not None:
        raise InputError("--lengths needs --plan reference; use --contexts, or use that plan")
    formats, sizes = formats_of(options.weights), _batch_sizes(options.batch)
    found = parse_ids(_CONTEXTS if options.contexts is None else options.contexts, "contexts")
    samplings = EVERY_OPTION if options.every_option else BOTH
    if options.schema is not None:
        samplings = {**samplings, **structured(opt.read_structure("json_schema", options.schema))}
    imports = time.process_time()  # CPU time so far, which is that of imports
    with contextlib.ExitStack() as held:
        path, checkpoint, zeros = _source(held, options)
        samplings = {GREEDY: BOTH[GREEDY]} if zeros else samplings
        config, (within, notes) = checkpoint.config, contexts_within(checkpoint.config, found)
        at = batch_context(within, found[0] if options.contexts else _BATCHES_AT)
        peers = options.open_others(checkpoint) if options.open_others else []
        others = [TimedEngine(peer, EngineReport(peer.label)) for peer in peers]
        for other in others:
            held.callback(other.close)
        started = time.perf_counter()
        device = held.enter_context(opened(options.loading))
        load = partial(load_fast, cache=options.cache, gelu=options.gelu, samplings=samplings, zeros=zeros)
        load = partial(load, opening_seconds=time.perf_counter() - started, imports_seconds=imports)
        room = room_for(config, sizes, at, device.limits.max_texture_size, options.cache)
        models, engines = dict[str, Model](), list[TimedEngine]()  # models are by label
        for name in formats:
            with progress(f"loading {name}") as advance:
                model, engine = load(path, name, device, on_progress=advance)
            held.callback(engine.close)
            for size in sizes:
                engine.batches.append(BatchDecoder(model, size, room, samplings))
            models[engine.about.label] = model
            engines.append(engine)
        with progress("timing") as advance:
            timing, runs, renderer = [*engines, *others], options.runs, device.description
            timed = bench_decoding(timing, config, within, runs, renderer=renderer, batches_at=at, on_progress=advance)
        usual = dataclasses.asdict(next(iter(models.values())).sampling)
        timed = dataclasses.replace(
            timed,
            origin=origin_report(checkpoint),
            notes=(*notes, *([_ON_ZEROS] if zeros else [])),
            samplings={name: {**usual, **given} for name, given in samplings.items()},
        )
        report = with_limits(timed, models, _ceilings(device, models, timed, whole=options.ceiling))
    print_json(report.to_json()) if options.as_json else _show_decoding(report, options.ceiling)


def _source(held: contextlib.ExitStack, options: BenchOptions) -> tuple[AnyPath | Checkpoint, Checkpoint, bool]:
    """Return what to load, its checkpoint, and whether its weights are zeros: random weights, or those of a model."""
    if options.config_text is not None:
        config, kept = shape_from_options(options.config_text, options.gelu, None), _stored_formats(options.stored)
        made = random_packed_checkpoint(config, kept[0], kept[-1]) if kept else random_weights(config)
        return made, made, False
    where: AnyPath = path_of(options.model)
    zeros = False
    if options.no_fetch:
        described = held.enter_context(described_model(where))
        where, zeros = described.path, described.is_copy
    found = where if options.no_fetch else found_model(where, tell=say)
    path, checkpoint = read_model(found, gelu=options.gelu)
    checkpoint.check_finite()
    return path, checkpoint, zeros


def _batch_sizes(text: str | None) -> list[int]:
    sizes = list(dict.fromkeys(parse_ids(text or "", "batch sizes")))
    if text is not None and (not sizes or min(sizes) < 1):
        raise InputError(f"found {text!r} for --batch; expected batch sizes of at least 1, such as 1,8,32")
    return sizes


def _stored_formats(text: str | None) -> list[str]:
    """Parse ``--stored``: the format of matrices, and that of experts."""
    kept = [] if text is None else [name.strip() for name in text.split(",")]
    if not set(kept) <= set(PACKED_FORMATS) or len(kept) > 2:
        raise InputError(
            f"found {text!r} for --stored; expected one format, or a second one for experts, from "
            f"{', '.join(PACKED_FORMATS)}"
        )
    return kept


def names_of(text: str) -> list[str]:
    """Split names separated by commas, without repetitions."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def formats_of(text: str | None) -> list[str]:
    """Split and check weight formats separated by commas; InputError for none or unknown ones; None is the default."""
    formats = names_of(DEFAULT_WEIGHTS if text is None else text)
    if not formats:
        raise InputError(f"found {text!r}; expected at least one weight format, such as {DEFAULT_WEIGHTS}")
    for name in formats:
        check_choice("fast", name)
    return formats


def path_of(model: str | None) -> str:
    """Return the given model, or the demo's."""
    return str(write_demo(demo_folder())[0]) if model is None else model


def _bench_drafts(options: BenchOptions, drafts: dict[str, str]) -> None:
    """Time texts with and without ``drafts``."""
    first, formats = f"--{next(iter(drafts))}", formats_of(options.weights)
    if (name := options.only_fast(lengths=options.lengths, peers=options.open_others)) is not None:
        raise InputError(f"{first} times texts and cannot be combined with --{name}; leave one out")
    if options.model is None:
        raise InputError(f"{first} times texts; give a MODEL with a tokenizer")
    if len(formats) > 1:
        raise InputError(f"found {len(formats)} weight formats with {first}; expected one")
    with (
        loaded(options.model, plan=options.plan, weights=formats[0], **options.loading) as opened_model,
        opened_drafts(opened_model, drafts) as drafting,
    ):
        opened_model.require_tokenizer()
        with progress("timing") as advance:
            report = bench_drafts(opened_model, drafting, options.runs, on_progress=advance)
    print_json(report.to_json()) if options.as_json else _show_drafts(report)


def _bench_reference(options: BenchOptions) -> None:
    if (name := options.only_fast(weights=options.weights)) is not None:
        raise InputError(f"--{name} needs --plan fast; leave it out or use that plan")
    lengths = parse_ids(_LENGTHS if options.lengths is None else options.lengths, "lengths")
    path, started = path_of(options.model), time.perf_counter()
    with loaded(path, plan="reference", weights="f32", **options.loading) as opened_model:
        load_seconds = time.perf_counter() - started
        with progress("timing") as advance:
            report = bench(opened_model, lengths, options.runs, load_seconds=load_seconds, on_progress=advance)
    print_json(report.to_json()) if options.as_json else _show_reference(report)


def _ceilings(device: Device, models: dict[str, Model], report: DecodeReport, *, whole: bool) -> CeilingReport:
    """Measure the ceilings that limits need, in a second or two; ``whole`` adds formats, sizes and products."""
    formats = texture_formats(models.values())
    with progress("measuring ceilings") as advance:
        if not whole:
            return measure_ceilings(device, formats=formats, sample_seconds=_SHORT_SECONDS, on_progress=advance)
        sizes = [(about.weight_texture or "", about.weight_bytes or 0) for about in report.engines if about.weights]
        found = measure_ceilings(device, sizes, formats=[*FETCHED, *formats], on_progress=advance)
        products = [product for label, model in models.items() for product in measure_products(model, label)]
    return dataclasses.replace(found, products=tuple(products))


def _show_reference(report: BenchReport) -> None:
    show_table(Table("Reference plan", _REFERENCE, report.rows))
    emit(
        f"\nplan {report.plan} · {report.rows[0].runs} runs of each · loaded in {report.load_seconds:.2f} s · "
        f"{report.programs} programs · {megabytes(report.texture_bytes)} of textures · {report.renderer}"
    )


def _show_drafts(report: DraftReport) -> None:
    show_table(Table("Speculative decoding", _DRAFTS, report.rows))
    emit(
        f"\ndrafts: {report.drafts} · model {report.model} · weights {report.weights} · median (fastest–slowest) of "
        f"{report.runs} texts, interleaved · {report.renderer}"
    )


def _show_decoding(report: DecodeReport, ceiling: bool) -> None:
    """Print the times of the fast plan and of other engines; ``ceiling`` adds the renderer's peak rates."""
    peak = (Column("peak", "of_fetch_ceiling", ".0%"),) if ceiling else ()
    show_table(Table("Decoding", (*_DECODING, *peak), report.rows))
    emit()
    show_table(Table("Prefill", _PREFILL, list({(row.label, row.context): row for row in report.rows}.values())))
    emit()
    if report.batch:
        show_table(Table("Batches", _BATCH, report.batch))
        emit()
    show_limits(report)
    for about in report.engines:
        if about.weights is not None:
            _show_engine(about)
    if ceiling and report.ceiling is not None:
        _show_ceiling(report.ceiling)
    for note in report.notes:
        emit(f"note: {note}")
    if options := report.samplings.get(DEFAULT):
        values = ", ".join(f"{name} {options[name]:g}" for name in (*NAMES, "seed"))
        emit(f"default sampling: {values} · of greedy: speed relative to greedy decoding")
    emit(
        f"plan {report.plan} · median (fastest–slowest) of {report.runs} blocks of {report.block_tokens} tokens, "
        f"each token read back, or all at once (pipelined) · {report.renderer}"
    )


def show_limits(report: DecodeReport) -> None:
    """Print each figure of the first sampling relative to its limit, if ceilings were measured."""
    figures: list[tuple[str, str, int, float, Limit | None]] = []
    first = report.rows[0].sampling
    for row in (each for each in report.rows if each.sampling == first):
        token = [("token, read back", row.decode), *([("token, pipelined", row.pipelined)] if row.pipelined else [])]
        figures += [(row.label, name, row.context, spread.median, row.token_limit) for name, spread in token]
        figures.append((row.label, "prompt", row.context, row.prefill.median, row.prefill_limit))
    for batch in (each for each in report.batch if each.sampling == first):
        figures.append((batch.label, f"batch of {batch.sequences}", batch.context, batch.step.median, batch.limit))
    rows = [
        (label, figure, str(context), *map(ms_text, (*limit.bounds, limit.limit_ms, median)), limit.text(median))
        for label, figure, context, median, limit in figures
        if limit is not None
    ]
    if rows:
        show(_LIMITS, rows, numbers=_LIMITS[2:])
        emit(
            "of the limit: the largest of three lower bounds divided by the median. Each is the figure's work at the "
            "rate of passes that only\nfetch, only multiply and add, or only wait for the previous pass.\n"
        )


def _show_engine(about: EngineReport) -> None:
    textures, times = about.texture_bytes or {}, about.startup or {}
    emit(
        f"{about.label} · {about.draws} draws/token · {about.programs} programs, compiled and run once in "
        f"{about.compile_seconds:.2f} s · loaded in {about.load_seconds:.2f} s · first token after "
        f"{about.first_token_seconds:.2f} s · {megabytes(sum(textures.values()))} of textures, "
        f"{megabytes(textures.get('cache', 0))} of it cache · {megabytes(about.weight_bytes or 0)} of weights per token"
    )
    parts = " · ".join(f"{name} {seconds:.2f}" for name, seconds in times.items())
    emit(f"{about.label} · from process start to first token {sum(times.values()):.2f} s: {parts}")


def _show_ceiling(ceiling: CeilingReport) -> None:
    show_table(Table("Fetch rates", _FETCHING, ceiling.fetches))
    emit("peak: bandwidth of the weights, as a share of the fetch rate of their texture")
    emit(
        f"{ceiling.multiply_adds_per_second / 1e9:,.1f} G multiply-adds/s · dependent pass {ceiling.pass_us:.1f} µs, "
        f"issue {ceiling.issue_us:.1f} µs · readback {ceiling.readback_us:.1f} µs"
    )
    if ceiling.products:
        columns = (
            *(Column("prefill product", "label"), Column("draw", "draw")),
            *(Column(name, name, "") for name in ("rows", "inputs", "outputs")),
            Column("ms", "milliseconds", ms_text),
            Column("G multiply-adds/s", lambda product: product.multiply_adds_per_second / 1e9, ",.1f"),
            Column("of peak", ceiling.of_multiply_adds, ".0%"),
        )
        emit()
        show_table(Table("Products", columns, ceiling.products))
        emit("of peak: rows × inputs × outputs over the time of the draw, as a share of the multiply-adds above\n")
