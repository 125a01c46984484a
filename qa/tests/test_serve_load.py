"""``python -m qa serve-load`` on a small scale: answers are counted, and so are those that fail."""

from __future__ import annotations

import json

import pytest
from qa_commands import run

from qa import serve_load


@pytest.mark.slow
def test_eight_clients(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve-load", "--clients", "8", "--seconds", "2", "--slots", "2", "--max-tokens", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["errors"] == {}
    assert found["requests"] >= 8, "one of each client at least, however slow the machine is"
    assert found["requests"] < found["tokens"] <= 4 * found["requests"]
    assert 0 < found["first_token_p50"] <= found["first_token_p95"] < found["seconds"]
    assert len(found["batch_rates"]) == 2
    assert found["rate"] == pytest.approx(found["tokens"] / found["seconds"])
    assert found["share"] == pytest.approx(2 * found["rate"] / sum(found["batch_rates"]))


@pytest.mark.slow
def test_refusals_are_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_load, "batch_rate", lambda *given: 1.0)
    monkeypatch.setattr(serve_load, "QUEUE", 0)
    assert run(["serve-load", "--clients", "4", "--seconds", "2", "--slots", "1", "--max-tokens", "240"]) == 1
    assert "× 429" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve-load", "nosuch.gab"]) == 2
    assert "nosuch.gab" in capsys.readouterr().err
