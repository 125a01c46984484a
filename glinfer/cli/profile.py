"""``glinfer profile``: time and memory traffic of a token, draw by draw."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import (
    check_one_source,
    check_writable,
    loaded,
    opened,
    print_json,
    say_written,
    shape_from_options,
    show_table,
    sizes_text,
    stage_bars,
)
from glinfer.engine.loading import prepare, random_weights
from glinfer.errors import InputError
from glinfer.gl.timers import FENCES
from glinfer.inspect.profile.compare import ProfileComparison, compare
from glinfer.inspect.profile.measure import TIMINGS, profile
from glinfer.inspect.profile.page import comparison_page, profile_page, write_page
from glinfer.inspect.profile.result import ProfileReport
from glinfer.inspect.profile.trace import write_trace
from glinfer.inspect.tables import Column, Table, change, megabytes
from glinfer.limits import MAX_PROFILE_RUNS
from glinfer.terminal import emit

_GROWTH = (Column("tokens", "tokens", ""), Column("ms", "wall_ms", ".3f"), Column("read", "bytes_read", megabytes))
_DROPPED = ("written", "output")
"""Table columns that are omitted if space is short; --json and --html have them."""


@click.command("profile")
@click.argument("model", type=opt.FILE, required=False)
@opt.config_option
@click.option(
    "--tokens", type=int, help="Position of the token, from 1, or length with --plan reference. Default: 128."
)
@click.option("--prompt-tokens", type=int, metavar="N", help="Profile the prefill of an N-token prompt instead.")
@click.option(
    "--runs", type=click.IntRange(1, MAX_PROFILE_RUNS), help="Plain and profiled runs each. Default: by time."
)
@click.option(
    "--timing",
    type=click.Choice(TIMINGS),
    default="auto",
    show_default=True,
    help="'gpu': GPU timestamps between draws; 'fence': wait for each draw; 'auto': the first that works.",
)
@click.option("--ceiling/--no-ceiling", default=True, show_default=True, help="Measure the peak fetch rate.")
@click.option("--growth", is_flag=True, help="Also measure other positions of the sequence.")
@click.option("--each", is_flag=True, help="Show every draw, not only each kind.")
@click.option("--trace", type=opt.NamedPath(), help="Write a trace for Perfetto or chrome://tracing to this file.")
@click.option("--html", type=opt.NamedPath(), help="Write a page with charts to this file.")
@click.option(
    "--compare",
    "compared",
    type=(opt.FILE, click.Path()),
    metavar="BEFORE AFTER",
    help="Compare two reports printed by --json.",
)
@opt.model_options
@opt.device_options
@opt.json_option
def profile_command(
    model: str | None,
    config_text: str | None,
    compared: tuple[str, str] | None,
    each: bool,
    trace: str | None,
    html: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time every draw of one token of MODEL, and count the bytes that it reads and writes.

    Profiled runs, in which every draw is timed, alternate with plain runs, so that the times of draws can be compared
    with the time of a token. The bytes read count each texel in use once.

    \b
    glinfer profile shakespeare --each
    glinfer profile model.gab --tokens 1000 --trace trace.json --html report.html
    glinfer profile model.gguf --prompt-tokens 128 --json > before.json
    glinfer profile --compare before.json after.json
    """
    _check_outputs(html, trace)
    if compared is not None:
        if model is not None or config_text is not None or trace is not None:
            raise InputError("--compare runs no model; leave out MODEL, --config and --trace")
        comparison = compare(*compared)
        if html is not None:
            write_page(html, comparison_page(comparison))
        print_json(comparison.to_json()) if as_json else _show_comparison(comparison)
        say_written(html)
        return
    report = _profiled(model, config_text, options)
    if trace is not None:
        write_trace(trace, report)
    if html is not None:
        write_page(html, profile_page(report))
    print_json(report.to_json()) if as_json else _show(report, each)
    say_written(html, trace)


def _check_outputs(html: str | None, trace: str | None) -> None:
    """Refuse files that cannot be written, before anything is measured."""
    if html is not None and trace is not None and os.path.realpath(html) == os.path.realpath(trace):
        raise InputError(f"--html and --trace both name {html}; expected two files")
    for path in filter(None, (html, trace)):
        check_writable(path)


def _profiled(model: str | None, config_text: str | None, options: dict[str, Any]) -> ProfileReport:
    check_one_source(model, config_text)
    own = {name: options.pop(name) for name in ("tokens", "prompt_tokens", "runs", "timing", "ceiling", "growth")}
    with contextlib.ExitStack() as held:
        if model is not None:
            engine = held.enter_context(loaded(model, tokenizer=None, **options)).engine
            label = Path(model).name
        else:
            how = {name: options[name] for name in ("plan", "weights", "cache")}
            checkpoint = random_weights(
                shape_from_options(config_text or "", options["gelu"], options["context"]), **how
            )
            device = held.enter_context(opened(options))
            engine = prepare(checkpoint, device, **how).bind(device)
            del checkpoint  # folded weights are a copy
            label = f"random weights, {config_text or 'the shape of Gab'}"
        advance = held.enter_context(stage_bars())
        return profile(engine, label=label, on_progress=advance, **own)


def _show(report: ProfileReport, each: bool) -> None:
    show_table(report.kind_table(), drop=_DROPPED)
    if each:
        emit()
        show_table(report.draw_table(), drop=_DROPPED)
    emit(f"\n{report.subject} · plan {report.plan} · weights {report.weights} · {report.renderer}")
    wall = report.wall
    emit(
        f"a plain run: {wall.median:.3f} ms ({wall.fastest:.3f} to {wall.slowest:.3f}), all draws issued after "
        f"{report.issue.median:.3f} ms · median of {report.runs} runs"
    )
    fence = f" minus a fence of {report.fence_us:.1f} µs each" if report.timing == FENCES else ""
    emit(
        f"timed by {report.timing}{fence}: all draws {report.draws_ms:.3f} ms, {report.share_of_draws:.1%} of a plain "
        f"run; {report.before_ms:.3f} ms before the first and {report.after_ms:.3f} ms after the last, "
        f"{report.accounted:.1%} together; profiling adds {change(1.0, report.overhead)}"
    )
    emit(f"textures: {sizes_text(report.memory['kind'])}")
    for rate in report.ceilings:
        emit(f"ceiling: {rate.bytes_per_second / 1e9:.1f} GB/s of {rate.format}")
    if report.growth:
        emit()
        show_table(Table("Growth with the sequence", _GROWTH, report.growth))
    for note in report.notes:
        emit(f"note: {note}")


def _show_comparison(comparison: ProfileComparison) -> None:
    emit(f"before: {comparison.before.about}\nafter:  {comparison.after.about}\n")
    show_table(comparison.table(), drop=_DROPPED)
    before_ms, after_ms = comparison.before.wall_ms, comparison.after.wall_ms
    more = f" ({change(before_ms, after_ms)})" if before_ms else ""
    emit(f"\na plain run: {before_ms:.3f} ms before, {after_ms:.3f} ms after{more}")
    for note in comparison.notes:
        emit(f"note: {note}")
