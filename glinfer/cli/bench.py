"""``glinfer bench``: milliseconds a token."""

from __future__ import annotations

import time
from typing import Any

import click

from glinfer.cli.common import (
    device_options,
    json_option,
    loaded,
    megabytes,
    model_options,
    out,
    parse_ids,
    print_json,
    progress,
    table,
)
from glinfer.tools.bench import BenchReport, bench
from glinfer.tools.demo import demo_folder, write_demo


@click.command("bench")
@click.argument("model", type=click.Path(), required=False)
@click.option("--lengths", default="1,8,64", show_default=True, help="Sequence lengths to time, in tokens.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Counted runs of each length.")
@model_options
@device_options
@json_option
def bench_command(model: str | None, lengths: str, runs: int, as_json: bool, **options: Any) -> None:
    """Time one token of MODEL at several sequence lengths: median, fastest and slowest run.

    A run is one whole forward pass and the readback of its logits. The lengths take turns and a first round
    is not counted. Without MODEL the random weights of 'glinfer demo' are used; speed does not depend on them.
    """
    tokens = parse_ids(lengths, "lengths")
    path = str(write_demo(demo_folder())[0]) if model is None else model
    started = time.perf_counter()
    with loaded(path, tokenizer=None, **options) as opened:
        load_seconds = time.perf_counter() - started
        with progress("timing") as advance:
            report = bench(opened, tokens, runs, load_seconds=load_seconds, on_run=advance)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)


def _show(report: BenchReport) -> None:
    headings = ("tokens", "draws", "median ms", "fastest", "slowest", "tok/s")
    shown = table(*headings, numbers=headings)
    for row in report.rows:
        times = [f"{value:,.2f}" for value in (row.median_ms, row.fastest_ms, row.slowest_ms)]
        shown.add_row(str(row.tokens), str(row.draws), *times, f"{row.tokens_per_second:,.2f}")
    out().print(shown)
    click.echo(
        f"\nplan {report.plan} · {report.rows[0].runs} runs of each · loaded in {report.load_seconds:.2f} s · "
        f"{report.programs} programs · {megabytes(report.texture_bytes)} of textures · {report.renderer}"
    )
