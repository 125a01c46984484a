"""``python -m qa faults``: plant one fault at a time in a copy of the checkout, and see which test finds it.

A fault counts as found where a test fails with it and passes without it. A test that fails without it is left out from
then on, and named.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from glinfer.cli.common import say, show_table
from glinfer.errors import InputError
from glinfer.inspect.tables import Column, Table
from qa.faults.planted import FAULTS, Fault
from qa.steps import ROOT, StepError, run

SURVIVED = "SURVIVED"
PASSES = {"fast": ((),), "full": ((), ("-m", "slow"), ("-m", "web"))}
"""The arguments of pytest for each pass of a suite."""
OWN_TESTS = "qa/tests/test_faults_list.py"
"""Left out, as it fails wherever a fault is planted."""
TIMEOUT = 3600
"""Seconds for one run of tests."""
_PYTEST = ("-x", "-q", "-rfE", "--tb=short", "--color=no", "-p", "no:cacheprovider", f"--ignore={OWN_TESTS}")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
_PASSED, _NO_TESTS = 0, 5  # exit statuses of pytest
_NOT_RUN = (3, 4)  # of an internal error, and of arguments that pytest refuses
_MODULES = "web/node_modules"


class Verdict(NamedTuple):
    """The result for one fault: the test that found it, or nothing, and the seconds that it took."""

    fault: Fault
    found_by: str
    seconds: float


def check_texts(faults: Sequence[Fault]) -> None:
    """Check that the text of each fault is in its file exactly once."""
    for fault in faults:
        file = ROOT / fault.path
        count = file.read_text("utf-8").count(fault.old) if file.is_file() else 0
        if count != 1:
            raise InputError(
                f"fault {fault.name}: its text occurs {count} times in {fault.path}; expected once; "
                "change the fault in qa/faults/planted.txt"
            )


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """Yield a temporary copy of the checkout's files, committed or not, without those that git ignores."""
    try:
        listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    except (StepError, OSError):
        raise InputError(f"{ROOT}: found no git checkout there; expected one, as git lists the files") from None
    with tempfile.TemporaryDirectory(prefix="glinfer-faults-") as folder:
        copy = Path(folder) / "tree"
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        for name in ("../shared", _MODULES):  # texts of some tests, and what the page's tests need
            if (ROOT / name).is_dir() and (copy / name).parent.is_dir():
                (copy / name).symlink_to((ROOT / name).resolve(), target_is_directory=True)
        yield copy


@contextlib.contextmanager
def planted(copy: Path, fault: Fault) -> Iterator[None]:
    """Plant a fault within the block."""
    file = copy / fault.path
    before = file.read_bytes()
    try:
        _write(file, before.replace(fault.old.encode(), fault.new.encode()))
        yield
    finally:
        _write(file, before)


def _write(file: Path, data: bytes) -> None:
    """Write a source file, and remove its bytecode, which Python keeps for a file of equal size and second."""
    file.write_bytes(data)
    if file.suffix == ".py":
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


