"""``glinfer bench``: what is timed is what is told, and warm-ups are no samples."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from agreement import agree
from scripted_models import SMALL_DRAWS, random_file
from tiers import tiered

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.batch import MAX_CACHE_BYTES, sequence_bytes
from glinfer.errors import InputError
from glinfer.gl.context import Device
from glinfer.gl.replay import Tape, Watched, replay
from glinfer.inspect import ceiling, timing
from glinfer.inspect.bench.decoding import (
    DecodeReport,
    EngineReport,
    TimedEngine,
    batch_context,
    bench_decoding,
    load_fast,
)
from glinfer.inspect.bench.engines import BatchDecoder, FastDecoder, room_for
from glinfer.inspect.bench.limits import fetched_bytes
from glinfer.inspect.bench.reference import bench
from glinfer.inspect.ceiling import CeilingReport, FetchRate, ProductRate, measure_ceilings, measure_products
from glinfer.inspect.draws import example_ids

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
CONFIG = ModelConfig.from_options("vocab=300,dim=32,heads=4,blocks=2,context=64")
FAST_DRAWS = 6 * 2 + 3


def ran(capsys: Capture, *arguments: str | Path, status: int = 0) -> str:
    return commands.ran(capsys, *arguments, status=status)[status != 0]


class Clock:
    """Stands still but for what the engines say that they take."""

    def __init__(self, patch: Patch) -> None:
        self.now = 0.0
        patch.setattr(timing.time, "perf_counter", lambda: self.now)
        patch.setattr(timing.time, "sleep", lambda seconds: None)


class Scripted:
    """An engine that notes what it is asked, and takes known milliseconds: ten times as many for what is new to it."""

    def __init__(
        self, clock: Clock, label: str, token_ms: float, prefill_ms: float, log: list[str] | None = None
    ) -> None:
        self.clock, self.label, self.log = clock, label, [] if log is None else log
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

    @property
    def ways(self) -> dict[tuple[str, bool], Callable[[int, int], list[int]]]:
        return {("greedy", False): self.decode}

    def decode(self, token: int, count: int) -> list[int]:
        self.take("block" if count > 1 else "token", self.token_ms * count)
        self.blocks.append((self.length, count))
        self.log.append(self.label)
        self.length += count
        return [0] * count

    def rewind(self, length: int) -> None:
        assert 0 <= length <= self.length, "an engine can only be cut back"
        self.length = length

    def close(self) -> None: ...


class ScriptedBatch:
    """A batch that does the same; the first block is ten times as slow too."""

    samplings = ("default", "greedy")

    def __init__(self, clock: Clock, log: list[str], sequences: int, step_ms: float) -> None:
        self.clock, self.log, self.sequences, self.step_ms, self.draws = clock, log, sequences, step_ms, 5
        self.filled, self.blocks = 0, list[tuple[int, int, str]]()

    def prefill(self, ids: Sequence[int]) -> None:
        self.filled = len(ids)

    def decode(self, start: int, count: int, sampling: str) -> list[list[int]]:
        """Every second sequence of default sampling ends after half of the tokens."""
        assert start + count <= self.filled, "beyond what was taken in"
        first = (start, count, sampling) not in self.blocks
        self.clock.now += self.step_ms * count / 1000.0 * (10 if first else 1)
        self.blocks.append((start, count, sampling))
        self.log.append(f"batch of {self.sequences}, {sampling}")
        ended = count // 2 if sampling == "default" else count
        return [[0] * (ended if number % 2 else count) for number in range(self.sequences)]


def timed(
    engines: list[Scripted],
    contexts: list[int],
    runs: int,
    batches: dict[str, list[Any]] | None = None,
    batches_at: int = 0,
) -> DecodeReport:
    beside = batches or {}
    timed = [TimedEngine(each, EngineReport(each.label), beside.get(each.label, [])) for each in engines]
    return bench_decoding(timed, CONFIG, contexts, runs, renderer="none", batches_at=batches_at)


class TestTiming:
    def test_a_row_is_timed_at_the_end_of_its_context(self, monkeypatch: Patch) -> None:
        for context in (1, 2, 16, 17, 18, 64):
            engine = Scripted(Clock(monkeypatch), "one", 2.0, 5.0)
            (row,) = timed([engine], [context], 2).rows
            assert max(start + count for start, count in engine.blocks) == row.context == context
            assert set(engine.prefilled) == {context}

    def test_warm_ups_are_no_samples(self, monkeypatch: Patch) -> None:
        clock = Clock(monkeypatch)
        engines = [Scripted(clock, "one", 2.0, 5.0), Scripted(clock, "two", 4.0, 7.0)]
        report = timed(engines, [40], 3)
        assert [row.label for row in report.rows] == ["one", "two"]
        for row, token_ms, prefill_ms in zip(report.rows, (2.0, 4.0), (5.0, 7.0), strict=True):
            assert (row.decode.samples, row.prefill.samples) == (3, 3)
            assert row.decode.slowest == pytest.approx(token_ms)
            assert row.prefill.slowest == pytest.approx(prefill_ms)
            assert (row.sampling, row.pipelined, row.of_greedy) == ("greedy", None, 1.0)
            assert row.tokens_per_second == pytest.approx(1000 / token_ms)
            assert row.prefill_tokens_per_second == pytest.approx(40_000 / prefill_ms)

    def test_a_slow_prefill_is_counted_once(self, monkeypatch: Patch) -> None:
        clock = Clock(monkeypatch)
        slow, fast = Scripted(clock, "slow", 1.0, 2000.0), Scripted(clock, "fast", 1.0, 1.0)
        rows = timed([slow, fast], [32], 4).rows
        assert [row.prefill.samples for row in rows] == [1, 4]
        assert rows[0].prefill.median == pytest.approx(2000.0), "its warm-up is not a sample either"
        assert (len(slow.prefilled), len(fast.prefilled)) == (2, 5)

    def test_batches_take_turns_at_one_context(self, monkeypatch: Patch) -> None:
        clock, log = Clock(monkeypatch), list[str]()
        engines = [Scripted(clock, "one", 2.0, 5.0, log), Scripted(clock, "two", 4.0, 7.0, log)]
        batches = [ScriptedBatch(clock, log, size, 3.0) for size in (1, 8)]
        report = timed(engines, [40, 64], 3, {"one": list(batches)}, 40)
        assert [(row.label, row.context, row.sequences, row.sampling) for row in report.batch] == [
            ("one", 40, size, sampling) for size in (1, 8) for sampling in ("default", "greedy")
        ]
        # A token that warms up, and the block.
        together = [f"batch of {size}, {sampling}" for size in (1, 8) for sampling in ("default", "greedy")]
        turn = [name for name in ("one", *together, "two") for _ in range(2)]
        assert log[: 4 * len(turn)] == 2 * (turn + turn[::-1])
        assert together[0] not in log[4 * len(turn) :]
        for batch in batches:
            assert {(start, count) for start, count, _ in batch.blocks} == {(24, 1), (24, 16)}
        for row in report.batch:
            share = 0.75 if (row.sampling, row.sequences) == ("default", 8) else 1.0  # of the tokens were made
            step = 3.0 / share
            assert (row.step.samples, row.step.slowest) == (3, pytest.approx(step))
            assert row.of_greedy == pytest.approx(share)
            assert row.tokens_per_second == pytest.approx(1000 * row.sequences / step)
            alone = pytest.approx(row.sequences * 2 / 3) if row.sampling == "greedy" else None
            assert row.times_single == alone, "only greedy decoding was timed alone"

    def test_the_context_of_batches(self) -> None:
        assert batch_context([32, 128, 512], 128) == 128
        assert batch_context([32, 64], 128) == 64
        assert batch_context([8, 20], 5) == 8


def test_the_fast_engine_decodes_what_the_model_generates(small: Path, device: Device) -> None:
    ids = [int(token) for token in example_ids(CONFIG, 30)]
    model, timed_engine = load_fast(small, "f32", device, opening_seconds=1.0)
    engine, about = timed_engine.decoder, timed_engine.about
    programs = model.bound.program_count
    with model:
        assert isinstance(engine, FastDecoder)
        assert np.allclose(engine.prefill(ids), model.logits(ids), rtol=0, atol=1e-5)
        chosen = {
            "default": model.generate(ids[:21], max_tokens=10, seed=1),
            "greedy": model.generate(ids[:21], max_tokens=10, temperature=0),
        }
        assert chosen["default"] != chosen["greedy"], "or this test shows little"
        assert list(engine.ways) == [(name, pipelined) for name in chosen for pipelined in (False, True)]
        for (name, _), decode in engine.ways.items():
            engine.rewind(20)
            assert decode(ids[20], 10) == chosen[name]
        assert np.allclose(engine.prefill(ids), model.logits(ids), rtol=0, atol=1e-5), "prefill begins anew"
        assert about.first_token_seconds > 1.0 + about.load_seconds > 1.0
        assert (about.draws, about.programs) == (FAST_DRAWS, programs)
        assert model.bound.program_count > programs, "a prompt is taken in by programs of its own"
        assert about.weight_bytes == sum(
            fetched_bytes(model.plan, device.limits.max_texture_size, sequences=0).values()
        )


def test_a_batch_decodes_what_each_prompt_does_alone(small: Path, device: Device) -> None:
    ids = [int(token) for token in example_ids(CONFIG, 40)]
    with glinfer.load(small, device=device, plan="fast") as model:
        batch = BatchDecoder(model, 3, room_for(CONFIG, [3], 40, 1 << 14))
        batch.prefill(ids)
        prompts = [[*ids[place:], *ids[:place]][:25] for place in range(3)]
        assert batch.decode(24, 16, "default") == model.generate(prompts, max_tokens=16, seed=1)
        found = batch.decode(24, 16, "greedy")
        assert found == [model.generate(prompt, max_tokens=16, temperature=0) for prompt in prompts]
        assert len({tuple(each) for each in found}) > 1, "or this test shows little"
        assert batch.decode(23, 1, "greedy") == [each[:1] for each in batch.decode(23, 2, "greedy")]
        assert batch.decode(24, 16, "greedy") == found
        batch.close()
        assert np.isfinite(model.logits(ids)).all(), "the model goes on"


def test_batches_share_what_memory_there_is() -> None:
    each = sequence_bytes(CONFIG, 64)
    most = MAX_CACHE_BYTES // each
    assert room_for(CONFIG, [8, 32], 40, 1 << 20) == 64
    with pytest.raises(InputError, match="found a batch of 0 sequences"):
        room_for(CONFIG, [0], 40, 1 << 14)
    with pytest.raises(InputError, match=f"found room for {most - 10} sequences of 64 tokens, expected {most - 9}"):
        room_for(CONFIG, [10, most - 9], 40, 1 << 20)
    with pytest.raises(InputError, match="the cache of one sequence of 64 tokens takes"):
        room_for(CONFIG, [1], 40, 32)


def test_the_reference_plan_is_run_anew_each_time(small: Path) -> None:
    with glinfer.load(small, plan="reference") as model:
        before = model.bound.draws_issued
        report = bench(model, [5], 3, load_seconds=0.0)
        assert model.bound.draws_issued - before == 4 * SMALL_DRAWS
        assert report.rows[0].runs == 3


def same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(row[name] == other[name] for name in ("label", "context"))


@pytest.mark.usefixtures("known_ceiling")
class TestCommand:
    @pytest.mark.slow
    def test_json(self, small: Path, capsys: Capture) -> None:
        arguments = ["--weights", "f32, q8,f32", "--contexts", "24,8,100", "--runs", "2", "--batch", "3,1,3", "--json"]
        report = json.loads(ran(capsys, "bench", small, *arguments))
        both = ("default", "greedy")
        assert [(row["label"], row["context"], row["sampling"]) for row in report["rows"]] == [
            (f"glinfer {name}", context, sampling) for context in (8, 24) for name in ("f32", "q8") for sampling in both
        ]
        usual = {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.0}
        assert report["samplings"] == {
            "default": {**usual, "seed": 1},
            "greedy": {**usual, "seed": None, "temperature": 0.0},
        }
        assert [about["weights"] for about in report["engines"]] == ["f32", "q8"]
        assert report["engines"][1]["weight_bytes"] < report["engines"][0]["weight_bytes"] / 2
        assert (report["runs"], report["block_tokens"], report["plan"]) == (2, 16, "fast")
        assert {rate["format"] for rate in report["ceiling"]["fetches"]} == {"rgba32f", "rgba16f", "rgba32ui"}
        assert report["ceiling"]["products"] == []
        assert len(report["notes"]) == 1
        for row in report["rows"]:
            assert 0 < row["decode"]["fastest"] <= row["decode"]["median"] <= row["decode"]["slowest"]
            best = min(row["decode"]["median"], row["pipelined"]["median"])
            greedy = next(each for each in report["rows"] if each["sampling"] == "greedy" and same(each, row))
            assert row["of_greedy"] == min(greedy["decode"]["median"], greedy["pipelined"]["median"]) / best
            assert row["bytes_per_second"] == pytest.approx(1000 * row["weight_bytes"] / best)
            assert row["decode"]["samples"] == row["pipelined"]["samples"] == 2
            for limit in (row["token_limit"], row["prefill_limit"]):
                bounds = [limit[f"{part}_ms"] for part in ("fetch", "multiply", "passes")]
                assert min(bounds) > 0
                assert max(bounds) == limit["limit_ms"] == limit[f"{limit['bound_by']}_ms"]
        assert [(row["label"], row["context"], row["sequences"], row["sampling"]) for row in report["batch"]] == [
            (f"glinfer {name}", 24, size, sampling) for name in ("f32", "q8") for size in (3, 1) for sampling in both
        ]
        for row in report["batch"]:
            assert row["step"]["samples"] == 2
            single = next(each for each in report["rows"] if each["sampling"] == row["sampling"] and same(each, row))[
                "tokens_per_second"
            ]
            assert row["single_tokens_per_second"] == single
            assert row["tokens_per_second"] == pytest.approx(1000 * row["sequences"] / row["step"]["median"])
            assert row["times_single"] == pytest.approx(row["tokens_per_second"] / single)
            assert row["limit"]["limit_ms"] > 0

    def test_tables(self, small: Path, capsys: Capture) -> None:
        out = ran(capsys, "bench", small, "--runs", "1", "--batch", "2")
        decoding, prefill, batch = out.split("\n\n")[:3]
        assert "ms/token" in decoding
        assert [line.split()[:3] for line in prefill.splitlines()] == [
            *[["prompt", "to", "logits"], ["glinfer", "f32", "32"]]
        ]
        assert [line.split()[:5] for line in batch.splitlines()[1:]] == [
            ["glinfer", "f32", sampling, "32", "2"] for sampling in ("default", "greedy")
        ], "128 tokens are more than it holds"
        assert "default sampling: temperature 0.7, top_k 40, top_p 0.95, min_p 0, repetition_penalty 1, seed 1" in out
        assert "× single" not in ran(capsys, "bench", small, "--runs", "1", "--contexts", "8")

    @pytest.mark.slow
    def test_random_weights_in_formats_of_files(self, capsys: Capture) -> None:
        shape = "family=olmoe,blocks=1,heads=2,dim=64,inner=64,vocab=64,context=32,experts=2,experts_used=1"
        out = ran(capsys, "bench", "--config", shape, "--stored", "BF16,Q8_0", "--contexts", "8", "--runs", "1")
        assert out.split("\n\n")[0].splitlines()[1].split()[:4] == ["glinfer", "q8", "default", "8"]

    def test_every_option(self, small: Path, capsys: Capture) -> None:
        arguments = ["--contexts", "2", "--batch", "2", "--runs", "1", "--every-option", "--json"]
        report = json.loads(ran(capsys, "bench", small, *arguments))
        alone = ["default", "greedy", "temperature only", "min_p 0.05", "repetition 1.1"]
        together = [*alone, "presence 0.5", "logit_bias", "logprobs 5"]
        assert [row["sampling"] for row in report["rows"]] == alone
        assert [row["sampling"] for row in report["batch"]] == list(report["samplings"]) == together
        assert [row["times_single"] is None for row in report["batch"]] == 5 * [False] + 3 * [True]
        assert report["samplings"]["logprobs 5"]["logprobs"] == 5

    def test_table_with_ceiling(self, small: Path, capsys: Capture) -> None:
        out = ran(capsys, "bench", small, "--contexts", "8,99", "--runs", "1", "--ceiling")
        assert any(line.startswith("glinfer f32 ") and line.endswith("%") for line in map(str.strip, out.splitlines()))
        assert f"{FAST_DRAWS} draws/token" in out
        assert "RGBA32UI  16.8 MB        1.00  16.0" in out
        (product,) = (line.split() for line in out.splitlines() if " h.0.mlp.fc_in " in line)
        assert product[:6] == ["glinfer", "f32", "h.0.mlp.fc_in", "64", "32", "128"]
        assert product[-1].endswith("%")
        assert "note: a context of 99 tokens is skipped: this model supports 64" in out

    def test_bad_options_are_refused(self, small: Path, capsys: Capture) -> None:
        config = ["--config", "family=llama,blocks=1", "--stored"]
        formats = "expected one format, or a second one for experts, from F16, BF16"
        for arguments, words in (
            (["--lengths", "3"], "--lengths needs --plan reference"),
            (["--plan", "reference", "--lengths", ""], "found no sequence length; expected at least one"),
            (["--plan", "reference", "--contexts", "3"], "--contexts needs --plan fast"),
            (["--plan", "reference", "--weights", "q8"], "--weights needs --plan fast"),
            (["--plan", "reference", "--ceiling"], "--ceiling needs --plan fast"),
            (["--plan", "reference", "--batch", "8"], "--batch needs --plan fast"),
            (["--plan", "reference", "--every-option"], "--every-option needs --plan fast"),
            (["--no-fetch", "--every-option"], "--no-fetch times only the fast plan of a MODEL"),
            (["--batch", "0"], "found '0' for --batch; expected batch sizes of at least 1"),
            (["--batch", "8,-1"], "found '8,-1' for --batch"),
            (["--batch", ""], "found '' for --batch"),
            (["--batch", "x"], "found 'x' in the batch sizes"),
            (["--batch", "1,99999999"], "expected 99999999: "),
            (["--contexts", "0"], "found a context of 0 tokens"),
            (["--contexts", "1,x"], "found 'x' in the contexts"),
            (["--contexts", ""], "found no context within"),
            (["--contexts", "65"], "expected lengths from 1 to 64"),
            (["--weights", "f7"], "there is no weight format 'f7'"),
            (["--weights", ","], "expected at least one weight format"),
            (["--stored", "BF16"], "--stored is the format of random weights; add --config, or leave out --stored"),
            ([*config, "BF16,Q7_0"], f"found 'BF16,Q7_0' for --stored; {formats}"),
            ([*config, ""], f"found '' for --stored; {formats}"),
            ([*config, "BF16,Q8_0,Q4_0"], f"found 'BF16,Q8_0,Q4_0' for --stored; {formats}"),
        ):
            model = [] if "--config" in arguments else [small]
            err = ran(capsys, "bench", *model, *arguments, status=2)
            assert words in err
            assert err.count("\n") == 1


class TestCeiling:
    @tiered("lookup", [False, True])
    def test_every_texel_is_fetched_as_often_as_is_claimed(self, device: Device, lookup: bool) -> None:
        for format_name in ceiling.FETCHED:
            with ceiling._Resources(device) as bench_:
                source = bench_.texture(64, 256, format_name)
                shape = (256, 64) if source.layout.format.channels == 1 else (256, 64, 4)
                texels = np.random.default_rng(2).integers(0, 7, shape).astype(source.layout.format.dtype)
                source.gl.write(np.ascontiguousarray(texels), alignment=4)
                target = bench_.texture(64, 32)
                replay(device, bench_.fetching(source, [target], 8, rounds=4, lookup=lookup), {})
                sums = target.framebuffer.read(0, 64, 32).sum(axis=(0, 1))
                wanted = 4 * np.atleast_1d(texels.astype(np.float64).sum(axis=(0, 1)))
                assert np.array_equal(sums[: wanted.size], wanted), format_name

    @pytest.mark.slow
    def test_everything_is_measured(self, device: Device, monkeypatch: Patch) -> None:
        monkeypatch.setattr(ceiling, "FETCHED", ("rgba32ui", "r32f"))
        monkeypatch.setattr(ceiling, "_EDGES", (128,))
        steps: list[tuple[int, int]] = []
        report = measure_ceilings(
            device,
            [("rgba32ui", 10), ("rgba32f", 30_000_000)],
            sample_seconds=1e-5,
            on_progress=lambda done, total: steps.append((done, total)),
        )
        assert [(rate.format, rate.texture_bytes) for rate in report.fetches] == [
            *[("rgba32ui", 1 << 24), ("r32f", 1 << 24), ("rgba32f", 1 << 25)]
        ]
        assert all(rate.texels_per_second > 0 for rate in report.fetches)
        assert report.multiply_adds_per_second > 0
        assert min(report.pass_us, report.issue_us, report.readback_us) > 0
        assert steps[-1] == (5, 5)
        assert device.live_objects() == {}

    def test_products_are_timed_alone_over_a_full_chunk(self, small: Path, device: Device, monkeypatch: Patch) -> None:
        issued = list[tuple[str, int]]()
        run = Tape.run

        def noted(tape: Tape, values: dict[str, int | float], watched: Watched | None = None) -> int:
            if len({draw.name for draw in tape.draws}) == 1 and "row_slots" in values:
                issued.extend((draw.name, int(values["row_slots"])) for draw in tape.draws)
            return run(tape, values, watched or {})

        monkeypatch.setattr(Tape, "run", noted)
        with glinfer.load(small, device=device, plan="fast") as model:
            expected = model.logits(range(41))
            model.logits([*range(40), 7])
            owned = device.live_objects()
            found = measure_products(model, "here", sample_seconds=1e-5)
            assert device.live_objects()["Texture"] == owned["Texture"]
            found_again = model.logits(range(41))  # 40 of them are in the model's caches
            assert agree(found_again, expected)
            slots = -(-64 // model.kernels.rows_per_draw)
        assert [(each.label, each.draw, each.rows, each.inputs, each.outputs) for each in found] == [
            *[("here", "h.0.mlp.fc_in", 64, 32, 128), ("here", "h.0.mlp.fc_out", 64, 128, 32)]
        ]
        assert set(issued) == {(each.draw, slots) for each in found}
        assert all(each.milliseconds > 0 for each in found)

    def test_the_last_block_of_a_chunk_has_no_products(self, tmp_path: Path, device: Device) -> None:
        path = random_file(tmp_path / "one.gab", "vocab=300,dim=32,heads=4,blocks=1,context=64")
        with glinfer.load(path, device=device, plan="fast") as model:
            assert measure_products(model, "here") == ()

    def test_a_product_is_a_share_of_the_multiply_adds(self, known_ceiling: CeilingReport) -> None:
        product = ProductRate("here", "h.0.mlp.fc_in", 100, 200, 500, 20.0)
        assert product.multiply_adds_per_second == pytest.approx(5e8)
        report = dataclasses.replace(known_ceiling, products=(product,))
        assert report.of_multiply_adds(product) == pytest.approx(0.25)
        (document,) = report.to_json()["products"]
        assert (document["of_multiply_adds"], document["multiply_adds_per_second"]) == (0.25, 5e8)
        assert known_ceiling.to_json()["products"] == []

    def test_the_nearest_size_is_compared_with(self) -> None:
        rates = tuple(FetchRate("rgba32ui", 1 << power, "texture", power * 1e9) for power in (24, 26))
        report = CeilingReport("renderer", (*rates, FetchRate("r32f", 1, "texture", 1.0)), 1.0, 1.0, 1.0, 1.0)
        assert report.fetch("rgba32ui", 20_000_000) == rates[0]
        assert report.fetch("rgba32ui", 50_000_000) == rates[1]
        assert report.fetch("rgba32ui", 1) == rates[0]
        document: dict[str, Any] = report.to_json()
        assert document["fetches"][0]["bytes_per_second"] == 16 * 24e9
