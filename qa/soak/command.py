"""``python -m qa soak``: load a server for long, and check that its process and its answers stay as they were.

At the end each request is sent alone to a new server with one place, by a client whose key it has never seen, so that
nothing that others have asked is reused. Speed is compared with a new server in turns, as a machine's varies by itself.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import httpx

from glinfer.cli.common import megabytes, show_table, stage_bars
from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.errors import InputError
from glinfer.inspect.tables import Column, Table
from qa.serve_load import started
from qa.soak.answers import Answers, Load
from qa.soak.checks import Sample, SoakCheck, judge, judge_answers, judge_beside
from qa.soak.models import ADAPTER, CHATS, EMBEDS, write_models
from qa.soak.requests import WRITES, draw_requests
from qa.soak.served import MEMORY, TEXTURES, command

WARM_UP = 0.1
"""Share of the run in the warm-up."""
MIN_SAMPLES = 4
PAIRS = 20
"""Turns of both servers, of all requests each: on a virtual machine a turn of 11 seconds is some 4% off its median."""
SPEED_DRIFT = 0.03
"""Largest difference of speed between the server and a new one, as a fraction."""


class SoakReport(NamedTuple):
    """A long run: renderer, answers, samples, checks, and the error that ended it early; empty if there was none."""

    renderer: str
    answers: Answers
    samples: Sequence[Sample]
    checks: Sequence[SoakCheck]
    stopped: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all numbers stayed and no error ended the run early."""
        return all(check.passed for check in self.checks) and not self.stopped


def soak_server(
    model: str,
    tokens: int,
    seconds: float,
    *,
    clients: int,
    slots: int,
    seed: int = 0,
    requests: int = 240,
    samples: int = 40,
    pairs: int = PAIRS,
    on_progress: StagedProgress = no_staged_progress,
) -> SoakReport:
    """Load a server for a number of tokens or seconds, and take samples meanwhile.

    Args:
        model: the model to serve, which has a tokenizer; small random ones that chat and embed are served beside it.
        tokens: tokens of prompts and answers, as the server counts them.
        seconds: limit for warm-up, load and samples; the round of requests that is under way then comes to its end.
        clients, slots: how many ask at once, and sequences of a model at once.
        seed, requests: of the requests and of their order; how many different ones there are.
        samples: samples to take, evenly from the end of the warm-up to the end; fewer where the time ends before.
        pairs: turns of the server and of a new one at the end, in each of which both have every request once.
        on_progress: receives (stage, what is done of it, all of it), in thousandths of the run, or in requests.
    """
    began, asked = time.perf_counter(), draw_requests(seed, requests)
    answers, alone, stopped, renderer = Answers(asked), Answers(asked), "", ""
    taken, beside = list[Sample](), list[SoakCheck]()
    with tempfile.TemporaryDirectory(prefix="glinfer-soak-") as folder:
        chats, adapter, embeds = map(str, write_models(Path(folder)))
        served: dict[str, Any] = {"models": {WRITES: model, CHATS: chats, EMBEDS: embeds}}
        served["adapters"] = {CHATS: {ADAPTER: adapter}}
        start = command(**served, slots=slots, waiting=clients * 2)
        try:
            with started(start) as (address, process):
                load = Load(address, answers, clients, seed)
                renderer = httpx.get(f"{address}/v1/models/{WRITES}").json()["renderer"]
                on_progress("warming up", 0, 0)
                begun = time.perf_counter()
                load.warm_up()

                def share() -> float:
                    """How much of the run is done, by tokens or by time, whichever is more."""
                    return max(answers.tokens / tokens, (time.perf_counter() - begun) / seconds)

                for _ in _between_samples(load, share, samples, on_progress):
                    taken.append(_counts(process))
                with started(start) as (new, _):
                    beside.append(
                        judge_beside(turns(load, Load(new, answers, clients, seed), pairs, on_progress), SPEED_DRIFT)
                    )
            on_progress("replaying alone", 0, 0)
            keys = [f"client-{place}" for place in range(len(asked))]
            with started(command(**served, slots=1, waiting=1, keys=keys)) as (address, _):
                Load(address, alone, 1, seed, keys).each(1)
        except InputError as error:
            if not renderer:
                raise
            stopped = f"after {answers.tokens} tokens: {error}"
    checks = [*judge(taken), *beside, *judge_answers(answers, alone)]
    return SoakReport(renderer, answers, taken, checks, stopped, time.perf_counter() - began)


