"""``python -m qa release``: each line passes, fails or is skipped with its reason; one that fails is the status."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

import glinfer
from glinfer.errors import InputError
from qa import release
from qa.release import CHECKS, FAILED, PASSED, SKIPPED, Line, Options, check, check_changelog, tag_of
from qa.supply import ROOT, StepError

LOG = "# Changelog\n\nAll changes.\n\n## 0.2.0 (2027-01-02)\n\n### Added\n\n## 0.1.0 (2026-11-24)\n"


def test_the_changelog() -> None:
    for text, version, expected in (
        (LOG, "0.2.0", Line(PASSED, "0.2.0 of 2027-01-02")),
        (LOG, "0.1.0", Line(FAILED, "the newest section of CHANGELOG.md is 0.2.0; expected 0.1.0")),
        ("# Changelog\n", "0.1.0", Line(FAILED, "the newest section of CHANGELOG.md is none; expected 0.1.0")),
        (
            "## 0.1.0 (unreleased)\n",
            "0.1.0",
            Line(FAILED, "CHANGELOG.md has 0.1.0 as unreleased; put the date in its place"),
        ),
    ):
        assert check_changelog(text, version) == expected


def test_the_changelog_of_this_checkout_can_be_read() -> None:
    found = check_changelog((ROOT / "CHANGELOG.md").read_text("utf-8"), glinfer.__version__)
    assert found.status == PASSED or "unreleased" in found.said


def test_tags() -> None:
    for version in ("0.1.0", "1.12.3rc2", "10.0.0"):
        assert tag_of(version) == f"v{version}"
    for version in ("0.1", "v0.1.0", "0.1.0.dev1", "0.01.0", "", "0.1.0-rc1"):
        with pytest.raises(InputError, match=r"expected one like 0\.1\.0"):
            tag_of(version)


class TestTag:
    @pytest.fixture
    def git(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """A repository with one commit, in the place of this one."""
        monkeypatch.setattr(release, "ROOT", tmp_path)
        monkeypatch.setattr(release, "run", lambda *command: _output(tmp_path, *command))

        def run_git(*words: str) -> None:
            _output(tmp_path, "git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words)

        run_git("init", "-q")
        (tmp_path / "file").write_text("1")
        run_git("add", "file")
        run_git("commit", "-q", "-m", "one")
        return run_git

    def test_a_repository(self, git: Callable[..., None], tmp_path: Path) -> None:
        tag = f"v{glinfer.__version__}"
        assert check("tag", Options()) == Line(PASSED, f"everything is committed; the tag will be {tag}")
        (tmp_path / "new").touch()
        assert check("tag", Options()) == Line(FAILED, "1 files are not committed: new")
        (tmp_path / "new").unlink()
        git("tag", tag)
        assert check("tag", Options()).said == f"{tag} is this commit"
        git("commit", "-q", "--allow-empty", "-m", "two")
        assert check("tag", Options()) == Line(FAILED, f"{tag} is another commit already; raise __version__")

    def test_no_repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(release, "ROOT", tmp_path)
        assert check("tag", Options()).status == SKIPPED


def _output(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


class TestCommand:
    @pytest.fixture(autouse=True)
    def lines(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Three lines in the place of all."""

        def fails(options: Options) -> Line:
            raise StepError("mypy ended with status 1:\nsome.py: error")

        lines = {
            "lint": ("style", lambda options: Line(PASSED, "no complaint")),
            "audit": ("bugs", lambda options: Line(SKIPPED, "nobody answers")),
            "wheel": ("wheels", fails),
        }
        monkeypatch.setattr(release, "CHECKS", lines)
        return lines

    def test_what_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["release"]) == 1
        assert re.sub(r" \(\d+ s\)", "", capsys.readouterr().out).splitlines() == [
            "passed   lint     style: no complaint",
            "skipped  audit    bugs: nobody answers",
            "failed   wheel    wheels: mypy ended with status 1:",
            "                  some.py: error",
            "1 passed, 1 failed, 1 skipped",
        ]

    def test_what_is_left_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["release", "--skip", "wheel"]) == 0
        assert "skipped  wheel    wheels: left out\n" in capsys.readouterr().out
        assert run(["release", "--only", "lint"]) == 0
        assert capsys.readouterr().out.endswith("1 passed, 0 failed, 2 skipped\n")

    def test_an_audit_that_nobody_answers_is_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told = "Python 3.10: skipped: no service answers; give advisories in a file: --advisories FILE\n"
        monkeypatch.setattr(release, "run", lambda *command: told)
        found = CHECKS["audit"][1](Options())
        assert found == Line(SKIPPED, "no service answers; give advisories in a file: --advisories FILE")


def test_every_line_has_tests_or_a_command() -> None:
    assert {*CHECKS} >= {
        *("version", "tag", "lint", "api", "lock", "upgrade", "wheel", "sbom", "audit", "docs", "tests", "supply"),
    }
    for name in ("qa/tests/test_lock.py", "tests/package/test_snippets.py", "tests/upgrade"):
        assert (ROOT / name).exists(), name
