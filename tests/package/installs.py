"""Building glinfer from clean source, and environments that hold the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from own_process import DEADLINE, ROOT

OF_THE_WHEEL = [pytest.mark.package, *(() if "GLINFER_TEST_VENV" in os.environ else (pytest.mark.slow,))]
"""Marks of tests of the installed wheel: slow where it is first to be built and installed."""
SOURCES = ("glinfer", "shaders", "web", "pyproject.toml", "README.md", "LICENSE")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "node_modules")
# Where Python looks for modules, and where glinfer keeps files, is up to each test.
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


def run(
    *command: str | Path,
    cwd: Path,
    typed: str | None = None,
    variables: Mapping[str, str] | None = None,
    umask: int = -1,
) -> subprocess.CompletedProcess[str]:
    """Run a command without this process's Python paths, so that it finds only installed packages."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**environment, **(variables or {})},
        input=typed,
        stdin=subprocess.DEVNULL if typed is None else None,
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE,
        umask=umask,
        check=False,
    )


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    """The standard output of a command that ended well; anything else fails the test and shows all of it."""
    assert done.returncode == 0, f"{done.args} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_source(folder: Path) -> Path:
    """A copy in ``folder`` of what makes the wheel, and of nothing that a work tree collects beside it."""
    folder.mkdir(parents=True)
    for name in SOURCES:
        original = ROOT / name
        assert original.exists(), f"{name} is missing, the wheel cannot be built without it"
        if original.is_dir():
            shutil.copytree(original, folder / name, ignore=LEFT_OUT)
        else:
            shutil.copy(original, folder / name)
    return folder


def build(source: Path, *options: str, umask: int = -1, **variables: str) -> Path:
    """Build in ``source`` with the tools of the environment that runs the tests; returns the folder of results."""
    out = source.parent / "dist"
    command = (sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", out)
    succeed(run(*command, cwd=source, variables=variables, umask=umask))
    return out


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel, and an empty directory outside the repository to work in."""

    venv: Path
    work: Path

    def tool(self, name: str) -> Path:
        return self.venv / "bin" / name

    def python(self, code: str) -> str:
        return succeed(run(self.tool("python"), "-c", code, cwd=self.work))

    def glinfer(self, *arguments: str) -> str:
        return succeed(run(self.tool("glinfer"), *arguments, cwd=self.work))

    def packages(self) -> Path:
        """Where packages are installed."""
        return Path(self.python("import sysconfig; print(sysconfig.get_path('purelib'))").strip())
