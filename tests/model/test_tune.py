"""``glinfer tune``: the fastest kernels win, and never one that computes something else."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.cli.app import run
from glinfer.errors import InputError
from glinfer.formats import load_checkpoint
from glinfer.gl.context import Device
from glinfer.gl.program import shader_root
from glinfer.models.tuning import TuningKey, default_for, kernels_file, kernels_for, load_kernels
from glinfer.ops.kernels import Kernels
from glinfer.tools import tune as module
from glinfer.tools.tune import MOVES, PLAINEST, Candidate, Trial, descend, difference, moves_for, ratios, tune

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
FEW: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "quad": [{"quad": True}, {"quad": False}],
    "unroll": [{"unroll": 1}, {"unroll": 2}],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "MOVES", FEW)
    return tmp_path / "cache"


def favour(patch: Patch, **wanted: Any) -> None:
    """Let kernels seem the faster, the more fields have the values wanted."""

    def milliseconds(candidate: Candidate, tokens: int) -> float:
        return 10.0 - sum(getattr(candidate.kernels, name) == value for name, value in wanted.items())

    patch.setattr(Candidate, "milliseconds", milliseconds)


class TestDescent:
    """The search alone, over made-up times."""

    def search(self, cost: Any, trials_allowed: int = 1000) -> tuple[Kernels, list[Kernels], bool]:
        best, tried = Kernels(), list[Kernels]()

        def try_out(kernels: Kernels, change: Mapping[str, Any]) -> Trial:
            nonlocal best
            tried.append(kernels)
            won = cost(kernels) < cost(best)
            best = kernels if won else best
            return Trial(dict(change), None, "faster" if won else "not faster")

        def may_go_on() -> bool:
            return len(tried) < trials_allowed

        found, trials, finished = descend(Kernels(), list(MOVES.values()), try_out, may_go_on)
        assert found == best
        assert len(trials) == len(tried) == len(set(tried)), "nothing is measured twice"
        return found, tried, finished

    def test_it_finds_the_best_of_every_choice(self) -> None:
        wanted = Kernels(tiles=8, cover="points", quad=False, unroll=4, part_steps=16, lookup_texture=True)

        def cost(kernels: Kernels) -> int:
            return sum(a != b for a, b in zip(dataclasses.astuple(kernels), dataclasses.astuple(wanted), strict=True))

        found, _, finished = self.search(cost)
        assert (found, finished) == (wanted, True)

    def test_a_choice_that_pays_only_after_another_is_found_in_a_later_round(self) -> None:
        def cost(kernels: Kernels) -> int:
            return 10 - 5 * kernels.lookup_texture - 3 * (kernels.lookup_texture and kernels.tiles == 16)

        assert self.search(cost)[0].tiles == 16

    def test_it_stops_when_the_time_is_up(self) -> None:
        found, tried, finished = self.search(lambda kernels: -kernels.unroll, trials_allowed=3)
        assert (len(tried), finished) == (3, False)
        assert found == Kernels()


def test_every_field_of_kernels_is_searched() -> None:
    searched = {name for changes in MOVES.values() for change in changes for name in change}
    assert searched == {field.name for field in dataclasses.fields(Kernels)}


def test_only_what_means_something_here_is_tried(device: Device, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "MOVES", MOVES)

    def fields(weights: str) -> set[str]:
        return {name for changes in moves_for(device, weights) for change in changes for name in change}

    assert "mantissa" in fields("q8")
    assert "mantissa" not in fields("f32")
    device.limits = dataclasses.replace(device.limits, max_point_size=1.0)
    device.extensions = frozenset({"GL_EXT_color_buffer_float"})
    covers = {change.get("cover") for changes in moves_for(device, "f32") for change in changes}
    parts = {change.get("part_steps", 0) for changes in moves_for(device, "f32") for change in changes}
    assert (covers, parts) == ({"quads", None}, {0})


class TestSameness:
    EXPECTED = np.array([[1.0, 2.0, 3.0], [30.0, 20.0, 10.0]], dtype=np.float32)

    def test_rounding_is_the_same(self) -> None:
        assert difference(self.EXPECTED * np.float32(1.00001), self.EXPECTED) == ""

    @pytest.mark.parametrize("value", [np.nan, np.inf, 3.01, -3.0])
    def test_anything_else_is_not(self, value: float) -> None:
        found = self.EXPECTED.copy()
        found[0, 2] = value
        assert "other logits" in difference(found, self.EXPECTED)

    def test_another_likeliest_token_is_not(self) -> None:
        expected = np.array([[1.0, 1.00001]], dtype=np.float32)
        assert "another token" in difference(expected[:, ::-1], expected)


def test_a_hopeless_candidate_is_not_measured_to_the_end() -> None:
    assert ratios(lambda: 1.0, lambda: 1.3) == [1.3, 1.3]
    assert ratios(lambda: 2.0, lambda: 1.8) == [0.9] * 5


class TestSearch:
    def test_the_faster_kernels_win(self, small: Path, device: Device, monkeypatch: Patch) -> None:
        favour(monkeypatch, unroll=2, quad=False)
        report = tune(device, load_checkpoint(small), "q8", seconds=60)
        default = default_for(device)
        assert report.tuned.kernels == dataclasses.replace(default, unroll=2, quad=False)
        assert (report.tuned.milliseconds, report.tuned.default_milliseconds) == (8.0, 10.0)
        assert [trial.won for trial in report.trials[:2]] == [True, True]
        assert report.finished
        assert device.live_objects() == {}

    def test_what_is_not_faster_does_not_win(self, small: Path, device: Device, monkeypatch: Patch) -> None:
        favour(monkeypatch)
        report = tune(device, load_checkpoint(small), "f32", seconds=60)
        assert report.tuned.kernels == default_for(device)
        assert not any(trial.won for trial in report.trials)
        assert len(report.trials) == 2

    def test_it_really_measures(self, small: Path, device: Device) -> None:
        report = tune(device, load_checkpoint(small), "f32", seconds=60)
        assert all(trial.ratio is not None and 0.1 < trial.ratio < 10 for trial in report.trials)
        assert 0 < report.tuned.milliseconds <= report.tuned.default_milliseconds < 1000

    def test_inexact_derivatives_never_win(
        self, small: Path, tmp_path: Path, device: Device, monkeypatch: Patch
    ) -> None:
        root = Path(shutil.copytree(shader_root(), tmp_path / "shaders"))
        spoilt = [path for path in (root / "common").iterdir() if "dFdx(" in path.read_text("utf-8")]
        assert spoilt
        for path in spoilt:
            path.write_text(path.read_text("utf-8").replace("dFdx(", "0.999 * dFdx("), encoding="utf-8")
        favour(monkeypatch, quad=True, unroll=2)
        report = tune(device, load_checkpoint(small), "f32", seconds=60, shader_root=root)
        assert default_for(device).quad, "or this test shows nothing"
        assert not report.tuned.kernels.quad
        assert report.tuned.kernels.unroll == 2
        refused = [trial for trial in report.trials if trial.change == {"quad": True}]
        assert refused
        assert all("other logits" in trial.verdict for trial in refused)

    def test_kernels_that_do_not_fit_lose(self, small: Path, device: Device, monkeypatch: Patch) -> None:
        monkeypatch.setattr(module, "MOVES", {"tiles": [{"tiles": 4096}], "unroll": [{"unroll": 2}]})
        favour(monkeypatch, tiles=4096, unroll=2)
        report = tune(device, load_checkpoint(small), "f32", seconds=60)
        assert report.trials[0].verdict.startswith("cannot run: ")
        assert report.tuned.kernels == dataclasses.replace(default_for(device), unroll=2)
        assert device.live_objects() == {}

    def test_without_time_it_is_the_default(self, small: Path, device: Device) -> None:
        report = tune(device, load_checkpoint(small), "f32", seconds=1e-9)
        assert (report.tuned.kernels, report.trials, report.finished) == (default_for(device), (), False)
        for seconds in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(InputError, match="seconds to tune in"):
                tune(device, load_checkpoint(small), "f32", seconds=seconds)

    def test_the_plainest_kernels_share_nothing(self) -> None:
        assert not PLAINEST.quad
        assert not PLAINEST.part_steps


def tuned(capsys: Capture, *arguments: str | Path) -> list[dict[str, Any]]:
    assert run(["tune", *map(str, arguments), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


class TestCommand:
    def test_it_searches_once_keeps_and_shows(
        self, small: Path, device: Device, capsys: Capture, monkeypatch: Patch
    ) -> None:
        favour(monkeypatch, unroll=2)
        (first,) = tuned(capsys, small, "--weights", "q8")
        assert first["searched"]
        assert first["kernels"]["unroll"] == 2
        assert [trial["verdict"] for trial in first["trials"]].count("faster") == 1
        config = load_checkpoint(small).config
        key = TuningKey.of(device, config, "q8")
        assert first["file"] == str(kernels_file(key))
        assert load_kernels(key) == kernels_for(device, config, "q8") == Kernels(**first["kernels"])
        with glinfer.load(small, weights="q8") as model:
            assert model.kernels.unroll == 2

        favour(monkeypatch, quad=False)
        (shown,) = tuned(capsys, small, "--weights", "q8")
        assert (shown["searched"], shown["kernels"], shown["trials"]) == (False, first["kernels"], [])
        (redone,) = tuned(capsys, small, "--weights", "q8", "--redo")
        assert redone["searched"]
        assert redone["kernels"] != first["kernels"]
        assert load_kernels(key) == Kernels(**redone["kernels"])

    def test_text(self, small: Path, capsys: Capture, monkeypatch: Patch) -> None:
        favour(monkeypatch, unroll=2)
        assert run(["tune", str(small)]) == 0
        out = capsys.readouterr().out
        assert "unroll 2" in out
        assert "2 trials in " in out or "3 trials in " in out
        assert "kept in " in out

    def test_without_a_cache_nothing_is_kept(self, small: Path, capsys: Capture, monkeypatch: Patch) -> None:
        monkeypatch.setenv("GLINFER_CACHE", "")
        favour(monkeypatch, unroll=2)
        (told,) = tuned(capsys, small)
        assert (told["file"], told["searched"]) == (None, True)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--seconds", "0"], "Invalid value for '--seconds'"),
            (["--seconds", "1e9"], "less than a day"),
            (["--weights", "f7"], "there is no weight format 'f7'"),
        ],
    )
    def test_bad_options(self, small: Path, capsys: Capture, arguments: list[str], words: str) -> None:
        assert run(["tune", str(small), *arguments]) == 2
        assert words in capsys.readouterr().err
