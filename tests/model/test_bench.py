"""``glinfer bench``: what is timed is what is told, and warm-ups are no samples."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_models import SMALL_DRAWS

import glinfer
from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.gl.context import Device
from glinfer.gl.replay import replay
from glinfer.tools import bench_decoding as timing
from glinfer.tools import ceiling
from glinfer.tools.bench import bench
from glinfer.tools.bench_decoding import EngineReport, FastEngine, load_fast, weight_bytes
from glinfer.tools.ceiling import CeilingReport, FetchRate, measure_ceilings
from glinfer.tools.draws import example_ids

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
CONFIG = ModelConfig.from_options("vocab=300,dim=32,heads=4,blocks=2,context=64")
FAST_DRAWS = 6 * 2 + 3
CEILING = CeilingReport("renderer", (FetchRate("rgba32ui", 1 << 24, "texture", 1e9),), 2e9, 10.0, 5.0, 20.0)


def ran(capsys: Capture, *arguments: str | Path, status: int = 0) -> str:
    found = run([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert found == status, said.err
    return said.out if status == 0 else said.err


class Clock:
    """Stands still but for what the engines say that they take."""

    def __init__(self, patch: Patch) -> None:
        self.now = 0.0
        patch.setattr(timing.time, "perf_counter", lambda: self.now)
        patch.setattr(timing.time, "sleep", lambda seconds: None)


class Scripted:
    """An engine that notes what it is asked, and takes known milliseconds: ten times as many for what is new to it."""

    def __init__(self, clock: Clock, label: str, token_ms: float, prefill_ms: float) -> None:
        self.clock, self.label = clock, label
        self.token_ms, self.prefill_ms = token_ms, prefill_ms
        self.length, self.blocks = 0, list[tuple[int, int]]()
        self.prefilled = list[int]()
        self.warm = set[str]()

    def take(self, what: str, milliseconds: float) -> None:
        self.clock.now += milliseconds / 1000.0 * (1 if what in self.warm else 10)
        self.warm.add(what)

    def prefill(self, ids: Sequence[int]) -> None:
        self.length = len(ids)
        self.prefilled.append(len(ids))
        self.take("prefill", self.prefill_ms)

    def decode_greedy(self, token: int, count: int) -> list[int]:
        self.take("block" if count > 1 else "token", self.token_ms * count)
        self.blocks.append((self.length, count))
        self.length += count
        return [0] * count

    def rewind(self, length: int) -> None:
        assert 0 <= length <= self.length, "an engine can only be cut back"
        self.length = length


def timed(engines: list[Scripted], contexts: list[int], runs: int) -> timing.DecodeReport:
    both = [(engine, EngineReport(engine.label)) for engine in engines]
    return timing.bench_decoding(both, CONFIG, contexts, runs, renderer="none")


class TestTiming:
    def test_rows_are_taken_at_the_end_of_a_context_that_is_full(self, monkeypatch: Patch) -> None:
        engine = Scripted(Clock(monkeypatch), "one", 2.0, 5.0)
        timed([engine], [64, 20], 1)
        assert set(engine.prefilled) == {20, 64}
        assert {start + count for start, count in engine.blocks if count > 1} == {20, 64}
        assert {count for start, count in engine.blocks} == {1, timing.BLOCK_TOKENS}

    @pytest.mark.parametrize("context", [1, 2, 3, 16, 17, 18, 64])
    def test_any_context_ends_exactly_where_it_is_full(self, monkeypatch: Patch, context: int) -> None:
        engine = Scripted(Clock(monkeypatch), "one", 2.0, 5.0)
        (row,) = timed([engine], [context], 2).rows
        assert max(start + count for start, count in engine.blocks) == context
        assert row.context == context

    def test_warm_ups_are_no_samples(self, monkeypatch: Patch) -> None:
        clock = Clock(monkeypatch)
        engines = [Scripted(clock, "one", 2.0, 5.0), Scripted(clock, "two", 4.0, 7.0)]
        report = timed(engines, [40], 3)
        assert [row.label for row in report.rows] == ["one", "two"]
        for row, token_ms, prefill_ms in zip(report.rows, (2.0, 4.0), (5.0, 7.0), strict=True):
            assert (row.decode.samples, row.prefill.samples) == (3, 3)
            assert row.decode.slowest == pytest.approx(token_ms)
            assert row.prefill.slowest == pytest.approx(prefill_ms)
            assert row.pipelined is None
            assert row.rates["tokens_per_second"] == pytest.approx(1000 / token_ms)
            assert row.rates["prefill_tokens_per_second"] == pytest.approx(40_000 / prefill_ms)

    def test_a_slow_prefill_is_run_once(self, monkeypatch: Patch) -> None:
        clock = Clock(monkeypatch)
        slow, fast = Scripted(clock, "slow", 1.0, 400.0), Scripted(clock, "fast", 1.0, 1.0)
        rows = timed([slow, fast], [32], 4).rows
        assert [row.prefill.samples for row in rows] == [1, 4]
        assert (slow.prefilled, len(fast.prefilled)) == ([32], 5)

    def test_what_lies_outside_the_context_is_left_out(self, monkeypatch: Patch) -> None:
        report = timed([Scripted(Clock(monkeypatch), "one", 1.0, 1.0)], [8, 65, 8, 2000], 1)
        assert [row.context for row in report.rows] == [8]
        assert len(report.notes) == 2
        assert "65 tokens is left out: this model holds 64" in report.notes[0]

    @pytest.mark.parametrize(("contexts", "runs"), [([65], 1), ([], 1), ([0, 8], 1), ([8], 0)])
    def test_nothing_to_time(self, monkeypatch: Patch, contexts: list[int], runs: int) -> None:
        with pytest.raises(InputError):
            timed([Scripted(Clock(monkeypatch), "one", 1.0, 1.0)], contexts, runs)

    def test_a_spread(self) -> None:
        spread = timing.Spread.of([3.0, 1.0, 2.0, 5.0, 4.0])
        assert (spread.fastest, spread.lower_quartile, spread.median, spread.upper_quartile, spread.slowest) == (
            *(1.0, 2.0, 3.0, 4.0, 5.0),
        )


def test_the_fast_engine_decodes_what_the_model_generates(small: Path, device: Device) -> None:
    ids = [int(token) for token in example_ids(CONFIG, 30)]
    model, engine, about = load_fast(small, "f32", device, opening_seconds=1.0)
    with model:
        assert isinstance(engine, FastEngine)
        assert np.allclose(engine.prefill(ids), model.logits(ids), rtol=0, atol=1e-5)
        engine.rewind(20)
        expected = model.generate(ids[:21], max_tokens=10, temperature=0)
        assert engine.decode_greedy(ids[20], 10) == expected
        engine.rewind(20)
        assert engine.decode_pipelined(ids[20], 10) == expected
        assert np.allclose(engine.prefill(ids), model.logits(ids), rtol=0, atol=1e-5), "prefill begins anew"
        assert about.first_token_seconds > 1.0 + about.load_seconds > 1.0
        assert (about.draws, about.programs) == (FAST_DRAWS, model.bound.program_count)
        assert about.weight_bytes == sum(weight_bytes(model.plan, device.limits.max_texture_size).values())


def test_weight_bytes_are_whole_matrices_and_one_row_of_each_table(small: Path, device: Device) -> None:
    with glinfer.load(small, device=device, plan="fast", weights="q8") as model:
        edge = device.limits.max_texture_size
        found = weight_bytes(model.plan, edge)
        tables = {name: model.plan.table[name].layout_within(edge).nbytes for name in ("wte", "wpe")}
        rows = tables["wte"] // 300 + tables["wpe"] // 64
        assert sum(found.values()) == model.plan.texture_bytes(edge, "weight") - sum(tables.values()) + rows
        assert max(found, key=lambda name: found[name]) == "rgba32ui"


def test_the_reference_plan_is_run_anew_each_time(small: Path) -> None:
    with glinfer.load(small, plan="reference") as model:
        before = model.bound.draws_issued
        report = bench(model, [5], 3, load_seconds=0.0)
        assert model.bound.draws_issued - before == 4 * SMALL_DRAWS
        assert report.rows[0].runs == 3


class TestCommand:
    def test_json(self, small: Path, capsys: Capture) -> None:
        arguments = ["--weights", "f32, q8,f32", "--contexts", "1,24,100", "--runs", "2", "--json"]
        told = json.loads(ran(capsys, "bench", small, *arguments))
        assert [(row["label"], row["context"]) for row in told["rows"]] == [
            *[("glinfer f32", 1), ("glinfer q8", 1), ("glinfer f32", 24), ("glinfer q8", 24)],
        ]
        assert [about["weights"] for about in told["engines"]] == ["f32", "q8"]
        assert told["engines"][1]["weight_bytes"] < told["engines"][0]["weight_bytes"] / 2
        assert (told["runs"], told["block_tokens"], told["plan"], told["ceiling"]) == (2, 16, "fast", None)
        assert len(told["notes"]) == 1
        for row in told["rows"]:
            assert 0 < row["decode"]["fastest"] <= row["decode"]["median"] <= row["decode"]["slowest"]
            best = min(row["decode"]["median"], row["pipelined"]["median"])
            assert row["bytes_per_second"] == pytest.approx(1000 * row["weight_bytes"] / best)
            assert row["decode"]["samples"] == row["pipelined"]["samples"] == 2

    def test_table_with_ceiling(self, small: Path, capsys: Capture, monkeypatch: Patch) -> None:
        monkeypatch.setattr(importlib.import_module("glinfer.cli.bench"), "measure_ceilings", lambda *_, **__: CEILING)
        out = ran(capsys, "bench", small, "--weights", "q8", "--contexts", "8,99", "--runs", "1", "--ceiling")
        assert any(line.startswith("glinfer q8 ") and line.endswith("%") for line in map(str.strip, out.splitlines()))
        assert f"{FAST_DRAWS} draws/token" in out
        assert "RGBA32UI  16.8 MB        1.00  16.0" in out
        assert "note: a context of 99 tokens is left out: this model holds 64" in out

    def test_peers_stand_in_the_same_table(self, small: Path, capsys: Capture) -> None:
        pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'glinfer[peers]')")
        told = json.loads(ran(capsys, "bench", small, "--contexts", "20", "--runs", "1", "--peers", "torch", "--json"))
        labels = [row["label"] for row in told["rows"]]
        assert labels[0] == "glinfer f32"
        assert labels[1].startswith("torch eager fp32, ")
        assert [about["label"] for about in told["engines"]] == labels
        assert (told["rows"][1]["pipelined"], told["rows"][1]["bytes_per_second"]) == (None, None)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--lengths", "3"], "--lengths belongs to --plan reference"),
            (["--plan", "reference", "--contexts", "3"], "--contexts belongs to --plan fast"),
            (["--plan", "reference", "--weights", "q8"], "--weights belongs to --plan fast"),
            (["--plan", "reference", "--peers", "torch"], "--peers belongs to --plan fast"),
            (["--plan", "reference", "--ceiling"], "--ceiling belongs to --plan fast"),
            (["--contexts", "0"], "found a context of 0 tokens"),
            (["--contexts", "1,x"], "found 'x' in the contexts"),
            (["--contexts", ""], "no context is left"),
            (["--contexts", "65"], "expected some within 1 to 64"),
            (["--weights", "f7"], "there is no weight format 'f7'"),
            (["--weights", ","], "name at least one weight format"),
            (["--peers", "numpy"], "unknown peer 'numpy'"),
        ],
    )
    def test_what_does_not_go_together(self, small: Path, capsys: Capture, arguments: list[str], words: str) -> None:
        err = ran(capsys, "bench", small, *arguments, status=2)
        assert words in err
        assert err.count("\n") == 1


class TestCeiling:
    @pytest.mark.parametrize("lookup", [False, True])
    @pytest.mark.parametrize("format_name", ceiling.FETCHED)
    def test_every_texel_is_fetched_as_often_as_is_claimed(
        self, device: Device, format_name: str, lookup: bool
    ) -> None:
        with ceiling._Bench(device) as bench_:
            source = bench_.texture(64, 256, format_name)
            shape = (256, 64) if source.layout.format.channels == 1 else (256, 64, 4)
            texels = np.random.default_rng(2).integers(0, 7, shape).astype(source.layout.format.dtype)
            source.gl.write(np.ascontiguousarray(texels), alignment=4)
            target = bench_.texture(64, 32)
            draws = bench_.fetching(source, [target], 8, rounds=4, lookup=lookup)
            replay(device, draws, {})
            sums = target.framebuffer.read(0, 64, 32).sum(axis=(0, 1))
            wanted = 4 * np.atleast_1d(texels.astype(np.float64).sum(axis=(0, 1)))
            assert np.array_equal(sums[: wanted.size], wanted)

    def test_everything_is_measured(self, device: Device, monkeypatch: Patch) -> None:
        monkeypatch.setattr(ceiling, "FETCHED", ("rgba32ui", "r32f"))
        monkeypatch.setattr(ceiling, "_EDGES", (128,))
        steps: list[tuple[int, int]] = []
        report = measure_ceilings(
            device,
            [("rgba32ui", 10), ("rgba32f", 30_000_000)],
            sample_seconds=1e-5,
            on_step=lambda done, total: steps.append((done, total)),
        )
        assert [(rate.format, rate.texture_bytes) for rate in report.fetches] == [
            *[("rgba32ui", 1 << 24), ("r32f", 1 << 24), ("rgba32f", 1 << 25)],
        ]
        assert all(rate.texels_per_second > 1e6 for rate in report.fetches)
        assert report.multiply_adds_per_second > 1e6
        assert min(report.pass_us, report.issue_us, report.readback_us) > 0
        assert steps[-1] == (5, 5)
        assert device.live_objects() == {}

    def test_the_nearest_size_is_compared_with(self) -> None:
        rates = tuple(FetchRate("rgba32ui", 1 << power, "texture", power * 1e9) for power in (24, 26))
        report = CeilingReport("renderer", (*rates, FetchRate("r32f", 1, "texture", 1.0)), 1.0, 1.0, 1.0, 1.0)
        assert report.fetch("rgba32ui", 20_000_000) == rates[0]
        assert report.fetch("rgba32ui", 50_000_000) == rates[1]
        assert report.fetch("rgba32ui", 1) == rates[0]
        told: dict[str, Any] = report.to_json()
        assert told["fetches"][0]["bytes_per_second"] == 16 * 24e9
