"""The group ``python -m qa``: its commands, its answers to errors, and that the wheel knows nothing of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from qa_commands import run

from glinfer.cli.app import cli
from qa.__main__ import qa

ROOT = Path(__file__).resolve().parents[2]
NAMES = qa.list_commands(click.Context(qa))


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: python -m qa {name} ")
    assert "glinfer bench" in said or "python -m qa" in said.split("\n", 1)[1], "no example"


def test_only_bench_is_a_command_of_both_groups() -> None:
    assert set(NAMES) & set(cli.list_commands(click.Context(cli))) == {"bench"}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 0, "Usage: python -m qa [OPTIONS] COMMAND"),
        (["nosuch"], 2, "python -m qa: No such command 'nosuch' (see 'python -m qa --help')\n"),
        (["soak", "nosuch.gab"], 2, "python -m qa: nosuch.gab: cannot read it"),
    ],
)
def test_it_runs_from_the_checkout(arguments: list[str], status: int, words: str) -> None:
    line = [sys.executable, "-m", "qa", *arguments]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status
    said = done.stderr if status else done.stdout
    assert said.replace("[COMMAND] [ARGS]", "COMMAND").startswith(words)
    assert status == 0 or said.count("\n") == 1


@pytest.mark.parametrize("folder", ["glinfer", "shaders", "web/glinfer"])
def test_nothing_in_the_wheel_refers_to_it(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".json", ".glsl", ".frag", ".js"}]
    assert files, "found no files: nothing would be checked"
    assert [str(path) for path in files if re.search(r"\bqa\b", path.read_text("utf-8"))] == []
