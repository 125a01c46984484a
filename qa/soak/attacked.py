"""Attack ``glinfer serve`` for long, and check that it stays as it was and answers others right meanwhile.

Clients that harm (:mod:`qa.soak.attackers`) and clients that do not (:mod:`qa.soak.requests`) use one server. The
answers to the latter have to be those that the server gave before the attack. Its process is counted from outside, in
the files of /proc. Medians of the second and of the last quarter are compared: the first quarter fills caches. After
the attack nothing of it may be left, and SIGTERM has to end the process although requests hang.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.errors import InputError
from qa.serve_load import ROOT, resident, started
from qa.soak.attackers import hung
from qa.soak.models import ADAPTER, CHATS, EMBEDS, write_models
from qa.soak.requests import WRITES, draw_requests
from qa.soak.run import SoakCheck
from qa.soak.server import Answers, Load, judge_answers, replay

HEALTH_SECONDS = 2.0
"""Limit for 99 of 100 answers of /health, on a machine that many attackers use too; 'qa health' tells the server's own
part."""
GROWTH = {"memory": 0.05, "files": 0.25, "threads": 0.0, "sockets": 0.25}
"""Largest growth from the second quarter to the last, as a fraction. Sockets differ with what attacks at a moment."""
GRACE = 2.0
"""Seconds of --grace."""
END_SECONDS = GRACE + 8.0
"""Limit from SIGTERM to the end of the process."""
_CALM_SECONDS = 100.0
"""Limit for the last connections to end after the attack: the server itself waits for up to 60 s."""
_ABANDONED = "08"
_HELD = ("01", "03", "04", "05", _ABANDONED, "09", "0B")
"""The kernel's numbers of states in which a socket uses memory, without TIME-WAIT and LISTEN."""
_SEQUENCES = ("glinfer_running", "glinfer_waiting")


@dataclass(frozen=True)
class AttackSample:
    """What a server held, and how it answered since the sample before.

    Attributes:
        seconds: since the beginning of the attack.
        held: medians since the sample before, of counts each second: resident bytes as "memory", open file descriptors
            as "files", "threads", child processes as "children", connections as "sockets", and those of them that the
            client has closed as "abandoned" (CLOSE-WAIT).
        health_median, health_most: seconds until an answer of /health since then.
        answers: requests answered since the server began, over all routes.
        failures: those with 5xx, 503 aside.
        busy: those with 503.
        log_lines: lines of the log.
        tracebacks: tracebacks in it.
    """

    seconds: float
    held: dict[str, float]
    health_median: float
    health_most: float
    answers: int
    failures: int
    busy: int
    log_lines: int
    tracebacks: int


@dataclass(frozen=True)
class AttackReport:
    """An attack: the samples, what was sent, and the checks.

    Attributes:
        seconds: duration of the attack.
        samples: one before the attack, those of it, and one after it.
        attacks: attacks by kind.
        answers: answers to clients that do no harm, by kind.
        checks: the judged numbers.
        log: the last lines of the server's log.
    """

    seconds: float
    samples: tuple[AttackSample, ...]
    attacks: dict[str, int]
    answers: dict[str, int]
    checks: tuple[SoakCheck, ...]
    log: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every check has passed."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {**asdict(self), "passed": self.passed}


def sockets(port: int, table: str) -> dict[str, int]:
    """Connections of the server at a port, all and those that are "abandoned", by the text of /proc/net/tcp."""
    rows = (line.split()[1:4] for line in table.splitlines()[1:])
    states = [state for local, _, state in rows if local.endswith(f":{port:04X}") and state in _HELD]
    return {"sockets": len(states), "abandoned": states.count(_ABANDONED)}


def count(process: int, port: int) -> dict[str, int]:
    """What a server's process holds, see :class:`AttackSample`."""
    folder = Path(f"/proc/{process}")
    tasks = [*(folder / "task").iterdir()]
    return {
        "memory": resident(process) or 0,
        "files": sum(1 for _ in (folder / "fd").iterdir()),
        "threads": len(tasks),
        "children": sum(len((each / "children").read_text("ascii").split()) for each in tasks),
        **sockets(port, Path("/proc/net/tcp").read_text("ascii")),
    }


