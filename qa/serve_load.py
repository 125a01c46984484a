"""``python -m qa serve-load``: clients that ask without a pause, beside a batch of the same prompts.

``glinfer serve`` runs in a process of its own. Each client streams one completion after the other over a connection of
its own, by the model's default sampling. Before and after, ``glinfer generate --batch`` runs the same prompts by the
same sampling in as many slots, since a machine that others use too is not equally fast all the time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import click
import httpx

from glinfer.cli.common import json_option, print_json, weights_option
from glinfer.engine.report import Report
from glinfer.errors import InputError
from glinfer.lower.plans import DEFAULT_WEIGHTS

ROOT = Path(__file__).resolve().parent.parent
WORDS = ("ROMEO:", "JULIET:", "the king", "my lord", "what light", "this night", "thou art", "love", "a crown")
START_SECONDS = 120.0
"""Limit for loading the model, in seconds."""


@dataclass
class LoadReport(Report):
    """What clients of a server saw.

    Attributes:
        clients, slots, max_tokens: how it was run.
        seconds: from the first request to the last answer.
        requests: answers that were whole.
        tokens: their tokens, as the server counts them.
        errors: answers that were not, by status or by the name of what was raised.
        first_token_p50, first_token_p95: seconds from a request to its first token.
        batch_rates: tokens a second of ``generate --batch``, before and after.
        memory_start, memory_end: resident bytes of the server, after a first answer and at the end; None if unknown.
    """

    derived = ("rate", "share")

    clients: int
    slots: int
    max_tokens: int
    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    first_token_p50: float = 0.0
    first_token_p95: float = 0.0
    batch_rates: list[float] = field(default_factory=list)
    memory_start: int | None = None
    memory_end: int | None = None

    @property
    def rate(self) -> float:
        """Tokens a second of all clients together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float:
        """That rate as a share of the mean rate of ``generate --batch``."""
        return self.rate / statistics.mean(self.batch_rates)


def prompt_of(draw: random.Random) -> str:
    """A prompt of up to 20 words."""
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 10)))


