"""``python -m qa lock``: pin what the tests are installed with, each file by its hash.

uv resolves the extra ``dev`` of pyproject.toml for every Python and system at once, in an environment of its own. What
it writes names no index: pip takes the files from wherever it is set up to look, and refuses any other bytes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from glinfer.errors import InputError
from qa.supply import PYTHONS, ROOT, StepError, run, tool_environment

LOCK = ROOT / "requirements" / "dev.txt"
EXTRA, UV = "dev", "uv>=0.9,<1"
BESIDE = ("editables",)
"""What hatchling asks for beside itself where a checkout is installed to be worked on."""
HEADER = """\
# What the tests are installed with, each file by its hash, on every Python and system that glinfer is for.
# `LOCKED=1 make test` installs these and nothing else; `python -m qa lock` writes them anew from pyproject.toml.
"""


def read_lock(text: str) -> list[tuple[Requirement, list[str]]]:
    """The requirements of a lock, each with its hashes.

    Raises:
        InputError: a line is none of a lock.
    """
    found: list[tuple[Requirement, list[str]]] = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition(" #")[0].strip()
        if not words or words.startswith("#"):
            continue
        name, *hashes = (each.strip() for each in words.split("--hash="))
        if words.startswith("-") or not hashes:
            raise InputError(f"found {words[:80]!r}; expected NAME==VERSION with hashes; run 'python -m qa lock'")
        found.append((Requirement(name), hashes))
    return found


def applying(pinned: Iterable[tuple[Requirement, list[str]]], python: str, system: str = "linux") -> dict[str, str]:
    """The version of each package that a lock names for a Python, such as ``3.12``, and a system."""
    place = {"python_version": python, "python_full_version": f"{python}.5", "sys_platform": system}
    place |= {
        "platform_system": system.title(),
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return {
        canonicalize_name(each.name): next(iter(each.specifier)).version
        for each, _ in pinned
        if each.marker is None or each.marker.evaluate(dict(place))
    }


@click.command("lock")
def lock() -> None:
    """Rewrite requirements/dev.txt with the newest versions that pyproject.toml allows, and the hash of each file.

    \b
    python -m qa lock
    """
    with tempfile.TemporaryDirectory(prefix="glinfer-lock-") as folder:
        place = Path(folder)
        (place / "beside.in").write_text("\n".join(BESIDE) + "\n", "utf-8")
        try:
            python = tool_environment(place / "tool", UV)
            options = ("--universal", "--python-version", PYTHONS[0], "--python", sys.executable, "--generate-hashes")
            quiet = ("--quiet", "--no-header", "--no-emit-index-url", "--output-file", place / "locked.txt")
            sources = (ROOT / "pyproject.toml", place / "beside.in", "--extra", EXTRA)
            run(python, "-m", "uv", "pip", "compile", *options, *quiet, "--no-annotate", *sources)
        except StepError as error:
            raise InputError(f"uv could not resolve the extra {EXTRA}: {str(error).splitlines()[-1]}") from None
        told = (place / "locked.txt").read_text("utf-8")
    count = len(read_lock(told))
    LOCK.parent.mkdir(exist_ok=True)
    LOCK.write_text(HEADER + told, "utf-8")
    click.echo(f"{LOCK.relative_to(ROOT)}: {count} versions for Python {PYTHONS[0]} to {PYTHONS[-1]}")