class Watch:
    """Asks /health and counts the server's process each second; :meth:`take` makes a sample of that."""

    def __init__(self, address: str, process: subprocess.Popen[str], log: Path) -> None:
        """Watch this process."""
        self.port = int(address.rpartition(":")[2])
        self.samples: list[AttackSample] = []
        self.health: list[float] = []
        self._counts: list[dict[str, int]] = []
        self._address, self._process, self._log = address, process, log
        self._asked, self._began = 0, time.monotonic()

    def look(self) -> None:
        """Count, and ask /health by a new connection, which does not count."""
        self._counts.append(count(self._process.pid, self.port))
        begun = time.perf_counter()
        try:
            good = self._get("/health").status_code == 200
        except httpx.HTTPError:
            good = False
        self.health.append(time.perf_counter() - begun if good else math.inf)

    def take(self) -> AttackSample:
        """Make a sample of what was counted since the last one."""
        health, self._asked = self.health[self._asked :], len(self.health)
        counts, self._counts = self._counts, []
        statuses = Counter[str]()
        for name, value in self._metrics().items():
            if found := re.match(r'glinfer_requests_total\{.*status="(\d+)"', name):
                statuses[found[1]] += int(value)
        log = self._log.read_text("utf-8", "replace")
        made = AttackSample(
            time.monotonic() - self._began,
            {name: statistics.median(each[name] for each in counts) for name in counts[0]},
            statistics.median(health),
            max(health),
            statuses.total(),
            sum(many for status, many in statuses.items() if status >= "500" and status != "503"),
            statuses["503"],
            log.count("\n"),
            log.count("Traceback"),
        )
        self.samples.append(made)
        return made

    def live(self) -> int:
        """Sequences that run or wait, and connections."""
        held = count(self._process.pid, self.port)["sockets"]
        return held + sum(int(value) for name, value in self._metrics().items() if name.startswith(_SEQUENCES))

    def _get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self._address}{path}", timeout=60, verify=False)

    def _metrics(self) -> dict[str, float]:
        rows = (line.rpartition(" ") for line in self._get("/metrics").text.splitlines() if line and line[0] != "#")
        return {name: float(value) for name, _, value in rows}

    @contextmanager
    def every(self, seconds: float, on_sample: Callable[[AttackSample], object]) -> Iterator[None]:
        """Look each second and take a sample each ``seconds``, as long as the block runs."""
        over, self._began = threading.Event(), time.monotonic()

        def watch() -> None:
            due = self._began + seconds
            while not over.wait(1.0) and self._process.poll() is None:
                self.look()
                if time.monotonic() >= due:
                    on_sample(self.take())
                    due += seconds

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                yield
            finally:
                over.set()
            watching.result()
        self._counts.clear()


