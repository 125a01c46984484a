"""``python -m qa serve-load``: clients that stream completions without a pause, beside a batch of the same prompts.

The batch runs before and after, since a machine that others use too is not equally fast all the time.
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
from pathlib import Path
from typing import Any

import click
import httpx

from glinfer.cli.common import print_json
from glinfer.cli.options import json_option
from glinfer.errors import InputError
from qa.steps import ROOT

WORDS = ("ROMEO:", "JULIET:", "the king", "my lord", "what light", "this night", "thou art", "love", "a crown")
START_SECONDS = 600.0
"""Limit for loading the model, in seconds."""
QUEUE = 2
"""Requests that may wait, for each client; one address may take half of them."""


def batch_rate(model: str, folder: Path, prompts: Sequence[str], slots: int, max_tokens: int) -> float:
    """Tokens a second of a batch, by its closing line; InputError if it fails."""
    source = folder / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    command = [sys.executable, "-m", "glinfer", "generate", model, "--batch", str(source), "--restart", "--seed", "1"]
    command += ["--out", str(folder / "out.jsonl"), "--slots", str(slots), "--max-tokens", str(max_tokens)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = re.search(r"([\d,.]+) tok/s", done.stderr)
    if done.returncode or found is None:
        raise InputError(f"the batch has failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return float(found[1].replace(",", ""))


@contextmanager
def started(command: Sequence[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of a server, ready; it ends with the block.

    The first line on its standard output has its address, as that of ``glinfer serve``.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+(?=/v1)", process.stdout.readline())
            deadline = time.monotonic() + START_SECONDS
            while found is None or not _ready(found[0]):
                if process.poll() is not None or found is None or time.monotonic() > deadline:
                    process.kill()
                    said = (process.communicate()[1].strip().splitlines() or ["it was not ready in time"])[-1]
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


async def stream_events(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a streamed answer, one by one; AnswerError if it is not whole."""
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


class AnswerError(Exception):
    """An answer that was none; its text says which kind."""


Seen = tuple[float, list[float], int, Counter[str]]
"""What some clients saw: how long they asked, the seconds to each first token, tokens and errors."""


def load(address: str, clients: int, seconds: float, prompts: Sequence[str], max_tokens: int) -> Seen:
    """Ask for some seconds with all clients.

    Clients run in several processes where there are CPUs for them: Python in one cannot read all that a GPU writes.
    """
    count = min(clients, max(1, (os.cpu_count() or 1) // 4))
    with ProcessPoolExecutor(count) as pool:
        parts = [(len(range(part, clients, count)), seconds, prompts[part::count], max_tokens) for part in range(count)]
        found = [run.result() for run in [pool.submit(_ask_all, address, *part) for part in parts]]
    times, firsts, tokens, errors = zip(*found, strict=True)
    return max(times), list(itertools.chain(*firsts)), sum(tokens), sum(errors, Counter[str]())


def _ask_all(address: str, clients: int, seconds: float, prompts: Sequence[str], max_tokens: int) -> Seen:
    firsts, errors, following, tokens = list[float](), Counter[str](), itertools.cycle(prompts), 0
    began = time.monotonic()

    async def client(number: int) -> None:
        nonlocal tokens
        draw = random.Random(number)
        async with httpx.AsyncClient(base_url=address, timeout=120) as http:
            while (asked := time.monotonic()) < began + seconds:
                body = {"model": "load", "prompt": next(following), "max_tokens": max_tokens, "stream": True}
                body |= {"seed": draw.getrandbits(31), "stream_options": {"include_usage": True}}
                times, count = list[float](), 0
                try:
                    async for data in stream_events(http, "/v1/completions", body):
                        times.append(time.monotonic() - asked)
                        count = (data.get("usage") or {}).get("completion_tokens", count)
                    if not times:
                        raise AnswerError("cut off")
                    firsts.append(times[0])
                    tokens += count
                except (AnswerError, httpx.HTTPError, OSError) as error:
                    errors[str(error) if isinstance(error, AnswerError) else type(error).__name__] += 1
                    await asyncio.sleep(0.1)

    async def run() -> None:
        await asyncio.gather(*map(client, range(clients)))

    asyncio.run(run())
    return time.monotonic() - began, firsts, tokens, errors


def serve_load(
    model: str, clients: int, seconds: float, *, slots: int, max_tokens: int, prompts: int
) -> dict[str, Any]:
    """Load a server, between two batches of the same prompts; returns the report that ``--json`` prints.

    ``requests`` are whole answers, and ``errors`` counts the others by status, code, or the name of what was raised.
    Rates are tokens a second as the server counts them; ``share`` is that of the mean of both batches.
    """
    draw, rates = random.Random(0), list[float]()
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 10))) for _ in range(prompts)]
    command = [sys.executable, "-m", "glinfer", "serve", f"load={model}", "--port", "0"]
    command += ["--slots", str(slots), "--queue", str(QUEUE * clients)]
    with tempfile.TemporaryDirectory() as folder:
        rates.append(batch_rate(model, Path(folder), texts, slots, max_tokens))
        with started(command) as (address, _):
            httpx.post(f"{address}/v1/completions", json={"model": "load", "prompt": "a"}, timeout=120)
            taken, firsts, tokens, errors = load(address, clients, seconds, texts, max_tokens)
        rates.append(batch_rate(model, Path(folder), texts, slots, max_tokens))
    ordered, rate = sorted(firsts) or [0.0], tokens / taken
    return {
        **{"clients": clients, "slots": slots, "max_tokens": max_tokens, "seconds": taken},
        **{"requests": len(firsts), "tokens": tokens, "errors": errors},
        "first_token_p50": statistics.median(ordered),
        "first_token_p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        **{"batch_rates": rates, "rate": rate, "share": rate / statistics.mean(rates)},
    }


@click.command("serve-load")
@click.argument("model", type=click.Path(), default="shakespeare")
@click.option("--clients", type=click.IntRange(1, 1000), default=64, show_default=True, help="Number of clients.")
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Duration of the load.")
@click.option("--slots", type=click.IntRange(1, 256), default=16, show_default=True, help="Sequences at once.")
@click.option("--max-tokens", type=click.IntRange(1), default=32, show_default=True, help="Tokens of an answer.")
@click.option("--prompts", type=click.IntRange(1), default=200, show_default=True, help="Prompts, used in turn.")
@json_option
def serve_load_command(model: str, clients: int, seconds: float, as_json: bool, **options: Any) -> int:
    """Load a server of MODEL (default: shakespeare) with many clients, and compare its speed with a batch.

    Both use the model's default sampling and the same prompts.

    The exit status is 1 if an answer was an error or incomplete.

    \b
    python -m qa serve-load --clients 8 --seconds 10
    """
    report = serve_load(model, clients, seconds, **options)
    if as_json:
        print_json(report)
    else:
        before, after = report["batch_rates"]
        kinds = ", ".join(f"{count} × {kind}" for kind, count in report["errors"].items())
        click.echo(
            f"{clients} clients for {report['seconds']:.0f} s, {report['slots']} slots: {report['requests']:,} answers"
            f", {report['tokens']:,} tokens, {report['rate']:.1f} tok/s\n"
            f"generate --batch: {before:.1f} tok/s before, {after:.1f} tok/s after; share {report['share']:.0%}\n"
            f"first token: p50 {report['first_token_p50']:.2f} s, p95 {report['first_token_p95']:.2f} s\n"
            f"errors: {kinds or 'none'}"
        )
    return int(bool(report["errors"]) or not report["requests"])
