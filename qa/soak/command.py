"""``python -m qa soak``: load a server for long, and check that nothing changes."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import (
    device_option,
    json_option,
    megabytes,
    print_json,
    show_table,
    stage_bars,
)
from glinfer.inspect.tables import Column, Table
from qa.soak.checks import DEFAULT_SAMPLES, MIN_SAMPLES, MIN_TOKENS, SoakCheck, SoakReport
from qa.soak.server import (
    DEFAULT_PAIRS,
    DEFAULT_REQUESTS,
    DEFAULT_SECONDS,
    DEFAULT_TOKENS,
    SPEED_DRIFT,
    soak_server,
)


@click.command("soak")
@click.argument("model", type=click.Path(), default="shakespeare")
@click.option(
    "--tokens",
    type=click.IntRange(min=MIN_TOKENS),
    default=DEFAULT_TOKENS,
    show_default=True,
    help="Total tokens of prompts and answers to run.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--samples",
    type=click.IntRange(min=MIN_SAMPLES),
    default=DEFAULT_SAMPLES,
    show_default=True,
    help="Number of samples, evenly spread over the run.",
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=DEFAULT_SECONDS, show_default=True, help="Maximum duration."
)
@click.option("--clients", type=click.IntRange(1, 100), default=12, show_default=True, help="Number of clients.")
@click.option("--slots", type=click.IntRange(1, 256), default=8, show_default=True, help="Sequences at once.")
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=DEFAULT_REQUESTS,
    show_default=True,
    help="Number of different requests, which are repeated.",
)
@click.option(
    "--pairs",
    type=click.IntRange(1),
    default=DEFAULT_PAIRS,
    show_default=True,
    help="Rounds of all requests, alternating with a new server, at the end.",
)
@click.option(
    "--speed-drift",
    type=click.FloatRange(0),
    default=SPEED_DRIFT,
    show_default=True,
    help="Allowed difference in speed from a new server, as a fraction.",
)
@device_option
@json_option
def soak_command(model: str, as_json: bool, **options: Any) -> None:
    """Load a server of MODEL (default: shakespeare) for a long time, and check that it does not change.

    Clients request chats, completions, scores, embeddings, structured output and adapters at once, send bad requests,
    and disconnect early. At intervals they pause, and everything is counted: the server's memory, textures, OpenGL
    objects, Python objects, files, threads and child processes. After a warm-up of a tenth of the run, the medians of
    the first and the last quarter are compared. Memory may grow by 1% and Python's objects by 5%. Between two samples
    each request is sent equally often. At the end every request is sent once more, alone, to a new server: all answers
    of the run must equal that one. The run ends with --tokens or --seconds, after a full round of requests. The exit
    status is 1 if a check fails.

    The speed over the run is printed but not checked, because a machine's speed varies over an hour. Instead, a new
    server is started at the end, and requests alternate between both: they must be equally fast.

    \b
    python -m qa soak
    python -m qa soak --seconds 300 --json
    """
    with stage_bars() as advance:
        report = soak_server(model, on_progress=advance, **options)
    if as_json:
        print_json({"model": model, **report.to_json()})
    else:
        _show(report)
    if not report.passed:
        raise click.exceptions.Exit(1)


_CHECKS = (
    Column("", "name"),
    Column("first quarter", lambda check: _number(check, check.first), str),
    Column("last quarter", lambda check: _number(check, check.last), str),
    Column("change", "change", "+.2%"),
    Column("", lambda check: ": ".join(filter(None, (_verdict(check), check.detail)))),
)


def _show(report: SoakReport) -> None:
    show_table(Table("Checks", _CHECKS, report.checks))
    uses = ", ".join(f"{count} {name}" for name, count in report.uses.items())
    click.echo(f"uses: {uses}")
    if report.samples:
        click.echo(f"warm-up: {report.warm_up_tokens:,} tokens · {len(report.samples)} samples")
    if report.stopped:
        click.echo(f"ENDED EARLY {report.stopped}")
    failed = len(report.failed)
    verdict = "everything stayed" if report.passed else f"{failed} of {len(report.checks)} DID NOT STAY"
    click.echo(
        f"{report.tokens:,} tokens in {report.sequences:,} sequences, {report.seconds:.0f} s: {verdict} · "
        f"plan {report.plan}, weights {report.weights}, cache {report.cache}, seed {report.seed} · {report.renderer}"
    )


def _verdict(check: SoakCheck) -> str:
    if check.passed is None:
        return "not known here" if check.first is None else "not judged"
    return "stayed" if check.passed else "DID NOT STAY"


def _number(check: SoakCheck, value: float | None) -> str:
    if value is None:
        return ""
    if check.unit == "bytes":
        return megabytes(round(value))
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
