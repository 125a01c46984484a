"""Stop ``run-batch`` or ``generate --batch`` in every rough way again and again; no result may be lost or changed.

After each stop the whole lines that were there have to be there still, byte for byte. At the end the lines are those of
a run without a stop.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from glinfer.config import ModelConfig
from glinfer.engine.random_model import write_demo
from glinfer.errors import InputError
from qa.steps import ROOT

SHAPE = "vocab=300,dim=32,heads=4,blocks=2,context=64"
OPTIONS = ("--seed", "3", "--max-tokens", "6")
MANIFEST = "results.jsonl.manifest.json"
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
"""Signals in turns; of six, four are SIGKILL."""
STATUSES = {signal.SIGKILL: (-9, 0), signal.SIGTERM: (-15, 0), signal.SIGINT: (130, -2, 0)}
"""How a signal may end a run: it may be too early for the command to answer, or too late."""
MOMENTS = ("bytes", "start", "write", "time")
MAX_SECONDS = 600.0
"""Limit for one run without a stop, in seconds."""
MAX_ROUNDS = 10
STARTING = 2.0
"""Seconds after the start within which the moment ``start`` lies."""


class BrokenPromiseError(Exception):
    """A result was lost, doubled or changed, or a run ended in a wrong way."""


def _prompt(rng: random.Random) -> str | list[int]:
    """A short text or token ids."""
    if rng.random() < 0.5:
        return "".join(rng.choice('Once upon é ž 漢 😀\n"\\') for _ in range(rng.randint(1, 8)))
    return [rng.randrange(300) for _ in range(rng.randint(1, 12))]


def prompt_lines(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Short prompts of all kinds: texts and token ids, with and without an ``id``, with and without options."""
    for number in range(1, count + 1):
        prompt = _prompt(rng)
        line: dict[str, Any] = {"prompt" if isinstance(prompt, str) else "ids": prompt}
        if rng.random() < 0.3:
            line["id"] = f"n° {number}"
        if rng.random() < 0.3:
            line["max_tokens"] = rng.randint(1, 9)
        if rng.random() < 0.3:
            line.update(rng.choice([{"temperature": 0}, {"top_k": 20}, {"top_p": 0.9}, {"repetition_penalty": 1.2}]))
        yield line


