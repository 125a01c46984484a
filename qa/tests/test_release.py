"""``python -m qa release``: each line passes, fails or is skipped with its reason; one that fails is the status."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from qa_commands import run

import glinfer
from qa import release
from qa.api import Snapshot
from qa.release import SkippedError, changelog, check, recorded
from qa.steps import StepError

LOG = "# Changelog\n\nAll changes.\n\n## 0.2.0 (2027-01-02)\n\n### Added\n\n## 0.1.0 (2026-11-24)\n"


def test_the_changelog() -> None:
    assert changelog(LOG, "0.2.0") == "0.2.0 of 2027-01-02"
    for version in ("0.1.0", "1.12.3rc2", "10.0.0"):
        assert changelog(f"## {version} (2027-01-02)", version)
    for version in ("0.1", "v0.1.0", "0.1.0.dev1", "0.01.0", "", "0.1.0-rc1"):
        with pytest.raises(StepError, match=r"expected one like 0\.1\.0"):
            changelog(f"## {version} (2027-01-02)", version)
    for text, version, said in (
        (LOG, "0.1.0", "the newest section of CHANGELOG.md is 0.2.0; expected 0.1.0"),
        ("# Changelog\n", "0.1.0", "the newest section of CHANGELOG.md is none; expected 0.1.0"),
        ("## 0.1.0 (unreleased)\n", "0.1.0", "CHANGELOG.md has 0.1.0 as unreleased; put the date in its place"),
    ):
        with pytest.raises(StepError, match=re.escape(said)):
            changelog(text, version)


def test_the_changelog_of_this_checkout_can_be_read() -> None:
    status, said = check("version")
    assert status == "passed" or "unreleased" in said


def test_records_of_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshot, "read", lambda: Snapshot("0.1.0", {}, {}))
    assert recorded("0.1.0") == "qa/api.json and tests/upgrade/recorded/0.1.0"
    with pytest.raises(StepError, match=r"^qa/api\.json is of 0\.1\.0; run 'python -m qa api --released'$"):
        recorded("9.0.0")


class TestTag:
    @pytest.fixture
    def git(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """A repository with one commit, in the place of this one."""
        monkeypatch.setattr(release, "ROOT", tmp_path)
        monkeypatch.setattr(release, "run", lambda *command, **options: _output(tmp_path, *command))

        def run_git(*words: str) -> None:
            _output(tmp_path, "git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words)

        run_git("init", "-q")
        (tmp_path / "file").write_text("1")
        run_git("add", "file")
        run_git("commit", "-q", "-m", "one")
        return run_git

    def test_a_repository(self, git: Callable[..., None], tmp_path: Path) -> None:
        tag = f"v{glinfer.__version__}"
        assert check("tag") == ("passed", f"everything is committed; the tag will be {tag}")
        (tmp_path / "new").touch()
        assert check("tag") == ("failed", "1 files are not committed: new")
        (tmp_path / "new").unlink()
        git("tag", tag)
        assert check("tag") == ("passed", f"{tag} is this commit")
        git("commit", "-q", "--allow-empty", "-m", "two")
        assert check("tag") == ("failed", f"{tag} is another commit already; raise __version__")

    def test_no_repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(release, "ROOT", tmp_path)
        assert check("tag")[0] == "skipped"


def _output(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


class TestCommand:
    @pytest.fixture(autouse=True)
    def lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Three lines in the place of all."""

        def raising(error: Exception) -> str:
            raise error

        failed, skipped = StepError("mypy ended with status 1: some.py: error"), SkippedError("nobody answers")
        lines = {
            "lint": ("style", lambda: "no complaint"),
            "audit": ("bugs", lambda: raising(skipped)),
            "wheel": ("wheels", lambda: raising(failed)),
        }
        monkeypatch.setattr(release, "CHECKS", lines)

    def test_what_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["release"]) == 1
        assert re.sub(r" \(\d+ s\)", "", capsys.readouterr().out).splitlines() == [
            "passed   lint     style: no complaint",
            "skipped  audit    bugs: nobody answers",
            "failed   wheel    wheels: mypy ended with status 1: some.py: error",
            "1 passed, 1 failed, 1 skipped",
        ]

    def test_what_is_left_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["release", "--skip", "wheel"]) == 0
        assert "skipped  wheel    wheels: left out\n" in capsys.readouterr().out
        assert run(["release", "--only", "lint"]) == 0
        assert capsys.readouterr().out.endswith("1 passed, 0 failed, 2 skipped\n")

    def test_an_audit_that_nobody_answers_is_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(release, "run", lambda *command, **options: "Python 3.10: skipped: no service answers\n")
        with pytest.raises(SkippedError, match=r"^no service answers$"):
            release.qa("audit")