@contextmanager
def attacked(port: int, seed: int, counts: Counter[str]) -> Iterator[None]:
    """Attack the server as long as the block runs; ``counts`` then has the attacks by kind."""
    command = [sys.executable, "-m", "qa.soak.attackers", str(port), str(seed)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield
        finally:
            said, _ = process.communicate("")
    if process.returncode:
        raise InputError(f"the attackers have ended with status {process.returncode}")
    counts.update(json.loads(said))


def end(process: subprocess.Popen[str], port: int) -> tuple[float, int]:
    """Have requests hang, and send SIGTERM: the seconds until the process has ended, and its status."""

    async def run() -> tuple[float, int]:
        async with hung(port):
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            while process.poll() is None and time.monotonic() - begun < 10 * END_SECONDS:
                await asyncio.sleep(0.02)
            return time.monotonic() - begun, -1 if process.returncode is None else process.returncode

    return asyncio.run(run())


def soak_attacked(
    model: str,
    seconds: float,
    *,
    clients: int = 4,
    slots: int = 8,
    requests: int = 40,
    seed: int = 0,
    samples: int = 40,
    device: str | None = None,
    on_progress: StagedProgress = no_staged_progress,
    on_sample: Callable[[AttackSample], object] = lambda sample: None,
) -> AttackReport:
    """Attack a server for so long, and take samples on the way.

    Args:
        model: the model to serve, which has a tokenizer; small random ones that chat and embed are served beside it.
        seconds: duration of the attack; the round of requests that is under way then comes to its end.
        clients: clients that do no harm.
        slots: sequences of a model at once.
        requests: how many different requests they have.
        seed: seed of everything that is drawn.
        samples: samples to take.
        device: as of ``glinfer serve --device``.
        on_progress: receives (stage, seconds, all seconds).
        on_sample: receives each sample.

    Raises:
        InputError: this system has no /proc, or the server has not started.
    """
    if not Path("/proc/net/tcp").exists():
        raise InputError("the server is counted in /proc, which this system does not have; run this on Linux")
    asked = [each for each in draw_requests(seed, 2 * requests) if ADAPTER not in str(each.body["model"])][:requests]
    answers, attacks = Answers.to(asked), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="glinfer-attack-") as folder:
        chats, _, embeds = write_models(Path(folder))
        served = [f"{name}={path}" for name, path in ((WRITES, model), (CHATS, chats), (EMBEDS, embeds))]
        command = [sys.executable, "-m", "glinfer", "serve", *served, "--port", "0"]
        command += ["--slots", str(slots), "--grace", str(GRACE), *(("--device", device) if device else ())]
        log = Path(folder) / "log"
        with log.open("w") as errors, started(command, errors) as (address, process):
            watch = Watch(address, process, log)
            on_progress("before the attack", 0, 0)
            alone = replay(asked, range(len(asked)), address, [""] * len(asked))
            watch.look()
            watch.take()
            ends = time.monotonic() + seconds
            with watch.every(seconds / samples, on_sample), attacked(watch.port, seed, attacks):
                Load(address, answers, clients, seed).until(
                    lambda: time.monotonic() > ends,
                    lambda: on_progress("attack", round(seconds + min(time.monotonic() - ends, 0)), round(seconds)),
                )
            on_progress("after the attack", 0, 0)
            calm = time.monotonic() + _CALM_SECONDS
            while (left := watch.live()) and time.monotonic() < calm:
                time.sleep(0.5)
            time.sleep(0.5)
            watch.look()
            on_sample(watch.take())
            ended = end(process, watch.port)
        lines = log.read_text("utf-8", "replace").splitlines()
    checks = (*judge(watch.samples, watch.health, left), *judge_answers(answers, alone), *judge_end(ended, lines))
    return AttackReport(
        watch.samples[-1].seconds, tuple(watch.samples), dict(attacks), dict(answers.counts), checks, tuple(lines[-20:])
    )


def judge(samples: Sequence[AttackSample], health: Sequence[float], left: float) -> Iterator[SoakCheck]:
    """Judge the samples, of which the first is from before the attack and the last from after it."""
    during, after = samples[1:-1] or samples, samples[-1]
    quarter = max(1, len(during) // 4)
    for name, limit in GROWTH.items():
        values = [each.held[name] for each in during]
        first, last = statistics.median(values[quarter : 2 * quarter] or values), statistics.median(values[-quarter:])
        change, unit = last / first - 1 if first else None, "bytes" if name == "memory" else ""
        yield SoakCheck(name, first, last, change, limit, (change or 0.0) <= limit, unit)
    for name in ("files", "children"):
        first, last = samples[0].held[name], after.held[name]
        yield SoakCheck(f"{name} before and after", first, last, None, 0.0, last <= first)
    yield SoakCheck("sequences and sockets after it", 0, left, None, 0.0, not left)
    most = sorted(health)[int(0.99 * (len(health) - 1))]
    said = f"median, and 99 of 100; the longest of {len(health)} {max(health):.3f} s"
    passed = most <= HEALTH_SECONDS
    yield SoakCheck("/health, ms", 1000 * statistics.median(health), 1000 * most, None, 0.0, passed, detail=said)
    yield SoakCheck("answers of 5xx, 503 aside", 0, after.failures, None, 0.0, not after.failures)


def judge_end(ended: tuple[float, int], lines: Sequence[str]) -> Iterator[SoakCheck]:
    """Judge the end of the process, and its log."""
    seconds, status = ended
    yield SoakCheck(
        "seconds from SIGTERM to the end", END_SECONDS, seconds, None, 0.0, seconds <= END_SECONDS and not status,
        detail=f"status {status}; requests hung",
    )  # fmt: skip
    said = Counter(line.strip()[:100] for line in lines).most_common(3)
    detail = "; ".join(f"{count} × {line}" for line, count in said)
    yield SoakCheck("lines of the log", 0, len(lines), None, 0.0, not lines, detail=detail)