def request_lines(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Short requests of all kinds, some of which fail."""
    for number in range(1, count + 1):
        body: dict[str, Any] = {"model": "m", "max_tokens": rng.randint(1, 6), "prompt": _prompt(rng)}
        body.update(rng.choice([{}, {}, {"temperature": 0}, {"top_k": 20}, {"n": 2}, {"seed": 5}, {"top_p": 9}]))
        yield {"custom_id": f"n° {number}", "method": "POST", "url": "/v1/completions", "body": body}


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """A result without values that differ between two runs: ids of responses, times, and counts of cached tokens."""
    response = answer["response"]
    if response is None:
        return answer
    body = {name: value for name, value in response["body"].items() if name not in ("id", "created", "created_at")}
    if "usage" in body:
        body["usage"] = {name: count for name, count in body["usage"].items() if not name.endswith("_details")}
    return {**answer, "response": {"status_code": response["status_code"], "body": body}}


def _comparable(line: bytes) -> bytes:
    return json.dumps(comparable(json.loads(line)), sort_keys=True).encode()


class Form(NamedTuple):
    """A form of batches: its lines and their key, the command for (model, source, out), and how results compare."""

    lines: Callable[[random.Random, int], Iterator[dict[str, Any]]]
    key: str
    command: Callable[[Path, Path, Path], list[object]]
    same: Callable[[bytes], bytes] = bytes

    def write(self, path: Path, count: int, seed: int) -> None:
        """Write the lines of a batch."""
        rng = random.Random(seed)
        lines = [json.dumps(line, ensure_ascii=rng.random() < 0.5) for line in self.lines(rng, count)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


PROMPTS = Form(
    prompt_lines, "id", lambda model, source, out: ["generate", model, "--batch", source, "--out", out, *OPTIONS]
)
REQUESTS = Form(
    request_lines,
    "custom_id",
    lambda model, source, out: ["run-batch", "-i", source, "-o", out, f"m={model}"],
    _comparable,
)


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if there is no file."""
    return path.stat().st_size if path.exists() else 0


class BatchCommand:
    """The command under test, its results, the lines that it has finished so far, and counts of stops by kind."""

    def __init__(self, out: Path, *arguments: object) -> None:
        """Prepare the command line; nothing is run yet."""
        self.out, self.kept, self.said = out, b"", ""
        self.stops, self.runs, self.torn = Counter[str](), 0, 0
        self.arguments = [sys.executable, "-m", "glinfer", *map(str, arguments)]

    @contextlib.contextmanager
    def started(self, *statuses: int, max_bytes: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A run, which has to end with one of these statuses and print at most a line, :attr:`said`.

        ``max_bytes`` limits the size of the file.
        """

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # in the background it may be ignored, and is inherited
            if max_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))

        self.runs += 1
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "GLINFER_CACHE": ""}
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(self.arguments, stdout=null, stderr=pipe, env=environment, preexec_fn=prepare) as process:
            try:
                yield process
                said = process.communicate(timeout=MAX_SECONDS)[1].decode(errors="replace").strip()
            finally:
                process.kill()
        status = process.returncode
        if status not in statuses:
            raise BrokenPromiseError(f"ended with status {status}, expected {statuses}: {said[-500:]}")
        if "\n" in said and status != -signal.SIGINT:  # while importing, which Python answers in its own way
            raise BrokenPromiseError(f"said more than a line: {said[-500:]}")
        self.said = said
        self.look()

    def look(self) -> None:
        """Check that all finished lines are still there."""
        now = self.out.read_bytes() if self.out.exists() else b""
        if not now.startswith(self.kept):
            raise BrokenPromiseError(f"{len(self.kept)} bytes of whole lines were there, and do not begin the file now")
        self.kept = now[: now.rfind(b"\n") + 1]
        self.torn += len(now) > len(self.kept)

    def begin_anew(self) -> None:
        """Remove the results."""
        self.out.unlink()
        self.kept = b""

    def run(self) -> str:
        """Run to the end; returns what it said."""
        with self.started(0):
            pass
        return self.said

    def run_killing(self, rng: random.Random, kills: int) -> int:
        """Run to the end while processes of its own are killed, each after some further results; how many were."""
        killed = size = 0
        with self.started(0) as process:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while process.poll() is None:
                time.sleep(0.01)
                with contextlib.suppress(OSError):  # one of them has just ended
                    now, found = size_of(self.out), children.read_text().split()
                    if killed < kills and now > size and found and rng.random() < 0.2:
                        os.kill(int(rng.choice(found)), signal.SIGKILL)
                        killed, size = killed + 1, now
        self.stops["SIGKILL process of a device"] += killed
        return killed

    def stop(self, number: signal.Signals, kind: str, share: float, seconds: float, rng: random.Random) -> bool:
        """Run, and send a signal at a moment, see :meth:`wait`; whether that ended the run."""
        with self.started(*STATUSES[number]) as process:
            self.wait(process, kind, share, seconds, rng)
            process.send_signal(number)
        return process.returncode != 0

    def wait(
        self, process: subprocess.Popen[bytes], kind: str, share: float, seconds: float, rng: random.Random
    ) -> None:
        """Wait for a moment of a run: a time after its start or first result, a size of its file, or the next write.

        ``share`` are the bytes to write until the next stop, and ``seconds`` their time, both on average.
        """
        size = seen = size_of(self.out)
        wanted = size + max(1, int(share * rng.uniform(0.2, 1.8)))

        def until(reached: Callable[[], bool], limit: float = math.inf, rest: float = 0.0002) -> None:
            ends = time.monotonic() + limit
            while process.poll() is None and time.monotonic() < ends and not reached():
                time.sleep(rest)

        if kind == "start":
            until(lambda: False, rng.uniform(0.0, STARTING))
        elif kind == "time":
            until(lambda: size_of(self.out) > size)
            until(lambda: False, rng.uniform(0.0, seconds))
        else:
            until(lambda: size_of(self.out) >= wanted)
            if kind == "write":  # looked at without a rest, so that the next line is being written
                seen = size_of(self.out)
                until(lambda: size_of(self.out) > seen, 0.02, 0.0)

    def limited(self, max_bytes: int) -> bool:
        """Run with a limit on the size of files; whether that ended the run."""
        with self.started(0, 2, max_bytes=max_bytes) as process:
            pass
        if process.returncode == 2 and "File too large" not in self.said:
            raise BrokenPromiseError(f"a limit on the file's size ended it with {self.said!r}")
        return process.returncode == 2

    def tear(self, rng: random.Random) -> None:
        """Cut the last line short, as a machine does that loses power."""
        if lines := self.kept.splitlines(keepends=True):
            self.kept = b"".join(lines[:-1])
            os.truncate(self.out, len(self.kept) + rng.randint(1, len(lines[-1]) - 1))
            self.stops["torn line"] += 1


def torment(
    folder: Path, *, prompts: int, kills: int, full: int, seed: int = 0, form: Form = PROMPTS, devices: str = ""
) -> BatchCommand:
    """Stop a batch in every way, with a line for each stop; returns the command with its counts.

    ``kills`` signals and ``full`` limits on the file's size have to end a run. Processes on ``devices`` run requests,
    and some are killed in one more run. Everything stays in ``folder``, which is empty.
    """
    rng, rounds = random.Random(seed), 1
    model, _ = write_demo(folder / "model", ModelConfig.from_options(SHAPE))
    source, expected, results = folder / "prompts.jsonl", folder / "expected.jsonl", folder / "out" / "results.jsonl"
    results.parent.mkdir()
    form.write(source, prompts, seed)
    started = time.monotonic()
    BatchCommand(expected, *form.command(model, source, expected)).run()
    seconds, total = time.monotonic() - started, expected.stat().st_size
    click.echo(f"without a stop: {seconds:.1f} s, {total} bytes")
    check_keys(expected, source, form)
    command = BatchCommand(results, *form.command(model, source, results), *(["--devices", devices] if devices else []))
    troubles = ["signal"] * kills + ["limit"] * full
    rng.shuffle(troubles)
    turns = zip(itertools.cycle(SIGNALS), itertools.cycle(MOMENTS), strict=False)
    while troubles:
        share = max(1.0, (total - len(command.kept)) / (len(troubles) + 1))
        if troubles[-1] == "limit":
            ended, name = command.limited(len(command.kept) + max(1, int(share * rng.uniform(0.2, 1.8)))), "file limit"
        else:
            number, kind = next(turns)
            ended, name = command.stop(number, kind, share, seconds / (kills + full + 1), rng), f"{number.name} {kind}"
        if not ended:  # it was done before, and begins anew
            check_same(results, expected, form)
            command.begin_anew()
            rounds += 1
            if rounds > MAX_ROUNDS:
                raise InputError("the runs are done before they are stopped; give more --prompts or fewer --kills")
            continue
        troubles.pop()
        command.stops[name] += 1
        click.echo(f"{len(troubles)} to go: {name}, {command.kept.count(10)} lines, {len(command.kept)} bytes")
        if len(troubles) % 3 == 0:
            command.tear(rng)
    command.run()
    if "nothing to do" not in command.run():
        raise BrokenPromiseError("another run found something left to do")
    check_same(results, expected, form)
    if devices:
        command.begin_anew()
        click.echo(f"killed {command.run_killing(rng, max(1, kills // 4))} processes of devices in one run")
        check_same(results, expected, form)
    click.echo(f"{len({*results.parent.iterdir()} - {results, results.parent / MANIFEST})} files left over")
    return command


def check_keys(results: Path, source: Path, form: Form) -> None:
    """Check that every prompt has exactly one result."""
    lines = enumerate(source.read_bytes().splitlines(), start=1)
    wanted = Counter(json.loads(line).get(form.key, number) for number, line in lines)
    found = Counter(json.loads(line).get(form.key) for line in results.read_bytes().splitlines())
    if other := [*(wanted - found), *(found - wanted)]:
        raise BrokenPromiseError(f"{len(other)} prompts have none or several results, such as {other[0]!r}")


def check_same(results: Path, expected: Path, form: Form = PROMPTS) -> None:
    """Check that the lines are those of the run without a stop, byte for byte but for ids and times of answers."""
    first, second = (path.read_bytes() for path in (results, expected))
    if not first.endswith(b"\n"):
        raise BrokenPromiseError("the last line has no end")
    try:
        found, wanted = (Counter(map(form.same, data.splitlines())) for data in (first, second))
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenPromiseError(f"a line of {results.name} is not a result: {error!r}") from None
    for lines, what in ((wanted - found, "lost or changed"), (found - wanted, "doubled or changed")):
        if lines:
            other = next(iter(lines)).decode(errors="replace")
            raise BrokenPromiseError(f"{lines.total()} results are {what}, such as {other[:300]}")


@click.command("kill-batch")
@click.option("--prompts", type=click.IntRange(min=1), default=10_000, show_default=True, help="Number of prompts.")
@click.option("--kills", type=click.IntRange(min=0), default=40, show_default=True, help="Signals that end a run.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of prompts, times and damage.")
@click.option("--requests", is_flag=True, help="Stop 'glinfer run-batch' instead of 'glinfer generate --batch'.")
@click.option("--devices", default="", help="With --requests: devices of processes to kill too, such as 0,0.")
def kill_batch(prompts: int, kills: int, seed: int, requests: bool, devices: str) -> None:
    """Kill running batches repeatedly, in every rough way; no result may be lost or changed.

    For every eight kills, one more run ends by a limit on the file's size. The files are kept after a failure.

    \b
    python -m qa kill-batch                     10,000 prompts, 40 kills: minutes
    python -m qa kill-batch --prompts 60 --kills 4
    python -m qa kill-batch --requests --devices 0,0

    \b
    Exit status:
      0  every prompt has one result, equal to that of an uninterrupted run
      1  a result was lost, duplicated or changed
      2  bad input, or this machine cannot run the test; needs Linux
    """
    if devices and not requests:
        raise InputError("--devices belongs to --requests; give both")
    place, form = Path(tempfile.mkdtemp(prefix="kill-batch-")), REQUESTS if requests else PROMPTS
    try:
        done = torment(place, prompts=prompts, kills=kills, full=1 + kills // 8, seed=seed, form=form, devices=devices)
    except BrokenPromiseError as error:
        click.echo(f"WRONG (seed {seed}, files in {place}): {error}", err=True)
        raise click.exceptions.Exit(1) from None
    shutil.rmtree(place)
    for kind, count in sorted(done.stops.items()):
        click.echo(f"{count:4}  {kind}")
    click.echo(
        f"{prompts} prompts, each with one result, as without a stop: {done.runs} runs, {done.torn} half lines found "
        "after a stop"
    )
