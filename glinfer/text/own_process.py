"""Work on what nobody has checked, in a process of its own with limits: JSON in, JSON out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from glinfer.errors import GlinferError

_running: dict[int, subprocess.Popen[bytes]] = {}
"""The process that each thread waits for."""


class ProcessError(GlinferError):
    """The process gave no answer; the message says why, without a subject: ``was stopped (status -9); …``."""


def answer_of(
    script: str, request: Mapping[str, Any], *, seconds: int, memory: int, clock: int | None = None
) -> Mapping[str, Any]:
    """The answer of a script that reads one JSON object from standard input and writes one to standard output.

    The script has to take ``seconds``, ``memory`` and ``path`` (Python's) out of the request and limit itself by them.

    Args:
        script: the file of the script.
        request: what it is to do.
        seconds: of a processor.
        clock: seconds by the clock; left out, twice as many.
        memory: in bytes.

    Raises:
        ProcessError: it was stopped, could not be started, or did not answer.
    """
    most = 2 * seconds if clock is None else clock
    limits = {"seconds": seconds, "memory": memory, "path": sys.path}
    try:
        process = subprocess.Popen(
            [sys.executable or "python3", "-I", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise ProcessError(f"cannot be run: no process for it could be started ({error.strerror})") from None
    own = threading.get_ident()
    with process:
        _running[own] = process
        try:
            said, _ = process.communicate(json.dumps({**request, **limits}).encode(), most)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"was not done after {most} seconds; it may run for ever") from None
        finally:
            del _running[own]
            process.kill()  # which does nothing to one that has ended
    try:
        answer = json.loads(said)
    except ValueError:
        raise ProcessError(
            f"was stopped (status {process.returncode}); it may have {seconds} seconds and {memory >> 20} MiB"
        ) from None
    return answer if isinstance(answer, dict) else {}


def end_process_of(thread: int) -> None:
    """End the process that a thread waits for, if it does; its :func:`answer_of` raises a ProcessError."""
    if process := _running.get(thread):
        process.kill()
