"""Work on what nobody has checked, in a process of its own with limits: JSON in, JSON out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from glinfer.errors import GlinferError


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
        done = subprocess.run(
            [sys.executable or "python3", "-I", script],
            input=json.dumps({**request, **limits}).encode(),
            capture_output=True,
            timeout=most,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProcessError(f"was not done after {most} seconds; it may run for ever") from None
    except OSError as error:
        raise ProcessError(f"cannot be run: no process for it could be started ({error.strerror})") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ProcessError(
            f"was stopped (status {done.returncode}); it may have {seconds} seconds and {memory >> 20} MiB"
        ) from None
    return answer if isinstance(answer, dict) else {}
