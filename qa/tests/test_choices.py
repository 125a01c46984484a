"""``python -m qa choices`` on a small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

from glinfer.engine.model import Model
from glinfer.errors import InputError
from qa import choices

pytestmark = pytest.mark.gl
Capture = pytest.CaptureFixture[str]


def test_settings_begin_with_each_value_alone() -> None:
    found = list(choices.settings(60))
    usual, values = found[0], sum(len(each) - 1 for each in choices._GRID.values())
    for each in found[1 : values + 1]:
        assert sum(each[name] != usual[name] for name in usual) == 1
    assert len({str(each) for each in found}) > values + 20
    assert found == list(choices.settings(60))


@pytest.mark.web
def test_the_page_is_compared_by_its_own_logits(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["choices", "tiny", "--browser", "--settings", "4", "--tokens", "6"]
    try:
        assert run(line) == 0
    except InputError as error:
        pytest.skip(str(error))
    assert "24 tokens, 4 settings, 0 texts differ" in capsys.readouterr().out
    monkeypatch.setattr(choices.Sampler, "sample", lambda *_: -1)
    assert run(line) == 1
    assert "4 texts differ" in capsys.readouterr().out


def test_texts_are_equal_and_a_difference_is_told(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    line = ["choices", str(small), "--settings", "6", "--tokens", "5"]
    assert run([*line, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["tokens"], report["differing"]) == (30, [])
    right = choices.texts

    def wrong(model: Model, wanted: list[dict[str, Any]], tokens: int, *, passes: bool) -> Any:
        found, reads = right(model, wanted, tokens, passes=passes)
        found[4][3] += passes
        return found, reads

    monkeypatch.setattr(choices, "texts", wrong)
    assert run(line) == 1
    assert "1 texts differ" in (told := capsys.readouterr().out)
    assert "  token 3 by {" in told
