"""The tables that ``glinfer bench`` prints."""

from __future__ import annotations

from glinfer.cli.common import show, show_table
from glinfer.formats.sampling import NAMES
from glinfer.inspect.bench.decoding import DecodeReport, EngineReport
from glinfer.inspect.bench.drafting import DraftReport
from glinfer.inspect.bench.engines import DEFAULT
from glinfer.inspect.bench.limits import Limit
from glinfer.inspect.bench.reference import BenchReport
from glinfer.inspect.ceiling import CeilingReport
from glinfer.inspect.tables import Column, Table, megabytes
from glinfer.inspect.timing import ms_text
from glinfer.terminal import emit

_REFERENCE = (
    *(Column("tokens", "tokens", ""), Column("draws", "draws", ""), Column("median ms", "median_ms", ",.2f")),
    *(Column("fastest", "fastest_ms", ",.2f"), Column("slowest", "slowest_ms", ",.2f")),
    Column("tok/s", "tokens_per_second", ",.2f"),
)
_DRAFTS = (
    *(Column("text", "task"), Column("", "sampling"), Column("tokens", "tokens", "")),
    *(Column("ms/token", "plain", str), Column("with drafts", "guessed", str), Column("speedup", "times_plain", ".2f")),
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


def show_reference(report: BenchReport) -> None:
    """Print the times of the reference plan."""
    show_table(Table("Reference plan", _REFERENCE, report.rows))
    emit(
        f"\nplan {report.plan} · {report.rows[0].runs} runs of each · loaded in {report.load_seconds:.2f} s · "
        f"{report.programs} programs · {megabytes(report.texture_bytes)} of textures · {report.renderer}"
    )


def show_drafts(report: DraftReport) -> None:
    """Print the times of texts with and without drafts."""
    show_table(Table("Speculative decoding", _DRAFTS, report.rows))
    emit(
        f"\ndrafts: {report.drafts} · model {report.model} · weights {report.weights} · median (fastest–slowest) of "
        f"{report.runs} texts, interleaved · {report.renderer}"
    )


def show_decoding(report: DecodeReport, ceiling: bool) -> None:
    """Print the times of the fast plan and of other engines; ``ceiling`` adds the renderer's peak rates."""
    peak = (Column("peak", report.of_fetch_ceiling, ".0%"),) if ceiling else ()
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
