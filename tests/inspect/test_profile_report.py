"""What a profile says without measuring: bytes by hand, the trace by the rules of its format, pages, comparisons."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from family_layers import formats_of, of_family

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.gl.timers import FENCES, TIMESTAMPS, Timeline
from glinfer.inspect.ceiling import FetchRate
from glinfer.inspect.profile.charts import FAMILIES, TEXTURES, profile_charts, scale_top
from glinfer.inspect.profile.compare import compare, read_summary
from glinfer.inspect.profile.measure import Timings, positions
from glinfer.inspect.profile.page import comparison_page, profile_page
from glinfer.inspect.profile.result import DrawProfile, GrowthPoint, ProfileReport
from glinfer.inspect.profile.trace import CPU_TRACK, DRAW_TRACK, trace
from glinfer.inspect.profile.traffic import DrawTraffic, Read, TextureUse, draw_traffic, min_seconds, part_of
from glinfer.inspect.tables import change
from glinfer.inspect.timing import Spread
from glinfer.kernels.options import KernelOptions
from glinfer.lower.fused.rows import chunk_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plans import plan_for
from glinfer.program.plan import Plan
from glinfer.quant.formats import FROM_FILE

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads((Path(__file__).parent / "chrome_trace.schema.json").read_text(encoding="utf-8"))
GAB = ModelConfig.from_options("")  # 512 wide, 8 heads of 64, 6 blocks, 5256 tokens in the vocabulary
EDGE = 16384


def by_name(plan: Plan, values: dict[str, int | float]) -> dict[str, DrawTraffic]:
    names = [spec.name for spec in plan.draws]
    return dict(zip(names, draw_traffic(plan, values, EDGE), strict=True))


def read_of(found: DrawTraffic, sampler: str) -> int:
    return sum(read.bytes for read in found.reads if read.sampler == sampler)


class TestBytesOfTheFastPlan:
    PLAN = plan_for(GAB, "fast", kernels=KernelOptions())

    def at(self, place: int) -> dict[str, DrawTraffic]:
        return by_name(self.PLAN, self.PLAN.values_for(place))

    def test_a_product_reads_its_matrix_whole_and_its_vector(self) -> None:
        found = self.at(1)["h.2.mlp.fc_in"]
        assert read_of(found, "weight") == 2048 * 512 * 4
        assert read_of(found, "x0") == 512 * 4
        assert read_of(found, "consts") == 2048 * 4
        assert found.written == 2048 * 4

    def test_an_embedding_reads_one_row_of_each_table(self) -> None:
        found = self.at(7)["embed"]
        assert [(read.sampler, read.bytes) for read in found.reads] == [("wte", 2048), ("wpe", 2048), ("picks", 0)]
        chosen = by_name(self.PLAN, {**self.PLAN.values_for(7), "token": -1})["embed"]
        assert read_of(chosen, "picks") == 64 * 4

    def test_attention_reads_the_tokens_that_are_held(self) -> None:
        for place in (1, 64, 65, 2048):
            found, groups = self.at(place), -(-place // 64)
            # The keys of all, and one query: 512 floats each.
            assert read_of(found["h.0.attn.scores"], "cache") == (place + 1) * 2048
            assert read_of(found["h.0.attn.values"], "cache") == place * 2048
            assert found["h.0.attn.scores"].written == groups * 8 * 64 * 4
            assert read_of(found["h.0.attn.values"], "scores") == groups * 8 * 64 * 4

    def test_what_blending_adds_to_is_read_too(self) -> None:
        kernels = KernelOptions(part_steps=8, split_values=True, blends=True)
        plan = plan_for(GAB, "fast", kernels=kernels)
        found = by_name(plan, plan.values_for(1))
        assert read_of(found["h.0.mlp.fc_out"], "") == found["h.0.mlp.fc_out"].written == 512 * 4
        assert read_of(found["h.0.attn.values"], "") == 0  # what was cleared holds nothing


class TestBytesOfOtherPlans:
    def test_a_chunk_reads_the_rows_that_it_has(self) -> None:
        kernels = KernelOptions(rows_per_draw=8)
        plan = chunk_plan(
            PlanOptions(GAB, weights="f32", kernels=kernels, max_texture_size=EDGE),
            rows=64,
            cache_slots=2048,
            export_residual=True,
        )
        values = {**plan.values_for(20), "strip_first": 100, "last_row": 19, "score_slots": 3 * 2}
        found = by_name(plan, values)
        assert read_of(found["embed"], "wte") == 20 * 2048
        assert read_of(found["embed"], "rows") == 20 * 8 * 4
        assert read_of(found["h.1.attn.scores"], "cache") == read_of(found["h.1.attn.values"], "cache") == 120 * 2048
        assert found["h.0.attn.store"].written == 20 * 2 * 2048  # keys and values
        # Row 19 lies in slot 2 of target 3, and only that is taken.
        assert found["take"].read == read_of(found["take"], "x3") == 2048

    def test_the_reference_plan_reads_the_rows_in_use_and_one_head(self) -> None:
        plan = plan_for(GAB, "reference")
        found = by_name(plan, plan.values_for(10))
        row = 512 * 4
        assert read_of(found["embed"], "token_embedding") == 10 * row
        assert read_of(found["h.0.attn.q_proj"], "x") == 10 * row
        assert read_of(found["h.0.attn.head.3.scores"], "q") == 10 * 64 * 4
        assert found["h.0.attn.head.3.scores"].written == 10 * 10 * 4
        assert read_of(found["h.0.attn.head.3.mixed"], "v") == 10 * 64 * 4
        assert read_of(found["h.0.attn.head.3.joined"], "so_far") == 10 * (512 - 64) * 4
        assert read_of(found["lm_head"], "x") == row
        assert read_of(found["lm_head"], "weight") == 5256 * row

    def test_heads_that_share_keys_read_those_that_a_token_sees(self) -> None:
        for window, seen in ((0, 40), (16, 16)):
            shape = f"family=mistral,blocks=1,heads=4,kv_heads=2,dim=64,inner=96,vocab=200,context=128,window={window}"
            plan = plan_for(ModelConfig.from_options(shape), "fast", kernels=KernelOptions())
            found = by_name(plan, plan.values_for(40))
            # Two heads of keys, four of queries, 16 floats each.
            assert read_of(found["h.0.attn.scores"], "cache") == 2 * seen * 64 + 4 * 64
            assert read_of(found["h.0.attn.values"], "cache") == 2 * seen * 64
            assert [(read.sampler, read.bytes) for read in found["embed"].reads] == [("wte", 64 * 4), ("picks", 0)]
            assert read_of(found["h.0.attn.qkv"], "rope") == 64
            assert found["h.0.attn.qkv"].written == (2 + 2 + 4) * 64  # keys, values and queries

    def test_a_delta_rule_and_a_convolution_read_the_rows_that_a_token_sees(self) -> None:
        plan = plan_for(of_family("lfm2"), "fast", kernels=KernelOptions())
        assert read_of(by_name(plan, plan.values_for(40))["h.0.conv.mixed"], "inputs") == 3 * 256 * 4
        plan = plan_for(of_family("qwen3_next"), "fast", kernels=KernelOptions())
        # A row has keys, decays and corrections. Position 99 is the fourth of its span, and token 32 ends a span.
        for place, seen, even, odd in ((32, 32, 0, 0), (40, 8, 0, 36), (100, 4, 0, 36), (65, 1, 36, 0)):
            found = by_name(plan, plan.values_for(place))
            for name in ("scores", "row", "results"):
                assert read_of(found[f"h.0.delta.{name}"], "cache") == seen * (128 + 64 + 256) * 4, name
            states = [read_of(found["h.0.delta.results"], f"state{parity}") for parity in (0, 1)]
            assert states == [even * 256 * 4, odd * 256 * 4]
            span = 32 * (128 + 64 + 256) * 4 if place == 32 else 0
            assert [read_of(found[f"h.0.delta.fold.{parity}"], "cache") for parity in (0, 1)] == [0, span]
            # 400 channels, in whole blocks, of three tokens.
            assert read_of(found["h.0.delta.conv"], "inputs") == 3 * 448 * 4

    def test_a_token_reads_the_matrices_of_the_experts_that_it_chooses(self) -> None:
        plan = plan_for(of_family("qwen3_next"), "fast", kernels=KernelOptions())  # 2 of 8, and a shared one
        found = by_name(plan, plan.values_for(1))
        assert read_of(found["h.0.mlp.router"], "weight") >= 9 * 256 * 4
        assert read_of(found["h.0.mlp.fc_in"], "weight") == 3 * 2 * 256 * 256 * 4
        assert read_of(found["h.0.mlp.fc_out"], "weight") == 3 * 256 * 256 * 4

    def test_two_tokens_read_two_rows_of_each_table(self) -> None:
        config, kernels = of_family("gpt2"), KernelOptions(rows_per_draw=4)
        kept: dict[str, Any] = {"weights": FROM_FILE, "formats": formats_of(config, "Q8_0")}
        plan = plan_for(config, "reference", kernels=kernels, tokens=20, **kept)
        assert read_of(by_name(plan, plan.values_for(2))["embed.positions"], "table") == 2 * 256 * 4
        plan = plan_for(of_family("qwen3_next"), "reference", kernels=kernels, tokens=20)
        found = by_name(plan, plan.values_for(2))
        assert read_of(found["embed"], "weight") == 2 * 256 * 4
        assert read_of(found["h.1.attn.q_turned"], "table") == 2 * 40 * 4
        options = PlanOptions(of_family("qwen3_next"), weights="f32", kernels=kernels, max_texture_size=EDGE)
        plan = chunk_plan(options, rows=32, cache_slots=192)
        found = by_name(plan, plan.values_for(2))
        assert read_of(found["h.1.attn.turn"], "rope") == 2 * 48 * 4
        assert read_of(found["h.0.mlp.fc_in"], "weight") == 2 * 3 * 2 * 256 * 256 * 4  # 3 experts a token
        plan = chunk_plan(dataclasses.replace(options, config=of_family("llama")), rows=48, cache_slots=192)
        assert read_of(by_name(plan, plan.values_for(2))["h.0.attn.qkv"], "rope") == 2 * 48 * 4


def test_parts_of_a_model() -> None:
    parts = {
        "embeddings": ("wte", "transformer.wpe.weight", "model.embed_tokens.weight", "rope"),
        "block 11": ("h.11.attn.qkv.weight",),
        "block 3": ("transformer.h.3.ln_1.bias", "model.layers.3.self_attn.{q,k,v}_proj.weight"),
        "head": ("lm_head.consts", "model.norm.weight"),
    }
    given = [(name, "weight", part) for part, names in parts.items() for name in names]
    given += [("cache.2.k", "cache", "block 2"), ("h.0.attn.cache", "cache", "block 0"), ("picks", "cache", "head")]
    given += [("h.0.attn.scores", "activation", "scratch"), ("tokens", "input", "inputs")]
    for name, kind, part in given:
        assert part_of(name, kind) == part, name


def test_fetching_takes_the_time_of_its_formats() -> None:
    reads = [Read("a", "t", "rgba32f", 300), Read("b", "t", "rgba16f", 100), Read("c", "t", "r32i", 10)]
    assert min_seconds(reads, {"rgba32f": 100.0, "rgba16f": 50.0}) == pytest.approx(3 + 2 + 0.2)


def test_positions_of_growth() -> None:
    for context, expected in ((1, [1]), (16, [1, 16]), (64, [1, 16, 64]), (300, [1, 16, 64, 256, 300])):
        assert positions(context) == expected


# A report that nobody measured


def draw(index: int, name: str, kind: str, ms: float, size: int) -> DrawProfile:
    reads = (Read("weight", f"{name}.weight", "rgba32f", size), Read("x", "hidden.a", "rgba32f", 1000))
    return DrawProfile(
        index, name, kind, "gemm", "gemm", reads, ("out",), 1, 64, {"STEPS": 4}, ms, 0.01, size + 1000, 256
    )


DRAWS = (
    draw(0, "embed", "embed", 0.25, 0),
    draw(1, "h.0.attn.qkv", "attn.qkv", 1.0, 4_000_000),
    draw(2, "h.1.attn.qkv", "attn.qkv", 2.0, 4_000_000),
    draw(3, "lm_head", "lm_head", 0.75, 2_000_000),
)


def report(model: str = "made up", draws: tuple[DrawProfile, ...] = DRAWS, **changes: Any) -> ProfileReport:
    bounds = [5_000_100]
    for each in draws:
        bounds.append(bounds[-1] + round(1e6 * each.ms))
    issued = tuple((5_000_000 + 9_000 * place, 5_008_000 + 9_000 * place) for place in range(len(draws)))
    made = ProfileReport(
        model=model,
        config={"vocab_size": 7},
        renderer="OpenGL ES 3.0 · a renderer",
        plan="fast",
        weights="f32",
        what="token",
        tokens=128,
        timing=TIMESTAMPS,
        fence_us=0.5,
        runs=10,
        disturbed=0,
        wall=Spread.of([4.0, 5.0, 4.5]),
        issue=Spread.of([0.4]),
        profiled=Spread.of([4.95]),
        before_ms=0.2,
        after_ms=0.3,
        draws=draws,
        textures=(
            TextureUse("wte", "weight", "embeddings", "rgba32f", 64, 10, 10240),
            TextureUse("h.0.attn.qkv.weight", "weight", "block 0", "rgba32f", 500, 500, 4_000_000),
            TextureUse("h.0.attn.cache", "cache", "block 0", "rgba32f", 64, 64, 65536),
            TextureUse("hidden.a", "activation", "scratch", "rgba32f", 4, 4, 256),
        ),
        ceilings=(FetchRate("rgba32f", 1 << 24, "texelFetch", 1e9),),
        growth=(GrowthPoint(1, 3.0, 10_000_000, {"embed": 1.0, "attn.qkv": 2.0}),) * 2,
        notes=("something was left out",),
        timeline=Timeline(5_000_000, bounds[-1] + 700, issued, tuple(bounds)),
    )
    return dataclasses.replace(made, **changes)


def test_totals_and_kinds() -> None:
    made = report()
    assert made.draws_ms == pytest.approx(4.0)
    assert made.share_of_draws == pytest.approx(4.0 / 4.5)
    assert made.accounted == pytest.approx((4.0 + made.before_ms + made.after_ms) / 4.5)
    assert made.overhead == pytest.approx(1.1)
    kinds = {kind.kind: kind for kind in made.kinds}
    assert list(kinds) == ["embed", "attn.qkv", "lm_head"]
    assert (kinds["attn.qkv"].draws, kinds["attn.qkv"].ms, kinds["attn.qkv"].share) == (2, 3.0, 0.75)
    assert kinds["attn.qkv"].bytes_per_second == pytest.approx(8_002_000 / 0.003)
    # 16 GB/s would have fetched 8,002,000 bytes in half a millisecond.
    assert kinds["attn.qkv"].of_ceiling == pytest.approx(8_002_000 / 16e9 / 0.003)
    assert made.memory["kind"] == {"weight": 4_010_240, "cache": 65_536, "activation": 256}
    assert made.memory["part"] == {"embeddings": 10_240, "block 0": 4_065_536, "scratch": 256}
    assert report(ceilings=()).kinds[0].of_ceiling is None


def test_the_json_says_what_the_report_says() -> None:
    found = json.loads(json.dumps(report().to_json(), allow_nan=False))
    assert found["report"] == "glinfer profile"
    assert found["totals"]["draws_ms"] == pytest.approx(4.0)
    assert found["totals"]["texture_bytes"] == 4_076_032
    assert [kind["kind"] for kind in found["kinds"]] == ["embed", "attn.qkv", "lm_head"]
    assert found["draws"][1]["reads"][0] == {
        "sampler": "weight",
        "tensor": "h.0.attn.qkv.weight",
        "format": "rgba32f",
        "bytes": 4_000_000,
    }
    assert found["ceilings"][0]["bytes_per_second"] == 16e9
    assert "timeline" not in found


# The trace


def complaints(found: dict[str, Any]) -> list[str]:
    """What a viewer would stumble over: the form of each event, tracks without a name, spans that overlap."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    if said := [error.message for error in validator.iter_errors(found)]:
        return said
    events = found["traceEvents"]
    named = {event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    said = [f"track {track} has no name" for track in {event["tid"] for event in spans} - named]
    for track in named:
        ends: list[float] = []
        here = [event for event in spans if event["tid"] == track]
        for event in sorted(here, key=lambda event: (event["ts"], -event["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-6:
                ends.pop()
            if ends and event["ts"] + event["dur"] > ends[-1] + 1e-6:
                said.append(f"{event['name']} ends after what it lies in")
            ends.append(event["ts"] + event["dur"])
    moments = [event["ts"] for event in events if event["ph"] == "C"]
    said += ["counters go back in time"] * any(one > other for one, other in pairwise(moments))
    return said


class TestTrace:
    def test_it_keeps_the_rules(self) -> None:
        for timing in (TIMESTAMPS, FENCES):
            assert complaints(trace(report(timing=timing))) == []

    def test_draws_follow_each_other_in_microseconds(self) -> None:
        found = trace(report())
        spans = [event for event in found["traceEvents"] if event["ph"] == "X" and event["tid"] == DRAW_TRACK]
        whole, *draws = spans
        assert whole["name"] == "token 128"
        assert [event["name"] for event in draws] == [each.name for each in DRAWS]
        assert [event["dur"] for event in draws] == pytest.approx([250.0, 1000.0, 2000.0, 750.0])
        assert draws[0]["ts"] == pytest.approx(0.1)
        assert draws[1]["args"]["inputs"]["weight"] == "h.0.attn.qkv.weight (rgba32f, 4000000 bytes)"
        assert draws[1]["args"]["defines"] == {"STEPS": 4}
        issuing = [event for event in found["traceEvents"] if event["ph"] == "X" and event["tid"] == CPU_TRACK]
        assert [event["ts"] for event in issuing[:4]] == pytest.approx([0.0, 9.0, 18.0, 27.0])
        assert issuing[-1]["ts"] + issuing[-1]["dur"] == pytest.approx((report().timeline.end - 5_000_000) / 1000)


# Pages


class Page(HTMLParser):
    """What matters of a page: ids, tags, everything that would be fetched, cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.tags, self.fetched = Counter[str](), Counter[str](), list[str]()
        self.labels: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            if name in ("src", "href", "xlink:href", "action", "data") and not (value or "").startswith("#"):
                self.fetched.append(f"{tag} {name}={value}")
            if name in ("aria-labelledby", "aria-describedby"):
                self.labels += (value or "").split()


@pytest.fixture(scope="module")
def page() -> str:
    return profile_page(report(model="<script>alert(1)</script> & co"))


def test_a_page_needs_nothing_else(page: str) -> None:
    found = Page(page)
    assert found.fetched == []
    assert not re.search(r"@import|url\(|https?://", page)


def test_a_page_can_be_read_without_seeing_it(page: str) -> None:
    found = Page(page)
    assert found.tags["figure"] == found.tags["figcaption"] == 5
    assert [name for name, count in found.ids.items() if count > 1] == []
    assert set(found.labels) <= set(found.ids)
    assert page.count(" title=") > 10  # tooltips of bars and draws
    assert 'title="2 h.0.attn.qkv: 1.000 ms' in page
    assert found.tags["h1"] == 1
    assert '<html lang="en">' in page


def test_names_are_escaped(page: str) -> None:
    assert Page(page).tags["script"] == 1  # the page's own
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page


def test_pictures_follow_the_reader(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    assert {*re.findall(r"background:(#\w+)", page)} == {*FAMILIES.values()} - {FAMILIES["norms and others"]}


def test_tables_hold_the_numbers(page: str) -> None:
    assert page.count('<table class="sortable">') == 3
    assert '<td class="right" data-value="3.0">3.000</td>' in page
    assert "something was left out" in page
    assert "88.9% of a plain run" in page


# Comparisons


def saved(path: Path, made: ProfileReport) -> Path:
    path.write_text(json.dumps(made.to_json()), encoding="utf-8")
    return path


class TestCompare:
    def test_before_and_after(self, tmp_path: Path) -> None:
        faster = (DRAWS[0], draw(1, "h.0.attn.qkv", "attn.qkv", 0.5, 1_000_000), draw(2, "pick", "pick", 0.1, 0))
        made = compare(saved(tmp_path / "a", report()), saved(tmp_path / "b", report(draws=faster, weights="q8")))
        rows = {row.kind: row for row in made.rows}
        assert list(rows) == ["embed", "attn.qkv", "pick", "lm_head"]
        assert (rows["attn.qkv"].before.draws, rows["attn.qkv"].after.draws) == (2, 1)
        assert rows["attn.qkv"].change_ms == pytest.approx(-2.5)
        assert (rows["pick"].before.ms, rows["lm_head"].after.ms) == (0.0, 0.0)
        assert made.total.before.ms == pytest.approx(4.0)
        assert made.total.after.read == 1_003_000
        assert made.notes == ("the reports differ in weights: f32 before, q8 after",)
        text = comparison_page(made)
        assert Page(text).tags["figure"] == 1
        assert "0.50 ms · -83.3%" in text
        assert "the reports differ in weights" in text
        assert json.loads(json.dumps(made.to_json()))["total"]["before"]["draws"] == 4

    def test_changes_have_one_decimal_and_no_negative_zero(self) -> None:
        assert [change(8, after) for after in (7, 7.999, 8.001, 9)] == ["-12.5%", "+0.0%", "+0.0%", "+12.5%"]

    def test_what_is_no_report_is_refused(self, tmp_path: Path) -> None:
        for text, found in (
            ("", "no JSON"),
            ("[" * 100_000, "no JSON"),
            ("[]", "JSON of another kind"),
            ('{"traceEvents": []}', "JSON of another kind"),
            ('{"report": "glinfer profile", "version": 99}', "version 99"),
            ('{"report": "glinfer profile", "version": 1}', "damaged"),
        ):
            (tmp_path / "x.json").write_text(text)
            with pytest.raises(
                FormatError, match=rf"x.json: found .*{found}.*; expected the output of 'glinfer profile --json'"
            ):
                read_summary(tmp_path / "x.json")

    def test_damaged_reports_are_refused(self, tmp_path: Path) -> None:
        for damage in (
            lambda found: found.pop("kinds"),
            lambda found: found.update(kinds=3),
            lambda found: found["kinds"][0].update(ms="fast"),
            lambda found: found["kinds"][0].update(ms=-1.0),
            lambda found: found["kinds"][0].pop("bytes_read"),
            lambda found: found["wall"].update(median=None),
            lambda found: found.update(wall=[]),
        ):
            found = report().to_json()
            damage(found)
            (tmp_path / "x.json").write_text(json.dumps(found))
            with pytest.raises(FormatError, match=r"x.json: found a report that is damaged"):
                read_summary(tmp_path / "x.json")


def test_draws_add_up_to_a_usual_run_whatever_disturbs_some() -> None:
    # In each run another draw is disturbed; two runs were disturbed badly.
    runs = [
        [20, 10, 10],
        [10, 20, 10],
        [10, 10, 20],
        [10, 10, 20],
        [900, 10, 10],
        [10, 10, 10],
        [10, 900, 10],
        [8, 8, 8],
    ]
    found = Timings(TIMESTAMPS)
    for times in runs:
        bounds = [0, *(sum(times[: place + 1]) * 1_000_000 for place in range(3))]
        found.timelines.append(Timeline(0, bounds[-1], ((0, 1), (1, 3), (3, 6)), tuple(bounds)))
    assert sum(found.draws_ms) == pytest.approx(40.0)
    assert found.usual.end == 40_000_000
    assert found.issue_ms == pytest.approx([1e-6, 2e-6, 3e-6])
    assert sorted(found.profiled)[-1] == pytest.approx(920.0)


# Charts


def of_blocks(count: int, head: float) -> ProfileReport:
    names = [f"h.{block}.{kind}" for block in range(count) for kind in ("attn.qkv", "mlp.fc_in")] + ["lm_head"]
    times = [0.2 + 0.1 * (place % 7) for place in range(2 * count)] + [head]
    draws = (draw(*each, 1 << 16) for each in zip(range(len(names)), names, map(kind_of, names), times, strict=True))
    return report(draws=tuple(draws))


def kind_of(name: str) -> str:
    return re.sub(r"h\.\d+\.", "", name)


class TestCharts:
    def test_bars_are_shares_of_the_longest(self) -> None:
        kinds, draws, rates, memory, growth = profile_charts(report())
        assert [(bar.label, bar.text) for bar in kinds.bars] == [
            ("embed", "0.25 ms · 6.2% · 1 draw"),
            ("attn.qkv", "3.00 ms · 75.0% · 2 draws"),
            ("lm_head", "0.75 ms · 18.8% · 1 draw"),
        ]
        assert [part.size for bar in kinds.bars for part in bar.parts] == pytest.approx([100 / 12, 100, 25])
        assert kinds.legend == {name: FAMILIES[name] for name in ("attention", "embedding", "head")}
        assert [(bar.label, len(bar.parts)) for bar in draws.bars] == [("", 1), ("0", 1), ("1", 1), ("", 1)]
        longest = max(part.size for bar in draws.bars for part in bar.parts)
        assert [part.size / longest for bar in draws.bars for part in bar.parts] == pytest.approx(
            [1 / 8, 0.5, 1, 3 / 8]
        )
        # The ceiling of 16 GB/s is the longest.
        assert [bar.mark for bar in rates.bars] == pytest.approx([100.0] * 3)
        assert rates.bars[1].parts[0].size == pytest.approx(100 * 8_002_000 / 0.003 / 16e9)
        assert [(bar.label, [part.colour for part in bar.parts]) for bar in memory.bars] == [
            ("block 0", [TEXTURES["weight"], TEXTURES["cache"]]),
            ("embeddings", [TEXTURES["weight"]]),
            ("scratch", [TEXTURES["activation"]]),
        ]
        assert sum(part.size for part in memory.bars[0].parts) == pytest.approx(100)
        for bar in growth.bars:
            assert (bar.label, bar.text, bar.mark) == ("1", "3.00 ms · 10.0 MB read", 100.0)
            assert [part.size for part in bar.parts] == pytest.approx([200 / 3, 100 / 3])
        assert len(profile_charts(report(growth=()))) == 4
        assert [bar.mark for bar in profile_charts(report(ceilings=()))[2].bars] == [None] * 3

    def test_draws_beyond_the_scale_are_cut_and_named(self) -> None:
        draws = profile_charts(of_blocks(20, head=25.0))[1]
        assert [bar.label for bar in draws.bars] == [*map(str, range(20)), ""]
        assert [part.tip.split(":")[0] for bar in draws.bars for part in bar.parts if part.cut] == ["41 lm_head"]
        assert draws.bars[-1].parts[0].size == 100 > max(part.size for part in draws.bars[0].parts)
        assert "Cut off at the top edge: 1 draw beyond 0.800 ms (lm_head 25.00 ms)." in draws.caption
        assert "Cut off" not in profile_charts(of_blocks(20, head=0.9))[1].caption


class TestScale:
    def test_top(self) -> None:
        for times, top in (
            ([1.0], 1.0),
            ([0.0, 0.0], 1.0),
            ([1.0] * 30 + [100.0], 1.0),
            ([1.0] * 30 + [3.9, 100.0, 90.0], 3.9),
            ([1.0] * 30 + [5.5], 5.5),
            ([float(place) for place in range(1, 40)], 39.0),
        ):
            assert scale_top(times) == top