class Judge:
    """Runs the tests of one copy."""

    def __init__(self, copy: Path, suite: str, *, rooms_only: bool, workers: int) -> None:
        """Check that Python imports the copy's package; the options are those of the command."""
        self._copy, self._suite, self._rooms_only = copy, suite, rooms_only
        self._left_out: list[str] = []
        spread = ("-n", str(workers), "--dist", "worksteal") if workers else ()
        self._pytest = [sys.executable, "-m", "pytest", *_PYTEST, *spread]
        path = os.pathsep.join(filter(None, (str(copy), os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "PYTHONPATH": path}
        _, output = self._call([sys.executable, "-c", "import glinfer; print(glinfer.__file__)"])
        if not Path(output.strip().rpartition("\n")[2]).resolve().is_relative_to(copy.resolve()):
            raise InputError(f"tests in the copy would import {output.strip()}; expected a package in {copy}")

    def judge(self, fault: Fault) -> Verdict:
        """Plant a fault, and run tests until one finds it."""
        started = time.monotonic()
        by = next(filter(None, (self._finder(fault, command) for command in self._commands(fault))), "")
        return Verdict(fault, by, time.monotonic() - started)

    def _commands(self, fault: Fault) -> Iterator[list[str]]:
        """Yield the test commands in order: the fault's rooms in each pass, then all other tests in each pass."""
        if self._suite == "full" and fault.path.startswith("web/") and (self._copy / _MODULES).is_dir():
            yield ["npm", "--silent", "--prefix", "web", "test"]
        rooms = [room for room in fault.rooms if (self._copy / room).exists()]
        others = [] if self._rooms_only else [[f"--ignore={room}" for room in rooms]]
        for where in [*([rooms] if rooms else []), *others]:
            for marks in PASSES[self._suite]:
                yield [*self._pytest, *marks, *where]

    def _finder(self, fault: Fault, command: list[str]) -> str:
        """Run a command with the fault, and return what finds it; empty where nothing does."""
        while True:
            left_out = self._left_out if command[0] == sys.executable else []
            with planted(self._copy, fault):
                status, output = self._call([*command, *left_out])
            if status in (_PASSED, _NO_TESTS):
                return ""
            if command[0] == "npm":
                return "" if self._call(command)[0] else "npm test"
            name = _FAILED.search(output.rpartition("short test summary info")[2])
            argument = "" if name is None else f"--{'deselect' if '::' in name[1] else 'ignore'}={name[1]}"
            if argument in left_out or (name is None and status in _NOT_RUN):
                raise click.ClickException(f"pytest ended with status {status}: {' '.join(output.split())[-300:]}")
            if name is None:
                return f"status {status}" if status else f"no end after {TIMEOUT} s"
            if self._call([*self._pytest, "-m", "", name[1]])[0] in (_PASSED, *_NOT_RUN):
                return name[1]
            say(f"{name[1]} fails without a fault; it is left out")
            self._left_out.append(argument)

    def _call(self, command: list[str]) -> tuple[int | None, str]:
        """Run a command in the copy; returns its status, None if it was stopped after the timeout, and its output."""
        how: Any = {"cwd": self._copy, "env": self._environment, "stdin": subprocess.DEVNULL}
        with tempfile.TemporaryFile() as output:  # a pipe would stay open for as long as a process of a test runs
            how |= {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
            process = subprocess.Popen(command, **how)
            status = None
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(TIMEOUT)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the tests, and processes that they have started
                process.wait()
            output.seek(0)
            return status, output.read().decode("utf-8", "replace")


@click.command("faults")
@click.option("--suite", type=click.Choice(list(PASSES)), default="fast", show_default=True, help="Tests to run.")
@click.option("--only", multiple=True, metavar="NAME", help="Plant only this fault. Repeatable.")
@click.option("--rooms-only", is_flag=True, help="Run only the tests of a fault's rooms.")
@click.option("--workers", type=click.IntRange(0), default=0, help="Processes of pytest-xdist. Default: none.")
def faults_command(only: tuple[str, ...], **options: Any) -> int:
    """Plant faults one at a time in a temporary copy of the checkout, and report which tests find them.

    The rooms of a fault are the test folders that are likely to find it; they run first. The suite 'full' adds the
    tests marked slow and web, and npm's tests for JavaScript.

    \b
    python -m qa faults --workers 4
    python -m qa faults --only rope-angle-sign --rooms-only

    \b
    Exit status:
      0  every fault was found
      1  a fault survived
      2  bad input, or a fault whose text is not in its file exactly once
    """
    if unknown := set(only) - {fault.name for fault in FAULTS}:
        raise InputError(f"there is no fault {min(unknown)}; qa/faults/planted.txt lists them")
    chosen = [fault for fault in FAULTS if not only or fault.name in only]
    check_texts(chosen)
    verdicts = list[Verdict]()
    with copied() as copy:
        judge = Judge(copy, **options)
        for number, fault in enumerate(chosen, 1):
            verdicts.append(judge.judge(fault))
            say(f"{number} of {len(chosen)}: {fault.name}: {verdicts[-1].found_by or SURVIVED}")
    columns = (
        *(Column("fault", lambda each: each.fault.name), Column("file", lambda each: each.fault.path)),
        *(Column("found by", lambda each: each.found_by or SURVIVED), Column("seconds", "seconds", ".0f")),
    )
    show_table(Table("Faults", columns, verdicts))
    found = sum(bool(each.found_by) for each in verdicts)
    click.echo(f"\n{found} of {len(verdicts)} found")
    return int(found < len(verdicts))
