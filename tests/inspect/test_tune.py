"""``glinfer tune``: the fastest kernels win, and never one that computes something else."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import ne
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ran, ran_json, refused
from scripted_models import random_file
from tiers import tiered

import glinfer
from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.formats import load_checkpoint, random_checkpoint
from glinfer.gl import program
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.gl.program import shader_root
from glinfer.inspect.tune import kernels as module
from glinfer.inspect.tune.kernels import (
    MOVES,
    PLAINEST,
    ROW_FIELDS,
    PromptCandidate,
    TokenCandidate,
    moves_for,
    row_moves_for,
    tune,
)
from glinfer.inspect.tune.search import NO_CHANGE, Candidate, Search, difference
from glinfer.kernels.options import KernelOptions
from glinfer.program.tuning import TuningKey, default_for, kernels_file, kernels_for, load_tuned

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
FEW: Mapping[str, Sequence[Mapping[str, Any]]] = {"unroll": [{"unroll": 1}, {"unroll": 2}]}
QUADS_TOO: Mapping[str, Sequence[Mapping[str, Any]]] = {"quad": [{"quad": True}, {"quad": False}], **FEW}
FEW_ROWS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "rows_per_draw": [{"rows_per_draw": 2}],
    "largest_cell": [{"largest_cell": 2}, {"largest_cell": 1}],
    "blends": [{"blends": False}],
    "chunk": [{"chunk": 128}],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "MOVES", FEW)
    return tmp_path / "cache"


def favour(patch: Patch, **wanted: Any) -> None:
    """Let kernels seem the faster, the more fields have the values wanted."""

    def milliseconds(candidate: TokenCandidate, *_: Any) -> float:
        return 10.0 - sum(getattr(candidate.kernels, name) == value for name, value in wanted.items())

    patch.setattr(TokenCandidate, "milliseconds", milliseconds)


def favour_rows(patch: Patch, **wanted: Any) -> list[tuple[KernelOptions, int]]:
    """The same for prompts; the kernels that are measured, and how many tokens they take in."""
    measured = list[tuple[KernelOptions, int]]()

    def milliseconds(run: Callable[[], object]) -> float:
        before = len(measured)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PromptCandidate, "prefill", lambda one, tokens: measured.append((one.kernels, tokens)))
            run()
        kernels, _ = measured[-1]
        faster = sum(getattr(kernels, name) == value for name, value in wanted.items())
        return (len(measured) - before) * (100.0 - 10 * faster)

    patch.setattr(module, "milliseconds", milliseconds)
    return measured


class Made(Candidate):
    """Kernels that take a made-up time."""

    def __init__(self, cost: Callable[[KernelOptions], float], kernels: KernelOptions) -> None:
        self.cost, self.kernels = cost, kernels

    def logits(self) -> Any:
        return np.ones((1, 2))

    def milliseconds(self, count: int, change: Mapping[str, Any] = NO_CHANGE) -> float:
        return self.cost(self.kernels)

    def release(self) -> None: ...


class TestDescent:
    """The search alone, over made-up times."""

    def search(
        self, cost: Callable[[KernelOptions], float], trials_allowed: int = 1000
    ) -> tuple[KernelOptions, list[KernelOptions], bool]:
        tried = list[KernelOptions]()

        def bind(kernels: KernelOptions) -> Made:
            tried.append(kernels)
            return Made(cost, kernels)

        def before_trial() -> None:
            made.deadline = math.inf if len(tried) < trials_allowed else 0.0

        made = Search(bind, KernelOptions(), PLAINEST, math.inf)
        tried.clear()
        trials, finished = made.descend(list(MOVES.values()), before_trial)
        assert len(trials) == len(tried) == len(set(tried)), "nothing is measured twice"
        return made.best.kernels, tried, finished

    def test_it_finds_the_best_of_every_choice(self) -> None:
        wanted = KernelOptions(tiles=8, cover="points", quad=False, unroll=4, part_steps=16, lookup_texture=True)

        def cost(kernels: KernelOptions) -> int:
            return 1 + sum(map(ne, dataclasses.astuple(kernels), dataclasses.astuple(wanted)))

        found, _, finished = self.search(cost)
        assert (found, finished) == (wanted, True)

    def test_a_choice_that_pays_only_after_another_is_found_in_a_later_round(self) -> None:
        def cost(kernels: KernelOptions) -> int:
            return 10 - 5 * kernels.lookup_texture - 3 * (kernels.lookup_texture and kernels.tiles == 16)

        assert self.search(cost)[0].tiles == 16

    def test_it_stops_when_the_time_is_up(self) -> None:
        found, tried, finished = self.search(lambda kernels: 1 / kernels.unroll, trials_allowed=3)
        assert (len(tried), finished) == (3, False)
        assert found == KernelOptions()

    def test_a_hopeless_candidate_is_not_measured_to_the_end(self) -> None:
        costs = {False: 1.0, True: 1.3}
        made = Search(partial(Made, lambda kernels: costs[kernels.fused]), KernelOptions(fused=False), PLAINEST, 1e9)
        candidate = Made(made.best.cost, KernelOptions(fused=True))
        assert made.ratios(candidate, {}) == [1.3, 1.3]
        costs[True] = 0.9
        assert made.ratios(candidate, {}) == [0.9] * 5


def test_every_field_of_kernels_is_searched() -> None:
    searched = {name for changes in MOVES.values() for change in changes for name in change}
    # Maps of products are of tensors alone: models draw none by them.
    assert searched == {field.name for field in dataclasses.fields(KernelOptions)} - {"product_table"}


def test_only_what_means_something_here_is_tried(device: Device, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "MOVES", MOVES)

    def fields(weights: str) -> set[str]:
        return {name for changes in moves_for(device, weights) for change in changes for name in change}

    assert "mantissa" in fields("q8")
    assert "mantissa" not in fields("f32")
    device.limits = dataclasses.replace(device.limits, max_point_size=1.0, max_draw_buffers=4)
    device.extensions = frozenset({"GL_EXT_color_buffer_float"})
    covers = {change.get("cover") for changes in moves_for(device, "f32") for change in changes}
    parts = {change.get("part_steps", 0) for changes in moves_for(device, "f32") for change in changes}
    assert (covers, parts) == ({"quads", None}, {0})
    for barrier, tried in ((None, {False}), (lambda: None, {False, True})):
        device.texture_barrier = barrier
        changes = [change for changes in moves_for(device, "f32") for change in changes]
        assert {change["one_state"] for change in changes if "one_state" in change} == tried
    assert not fields("q8") & set(ROW_FIELDS), "those are measured by prompts"

    def row_changes(context: int) -> list[Mapping[str, Any]]:
        config = ModelConfig.from_options(f"context={context}")
        return [change for changes in row_moves_for(device, config) for change in changes]

    assert [change["rows_per_draw"] for change in row_changes(2048) if "rows_per_draw" in change] == [4, 2]
    assert [change["blends"] for change in row_changes(2048) if "blends" in change] == [False]
    assert {change["chunk"] for change in row_changes(2048) if "chunk" in change} == {128, 256, 512, 1024}
    assert {change["chunk"] for change in row_changes(300) if "chunk" in change} == {128, 256}
    assert row_changes(3) == [], "so short a prompt is run token by token"


class TestSameness:
    EXPECTED = np.array([[1.0, 2.0, 3.0], [30.0, 20.0, 10.0]], dtype=np.float32)

    def test_rounding_is_the_same(self) -> None:
        assert difference(self.EXPECTED * np.float32(1.00001), self.EXPECTED) == ""

    def test_anything_else_is_not(self) -> None:
        for value in (np.nan, np.inf, 3.01, -3.0):
            found = self.EXPECTED.copy()
            found[0, 2] = value
            assert "different logits" in difference(found, self.EXPECTED)

    def test_another_likeliest_token_is_not(self) -> None:
        expected = np.array([[1.0, 1.00001]], dtype=np.float32)
        assert "different likeliest token" in difference(expected[:, ::-1], expected)


class TestSearch:
    @tiered("moves", [FEW, QUADS_TOO], ids=["few", "more"])
    def test_the_faster_kernels_win(self, small: Path, device: Device, monkeypatch: Patch, moves: Any) -> None:
        monkeypatch.setattr(module, "MOVES", moves)
        favour(monkeypatch, unroll=2, **({"quad": False} if moves is QUADS_TOO else {}))
        favour_rows(monkeypatch)
        report = tune(device, load_checkpoint(small), "f32", seconds=1000)
        default = default_for(device)
        assert report.tuned.kernels == dataclasses.replace(default, unroll=2, quad=moves is FEW and default.quad)
        assert (report.tuned.milliseconds, report.tuned.default_milliseconds) == (10.0 - len(moves), 10.0)
        assert [trial.won for trial in report.trials[: len(moves)]] == [True] * len(moves)
        assert report.finished
        assert device.live_objects() == {}

    @pytest.mark.slow
    def test_what_is_not_faster_does_not_win(self, small: Path, device: Device, monkeypatch: Patch) -> None:
        favour(monkeypatch)
        report = tune(device, load_checkpoint(small), "f32", seconds=1000)
        assert report.tuned.kernels == default_for(device)
        assert [trial.won for trial in report.trials] == [False] * len(report.trials)

    def test_it_really_measures(self, small: Path, device: Device, monkeypatch: Patch) -> None:
        """Each time is of tokens that the device has drawn, with the candidate's kernels."""
        runs, measure = list[tuple[int, int, int]](), TokenCandidate.milliseconds

        def noted(candidate: TokenCandidate, tokens: int, *change: Any) -> float:
            before = device.draws_issued
            taken = measure(candidate, tokens, *change)
            runs.append((tokens, device.draws_issued - before, len(candidate.session.plan.draws)))
            assert taken > 0
            return taken

        monkeypatch.setattr(TokenCandidate, "milliseconds", noted)
        report = tune(device, load_checkpoint(small), "f32", seconds=1000)
        assert report.finished
        assert all(trial.ratio is not None and trial.ratio > 0 for trial in report.trials)
        assert 0 < report.tuned.milliseconds <= report.tuned.default_milliseconds
        assert len(runs) >= 2 * len(report.trials)
        assert all(drawn == tokens * draws for tokens, drawn, draws in runs)

    def test_kernels_that_do_not_fit_lose(self, small: Path, device: Device, monkeypatch: Patch) -> None:
        monkeypatch.setattr(module, "MOVES", {"tiles": [{"tiles": 4096}], "unroll": [{"unroll": 2}]})
        layout = BlockLayout.of

        def narrow(shape: tuple[int, int], edge: int, *, tiles: int = 1, **more: Any) -> BlockLayout:
            if tiles == 4096:
                raise PlanError("too many tiles for a texture")
            return layout(shape, edge, tiles=tiles, **more)

        monkeypatch.setattr(BlockLayout, "of", staticmethod(narrow))
        favour(monkeypatch, tiles=4096, unroll=2)
        report = tune(device, load_checkpoint(small), "f32", seconds=1000)
        assert report.trials[0].verdict.startswith("cannot run: ")
        assert report.tuned.kernels == dataclasses.replace(default_for(device), unroll=2)
        assert device.live_objects() == {}

    def test_without_time_it_is_the_default(self, small: Path, device: Device) -> None:
        report = tune(device, load_checkpoint(small), "f32", seconds=1e-9)
        assert (report.tuned.kernels, report.trials, report.finished) == (default_for(device), (), False)

    def test_a_model_that_embeds_texts_has_no_tokens_to_time(self, device: Device) -> None:
        bert = ModelConfig.from_options("family=bert,dim=64,heads=2,blocks=1,vocab=100,context=64")
        with pytest.raises(InputError, match="this model embeds texts and does not generate any"):
            tune(device, random_checkpoint(bert, seed=1), "f32", seconds=1.0)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a context of several chunks."""
    path = tmp_path_factory.mktemp("long") / "long.gab"
    return random_file(path, "vocab=300,dim=32,heads=4,blocks=2,context=600")


@pytest.mark.slow
class TestRows:
    """Kernels chosen by the time of a prompt, after everything else."""

    @pytest.fixture(autouse=True)
    def moves(self, cache: Path, monkeypatch: Patch) -> None:
        monkeypatch.setattr(module, "MOVES", {**QUADS_TOO, **FEW_ROWS})

    def test_the_faster_kernels_win(self, long: Path, device: Device, monkeypatch: Patch) -> None:
        favour(monkeypatch, unroll=2)
        wanted = {"rows_per_draw": 2, "largest_cell": 1, "blends": False, "chunk": 128}
        measured = favour_rows(monkeypatch, **wanted)
        report = tune(device, load_checkpoint(long), "q8", seconds=1000)
        assert report.tuned.kernels == dataclasses.replace(default_for(device), unroll=2, **wanted)
        assert report.tuned.milliseconds == 9.0, "a token's time, as ever"
        assert report.prompt == module.PromptTimes(512, 60.0, 100.0)
        assert report.finished
        assert device.live_objects() == {}
        first = next(place for place, trial in enumerate(report.trials) if set(trial.change) & set(ROW_FIELDS))
        assert not any(set(trial.change) & set(QUADS_TOO) for trial in report.trials[first:])
        assert all(kernels.unroll == 2 for kernels, _ in measured), "single tokens come first"
        # A chunk shows what it is worth on a prompt that is longer than it.
        assert {tokens for _, tokens in measured} == {512, 1024}

    def test_rows_that_compute_something_else_never_win(
        self, long: Path, tmp_path: Path, device: Device, monkeypatch: Patch
    ) -> None:
        """The shader of two rows at once is spoilt; that of the others is not."""
        root = Path(shutil.copytree(shader_root(), tmp_path / "shaders"))
        gemm = root / "gemm.frag"
        source = gemm.read_text("utf-8")
        spoilt = source.replace("Y = stored(Y AND_RESIDUAL(R));", "Y = stored(Y AND_RESIDUAL(R)); SPOIL(Y)")
        assert spoilt != source
        head, body = spoilt.split("\n", 1)
        with_macro = f"{head}\n#if ROWS == 2\n#define SPOIL(Y) Y *= 1.01;\n#else\n#define SPOIL(Y)\n#endif\n{body}"
        gemm.write_text(with_macro, encoding="utf-8")
        favour(monkeypatch)
        favour_rows(monkeypatch, rows_per_draw=2)
        monkeypatch.setattr(program, "shader_root", lambda: root)
        report = tune(device, load_checkpoint(long), "f32", seconds=1000)
        assert report.tuned.kernels == default_for(device)
        (refused,) = (trial for trial in report.trials if trial.change == {"rows_per_draw": 2})
        assert "different logits" in refused.verdict
        assert device.live_objects() == {}


def tuned(capsys: Capture, *arguments: str | Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ran_json(capsys, "tune", *arguments)
    return found


class TestCommand:
    def test_it_searches_once_keeps_and_shows(
        self, small: Path, device: Device, capsys: Capture, monkeypatch: Patch
    ) -> None:
        favour(monkeypatch, unroll=2)
        out = ran(capsys, "tune", small)[0]
        for words in ("unroll 2", "1 trial in ", "saved in "):
            assert words in out
        config = load_checkpoint(small).config
        key = TuningKey.of(device, config, "f32")
        found = load_tuned(key)
        assert found is not None
        kept = found.kernels
        assert kept == kernels_for(device, config, "f32") == dataclasses.replace(default_for(device), unroll=2)
        (shown,) = tuned(capsys, small)
        assert (shown["file"], shown["searched"], shown["trials"]) == (str(kernels_file(key)), False, [])
        assert KernelOptions(**shown["kernels"]) == kept
        with glinfer.load(small, weights="f32") as model:
            assert model.kernels.unroll == 2

        favour(monkeypatch, unroll=4)
        (redone,) = tuned(capsys, small, "--redo")
        assert redone["searched"]
        assert [trial["verdict"] for trial in redone["trials"]].count("faster") == 0
        found = load_tuned(key)
        assert found is not None
        assert found.kernels == KernelOptions(**redone["kernels"]) != kept

    def test_bad_options(self, small: Path, capsys: Capture) -> None:
        for arguments, words in (
            (["--seconds", "0"], "Invalid value for '--seconds'"),
            (["--seconds", "1e9"], "1000000000.0 is not in the range 0<x<86400"),
            (["--seconds", "-1"], "Invalid value for '--seconds'"),
            (["--seconds", "nan"], "found nan; expected a finite number"),
            (["--seconds", "inf"], "inf is not in the range 0<x<86400"),
            (["--weights", "f7"], "there is no weight format 'f7'"),
        ):
            assert words in refused(capsys, "tune", small, *arguments)
