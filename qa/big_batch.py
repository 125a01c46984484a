"""Run a batch of a million lines, and see that memory stays what the model takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import json_option, print_json
from glinfer.config import ModelConfig
from glinfer.engine.random_model import write_demo
from qa.kill_batch import ROOT, SHAPE, children

_FEW = 1000


@dataclass
class BigReport:
    """Figures of one batch; memory in MB, of the process and those that it has started.

    ``few_mb`` is the most that a batch of 1,000 lines took, ``most_mb`` that of all lines.
    """

    lines: int
    seconds: float
    lines_per_second: float
    check_seconds: float
    few_mb: float
    most_mb: float

    @property
    def above_mb(self) -> float:
        """How much more the batch took than one of 1,000 lines."""
        return self.most_mb - self.few_mb


def write_lines(path: Path, count: int) -> None:
    """Write requests of a few tokens, two of which are generated."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            body = {"model": "m", "prompt": f"{number}", "max_tokens": 2}
            line = {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def _peak(pid: int) -> float:
    """The most memory that a process and those it has started have had, in MB."""
    total = 0.0
    for each in (pid, *children(pid)):
        try:
            text = Path(f"/proc/{each}/status").read_text()
        except OSError:
            continue
        peak = next((line for line in text.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
        total += int(peak.split()[1]) / 1000
    return total


def ran(model: Path | str, source: Path, out: Path, more: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Run the command; its JSON, and the most memory that it took."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "glinfer", "run-batch", "-i", source, "-o", out, f"m={model}", "--json", *more]
    most, done = 0.0, threading.Event()
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as process:

        def watch() -> None:
            nonlocal most
            while not done.wait(0.1):
                most = max(most, _peak(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            said, _ = process.communicate()
        finally:
            done.set()
            watcher.join()
    if process.returncode:
        raise click.ClickException(f"the batch ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found, most


def run_big(folder: Path, lines: int, more: tuple[str, ...]) -> BigReport:
    """Run 1,000 lines and then all of them; then the same command again, which checks that each has one result."""
    model, _ = write_demo(folder / "model", ModelConfig.from_options(SHAPE))
    write_lines(folder / "few.jsonl", _FEW)
    write_lines(folder / "in.jsonl", lines)
    _, few = ran(model, folder / "few.jsonl", folder / "few-out.jsonl", more)
    told, most = ran(model, folder / "in.jsonl", folder / "out.jsonl", more)
    started = time.monotonic()
    again, _ = ran(model, folder / "in.jsonl", folder / "out.jsonl", more)
    if (told["lines"], told["failed"], again["finished_before"], again["lines"]) != (lines, 0, lines, 0):
        raise click.ClickException(f"expected {lines} results, each once; found {told} and then {again}")
    seconds = told["seconds"]
    return BigReport(lines, seconds, lines / seconds, time.monotonic() - started, few, most)


@click.command("big-batch")
@click.option("--lines", type=click.IntRange(_FEW), default=1_000_000, show_default=True, help="Number of requests.")
@click.option("--most", type=float, default=200.0, show_default=True, help="MB allowed above a batch of 1,000 lines.")
@click.option("--devices", help="As for 'glinfer run-batch'.")
@json_option
def big_batch(lines: int, most: float, devices: str | None, as_json: bool) -> None:
    """Run many short requests with a tiny model, and print the memory used beyond that of 1,000 requests.

    \b
    python -m qa big-batch                       a million lines: an hour or more
    python -m qa big-batch --lines 20000

    \b
    Exit status:
      0  memory stays within --most
      1  memory exceeds --most
    """
    place = Path(tempfile.mkdtemp(prefix="big-batch-"))
    try:
        report = run_big(place, lines, () if devices is None else ("--devices", devices))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if as_json:
        print_json({**vars(report), "above_mb": report.above_mb})
    else:
        click.echo(
            f"{report.lines} lines in {report.seconds:.0f} s, {report.lines_per_second:.0f} a second; "
            f"{report.most_mb:.0f} MB, {report.above_mb:.0f} above a batch of {_FEW}; "
            f"input and results checked again in {report.check_seconds:.0f} s"
        )
    if report.above_mb > most:
        raise click.exceptions.Exit(1)
