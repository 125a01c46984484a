"""The same text everywhere: settings compared, texts that part, reports of other machines."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glinfer.config import ModelConfig
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import InputError
from glinfer.formats import random_checkpoint, save_checkpoint
from glinfer.gl.context import Limits
from glinfer.inspect.settings import RunSetting
from qa.same import Question, compare_everywhere, read_report, same_command

pytestmark = pytest.mark.gl

SHAPES = {
    "gab": "blocks=2,heads=2,dim=20,vocab=101,context=40",
    "llama": "family=llama,blocks=1,heads=4,kv_heads=2,dim=24,inner=28,vocab=101,context=40",
}
ENDLESS = (
    '{"question": {"samplings": [1], "tokens": 1e999, "prompt": [1]}, "rows": [{"problem": "", "texts": [[1e999]]}]}'
)
SETTINGS = [
    RunSetting(weights="f32"),
    RunSetting(weights="f32", limits=Limits.webgl2_minimum()),
    RunSetting(weights="f32", plan="reference"),
    RunSetting(weights="f32", device=99),
]
QUESTION = Question((3, 100, 7), 30, (SamplingOptions(temperature=0, seed=0), SamplingOptions(seed=5)))


@pytest.mark.slow
@pytest.mark.parametrize("family", SHAPES)
def test_every_setting_writes_the_same(family: str) -> None:
    checkpoint = random_checkpoint(ModelConfig.from_options(SHAPES[family]), scale=0.3)
    told: list[tuple[str, int, int]] = []
    report = compare_everywhere(checkpoint, SETTINGS, QUESTION, on_progress=lambda *step: told.append(step))
    assert report.passed
    written = {stage: [done for which, done, _ in told if which == stage] for stage, _, _ in told}
    assert list(written) == [
        "1 of 4: fast f32 es",
        "one text in float64",
        "2 of 4: fast f32 es WebGL2's limits",
        "3 of 4: reference f32 es",
        "4 of 4: fast f32 es device 99",
    ]
    assert written["1 of 4: fast f32 es"] == [0, *range(1, 61), *range(1, 34)]  # two texts, then logits along the first
    first, minimum, reference, missing = report.rows
    assert [len(text) for text in first.texts] == [30, 30]
    assert first.texts == minimum.texts
    assert [len(text) for text in reference.texts] == [24, 24]
    assert "there is no EGL device 99" in missing.problem
    assert max(row.drift for row in report.rows) < 1e-5
    if family == "gab":
        assert min(row.drift for row in report.rows[:3]) > 0  # float32 is not float64


def test_what_cannot_be_compared_is_refused() -> None:
    checkpoint = random_checkpoint(ModelConfig.from_options(SHAPES["gab"]))
    with pytest.raises(InputError, match="no settings"):
        compare_everywhere(checkpoint, [], QUESTION)
    with pytest.raises(InputError, match="beyond the context of 40"):
        compare_everywhere(checkpoint, SETTINGS, dataclasses.replace(QUESTION, tokens=38))
    assert not compare_everywhere(checkpoint, SETTINGS[3:], QUESTION).passed
    for report in ("", "[]", "{}", '{"question": {"prompt": 3}, "rows": []}', "[" * 100_000, ENDLESS):
        with pytest.raises(InputError, match="expected what 'python -m qa same --json' prints"):
            read_report(report, checkpoint.config)


@pytest.mark.slow
def test_the_command_compares_with_another_machines_report(small: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(same_command, [str(small), "--prompt", "ab", *arguments])

    first = run("--tokens", "6", "--seeds", "1", "--plans", "fast", "--json")
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert report["passed"]
    file = tmp_path / "report.json"
    file.write_text(first.stdout)
    second = run("--against", str(file))
    assert second.exit_code == 0, second.output
    assert "2 texts of 6 tokens: all the same" in second.output
    report["rows"][0]["texts"][0][2] ^= 1
    file.write_text(json.dumps(report))
    third = run("--against", str(file))
    assert third.exit_code == 1
    assert "text 0, token 2: " in third.output
    for option in ("--plans", "--weights"):
        assert "'none'" in str(run("--tokens", "2", option, "none").exception)
    other = random_checkpoint(ModelConfig.from_options("blocks=1,heads=1,dim=4,vocab=9,context=9"))
    save_checkpoint(other, tmp_path / "other.gab")
    fourth = CliRunner().invoke(same_command, [str(tmp_path / "other.gab"), "--against", str(file)])
    assert isinstance(fourth.exception, InputError)
