"""Profiling real models: that draws account for the run, that it leaves no trace, and what it refuses."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agreement import agree
from scripted_models import SMALL
from tiers import tiered

from glinfer.cli import profile as command
from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.engine.engine import Engine
from glinfer.engine.loading import load_model, prepare
from glinfer.errors import InputError
from glinfer.formats import random_checkpoint
from glinfer.gl.context import Device, open_device
from glinfer.gl.texture import Texture
from glinfer.gl.timers import FENCES, TIMESTAMPS, TimestampQueries
from glinfer.inspect.profile import measure as profile_measure
from glinfer.inspect.profile.measure import profile

pytestmark = pytest.mark.gl
Capture = pytest.CaptureFixture[str]

Patch = pytest.MonkeyPatch

LLAMA = "family=llama,blocks=2,heads=4,kv_heads=2,dim=32,inner=48,vocab=97,context=80"


def engine_of(device: Device, options: str, plan: str = "fast", weights: str = "file") -> Engine:
    return prepare(random_checkpoint(ModelConfig.from_options(options)), device, plan, weights).bind(device)


@pytest.fixture(scope="module")
def shared_device() -> Iterator[Device]:
    """One device for tests that only look at reports."""
    with open_device(api="es") as opened:
        yield opened


@pytest.fixture(scope="module")
def engine(shared_device: Device) -> Engine:
    return engine_of(shared_device, SMALL, weights="f32")


class TestTimes:
    @pytest.mark.parametrize(("timing", "method"), [("gpu", TIMESTAMPS), ("fence", FENCES)])
    def test_draws_account_for_the_run(self, engine: Engine, timing: str, method: str) -> None:
        """How well plain and profiled runs agree depends on what else the machine does: the command says it."""
        found = profile(engine, timing=timing, runs=5)
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
        assert [each.name for each in found.draws] == [spec.name for spec in engine.plan.draws]
        assert sum(kind.share for kind in found.kinds) == pytest.approx(1.0)

    def test_more_tokens_are_more_bytes(self, engine: Engine) -> None:
        found = profile(engine, tokens=40, runs=2, growth=True)
        assert found.tokens == 40
        assert [point.tokens for point in found.growth] == [1, 16, 64]
        read = [point.bytes_read for point in found.growth]
        assert read == sorted(read)
        assert read[1] < found.total.bytes_read < read[2]
        assert set(found.growth[0].kinds) == {kind.kind for kind in found.kinds}
        assert sum(found.growth[0].kinds.values()) > 0
        assert found.notes == ()

    def test_what_takes_too_long_is_left_out(self, engine: Engine, monkeypatch: Patch) -> None:
        monkeypatch.setattr(profile_measure, "_GROWTH_SECONDS", 0.0)
        found = profile(engine, runs=1, growth=True)
        assert [point.tokens for point in found.growth] == [1]
        assert found.notes == ("growth is measured up to 1 tokens; longer sequences would take too long",)

    @pytest.mark.slow
    def test_ceilings_are_measured_where_bytes_are_read(self, device: Device) -> None:
        found = profile(engine_of(device, "dim=64,heads=4,blocks=1,vocab=300,context=64"), runs=1, ceiling=True)
        assert [rate.format for rate in found.ceilings] == ["rgba32f"]
        share = found.total.of_ceiling
        assert share is not None
        assert share > 0


class TestPlans:
    @tiered(("options", "weights"), [(SMALL, "q8"), (LLAMA, "f32"), (LLAMA, "q8")])
    def test_a_token_of_each_family(self, shared_device: Device, options: str, weights: str) -> None:
        engine = engine_of(shared_device, options, weights=weights)
        found = profile(engine, runs=2)
        engine.bound.release()
        assert (found.what, found.tokens) == ("token", engine.options.config.max_position_embeddings)
        assert found.draws_ms > 0
        formats = {read.format for each in found.draws for read in each.reads}
        assert ("rgba32ui" in formats) is (weights == "q8")

    @tiered("options", [SMALL, LLAMA], ids=["gab", "llama"])
    def test_the_reference_plan_of_each_family(self, shared_device: Device, options: str) -> None:
        engine, tokens = engine_of(shared_device, options, "reference"), 60
        found = profile(engine, tokens=tokens, runs=1)
        prompt = profile(engine, prompt_tokens=tokens, runs=1)
        engine.bound.release()
        assert (found.what, found.tokens, found.plan) == ("sequence", tokens, "reference")
        assert [each.name for each in prompt.draws] == [each.name for each in found.draws]
        embed = found.draws[0]
        assert embed.rows >= tokens

    @tiered(("options", "tokens", "rows"), [(SMALL, 40, 40), (SMALL, 40, 32), (LLAMA, 33, 33)])
    def test_a_prompt_of_each_family(self, shared_device: Device, options: str, tokens: int, rows: int) -> None:
        engine = engine_of(shared_device, options)
        if rows < tokens:
            kernels = dataclasses.replace(engine.options.kernels, chunk=rows)
            engine.options = dataclasses.replace(engine.options, kernels=kernels)
        found = profile(engine, prompt_tokens=tokens, runs=2)
        engine.bound.release()
        assert (found.what, found.tokens, found.plan) == ("prompt", rows, "chunk")
        assert found.draws[0].kind == "embed"
        assert len(found.draws) == 9 * 2 - 4
        assert all(each.kind != "lm_head" for each in found.draws)
        assert len(found.notes) == int(rows < tokens)
        assert all(f"a prompt of {tokens} tokens needs several runs" in note for note in found.notes)

    @tiered("prompt", [40, None])
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
            profile(model.engine, tokens=3, runs=2)
            profile(model.engine, prompt_tokens=20, runs=2)
            assert model.device.live_objects() == before
            # The last token alone is run again, over what the caches hold of the others.
            assert (model.logits([*ids, 8]) != expected).any()
            assert agree(model.logits(ids), expected)

    def test_an_interrupted_profile_releases_its_queries(self, device: Device, monkeypatch: Patch) -> None:
        engine = engine_of(device, SMALL)
        before = device.live_objects()

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            profile(engine, on_progress=interrupt)
        assert device.live_objects() == before


class TestClocks:
    """What is done about a renderer whose clock is no good."""

    def test_disturbed_runs_are_thrown_away(self, engine: Engine, monkeypatch: Patch) -> None:
        asked = iter(range(10_000))
        # Asked twice a run: every third run is disturbed.
        monkeypatch.setattr(TimestampQueries, "disjoint", lambda _: next(asked) % 6 == 5)
        found = profile(engine, runs=6, timing="gpu")
        assert found.disturbed > 0
        assert found.runs == found.profiled.samples == 6

    def test_a_clock_that_is_always_disturbed_is_told(self, engine: Engine, monkeypatch: Patch) -> None:
        monkeypatch.setattr(TimestampQueries, "disjoint", lambda _: True)
        with pytest.raises(InputError, match=r"was disturbed in all runs; use --timing fence"):
            profile(engine, runs=2, timing="gpu")
        found = profile(engine, runs=2)
        assert found.timing == FENCES

    def test_timestamps_that_add_up_to_nonsense_are_not_believed(self, engine: Engine, monkeypatch: Patch) -> None:
        real = TimestampQueries.read
        for scale in (0.0, 0.01, 40.0):
            monkeypatch.setattr(
                TimestampQueries, "read", lambda self, k=scale: [round(k * each) for each in real(self)]
            )
            found = profile(engine, runs=2)
            assert found.timing == FENCES, scale
            assert "do not add up to the elapsed time" in found.notes[0]
            assert profile(engine, runs=2, timing="gpu").timing == TIMESTAMPS

    def test_a_renderer_without_timestamps(self, engine: Engine, monkeypatch: Patch) -> None:
        monkeypatch.setattr(engine.bound.device, "extensions", frozenset())
        found = profile(engine, runs=2)
        assert found.timing == FENCES
        assert "does not support timestamps" in found.notes[0]
        assert found.fence_us > 0
        with pytest.raises(InputError, match="does not support timestamps"):
            profile(engine, runs=2, timing="gpu")


def test_bad_options_are_refused(engine: Engine) -> None:
    for options, complaint in (
        ({"tokens": 0}, "tokens is 0; expected 1 to 64"),
        ({"tokens": 1.5}, "tokens is 1.5; expected 1 to 64"),
        ({"tokens": True}, "tokens is True; expected 1 to 64"),
        ({"prompt_tokens": 100}, "prompt_tokens is 100; expected 1 to 64"),
        ({"tokens": 3, "prompt_tokens": 3}, "found both --prompt-tokens and --tokens, which needs a single token"),
        ({"growth": True, "prompt_tokens": 3}, "found both --prompt-tokens and --growth, which needs a single token"),
    ):
        with pytest.raises(InputError, match=complaint):
            profile(engine, **options)


# The command

SHAPE = ["--config", "vocab=300,dim=32,heads=4,blocks=1,context=64"]
QUICK = ["--runs", "2", "--no-ceiling"]


def output(capsys: Capture, *arguments: str | Path, status: int = 0) -> tuple[str, str]:
    assert run(["profile", *map(str, arguments)]) == status
    return capsys.readouterr()


def test_it_shows_a_table_by_kind(bare: Path, capsys: Capture) -> None:
    text, _ = output(capsys, bare, *QUICK, "--tokens", "5")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["attn.qkv"][1:3] == ["gemm", "2"]
    assert rows["total"][1] == "15"
    assert list(rows).index("embed") < list(rows).index("attn.scores") < list(rows).index("pick")
    assert "token 5 of a sequence · plan fast · weights f32" in text
    assert "timed by GPU timestamps: all draws" in text
    assert "textures: " in text
    assert "h.0.attn.qkv" not in text


def test_each_shows_every_draw(capsys: Capture) -> None:
    text, _ = output(capsys, *SHAPE, *QUICK, "--each")
    assert [line.split()[1] for line in text.splitlines() if line.strip()[:1].isdigit()] == [
        "embed",
        *(f"h.0.{name}" for name in ("attn.qkv", "attn.scores", "attn.values", "attn.out_proj")),
        *(f"h.0.{name}" for name in ("mlp.fc_in", "mlp.fc_out")),
        "lm_head",
        "pick",
    ]


def test_it_writes_a_trace_and_a_page(bare: Path, tmp_path: Path, capsys: Capture) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    page.write_text("what was here before")
    _, said = output(capsys, bare, *QUICK, "--trace", trace, "--html", page, "--prompt-tokens", "20")
    assert said.endswith(f"wrote {page}\nwrote {trace}\n")
    found = json.loads(trace.read_text(encoding="utf-8"))
    names = [event["name"] for event in found["traceEvents"] if event["ph"] == "X"]
    assert "prompt 20" in names
    assert names.count("h.0.attn.qkv") == 2
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "20 tokens of a prompt" in page.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "trace.json"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Reports of one model in two weight formats."""
    folder, made = tmp_path_factory.mktemp("reports"), []
    checkpoint = random_checkpoint(ModelConfig.from_options(SHAPE[1]))
    with open_device(api="es") as device:
        for weights in ("f32", "q8"):
            found = profile(prepare(checkpoint, device, "fast", weights).bind(device), runs=2, label="m")
            made.append(folder / f"{weights}.json")
            made[-1].write_text(json.dumps(found.to_json()))
    return made[0], made[1]


