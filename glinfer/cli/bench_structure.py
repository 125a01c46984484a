"""The part of ``glinfer bench`` that times structured output."""

from __future__ import annotations

from typing import Any

from glinfer.cli.common import loaded, out, print_json, progress, read_text, table
from glinfer.inspect.bench.structure import StructureReport, bench_structure
from glinfer.terminal import emit


def bench_schema(model: str, weights: str, schema: str, runs: int, *, as_json: bool, options: dict[str, Any]) -> None:
    """Time texts with the JSON schema in a file and without, and print what was found.

    Raises:
        InputError: the model has no tokenizer, or the schema cannot be used.
    """
    text = read_text(schema)
    with loaded(model, weights=weights, **options) as opened, progress("timing") as advance:
        report = bench_structure(opened, text, runs, on_progress=advance)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)


def _show(report: StructureReport) -> None:
    numbers = ("tokens", "forced", "texts", "ms/token", "fastest", "slowest")
    shown = table("text", *numbers, numbers=numbers)
    for row in report.rows:
        times = (f"{value:,.3f}" for value in (row.each.median, row.each.fastest, row.each.slowest))
        shown.add_row(row.way, str(row.tokens), str(row.forced), str(row.texts), *times)
    out().print(shown)
    emit(
        f"\na mask takes {report.microseconds:,.0f} µs a token, {100 * report.slower:.1f}% · model {report.model} · "
        f"{report.vocab:,} tokens · weights {report.weights} · median of {report.runs} runs, in "
        f"turns · {report.renderer}"
    )
