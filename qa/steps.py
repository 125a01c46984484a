"""Commands that the instruments run, with one clear error where one fails."""

from __future__ import annotations

import fnmatch
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from glinfer.errors import InputError

ROOT = Path(__file__).resolve().parents[1]


class StepError(InputError):
    """A command failed; the message names it and has the end of its output."""


def run(
    *command: str | Path, cwd: Path = ROOT, passing: int = 0, lines: int = 1, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command with more environment variables; returns its standard output.

    Raises:
        StepError: its exit status is greater than ``passing``, or it failed and printed nothing on standard output; the
            message has the last ``lines`` lines of its output.
    """
    environment = {**os.environ, "PYTHONPATH": "", **(variables or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not 0 <= done.returncode <= passing or (done.returncode and not done.stdout.strip()):
        last = "\n".join(f"{done.stdout}\n{done.stderr}".strip().splitlines()[-lines:])
        raise StepError(f"'{' '.join(map(str, command[:5]))} …' ended with exit status {done.returncode}: {last}")
    return done.stdout


def matching(patterns: Sequence[str], names: Iterable[str], what: str) -> set[str]:
    """The names that match a pattern, in which ``*`` stands for any letters; all without patterns.

    Raises:
        InputError: a pattern matches none.
    """
    known = dict.fromkeys(names)
    found = {pattern: fnmatch.filter(known, pattern) for pattern in patterns or "*"}
    for pattern, matched in found.items():
        if not matched:
            raise InputError(f"there is no {what} {pattern!r}; known: {', '.join(known)}")
    return {name for matched in found.values() for name in matched}