def batch_rate(model: str, folder: Path, report: LoadReport, prompts: Sequence[str], weights: str) -> float:
    """Tokens a second of a batch; its closing line says them.

    Raises:
        InputError: the batch has failed.
    """
    source = folder / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    command = [
        sys.executable,
        "-m",
        "glinfer",
        "generate",
        model,
        "--batch",
        str(source),
        "--out",
        str(folder / "out.jsonl"),
    ]
    command += ["--restart", "--slots", str(report.slots), "--max-tokens", str(report.max_tokens), "--seed", "1"]
    command += ["--weights", weights]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = re.search(r"([\d,.]+) tok/s", done.stderr)
    if done.returncode or found is None:
        raise InputError(f"the batch has failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return float(found[1].replace(",", ""))


@contextmanager
def server(model: str, slots: int, queue: int, weights: str) -> Iterator[tuple[str, int]]:
    """The address and the process id of ``glinfer serve``, ready.

    Raises:
        InputError: it has not started.
    """
    command = [sys.executable, "-m", "glinfer", "serve", f"load={model}", "--port", "0"]
    command += ["--slots", str(slots), "--queue", str(queue), "--weights", weights]
    with started(command) as (address, process):
        yield address, process.pid


@contextmanager
def started(
    command: Sequence[str], log: int | IO[str] = subprocess.PIPE
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of a server, ready; it ends with the block.

    Args:
        command: starts a server whose first line on standard output has its address, as that of ``glinfer serve``.
        log: takes its standard error. A server that writes much there stands still when a pipe is full.

    Raises:
        InputError: it has not started.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=log, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+(?=/v1)", process.stdout.readline())
            deadline = time.monotonic() + START_SECONDS
            while found is None or not _ready(found[0]):
                if process.poll() is not None or found is None or time.monotonic() > deadline:
                    process.kill()
                    said = ((process.communicate()[1] or "").strip().splitlines() or ["it was not ready in time"])[-1]
                    raise InputError(f"the server has not started: {said}")
                time.sleep(0.05)
            yield found[0], process
        finally:
            process.terminate()
            process.communicate()


def _ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.HTTPError:
        return False


def resident(process: int) -> int | None:
    """Resident bytes of a process; None on systems without Linux's /proc."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text("ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def stream_events(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a streamed answer, one by one.

    Raises:
        AnswerError: it was no whole answer.
    """
    whole = False
    async with http.stream("POST", path, json=body, headers=headers) as answer:
        if answer.status_code != 200:
            await answer.aread()
            raise AnswerError(str(answer.status_code))
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                whole = True
            elif line.startswith("data: "):
                data: dict[str, Any] = json.loads(line[6:])
                if "error" in data:
                    raise AnswerError(str(data["error"]["code"]))
                yield data
    if not whole:
        raise AnswerError("cut off")


async def _ask(http: httpx.AsyncClient, body: dict[str, Any]) -> tuple[float, int]:
    """Stream one answer: the seconds to its first token, and its tokens.

    Raises:
        AnswerError: it was no whole answer.
    """
    began, first, tokens = time.monotonic(), None, 0
    async for data in stream_events(http, "/v1/completions", body):
        first = time.monotonic() - began if first is None else first
        tokens = (data.get("usage") or {}).get("completion_tokens", tokens)
    if first is None:
        raise AnswerError("cut off")
    return first, tokens


class AnswerError(Exception):
    """An answer that was none; its text says which kind."""


def load(address: str, report: LoadReport, seconds: float, prompts: Sequence[str]) -> list[float]:
    """Ask for some seconds with all clients; counts in ``report``, and returns the seconds to each first token.

    Clients run in several processes where there are CPUs for them: Python in one cannot read all that a GPU writes.
    """
    count = min(report.clients, max(1, (os.cpu_count() or 1) // 4))
    with ProcessPoolExecutor(count) as pool:
        parts = [replace(report, clients=len(range(part, report.clients, count))) for part in range(count)]
        runs = [pool.submit(_ask_all, address, part, seconds, prompts[at::count]) for at, part in enumerate(parts)]
        found = [run.result() for run in runs]
    firsts = list[float]()
    for part, some in found:
        report.seconds, report.requests = max(report.seconds, part.seconds), report.requests + part.requests
        report.tokens, report.errors = report.tokens + part.tokens, report.errors + part.errors
        firsts += some
    return firsts


def _ask_all(
    address: str, report: LoadReport, seconds: float, prompts: Sequence[str]
) -> tuple[LoadReport, list[float]]:
    return report, asyncio.run(_clients(address, report, seconds, prompts))


async def _clients(address: str, report: LoadReport, seconds: float, prompts: Sequence[str]) -> list[float]:
    firsts, following = list[float](), itertools.cycle(prompts)
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        draw = random.Random(number)
        async with httpx.AsyncClient(base_url=address, timeout=120) as http:
            while time.monotonic() < end:
                body = {"model": "load", "prompt": next(following), "max_tokens": report.max_tokens, "stream": True}
                body |= {"seed": draw.getrandbits(31), "stream_options": {"include_usage": True}}
                try:
                    first, tokens = await _ask(http, body)
                except AnswerError as error:
                    report.errors[str(error)] += 1
                    await asyncio.sleep(0.1)
                except (httpx.HTTPError, OSError) as error:
                    report.errors[type(error).__name__] += 1
                    await asyncio.sleep(0.1)
                else:
                    firsts.append(first)
                    report.requests += 1
                    report.tokens += tokens

    started = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(report.clients)))
    report.seconds = time.monotonic() - started
    return firsts


def serve_load(
    model: str,
    clients: int,
    seconds: float,
    *,
    slots: int,
    max_tokens: int,
    queue: int | None = None,
    prompts: int = 200,
    weights: str = DEFAULT_WEIGHTS,
) -> LoadReport:
    """Load a server, between two batches of the same prompts.

    Raises:
        InputError: the batch or the server does not run.
    """
    report, draw = LoadReport(clients, slots, max_tokens), random.Random(0)
    texts = [prompt_of(draw) for _ in range(prompts)]
    with tempfile.TemporaryDirectory() as folder:
        report.batch_rates.append(batch_rate(model, Path(folder), report, texts, weights))
        with server(model, slots, 2 * clients if queue is None else queue, weights) as (address, process):
            httpx.post(f"{address}/v1/completions", json={"model": "load", "prompt": "a"}, timeout=120)
            report.memory_start = resident(process)
            firsts = load(address, report, seconds, texts)
            report.memory_end = resident(process)
        report.batch_rates.append(batch_rate(model, Path(folder), report, texts, weights))
    if firsts:
        report.first_token_p50 = statistics.median(firsts)
        report.first_token_p95 = sorted(firsts)[math.ceil(0.95 * len(firsts)) - 1]
    return report


@click.command("serve-load")
@click.argument("model", type=click.Path(), default="shakespeare")
@click.option("--clients", type=click.IntRange(1, 1000), default=64, show_default=True, help="Number of clients.")
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Duration of the load.")
@click.option("--slots", type=click.IntRange(1, 256), default=16, show_default=True, help="Sequences at once.")
@click.option(
    "--max-tokens", type=click.IntRange(1), default=32, show_default=True, help="Maximum tokens of an answer."
)
@click.option(
    "--queue",
    type=click.IntRange(0),
    help="Requests that may wait. Default: twice the number of clients, of which one address may take half.",
)
@click.option("--prompts", type=click.IntRange(1), default=200, show_default=True, help="Prompts, used in turn.")
@weights_option
@json_option
def serve_load_command(model: str, clients: int, seconds: float, as_json: bool, **options: Any) -> None:
    """Load a server of MODEL (default: shakespeare) with many clients, and compare its speed with a batch.

    Both use the model's default sampling and the same prompts.

    The exit status is 1 if an answer was an error or incomplete.

    \b
    python -m qa serve-load --clients 8 --seconds 10
    """
    report = serve_load(model, clients, seconds, **options)
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(
            f"{clients} clients for {report.seconds:.0f} s, {report.slots} slots: {report.requests:,} answers, "
            f"{report.tokens:,} tokens, {report.rate:.1f} tok/s"
        )
        before, after = report.batch_rates
        click.echo(f"generate --batch: {before:.1f} tok/s before, {after:.1f} tok/s after")
        click.echo(f"the server's share of that: {report.share:.0%}; sampling: the model's default")
        click.echo(f"first token: p50 {report.first_token_p50:.2f} s, p95 {report.first_token_p95:.2f} s")
        if report.memory_start is not None and report.memory_end is not None:
            click.echo(f"memory: {report.memory_start / 1e6:.0f} MB, at the end {report.memory_end / 1e6:.0f} MB")
        kinds = ", ".join(f"{count} × {kind}" for kind, count in report.errors.items())
        click.echo(f"errors: {kinds or 'none'}")
    if report.errors or not report.requests:
        click.get_current_context().exit(1)
