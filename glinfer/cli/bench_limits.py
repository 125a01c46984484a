"""The limits that ``glinfer bench`` prints: each figure with its lower bounds."""

from __future__ import annotations

from collections.abc import Iterator

from glinfer.cli.common import out, table
from glinfer.inspect.bench.decoding import DecodeReport
from glinfer.inspect.bench.limits import Limit
from glinfer.terminal import emit

_Figure = tuple[str, str, int, float, Limit]


def show_limits(report: DecodeReport) -> None:
    """Print each figure of the first sampling relative to its limit, if ceilings were measured."""
    numbers = ("tokens", "fetching", "multiplying", "passes", "limit", "median", "of the limit")
    shown = table("limits, ms", "figure", *numbers, numbers=numbers)
    figures = list(_figures(report))
    for label, figure, context, median, limit in figures:
        parts = (limit.fetch_ms, limit.multiply_ms, limit.passes_ms, limit.limit_ms, median)
        cells = (f"{value:,.{3 if value < 1 else 2 if value < 100 else 0}f}" for value in parts)
        shown.add_row(label, figure, str(context), *cells, f"{100 * limit.share(median):.0f}% {limit.bound_by}")
    if not figures:
        return
    out().print(shown)
    emit(
        "of the limit: the largest of three lower bounds divided by the median. Each is the figure's work at the rate "
        "of passes that only\nfetch, only multiply and add, or only wait for the previous pass.\n"
    )


def _figures(report: DecodeReport) -> Iterator[_Figure]:
    first = report.rows[0].sampling
    for row in (each for each in report.rows if each.sampling == first):
        if row.token_limit is not None:
            yield row.label, "token, read back", row.context, row.decode.median, row.token_limit
            if row.pipelined is not None:
                yield row.label, "token, pipelined", row.context, row.pipelined.median, row.token_limit
        if row.prefill_limit is not None:
            yield row.label, "prompt", row.context, row.prefill.median, row.prefill_limit
    for batch in report.batch:
        if batch.limit is not None and batch.sampling == first:
            yield batch.label, f"batch of {batch.sequences}", batch.context, batch.step.median, batch.limit
