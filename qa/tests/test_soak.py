"""``python -m qa soak``: what stays passes, and leaks, drifts and changed answers that are planted are found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.run.cached import CachedSession
from glinfer.engine.run.decode import DecodeSession
from glinfer.errors import InputError
from qa.objects import driver_objects
from qa.soak import command
from qa.soak.command import soak_command
from qa.soak.run import SoakCheck, SoakReport, judge, soak
from qa.soak.watch import FixedTask, Sample, texture_bytes
from qa.soak.workload import Workload

pytestmark = pytest.mark.gl


@pytest.fixture
def model(small: Path) -> Iterator[Model]:
    with glinfer.load(small) as opened:
        yield opened


@pytest.fixture
def one_use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leave out the warm-up, and let only one kind of use come; ``beside`` is done with each."""

    def only(name: str, beside: Callable[[], object] = lambda: None) -> None:
        def everything(self: Workload) -> None:
            use = self._uses[name]
            self._uses = {name: lambda: (use(), beside())}  # type: ignore[dict-item, func-returns-value]
            self._full_deck, self._overflow_odds = [name], 0.0

        monkeypatch.setattr(Workload, "everything", everything)

    return only


def sample(**changes: Any) -> Sample:
    usual: dict[str, Any] = {
        **{"tokens": 100, "sequences": 4, "seconds": 1.0, "memory": 100_000_000, "texture_bytes": 1_000_000},
        **{"objects": {"texture": 20, "driver: texture": 20}, "blocks": 200_000, "python_objects": 50_000},
        **{"files": 6, "threads": 3, "children": 0, "tokens_per_second": 400.0},
    }
    return Sample(**usual | changes)


def failed(*series: dict[str, Any]) -> list[str]:
    """What does not stay in eight samples: those given at the end, the others as usual."""
    checks = judge([*[sample()] * (8 - len(series)), *[sample(**changes) for changes in series]])
    return [check.name for check in checks if check.passed is False]


class TestJudge:
    def test_what_stays_passes(self) -> None:
        assert failed() == []
        assert [check.name for check in judge([sample()] * 8) if not check.passed] == ["speed by the clock"]

    def test_quarters_are_compared_within_a_limit(self) -> None:
        for name, kept, grown in (
            ("memory", {"memory": 100_900_000}, {"memory": 101_100_000}),
            ("memory", {"memory": 50_000_000}, {"memory": 101_100_000}),
            ("texture bytes", {"texture_bytes": 1_009_000}, {"texture_bytes": 1_011_000}),
            ("blocks", {"blocks": 209_000}, {"blocks": 211_000}),
            ("Python's objects", {"python_objects": 52_000}, {"python_objects": 53_000}),
        ):
            assert failed(kept, kept) == []
            (only,) = failed(grown, grown)
            assert name in only

    def test_only_what_lasts_counts(self) -> None:
        bump = {"memory": 200_000_000}
        assert failed(bump, bump, {}, {}) == []
        assert failed({"memory": 150_000_000}, {}) == [], "memory that is given back late"
        low_at_first = [sample(memory=90_000_000), *[sample()] * 11]
        assert [check.name for check in judge(low_at_first) if not check.passed] == ["speed by the clock"]

    def test_some_are_the_same_in_every_sample(self) -> None:
        for name, changes in (
            ("texture", {"objects": {"texture": 21, "driver: texture": 20}}),
            ("driver: texture", {"objects": {"texture": 20, "driver: texture": 21}}),
            ("program", {"objects": {"texture": 20, "driver: texture": 20, "program": 1}}),
            ("open files", {"files": 7}),
            ("threads", {"threads": 4}),
            ("child processes", {"children": 1}),
            ("answers as at first", {"differs": ("likelihoods",)}),
        ):
            assert failed(changes, {}, {}, {}) == [name]

    def test_what_the_system_does_not_say_is_not_judged(self) -> None:
        unknown = [sample(memory=None, files=None, children=None)] * 8
        found = {check.name: check.passed for check in judge(unknown)}
        names = ("memory of the process", "open files", "child processes", "speed by the clock")
        assert [found.pop(name) for name in names] == [None] * 4
        assert all(found.values())

    def test_what_differs_is_named(self) -> None:
        samples = [*[sample()] * 3, sample(tokens=77, differs=("tokens", "likelihoods"))]
        checks = {check.name: check for check in judge(samples, ["no tokens", "no tokens"])}
        assert checks["answers as at first"].detail == "first after 77 tokens: tokens, likelihoods"
        assert checks["mistakes refused"].detail == "not refused: no tokens"
        assert checks["mistakes refused"].passed is False


