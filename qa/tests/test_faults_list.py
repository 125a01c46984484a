"""The planted faults fit the code, and the runner tells which of them tests find; nothing of a run is left."""

from __future__ import annotations

import ast
import subprocess
import tempfile
from pathlib import Path

import pytest
from qa_commands import run

from qa.faults import run as runner
from qa.faults.planted import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
CODE = "def add(a, b):\n    return a + b\n\n\ndef odd():\n    return 7\n"
TESTS = (
    "import glinfer\n\ndef test_add():\n    assert glinfer.add(2, 3) == 5\n\ndef test_broken():\n    raise OSError\n"
)
MADE = {old: Fault(old, "glinfer/__init__.py", old, f"-{old}", ("tests",)) for old in ("a + b", "7", "return", "gone")}


def test_the_list() -> None:
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 60
    runner.check_texts(FAULTS)
    for fault in FAULTS:
        assert all((ROOT / room).exists() for room in fault.rooms), fault.name
        if fault.path.endswith(".py"):
            ast.parse((ROOT / fault.path).read_text("utf-8").replace(fault.old, fault.new))


def test_found_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    files = {tree / "glinfer" / "__init__.py": CODE, tree / "tests" / "test_one.py": TESTS}
    scratch.mkdir()
    for path, text in files.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which takes most of the time
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(runner, "FAULTS", list(MADE.values()))
    monkeypatch.setattr(runner, "ROOT", tree)
    assert run(["faults", "--only", "a + b", "--only", "7"]) == 1
    said = capsys.readouterr()
    assert said.out.endswith("\n1 of 2 found\n")
    assert "tests/test_one.py::test_broken fails without a fault; it is left out\n" in said.err
    assert "1 of 2: a + b: tests/test_one.py::test_add\n" in said.err
    assert "2 of 2: 7: SURVIVED\n" in said.err
    for name, count in (("return", 2), ("gone", 0)):
        assert run(["faults", "--only", name]) == 2
        assert f"fault {name}: its text occurs {count} times in glinfer/__init__.py; expe" in capsys.readouterr().err
    assert {path: path.read_text() for path in tree.rglob("*.py")} == files
    assert not list(scratch.iterdir())
