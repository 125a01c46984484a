"""The group ``python -m qa``: its commands, its answers to errors, and that the wheel knows nothing of it."""

from __future__ import annotations

import re
import sys

import click
import pytest
from own_process import ROOT, finished
from qa_commands import run

from glinfer.cli.app import cli
from qa import steps
from qa.__main__ import qa

NAMES = qa.list_commands(click.Context(qa))


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        assert run([name, "--help"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"Usage: python -m qa {name} ")
        assert "glinfer bench" in said or "python -m qa" in said.split("\n", 1)[1], f"{name} has no example"


def test_only_bench_is_a_command_of_both_groups() -> None:
    assert set(NAMES) & set(cli.list_commands(click.Context(cli))) == {"bench"}


def test_it_runs_from_the_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    done = finished([sys.executable, "-m", "qa", "nosuch"])
    assert done.returncode == 2
    assert done.stderr == "python -m qa: No such command 'nosuch' (see 'python -m qa --help')\n"
    assert run([]) == 0
    assert "Usage: python -m qa [OPTIONS] " in capsys.readouterr().out
    assert run(["bench", "nosuch.gab"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m qa: nosuch.gab: cannot read it")
    assert said.count("\n") == 1


def test_every_command_can_be_imported_outside_of_tests() -> None:
    code = (
        "import click, qa.fuzz.run; from qa.__main__ import qa; [qa.get_command(click.Context(qa), name) for name in "
    )
    done = finished([sys.executable, "-c", f"{code}{NAMES}]"])
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_in_the_wheel_refers_to_it() -> None:
    suffixes = {".py", ".json", ".glsl", ".frag", ".js"}
    for folder in ("glinfer", "shaders", "web/glinfer"):
        files = [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
        assert files, "found no files: nothing would be checked"
        assert [str(path) for path in files if re.search(r"\bqa\b", path.read_text("utf-8"))] == []


def test_command_that_fails_without_a_result() -> None:
    assert steps.run(sys.executable, "-c", "print('found'); raise SystemExit(1)", passing=1) == "found\n"
    with pytest.raises(steps.StepError, match=r"exit status 1: no result$"):
        steps.run(sys.executable, "-c", "raise SystemExit('no result')", passing=1)
