"""Scripts and commands that run in a process of their own, each with one deadline that only what hangs meets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "glinfer"]
DEADLINE = 900.0
"""Seconds after which a process or an answer hangs: far more than any takes, on a slow and busy machine too."""


def eventually(true: Callable[[], object], what: str) -> None:
    """Wait until ``true()`` holds; a test that would wait for ever fails after DEADLINE seconds."""
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.01)


def finished(command: Sequence[str | bytes | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """A process that has ended, in the checkout unless ``options`` say otherwise, with its output as text."""
    usual: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": DEADLINE, "check": False}
    return subprocess.run(list(command), **usual | options)


def ran(source: str, *arguments: str | Path) -> list[str]:
    """The lines that a script prints, which says nothing on standard error and ends with status 0."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = finished(
        [sys.executable, "-u", "-W", "ignore::DeprecationWarning", "-c", source, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=None,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def heed_ctrl_c() -> None:
    """Whoever runs the tests in the background may have SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(*arguments: str | Path, when: Callable[[subprocess.Popen[bytes]], bool]) -> tuple[int, str]:
    """Send SIGINT as soon as ``when`` is true; returns exit status and errors."""
    command = [*COMMAND, *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_ctrl_c
    ) as process:
        try:
            while process.poll() is None and not when(process):
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    return process.returncode, errors.decode()
