"""``glinfer bench --speculate`` and ``--draft``: time speculative decoding."""

from __future__ import annotations

from typing import Any

from glinfer.cli.common import loaded, out, print_json, progress, table
from glinfer.cli.drafts import opened_drafts
from glinfer.inspect.bench.drafting import DraftReport, bench_drafts
from glinfer.inspect.report import Spread
from glinfer.terminal import emit


def bench_speculation(
    model: str, weights: str, drafts: dict[str, str], runs: int, *, as_json: bool, options: dict[str, Any]
) -> None:
    """Time texts with and without drafts, and print the results.

    Raises:
        InputError: the model has no tokenizer, or refuses the drafts.
    """
    with loaded(model, weights=weights, **options) as opened, opened_drafts(opened, drafts) as guesses:
        opened.require_tokenizer()
        with progress("timing") as advance:
            report = bench_drafts(opened, guesses, runs, on_progress=advance)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)


def _show(report: DraftReport) -> None:
    numbers = ("tokens", "ms/token", "with drafts", "speedup", "accepted", "of")
    shown = table("text", "", *numbers, "same text", numbers=numbers)
    for row in report.rows:
        shown.add_row(
            row.task,
            row.sampling,
            str(row.tokens),
            _spread(row.plain),
            _spread(row.guessed),
            f"{row.times_plain:.2f}",
            str(row.accepted),
            str(row.drafted),
            "yes" if row.same else "NO",
        )
    out().print(shown)
    emit(
        f"\ndrafts: {report.drafts} · model {report.model} · weights {report.weights} · median (fastest–slowest) of "
        f"{report.runs} texts, interleaved · {report.renderer}"
    )


def _spread(times: Spread) -> str:
    digits = 3 if times.median < 1 else 2 if times.median < 100 else 0
    return f"{times.median:,.{digits}f} ({times.fastest:,.{digits}f}–{times.slowest:,.{digits}f})"
