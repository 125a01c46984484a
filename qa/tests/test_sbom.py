"""``python -m qa sbom``: the file is written only if every tool passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

from qa import lock
from qa.steps import StepError

WHEEL = "glinfer-0.1.0-py3-none-any.whl"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, ...]] = []

    def uv(*words: str | Path) -> str:
        asked.append(tuple(map(str, words)))
        if "-o" in words:
            about = Path(words[words.index("--pyproject") + 1]).read_text()
            assert 'version = "0.1.0"\n' in about
            assert 'dynamic = ["version"]' not in about
            Path(words[words.index("-o") + 1]).write_text(json.dumps({"components": [1, 2]}))
        return ""

    monkeypatch.setattr(lock, "run", lambda *command: "")
    monkeypatch.setattr(lock, "uv", uv)
    (tmp_path / WHEEL).touch()
    assert run(["sbom", str(tmp_path / WHEEL)]) == 0
    assert json.loads((tmp_path / "glinfer-0.1.0.cdx.json").read_text()) == {"components": [1, 2]}
    assert capsys.readouterr().out == f"{tmp_path / 'glinfer-0.1.0.cdx.json'}: glinfer and 2 packages\n"
    assert asked[0][-1] == str(tmp_path / WHEEL)
    assert asked[0][-2] == str(lock.LOCK), "the versions of the lock"


def test_a_tool_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*words: Any) -> str:
        raise StepError("no such index")

    monkeypatch.setattr(lock, "run", fail)
    (tmp_path / WHEEL).touch()
    assert run(["sbom", str(tmp_path / WHEEL)]) == 2
    assert capsys.readouterr().err == "python -m qa: no such index\n"
    assert [each.name for each in tmp_path.iterdir()] == [WHEEL]
