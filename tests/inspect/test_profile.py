"""Profiling real models: that draws account for the run, that it leaves no trace, and what it refuses."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agreement import agree
from scripted_models import SMALL
from tiers import tiered

from glinfer.config import ModelConfig
from glinfer.engine.engine import Engine
from glinfer.engine.loading import bind, load_model, read_model
from glinfer.errors import InputError
from glinfer.formats import load_checkpoint, random_checkpoint
from glinfer.gl.context import Device, open_device
from glinfer.gl.texture import Texture
from glinfer.gl.timers import FENCES, TIMESTAMPS, TimestampQueries
from glinfer.inspect.profile import measure as profile_measure
from glinfer.inspect.profile.measure import profile
from glinfer.inspect.profile.report import ProfileReport

pytestmark = pytest.mark.gl

LLAMA = "family=llama,blocks=2,heads=4,kv_heads=2,dim=32,inner=48,vocab=97,context=80"


def engine_of(device: Device, options: str, plan: str = "fast", weights: str = "file") -> Engine:
    return bind(random_checkpoint(ModelConfig.from_options(options)), device, plan, weights)


@pytest.fixture(scope="module")
def shared_device() -> Iterator[Device]:
    """One device for tests that only look at reports."""
    with open_device(api="es") as opened:
        yield opened


@pytest.fixture(scope="module")
def shakespeare(shared_device: Device) -> Engine:
    return bind(read_model("shakespeare")[1], shared_device, "fast")


class TestTimes:
    @pytest.mark.parametrize(("timing", "method"), [("gpu", TIMESTAMPS), ("fence", FENCES)])
    def test_draws_account_for_the_run(self, shakespeare: Engine, timing: str, method: str) -> None:
        """How well plain and profiled runs agree depends on what else the machine does: the command says it."""
        found = profile(shakespeare, timing=timing, runs=5)
        line = found.timeline
        assert found.timing == method
        assert found.runs == found.wall.samples == found.profiled.samples == 5
        assert 0 < found.share_of_draws <= found.accounted
        assert line.bounds == tuple(sorted(line.bounds))
        assert len(line.bounds) == len(line.issued) + 1 == len(found.draws) + 1
        spans = [done - before for before, done in itertools.pairwise(line.bounds)]
        assert list(line.draws_ns) == [max(0, span - line.fence_ns) for span in spans]
        assert (line.bounds[0] - line.start) + sum(spans) + (line.end - line.bounds[-1]) == line.end - line.start
        assert line.start <= line.issued[0][0] <= line.issued[-1][1] <= line.end
        assert found.issue.median <= found.wall.median
        assert [each.name for each in found.draws] == [spec.name for spec in shakespeare.plan.draws]
        assert sum(kind.share for kind in found.kinds) == pytest.approx(1.0)

    def test_products_read_more_than_the_choice_of_a_token(self, shakespeare: Engine) -> None:
        kinds = {kind.kind: kind for kind in profile(shakespeare, runs=1).kinds}
        assert kinds["mlp.fc_in"].bytes_read > 10 * kinds["pick"].bytes_read
        assert (kinds["mlp.fc_in"].draws, kinds["pick"].draws) == (6, 1)
        assert min(kind.ms for kind in kinds.values()) >= 0

    def test_more_tokens_are_more_bytes(self, shakespeare: Engine) -> None:
        found = profile(shakespeare, tokens=200, runs=3, growth=True)
        assert found.tokens == 200
        assert [point.tokens for point in found.growth] == [1, 16, 64, 256]
        read = [point.bytes_read for point in found.growth]
        assert read == sorted(read)
        assert read[2] < found.bytes_read < read[3]
        assert set(found.growth[0].kinds) == {kind.kind for kind in found.kinds}
        assert sum(found.growth[0].kinds.values()) > 0
        assert found.notes == ()

    def test_what_takes_too_long_is_left_out(self, shakespeare: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(profile_measure, "_GROWTH_SECONDS", 0.0)
        found = profile(shakespeare, runs=1, growth=True)
        assert [point.tokens for point in found.growth] == [1]
        assert found.notes == ("growth is measured up to 1 tokens only: more would take too long",)

    @pytest.mark.slow
    def test_ceilings_are_measured_where_bytes_are_read(self, device: Device) -> None:
        found = profile(engine_of(device, "dim=64,heads=4,blocks=1,vocab=300,context=64"), runs=1, ceiling=True)
        assert [rate.format for rate in found.ceilings] == ["rgba32f"]
        share = found.of_ceiling(found.draws)
        assert share is not None
        assert share > 0


class TestPlans:
    @pytest.mark.parametrize("options", [SMALL, LLAMA], ids=["gab", "llama"])
    @tiered("weights", ["f32", "q8"], keep=(1,))
    def test_a_token_of_each_family(self, shared_device: Device, options: str, weights: str) -> None:
        engine = engine_of(shared_device, options, weights=weights)
        found = profile(engine, runs=2)
        engine.bound.release()
        assert (found.what, found.tokens) == ("token", engine.options.config.max_position_embeddings)
        assert found.draws_ms > 0
        formats = {read.format for each in found.draws for read in each.reads}
        assert ("rgba32ui" in formats) is (weights == "q8")

    @tiered("options", [SMALL, LLAMA], ids=["gab", "llama"])
    @pytest.mark.parametrize("tokens", [75])
    def test_the_reference_plan_of_each_family(self, shared_device: Device, options: str, tokens: int) -> None:
        engine = engine_of(shared_device, options, "reference")
        tokens = min(tokens, engine.options.config.max_position_embeddings)
        found = profile(engine, tokens=tokens, runs=1)
        prompt = profile(engine, prompt_tokens=tokens, runs=1)
        engine.bound.release()
        assert (found.what, found.tokens, found.plan) == ("sequence", tokens, "reference")
        assert [each.name for each in prompt.draws] == [each.name for each in found.draws]
        embed = found.draws[0]
        assert embed.rows >= tokens

    @tiered("options", [SMALL, LLAMA], ids=["gab", "llama"])
    @tiered(("tokens", "rows"), [(33, 33), (40, 32)])
    def test_a_prompt_of_each_family(self, shared_device: Device, options: str, tokens: int, rows: int) -> None:
        engine = engine_of(shared_device, options)
        engine.options = dataclasses.replace(
            engine.options, kernels=dataclasses.replace(engine.options.kernels, chunk=rows)
        )
        found = profile(engine, prompt_tokens=tokens, runs=2)
        engine.bound.release()
        assert (found.what, found.tokens, found.plan) == ("prompt", rows, "chunk")
        assert found.draws[0].kind == "embed"
        assert len(found.draws) == 9 * 2 - 4
        assert all(each.kind != "lm_head" for each in found.draws)
        assert len(found.notes) == int(rows < tokens)
        assert all(f"a prompt of {tokens} tokens takes several runs" in note for note in found.notes)

    def test_bytes_of_a_cache_are_those_that_a_token_sees(self, shared_device: Device) -> None:
        """Keys and values of two heads for the queries of four, and within a window those alone."""
        read = {}
        for window, options in ((0, LLAMA), (10, f"{LLAMA.replace('llama', 'mistral')},window=10")):
            engine = engine_of(shared_device, options)
            found = profile(engine, tokens=70, runs=1)
            engine.bound.release()
            assert engine.options.config.sliding_window == window
            caches = [(each.kind, part.bytes) for each in found.draws for part in each.reads if part.sampler == "cache"]
            read[window] = dict(caches)
        head, queries = 16 * 4, 4 * 16 * 4  # a head of 8 numbers takes 16
        assert read[0] == {"attn.scores": 70 * 2 * head + queries, "attn.values": 70 * 2 * head}
        assert read[10] == {"attn.scores": 10 * 2 * head + queries, "attn.values": 10 * 2 * head}

    @pytest.mark.parametrize("prompt", [None, 33])
    def test_textures_are_those_that_the_device_holds(self, device: Device, prompt: int | None) -> None:
        engine = engine_of(device, SMALL)
        engine.bound.texture("picks")
        held = sum(each.layout.nbytes for each in device._owned.values() if isinstance(each, Texture))
        found = profile(engine, prompt_tokens=prompt, runs=1)
        assert found.memory["kind"]["weight"] == engine.plan.texture_bytes(1 << 14, "weight")
        total = sum(each.bytes for each in found.textures)
        assert total == held if prompt is None else total > held
        assert sum(found.memory["part"].values()) == total
        # What was made for the prompt is gone again.
        assert sum(each.layout.nbytes for each in device._owned.values() if isinstance(each, Texture)) == held


class TestNothingIsLeftBehind:
    def test_of_a_model_that_holds_a_sequence(self, bare: Path, chunk_at_once: None) -> None:
        with load_model(bare) as model:
            ids = [1, 2, 3, 4, 5, 6, 7]
            expected = model.logits(ids)
            before = model.device.live_objects()
            profile(model, tokens=3, runs=2)
            profile(model, prompt_tokens=20, runs=2)
            assert model.device.live_objects() == before
            # The last token alone is run again, over what the caches hold of the others.
            assert (model.logits([*ids, 8]) != expected).any()
            assert agree(model.logits(ids), expected)

    def test_an_interrupted_profile_releases_its_queries(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = engine_of(device, SMALL)
        before = device.live_objects()

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            profile(engine, on_progress=interrupt)
        assert device.live_objects() == before

    def test_the_report_is_json(self, shared_device: Device) -> None:
        found = profile(engine_of(shared_device, SMALL), runs=1, label="small")
        back = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert back["model"] == "small"
        assert back["totals"]["draws"] == len(back["draws"]) == 15
        assert back["config"]["vocab_size"] == 300


class TestClocks:
    """What is done about a renderer whose clock is no good."""

    @pytest.fixture
    def engine(self, device: Device) -> Engine:
        return engine_of(device, SMALL)

    def test_disturbed_runs_are_thrown_away(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = iter(range(10_000))
        # Asked twice a run: every third run is disturbed.
        monkeypatch.setattr(TimestampQueries, "disjoint", lambda _: next(asked) % 6 == 5)
        found = profile(engine, runs=6, timing="gpu")
        assert found.disturbed > 0
        assert found.runs == found.profiled.samples == 6

    def test_a_clock_that_is_always_disturbed_is_told(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TimestampQueries, "disjoint", lambda _: True)
        with pytest.raises(InputError, match=r"was disturbed in all runs; time by fences \(--timing fence\)"):
            profile(engine, runs=2, timing="gpu")
        found = profile(engine, runs=2)
        assert found.timing == FENCES

    @pytest.mark.parametrize("scale", [0.0, 0.01, 40.0])
    def test_timestamps_that_add_up_to_nonsense_are_not_believed(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch, scale: float
    ) -> None:
        real = TimestampQueries.read
        monkeypatch.setattr(TimestampQueries, "read", lambda self: [round(scale * each) for each in real(self)])
        found = profile(engine, runs=2)
        assert found.timing == FENCES
        assert "do not add up to the time that passes" in found.notes[0]
        assert profile(engine, runs=2, timing="gpu").timing == TIMESTAMPS

    def test_a_renderer_without_timestamps(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine.bound.device, "extensions", frozenset())
        found = profile(engine, runs=2)
        assert found.timing == FENCES
        assert "takes no timestamps" in found.notes[0]
        assert found.fence_us > 0
        with pytest.raises(InputError, match="takes no timestamps"):
            profile(engine, runs=2, timing="gpu")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tokens": 0}, "tokens is 0; expected 1 to 64"),
        ({"tokens": 65}, "tokens is 65; expected 1 to 64"),
        ({"tokens": 1.5}, "tokens is 1.5; expected 1 to 64"),
        ({"tokens": True}, "tokens is True; expected 1 to 64"),
        ({"prompt_tokens": 100}, "prompt_tokens is 100; expected 1 to 64"),
        ({"runs": 0}, "runs is 0; expected 1 to 10000"),
        ({"timing": "sundial"}, "timing is 'sundial'; expected one of auto, gpu, fence"),
        ({"tokens": 3, "prompt_tokens": 3}, "prompt_tokens and tokens do not go together"),
        ({"growth": True, "prompt_tokens": 3}, "prompt_tokens and growth do not go together"),
    ],
)
def test_bad_options_are_refused(bare: Path, device: Device, options: dict[str, Any], complaint: str) -> None:
    engine = bind(load_checkpoint(bare), device, "fast")
    with pytest.raises(InputError, match=complaint):
        profile(engine, **options)


def test_the_usual_token_lies_within_the_context(bare: Path, device: Device) -> None:
    found = profile(bind(load_checkpoint(bare), device, "fast"), runs=1)
    assert isinstance(found, ProfileReport)
    assert found.tokens == 64
