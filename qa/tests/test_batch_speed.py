"""``python -m qa batch-speed`` on a small scale."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

from qa import batch_speed

Capture = pytest.CaptureFixture[str]


class Scripted:
    """Batches that take known rates, and answer with the number of the run where ``same`` is not set."""

    def __init__(self, *, same: bool = True, failed: int = 0) -> None:
        self.same, self.failed, self.runs = same, failed, list[tuple[int, bool, str]]()

    def __call__(self, model: str, source: Path, out: Path, more: Sequence[str]) -> tuple[dict[str, Any], float]:
        requests = [json.loads(line) for line in source.read_text().splitlines()]
        greedy, devices = requests[0]["body"].get("temperature") == 0, more[-1] if "--devices" in more else ""
        self.runs.append((len(requests), greedy, devices))
        text = "" if self.same else str(len(self.runs))
        lines = [{"custom_id": each["custom_id"], "response": {"body": {"choices": [text]}}} for each in requests]
        out.write_text("".join(json.dumps(line) + "\n" for line in lines))
        rate = (200.0 if greedy else 100.0) * (2 if "," in devices else 1)
        return {"lines": len(lines), "failed": self.failed, "tokens_per_second": rate}, 0.0


def test_rates_in_turns_after_a_warm_up(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    batches = Scripted()
    monkeypatch.setattr(batch_speed, "ran", batches)
    line = ["batch-speed", "--lines", "5", "--slots", "3", "--devices", "0", "--devices", "0,1", "--rounds", "2"]
    assert run(line) == 0
    assert batches.runs == [
        (count, greedy, devices) for count in (3, 5, 5) for devices in ("0", "0,1") for greedy in (False, True)
    ]
    said = capsys.readouterr().out
    assert "default, 0,1: 200 tok/s, 50% of greedy, 2.00 × first\n" in said
    assert said.endswith("the texts of each sampling are equal in all runs\n")
    assert run([*line, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0] == {"sampling": "default", "devices": "0", "rates": [100.0, 100.0]}


def test_texts_that_differ_and_lines_that_fail(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(batch_speed, "ran", Scripted(same=False))
    assert run(["batch-speed", "--lines", "5", "--rounds", "2"]) == 1
    assert "NOT equal" in capsys.readouterr().out
    monkeypatch.setattr(batch_speed, "ran", Scripted(failed=2))
    assert run(["batch-speed", "--lines", "5"]) == 2
    assert "expected 5 answers; 2 lines failed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch(capsys: Capture) -> None:
    assert (
        run(["batch-speed", "--lines", "6", "--max-tokens", "3", "--devices", "0,0", "--devices", "0", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["texts_equal"]
    assert all(rate > 0 for row in found["rows"] for rate in row["rates"])
