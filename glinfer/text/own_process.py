"""Work on untrusted input in a separate process with limits: JSON in, JSON out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from glinfer.errors import GlinferError
from glinfer.text import limited

_running: dict[int, subprocess.Popen[bytes]] = {}
"""The process that each thread waits for, by thread id."""


class ProcessError(GlinferError):
    """The process gave no answer; the message is the reason without a subject: ``was stopped (status -9); …``."""


class NotStartedError(ProcessError):
    """This machine could not start the process; later it may."""


def answer_of(
    script: str, request: Mapping[str, Any], *, seconds: int, memory: int, clock: int | None = None
) -> Mapping[str, Any]:
    """The answer of a script's function ``answer``, which takes and returns a JSON object.

    Its limits are ``seconds`` of processor time, ``clock`` seconds in all (twice as many by default), and ``memory``
    bytes.

    Raises:
        NotStartedError: it could not be started.
        ProcessError: it was stopped, or did not answer.
    """
    most = 2 * seconds if clock is None else clock
    limits = {"seconds": seconds, "memory": memory, "path": sys.path}
    try:
        process = subprocess.Popen(
            [sys.executable or "python3", "-I", limited.__file__, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise NotStartedError(f"cannot be run: no process for it could be started ({error.strerror})") from None
    own = threading.get_ident()
    with process:
        _running[own] = process
        try:
            said, _ = process.communicate(json.dumps({**request, **limits}).encode(), most)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"did not finish in {most} seconds; it may loop forever") from None
        finally:
            del _running[own]
            process.kill()  # does nothing if the process has ended
    try:
        answer = json.loads(said)
    except ValueError:
        raise ProcessError(
            f"was stopped (status {process.returncode}); its limits are {seconds} seconds and {memory >> 20} MiB"
        ) from None
    return answer if isinstance(answer, dict) else {}


def end_process_of(thread: int) -> None:
    """End the process that a thread waits for, if any; that thread's :func:`answer_of` raises a ProcessError."""
    if process := _running.get(thread):
        process.kill()
