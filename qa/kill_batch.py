"""Stop ``run-batch`` or ``generate --batch`` in every rough way again and again; no result may be lost or changed.

A file of prompts is run once without a stop. Then it is run with another file for results, and stopped at random
moments: SIGKILL, SIGTERM and SIGINT while it starts, while it writes and in between; a file size limit in
the middle of a line; lines cut off at their end. After each stop the whole lines that were there have to be there
still, byte for byte. It is started again until it is done. At last every prompt must have exactly one result, and each
line must be one of the run without a stop.
"""

from __future__ import annotations

import contextlib
import itertools
import json
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
STATUS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 130}
MOMENTS = ("bytes", "start", "write", "time")
MAX_SECONDS = 600.0
"""Limit for one run without a stop, in seconds."""
MAX_ROUNDS = 10
STARTING = 2.0
"""Seconds after the start within which the moment ``start`` lies."""


Moment = Callable[[subprocess.Popen[bytes]], bool]


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


@dataclass(frozen=True)
class Form:
    """A form of batches: how its prompts are written and run, and how its lines are told apart and compared."""

    lines: Callable[[random.Random, int], Iterator[dict[str, Any]]]
    command: Callable[[Path, Path, Path], list[object]]
    key: str
    same: Callable[[bytes], bytes] = bytes

    def write(self, path: Path, count: int, seed: int) -> None:
        """Write the lines of a batch."""
        rng = random.Random(seed)
        lines = [json.dumps(line, ensure_ascii=rng.random() < 0.5) for line in self.lines(rng, count)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


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


def _prompts(model: Path, source: Path, out: Path) -> list[object]:
    return ["generate", model, "--batch", source, "--out", out, *OPTIONS]


def _requests(model: Path, source: Path, out: Path) -> list[object]:
    return ["run-batch", "-i", source, "-o", out, f"m={model}"]


PROMPTS, REQUESTS = Form(prompt_lines, _prompts, "id"), Form(request_lines, _requests, "custom_id", _comparable)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def whole(data: bytes) -> bytes:
    """The complete lines of a file."""
    return data[: data.rfind(b"\n") + 1]


def content(path: Path) -> bytes:
    """The bytes of a file; empty if there is no file."""
    return path.read_bytes() if path.exists() else b""


class BatchCommand:
    """The command under test, its files, the lines that it has finished so far, and counts of stops by kind."""

    def __init__(self, model: Path, prompts: Path, out: Path, form: Form = PROMPTS) -> None:
        """Prepare the command line; nothing is run yet."""
        self.out, self.kept, self.stops, self.runs, self.torn = out, b"", Counter[str](), 0, 0
        self.arguments = [sys.executable, "-m", "glinfer", *form.command(model, prompts, out)]

    @contextlib.contextmanager
    def started(self, max_bytes: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Start a run; ``max_bytes`` limits the size of the file."""

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # in the background it may be ignored, and is inherited
            if max_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))

        self.runs += 1
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with subprocess.Popen(
            list(map(str, self.arguments)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "GLINFER_CACHE": ""},
            preexec_fn=prepare,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ended(self, process: subprocess.Popen[bytes], statuses: tuple[int, ...]) -> str:
        """Wait for the end; what was said: at most one line, with one of ``statuses``."""
        _, said = process.communicate(timeout=MAX_SECONDS)
        errors = said.decode(errors="replace").strip()
        if process.returncode not in statuses:
            raise BrokenPromiseError(f"ended with status {process.returncode}, expected {statuses}: {errors[-500:]}")
        while_importing = process.returncode == -signal.SIGINT  # which Python answers in its own way
        if errors.count("\n") > 0 and not while_importing:
            raise BrokenPromiseError(f"said more than a line: {errors[-500:]}")
        self.look()
        return errors

    def look(self) -> None:
        """Check that all finished lines are still there."""
        now = content(self.out)
        if not now.startswith(self.kept):
            raise BrokenPromiseError(f"{len(self.kept)} bytes of whole lines were there, and do not begin the file now")
        self.kept = whole(now)
        self.torn += len(now) > len(self.kept)

    def begin_anew(self) -> None:
        """Remove the results."""
        self.out.unlink()
        self.kept = b""

    def run(self) -> str:
        """Run to the end."""
        with self.started() as process:
            return self.ended(process, (0,))

    def run_killing(self, rng: random.Random, kills: int) -> int:
        """Run to the end while processes of its own are killed, each after some further results; how many were."""
        killed = 0
        with self.started() as process:
            size = 0
            while process.poll() is None:
                time.sleep(0.01)
                now = len(content(self.out))
                if killed < kills and now > size and (found := children(process.pid)) and rng.random() < 0.2:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(found), signal.SIGKILL)
                        killed, size = killed + 1, now
            self.ended(process, (0,))
        self.stops["SIGKILL process of a device"] += killed
        return killed

    def stop(self, number: signal.Signals, moment: Moment) -> bool:
        """Run, and send a signal as soon as ``moment`` is true; whether that ended the run."""
        with self.started() as process:
            while process.poll() is None and not moment(process):
                time.sleep(0.0002)
            process.send_signal(number)
            # It may be too early for the command to answer, or too late.
            early = (-number,) if number == signal.SIGINT else ()
            self.ended(process, (STATUS[number], *early, 0))
            return process.returncode != 0

    def limited(self, max_bytes: int) -> bool:
        """Run with a limit on the size of files; whether that ended the run."""
        with self.started(max_bytes) as process:
            said = self.ended(process, (0, 2))
            if process.returncode == 2 and "File too large" not in said:
                raise BrokenPromiseError(f"a limit on the file's size ended it with {said!r}")
            return process.returncode == 2

    def tear(self, rng: random.Random) -> None:
        """Cut the last line short, as a machine does that loses power."""
        lines = self.kept.splitlines(keepends=True)
        if not lines:
            return
        self.kept = b"".join(lines[:-1])
        with self.out.open("r+b") as file:
            file.truncate(len(self.kept) + rng.randint(1, len(lines[-1]) - 1))
        self.stops["torn line"] += 1


def moment_for(kind: str, out: Path, share: float, rng: random.Random, seconds: float) -> Moment:
    """Choose when to send a signal: after some bytes of output, at the start, at a write, or after some time."""
    begun, size, first = time.monotonic(), len(content(out)), list[float]()
    behind = rng.uniform(0.0, STARTING if kind == "start" else seconds)
    wanted = size + max(1, int(share * rng.uniform(0.2, 1.8)))

    def grown() -> int:
        return out.stat().st_size if out.exists() else 0

    def later(_: subprocess.Popen[bytes]) -> bool:
        if not first and grown() > size:
            first.append(time.monotonic() + behind)
        return bool(first) and time.monotonic() > first[0]

    def at_write(process: subprocess.Popen[bytes]) -> bool:
        """Looked at without a rest, so that the next line is being written."""
        ends, seen = time.monotonic() + 0.02, grown()
        while seen >= wanted and time.monotonic() < ends and process.poll() is None:
            if grown() > seen:
                return True
        return False

    moments: dict[str, Moment] = {"time": later, "write": at_write, "bytes": lambda _: grown() >= wanted}
    return moments.get(kind, lambda _: time.monotonic() - begun > behind)


def torment(
    folder: Path, *, prompts: int, kills: int, full: int, seed: int = 0, form: Form = PROMPTS, devices: str = ""
) -> BatchCommand:
    """Stop a batch in every way, with a line for each stop; returns the command with its counts.

    Args:
        folder: an empty folder; everything stays in it.
        prompts: prompts of the batch.
        kills: signals that have to end a run.
        full: limits on the file's size that have to end a run.
        seed: seed of prompts, moments and damage.
        form: the form of the batch.
        devices: run requests by processes on these devices, some of which are killed in one more run.

    Raises:
        BrokenPromiseError: something was lost, doubled or changed.
        InputError: the runs are too short to be stopped.
    """
    rng, rounds = random.Random(seed), 1
    model, _ = write_demo(folder / "model", ModelConfig.from_options(SHAPE))
    source, expected, results = folder / "prompts.jsonl", folder / "expected.jsonl", folder / "out" / "results.jsonl"
    results.parent.mkdir()
    form.write(source, prompts, seed)
    started = time.monotonic()
    BatchCommand(model, source, expected, form).run()
    seconds, total = time.monotonic() - started, expected.stat().st_size
    click.echo(f"without a stop: {seconds:.1f} s, {total} bytes")
    check_all(expected, source, form)
    if devices:
        form = replace(form, command=lambda *paths: [*_requests(*paths), "--devices", devices])
    command = BatchCommand(model, source, results, form)
    troubles = ["signal"] * kills + ["limit"] * full
    rng.shuffle(troubles)
    turns = zip(itertools.cycle(SIGNALS), itertools.cycle(MOMENTS), strict=False)
    while troubles:
        share = max(1.0, (total - len(command.kept)) / (len(troubles) + 1))
        if troubles[-1] == "limit":
            ended, name = command.limited(len(command.kept) + max(1, int(share * rng.uniform(0.2, 1.8)))), "file limit"
        else:
            number, kind = next(turns)
            moment = moment_for(kind, results, share, rng, seconds / (kills + full + 1))
            ended, name = command.stop(number, moment), f"{number.name} {kind}"
        if not ended:  # it was done before, and begins anew
            check_same(results, expected, source, form)
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
    check_same(results, expected, source, form)
    if devices:
        command.begin_anew()
        click.echo(f"killed {command.run_killing(rng, max(1, kills // 4))} processes of devices in one run")
        check_same(results, expected, source, form)
    click.echo(f"{len({*results.parent.iterdir()} - {results, results.parent / MANIFEST})} files left over")
    return command


def check_all(results: Path, source: Path, form: Form = PROMPTS) -> None:
    """Check that every prompt has exactly one result, and every line is a JSON object."""
    wanted = []
    for number, line in enumerate(source.read_bytes().splitlines(), start=1):
        wanted.append(json.loads(line).get(form.key, number))
    data = results.read_bytes()
    if data != whole(data):
        raise BrokenPromiseError("the last line has no end")
    try:
        found = Counter(json.loads(line)[form.key] for line in data.splitlines())
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenPromiseError(f"a line of {results.name} is not a result: {error!r}") from None
    if twice := [key for key, count in found.items() if count > 1]:
        raise BrokenPromiseError(f"{len(twice)} prompts have several results, such as {twice[0]!r}")
    if lost := set(wanted) - set(found):
        raise BrokenPromiseError(f"{len(lost)} prompts have no result, such as {next(iter(lost))!r}")
    if strange := set(found) - set(wanted):
        raise BrokenPromiseError(f"{len(strange)} results are of no prompt, such as {next(iter(strange))!r}")


def check_same(results: Path, expected: Path, source: Path, form: Form = PROMPTS) -> None:
    """Check as :func:`check_all` does, and that each line is one of the run without a stop, byte for byte.

    Answers have ids and times of their own, which are left out.
    """
    check_all(results, source, form)
    first, second = (sorted(map(form.same, path.read_bytes().splitlines())) for path in (results, expected))
    if first != second:
        other = next(line for line in first if line not in set(second))
        raise BrokenPromiseError(f"a result differs from that of the run without a stop: {other.decode()[:300]}")


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
