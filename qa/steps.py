"""Steps of the release tools: commands, and uv, which resolves versions and runs other tools."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from glinfer.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


class StepError(InputError):
    """A command failed; the message names it and has the end of its output."""


def run(
    *command: str | Path, cwd: Path = ROOT, passing: int = 0, lines: int = 1, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command with more environment variables; returns its standard output.

    Raises:
        StepError: its exit status is greater than ``passing``; the message has the last ``lines`` lines of its output.
    """
    environment = {**os.environ, "PYTHONPATH": "", **(variables or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not 0 <= done.returncode <= passing:
        last = "\n".join(f"{done.stdout}\n{done.stderr}".strip().splitlines()[-lines:])
        raise StepError(f"'{' '.join(map(str, command[:5]))} …' ended with exit status {done.returncode}: {last}")
    return done.stdout


def uv(*words: str | Path, passing: int = 0) -> str:
    """Run uv, which is installed into .cache/uv first; the same errors as :func:`run`."""
    program = ROOT / ".cache" / "uv" / "bin" / "uv"
    if not program.exists():
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", program.parents[1], "uv>=0.9,<1")
    return run(program, *words, passing=passing)


def resolve(target: Path, python: str, *options: str | Path) -> dict[str, str]:
    """Write the versions that uv resolves for pyproject.toml into ``target``; returns them by package."""
    quiet = ("--quiet", "--no-header", "--no-emit-index-url", "--output-file", target)
    uv("pip", "compile", *quiet, "--python-version", python, *options, ROOT / "pyproject.toml")
    return dict(re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", target.read_text("utf-8")))
