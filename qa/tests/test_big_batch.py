"""``python -m qa big-batch`` on a small scale."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

from qa import big_batch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory as Linux tells it")


@pytest.mark.slow
def test_memory_stays(tmp_path: Path) -> None:
    report = big_batch.run_big(tmp_path, 1500, ())
    assert report.lines == 1500
    assert report.few_mb > 0
    assert report.above_mb < 50


def test_what_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = big_batch.BigReport(5000, 10.0, 500.0, 1.0, 100.0, 250.0)
    monkeypatch.setattr(big_batch, "run_big", lambda *_: report)
    for most, status in (("200", 0), ("100", 1)):
        assert run(["big-batch", "--lines", "5000", "--most", most]) == status
        assert "5000 lines in 10 s, 500 a second; 250 MB, 150 above a batch of 1000" in capsys.readouterr().out
        assert run(["big-batch", "--most", most, "--json"]) == status
        assert json.loads(capsys.readouterr().out)["above_mb"] == 150.0


def test_a_result_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: dict[str, Any] = {"lines": 999, "failed": 0, "seconds": 1.0, "finished_before": 0}
    monkeypatch.setattr(big_batch, "ran", lambda *_: (told, 1.0))
    assert run(["big-batch", "--lines", "1000"]) == 2
    assert "expected 1000 results, each once" in capsys.readouterr().err
