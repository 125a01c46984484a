"""``python -m qa stress``: its report as text and as JSON, several renderers and formats, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

from glinfer.errors import GLError
from qa.stress import run as stress
from qa.stress import textures

pytestmark = pytest.mark.gl

Told = Callable[..., Any]


@pytest.fixture
def told(small: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """The JSON document of one round at the limits of WebGL2."""

    def call(*options: str, status: int = 0) -> Any:
        line = ["stress", str(small), "--seconds", "0", "--limits", "webgl2", *options, "--json"]
        assert run(line) == status
        said = capsys.readouterr()
        assert said.err == ""
        return json.loads(said.out)

    return call


@pytest.mark.slow
def test_the_report_has_what_was_done(told: Told) -> None:
    found = told("--seed", "6")
    assert found["passed"] is True
    [made] = found["runs"]
    assert (made["passed"], made["api"], made["plan"], made["weights"]) == (True, "es", "fast", "f32")
    check = made["check"]
    assert (check["seed"], check["rounds"], check["textures"], check["kernels"]) == (6, 1, 7, 2)
    assert check["objects_before"] == check["objects_after"]
    assert (check["passed"], check["faults"], check["first_fault"]) == (True, 0, None)


@pytest.mark.slow
def test_a_fault_exits_1_and_says_how_to_repeat_it(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(textures, "difference", lambda found, expected: "planted")
    assert run(["stress", str(small), "--seconds", "0", "--seed", "6", "--limits", "webgl2"]) == 1
    said = capsys.readouterr().out
    assert "1 round from seed 6 on: 7 textures" in said
    assert "7 FAULTS, the first: texture " in said
    assert "r32f in round 0: planted; repeat it with --seed 6" in said
    assert said.endswith("1 run: 1 FAILED\n")


def test_an_error_before_the_first_round_fails_the_run(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise GLError("planted")

    monkeypatch.setattr(stress, "bind", refuse)
    [made] = told(status=1)["runs"]
    assert (made["passed"], made["check"], made["problem"]) == (False, None, "planted")


def test_options_that_make_no_sense(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in (
        (["--seconds", "nan"], "--seconds is nan"),
        (["--seconds", "-1"], "Invalid value for '--seconds'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--all-weights", "--weights", "q8"], "--all-weights checks every format; leave out --weights"),
        (["--all-devices", "--device", "0"], "--all-devices checks every renderer; leave out --device"),
        (["--stress", "3"], "No such option"),
    ):
        assert run(["stress", str(small), *options]) == 2
        err = capsys.readouterr().err
        assert err.startswith("python -m qa: ")
        assert words in err
        assert err.count("\n") == 1
