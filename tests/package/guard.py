"""Put into an environment by test_quiet.py: records what each of its processes reaches for, children included.

With GLINFER_GUARD set to a file, one JSON list is added to it for each socket, for each file that is opened to be
written, made, moved or removed, for each process that is started, and for whatever is unpickled. Python tells audit
hooks of these, whoever asks for them, in modules of its own or in a library's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PREFIXES = ("socket.", "subprocess.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.")
PATHS = (str, bytes, os.PathLike)
EVENTS = {
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile", "pty.spawn"),
    "pickle.find_class",
}


def watch(path: str) -> None:
    """Record from now on. What cannot be written down is not allowed: the error stops what caused it."""
    record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            opened, _, flags = values
            if isinstance(opened, int) or not flags & WRITING:
                return
        elif event not in EVENTS and not event.startswith(PREFIXES):
            return
        what = [str(Path(os.fsdecode(v)).absolute()) if isinstance(v, PATHS) else repr(v) for v in values[:2]]
        os.write(record, (json.dumps([event, *what]) + "\n").encode())

    sys.addaudithook(hook)


if os.environ.get("GLINFER_GUARD"):
    watch(os.environ["GLINFER_GUARD"])