class TestSoak:
    @pytest.mark.slow
    def test_a_small_model_stays_as_it_was(self, small: Path) -> None:
        arguments = [str(small), "--tokens", "400", "--samples", "8", "--seed", "3", "--json"]
        done = CliRunner().invoke(soak_command, arguments)
        told = json.loads(done.stdout)
        bad = [check["name"] for check in told["checks"] if check["passed"] is False]
        assert set(bad) <= {"speed beside a new model"}  # which a short run on a busy machine cannot tell
        assert told["passed"] is (not bad)
        assert done.exit_code == (1 if bad else 0)
        assert (told["model"], told["plan"], told["seed"], told["stopped"]) == (str(small), "fast", 3, "")
        assert told["tokens"] >= 400
        assert told["sequences"] > 15
        assert all(told["uses"].values())
        assert told["uses"].keys() >= {"prompts", "forks", "overflows", "scores", "texts", "batches", "mistakes"}
        samples = told["samples"]
        assert len(samples) == 8
        assert told["warm_up_tokens"] <= samples[0]["tokens"] < samples[-1]["tokens"]
        if Path("/proc/self/statm").exists():
            assert [check["name"] for check in told["checks"] if check["passed"] is None] == ["speed by the clock"]

    def test_bad_numbers(self, model: Model) -> None:
        for given, words in (
            ({"tokens": 99}, "tokens is 99; expected a whole number of at least 100"),
            ({"sequences": 0}, "sessions is 0"),
            ({"samples": 3}, "samples is 3"),
            ({"seed": -1}, "seed is -1"),
        ):
            with pytest.raises(InputError, match=words):
                soak(model, **{"tokens": 100, "fresh": nullcontext, **given})  # type: ignore[arg-type]


class TestPlanted:
    @pytest.mark.slow
    def test_leaks_and_changes_are_found(
        self, model: Model, one_use: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        kept: list[Any] = []

        def keep() -> None:
            kept.append((bytearray(os.urandom(1 << 23)), (tmp_path / "x").open("w")))

        one_use("mistakes", keep)
        looks, logits, differing = list[FixedTask](), DecodeSession.logits, FixedTask.differing

        def looked(self: FixedTask) -> Any:
            looks.append(self)
            return differing(self)

        def changing(self: DecodeSession) -> Any:
            found = logits(self)
            found[0] += 1e-6 if len(looks) > 1 else 0.0
            return found

        monkeypatch.setattr(FixedTask, "differing", looked)
        monkeypatch.setattr(DecodeSession, "logits", changing)
        monkeypatch.setattr(CachedSession, "_release", lambda self: None)
        report = soak(model, 150, fresh=lambda: nullcontext(model), samples=4, trace=True)
        for _, file in kept:
            file.close()
        found = {check.name: check.detail for check in report.failed}
        assert found.keys() >= {"texture", "framebuffer", "driver: texture", "driver: framebuffer", "texture bytes"}
        assert found.keys() >= {"memory of the process", "open files", "answers as at first"}
        assert "logits of a prompt, logits of a fork, logits token by token" in found["answers as at first"]
        assert any(__file__ in grown.place and grown.bytes > 1 << 23 for grown in report.grown)

    def test_a_mistake_that_is_let_pass(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        workload = Workload(model, 0, 9.0)
        workload._mistakes()
        assert workload.accepted == []
        monkeypatch.setattr(DecodeSession, "rewind", lambda self, count: None)
        workload._mistakes()
        assert workload.accepted == ["a rewind too far"]


class TestWatch:
    def test_textures_are_counted_as_they_are_in_the_driver(self, model: Model) -> None:
        def counts() -> tuple[int, int, int]:
            return (
                texture_bytes(model.device),
                driver_objects(model.device)["texture"],
                model.device.live_objects()["texture"],
            )

        before = counts()
        assert before[1] == before[2] > 0
        with model.session() as session:
            during = counts()
            caches = session._bound.plan.of_kind("cache")  # type: ignore[attr-defined]
            edge = model.device.limits.max_texture_size
            assert during[0] - before[0] >= sum(tensor.layout_within(edge).nbytes for tensor in caches)
            assert during[1] == during[2] > before[1]
        assert counts() == before


class TestCommand:
    def test_the_exit_status(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[dict[str, Any]] = []
        stayed, grew = (SoakCheck("texture", 10, last, 0.0, 0.1, last == 10) for last in (10, 11))
        unknown = SoakCheck("open files", None, None, None, 0.0, None)
        for check, stopped, status, words in (
            (stayed, "", 0, "everything stayed"),
            (grew, "", 1, "1 of 1 DID NOT STAY"),
            (unknown, "after 7 tokens", 1, "ENDED EARLY after 7 tokens"),
        ):

            def scripted(model: Model, tokens: int, *, _end: Any = ((check,), stopped), **given: Any) -> SoakReport:
                seen.append({"tokens": tokens, **given})
                return SoakReport("GL", "fast", "f32", "f32", 4, 1000, 40, {"forks": 3}, 2.0, 100, (), *_end)

            monkeypatch.setattr(command, "soak", scripted)
            given = ["--tokens", "1000", "--sessions", "9", "--seed", "4", "--trace"]
            done = CliRunner().invoke(soak_command, [str(small), *given])
            assert done.exit_code == status
            assert words in done.stdout
            assert "1,000 tokens in 40 sequences, 2 s: " in done.stdout
        del seen[0]["on_progress"], seen[0]["fresh"]
        assert seen[0] == {"tokens": 1000, "sequences": 9, "seed": 4, "samples": 40, "trace": True}