def _between_samples(
    load: Load, share: Callable[[], float], samples: int, on_progress: StagedProgress
) -> Iterator[None]:
    """Load a server until ``share`` is 1, and yield whenever a sample is due, first after the warm-up."""
    taken = 0
    while taken < (samples if share() < 1.0 else MIN_SAMPLES):
        goal = WARM_UP + (1.0 - WARM_UP) * taken / (samples - 1)
        load.until(
            lambda goal=goal: share() >= goal,  # type: ignore[misc]
            lambda: on_progress("soaking", round(1000 * min(share(), 1.0)), 1000),
        )
        yield
        taken += 1


def turns(aged: Load, new: Load, pairs: int, on_progress: StagedProgress) -> list[tuple[float, float]]:
    """Tokens a second of both servers, which get every request in turns, the first of them now this, now that one."""
    found = list[tuple[float, float]]()
    for pair in range(pairs):
        on_progress("beside a new server", pair, pairs)
        rates = {load: load.each(1) for load in ((aged, new) if pair % 2 else (new, aged))}
        found.append((rates[aged], rates[new]))
    return found


def _counts(process: subprocess.Popen[str]) -> Sample:
    """What the server's process holds."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.write("count\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise InputError(f"the server has ended with status {process.wait()}")
    found: Sample = json.loads(line)
    return found


@click.command("soak")
@click.argument("model", type=click.Path(), default="shakespeare")
@click.option("--tokens", type=click.IntRange(100), default=1_000_000, show_default=True, help="Tokens to run.")
@click.option("--seconds", type=click.FloatRange(1), default=3600.0, show_default=True, help="Maximum duration.")
@click.option("--clients", type=click.IntRange(1, 100), default=12, show_default=True, help="Number of clients.")
@click.option("--slots", type=click.IntRange(1, 256), default=8, show_default=True, help="Sequences at once.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
def soak_command(model: str, **options: Any) -> int:
    """Load a server of MODEL (default: shakespeare) for a long time, and check that it does not change.

    Clients request chats, completions, scores, embeddings, structured output and adapters at once, send bad requests,
    and disconnect early. At intervals they pause, and everything is counted: the server's memory, textures, OpenGL
    objects, Python objects, files, threads and child processes. After a warm-up of a tenth of the run, the medians of
    the first and the last quarter are compared. Memory may grow by 1% and Python's objects by 5%. Between two samples
    each request is sent equally often. At the end every request is sent once more, alone, to a new server: all answers
    of the run must equal that one. The run ends with --tokens or --seconds, after a full round of requests. The exit
    status is 1 if a check fails. It needs Linux.

    The speed over the run is not checked, because a machine's speed varies over an hour. Instead, a new server is
    started at the end, and requests alternate between both: they must be equally fast.

    \b
    python -m qa soak
    python -m qa soak --seconds 300
    """
    with stage_bars() as advance:
        report = soak_server(model, on_progress=advance, **options)
    show_table(Table("Checks", _CHECKS, report.checks, alarming=lambda check: not check.passed))
    answers, odd = report.answers, sum(not check.passed for check in report.checks)
    click.echo(f"answers: {', '.join(f'{count} {name}' for name, count in sorted(answers.counts.items()))}")
    if report.stopped:
        click.echo(f"ENDED EARLY {report.stopped}")
    verdict = "everything stayed" if report.passed else f"{odd} of {len(report.checks)} DID NOT STAY"
    run = f"{answers.tokens:,} tokens, {len(report.samples)} samples, {report.seconds:.0f} s"
    click.echo(f"{run}: {verdict} · {report.renderer}")
    return int(not report.passed)


def _number(check: SoakCheck, value: float) -> str:
    if check.name in (MEMORY, TEXTURES):
        return megabytes(round(value))
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


_CHECKS = (
    Column("", "name"),
    Column("first quarter", lambda check: _number(check, check.first), str),
    Column("last quarter", lambda check: _number(check, check.last), str),
    Column("change", "change", "+.2%"),
    Column("", lambda check: ": ".join(filter(None, ("stayed" if check.passed else "DID NOT STAY", check.detail)))),
)
