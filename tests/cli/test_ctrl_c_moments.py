"""Ctrl-C at random moments of commands with threads and processes, once or twice: no traceback, and nothing is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from own_process import DEADLINE, ROOT, eventually, finished, heed_ctrl_c
from tiers import tiered

pytestmark = [
    pytest.mark.gl,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system has no /proc"),
]

SCRIPT = """
import sys
from glinfer.cli import main
try:
    print("begun", flush=True)
    main()
except KeyboardInterrupt:  # before main has begun
    sys.exit(130)
"""
SEVERAL = 2


def marked(mark: str) -> list[int]:
    """Processes with this in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def interrupted_at(
    folder: Path, arguments: Sequence[str | Path], until: str, delays: Sequence[float]
) -> tuple[int, str]:
    """Start a command, and send SIGINT after each of the delays from a line on that begins so.

    Returns:
        Its exit status, and what it said on standard error.
    """
    (folder / "tmp").mkdir()
    mark = uuid.uuid4().hex
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), "GLINFER_MARK": mark}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", SCRIPT, *map(str, arguments)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_ctrl_c,
    ) as process:
        try:
            _read_until(process, until)
            for delay in delays:
                time.sleep(delay)
                process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE)
        except BaseException:
            process.kill()
            raise
    eventually(lambda: not marked(mark), "processes are left")
    assert not list((folder / "tmp").iterdir())
    return process.returncode, said.decode()


def _read_until(process: subprocess.Popen[bytes], until: str) -> None:
    """Read lines of standard output until one begins so."""
    assert process.stdout is not None
    watch = threading.Timer(DEADLINE, process.kill)
    watch.start()
    assert any(line.startswith(until.encode()) for line in process.stdout), f"it ended before {until!r}"
    watch.cancel()


def moments(seed: int) -> list[tuple[str, list[float]]]:
    """A line to wait for, and delays from it on, of one Ctrl-C or of two."""
    drawn = random.Random(seed)
    found = [("loading", [0.0]), ("ready", [0.0, 0.0])]
    for _ in range(SEVERAL):
        lines = [("begun", 2.0), ("loading", 0.5), ("ready", 0.2)]
        line, most = drawn.choice(lines)
        found.append((line, [drawn.uniform(0, most), *([drawn.choice([0.0, 0.005, 0.05])] * drawn.randrange(2))]))
    return found


@tiered(("until", "delays"), moments(1), keep=0)
def test_ctrl_c_at_any_moment_of_a_server(small: Path, tmp_path: Path, until: str, delays: list[float]) -> None:
    """Status 130 before it takes signals, 0 as after SIGTERM, or what a shell shows as 130, when Python ends."""
    status, said = interrupted_at(tmp_path, ["serve", small, "--port", "0"], until, delays)
    assert said.strip() == ""
    assert status in (0, 130, -signal.SIGINT)


@tiered("delays", [delays for _, delays in moments(2)][1:], keep=1)
def test_ctrl_c_at_any_moment_of_a_batch_in_processes(small: Path, tmp_path: Path, delays: list[float]) -> None:
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 20}
    rows = [{"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": body} for n in range(200)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    command = ["run-batch", "-i", tmp_path / "in.jsonl", "-o", out, "--devices", "0,0", small]
    status, said = interrupted_at(tmp_path, command, "begun", [2 * delays[0] + 0.3, *delays[1:]])
    lines = [line for line in said.splitlines() if line.strip()]
    assert len(lines) <= 1, said
    assert all(line.startswith("interrupted: ") for line in lines) or status == 0
    assert status in (0, 130, -signal.SIGINT)
    assert not out.exists() or out.read_bytes()[-1:] in (b"", b"\n")


CALLBACK = """
import time, weakref
from glinfer.cli import keep_interrupts
def interrupted(reference):
    raise KeyboardInterrupt
class Held: pass
keep_interrupts()
held = Held()
reference = weakref.ref(held, interrupted)
try:
    del held
    for _ in range(3000):
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_in_a_callback_of_python_is_neither_told_nor_lost() -> None:
    done = finished([sys.executable, "-c", CALLBACK], preexec_fn=heed_ctrl_c)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
