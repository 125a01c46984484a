"""Scripts and commands that run in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "glinfer"]


def ran(source: str, *arguments: str | Path) -> list[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-u", "-W", "ignore::DeprecationWarning", "-c", source, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
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
        while process.poll() is None and not when(process):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    return process.returncode, errors.decode()
