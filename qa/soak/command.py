"""``python -m qa soak`` and ``soak-server``: run a model, or a server, for long, and check that nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from glinfer.cli.common import (
    device_option,
    device_options,
    json_option,
    loaded,
    megabytes,
    model_options,
    print_json,
    show_table,
    stage_bars,
    tokenizer_option,
)
from glinfer.inspect.tables import Column, Table
from qa.soak.run import DEFAULT_SAMPLES, MIN_SAMPLES, MIN_TOKENS, SoakCheck, SoakReport, soak
from qa.soak.server import DEFAULT_PAIRS, DEFAULT_REQUESTS, DEFAULT_SECONDS, SPEED_DRIFT, soak_server
from qa.soak.server import DEFAULT_TOKENS as DEFAULT_SERVED_TOKENS

_DEFAULT_MODEL, _DEFAULT_TOKENS = "shakespeare", 100_000
_Command = TypeVar("_Command", bound=Callable[..., Any])


def run_options(tokens: int, what: str) -> Callable[[_Command], _Command]:
    """Make the options of both soaks; ``tokens`` is the default number of tokens, ``what`` describes them."""
    options = (
        click.option(
            "--tokens", type=click.IntRange(min=MIN_TOKENS), default=tokens, show_default=True, help=f"Total {what}."
        ),
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed."),
        click.option(
            "--samples",
            type=click.IntRange(min=MIN_SAMPLES),
            default=DEFAULT_SAMPLES,
            show_default=True,
            help="Number of samples, evenly spread over the run.",
        ),
    )

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command("soak")
@click.argument("model", type=click.Path(), default=_DEFAULT_MODEL)
@run_options(_DEFAULT_TOKENS, "tokens to run")
@click.option(
    "--sessions",
    type=click.IntRange(min=1),
    help="Approximate number of sequences. Default: one per 25 tokens.",
)
@click.option("--trace", is_flag=True, help="Show the lines of Python whose memory grew most; everything is slower.")
@tokenizer_option
@model_options
@device_options
@json_option
def soak_command(
    model: str,
    tokens: int,
    sessions: int | None,
    seed: int,
    samples: int,
    trace: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run MODEL (default: shakespeare) for many tokens, and check that memory, speed and results stay the same.

    Sessions, streams, forks, rewinds, full contexts, batches, scores, texts, captures and errors run in random order.
    At intervals a fixed probe is run and everything is counted: process memory, textures, OpenGL objects, Python
    objects, files, threads and child processes. After a warm-up (a tenth of the tokens), the medians of the first and
    the last quarter are compared. Memory may grow by 1% and Python's traced memory by 5%; everything else must be
    equal, the probe's answers bit for bit. At the end MODEL is loaded again, and both take turns: their speeds may
    differ by 10%. The exit status is 1 if a check fails. With --trace, memory includes the tracer's.

    \b
    python -m qa soak
    python -m qa soak model.gguf --tokens 20000 --sessions 100 --json
    python -m qa soak shakespeare --tokens 10000 --trace
    """
    with loaded(model, **options) as opened, stage_bars() as advance:
        report = soak(
            opened,
            tokens,
            fresh=lambda: loaded(model, **options),
            sequences=sessions,
            seed=seed,
            samples=samples,
            trace=trace,
            on_progress=advance,
        )
    _end(model, report, as_json=as_json)


@click.command("soak-server")
@click.argument("model", type=click.Path(), default=_DEFAULT_MODEL)
@run_options(DEFAULT_SERVED_TOKENS, "tokens of prompts and answers to run")
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
def soak_server_command(model: str, as_json: bool, **options: Any) -> None:
    """Load a server of MODEL (default: shakespeare) for a long time, and check that it does not change.

    Clients request chats, completions, scores, embeddings, structured output and adapters at once, send bad requests,
    and disconnect early. At intervals they pause, and the server's process is measured as in 'soak', after a warm-up of
    a tenth of the run. Between two samples each request is sent equally often. At the end every request is sent once
    more, alone, to a new server: all answers of the run must equal that one. The run ends with --tokens or --seconds,
    after a full round of requests. The exit status is 1 if a check fails.

    The speed over the run is printed but not checked, because a machine's speed varies over an hour. Instead, a new
    server is started at the end, and requests alternate between both: they must be equally fast.

    \b
    python -m qa soak-server
    python -m qa soak-server --seconds 300 --json
    """
    with stage_bars() as advance:
        report = soak_server(model, on_progress=advance, **options)
    _end(model, report, as_json=as_json)


def _end(model: str, report: SoakReport, *, as_json: bool) -> None:
    """Print a report, and end with 1 if something did not stay."""
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
    for grown in report.grown:
        click.echo(f"grew by {grown.bytes:,} B in {grown.pieces} pieces: {grown.place}")
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