class TestCompare:
    def test_before_and_after(self, reports: tuple[Path, Path], capsys: Capture) -> None:
        text, _ = output(capsys, "--compare", *reports)
        assert "before: m · fast · f32 · token 64" in text
        rows = {line.split()[0]: line for line in text.splitlines() if line}
        assert " → " in rows["attn.qkv"]
        assert rows["total"].split()[1] == "9"
        assert "note: the reports differ in weights: f32 before, q8 after" in text

    def test_as_json_and_as_a_page(self, reports: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
        text, _ = output(capsys, "--compare", *reports, "--json", "--html", tmp_path / "c.html")
        assert json.loads(text)["total"]["after"]["draws"] == 9
        assert "before and after" in (tmp_path / "c.html").read_text(encoding="utf-8")

    def test_bad_reports_and_other_arguments_are_refused(self, reports: tuple[Path, Path], capsys: Capture) -> None:
        for more in (["shakespeare"], SHAPE, ["--trace", "t.json"]):
            _, error = output(capsys, *more, "--compare", *reports, status=2)
            assert error == "glinfer: --compare runs no model; leave out MODEL, --config and --trace\n"
        _, error = output(capsys, "--compare", reports[0], __file__, status=2)
        assert error.count("\n") == 1
        assert "found no JSON; expected the output of 'glinfer profile --json'" in error


class TestRefusals:
    def test_one_line_says_why(self, capsys: Capture) -> None:
        for arguments, complaint in (
            ([], "found neither a MODEL nor --config; give one of them"),
            (["shakespeare", *SHAPE], "found both a MODEL and --config; give one of them"),
            (["no_such_model"], "there is no such file, and no bundled model of that name"),
            ([*SHAPE, "--tokens", "65"], "tokens is 65; expected 1 to 64"),
            ([*SHAPE, "--plan", "reference", "--weights", "q8"], "the reference plan keeps its weights in f32"),
            (["--config", "dim=1000000"], "the largest texture here is"),
            ([*SHAPE, "--runs", "0"], "0 is not in the range 1<=x<=10000"),
            ([*SHAPE, "--timing", "sundial"], "'sundial' is not one of 'auto', 'gpu', 'fence'"),
            (["--compare", "one.json"], "requires 2 arguments"),
        ):
            text, error = output(capsys, *arguments, status=2)
            assert text == ""
            assert error.startswith("glinfer: ")
            assert error.count("\n") == 1
            assert complaint in error

    def test_files_that_cannot_be_written_are_found_first(
        self, tmp_path: Path, monkeypatch: Patch, capsys: Capture
    ) -> None:
        def never(*_: Any, **__: Any) -> None:
            raise AssertionError("it was measured all the same")

        monkeypatch.setattr(command, "_profiled", never)
        for option in ("--trace", "--html"):
            for path in (tmp_path / "missing" / "x", tmp_path):
                _, error = output(capsys, "shakespeare", option, path, status=2)
                assert str(path) in error
        _, error = output(capsys, "shakespeare", "--html", tmp_path / "x", "--trace", tmp_path / "x", status=2)
        assert "--html and --trace both name" in error
        assert list(tmp_path.iterdir()) == []

    def test_a_page_needs_no_matplotlib(self, monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        output(capsys, *SHAPE, *QUICK, "--html", tmp_path / "x.html")
        assert "Time of every draw" in (tmp_path / "x.html").read_text(encoding="utf-8")
