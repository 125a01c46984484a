"""What a profile says without measuring: bytes by hand, the trace by the rules of its format, pages, comparisons."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.gl.timers import FENCES, TIMESTAMPS, Timeline
from glinfer.inspect.ceiling import FetchRate
from glinfer.inspect.profile import charts
from glinfer.inspect.profile.compare import compare, read_summary
from glinfer.inspect.profile.measure import Timings, places
from glinfer.inspect.profile.page import check_charts, comparison_page, profile_page
from glinfer.inspect.profile.report import DrawProfile, GrowthPoint, ProfileReport
from glinfer.inspect.profile.trace import CPU_TRACK, DRAW_TRACK, trace, write_trace
from glinfer.inspect.profile.traffic import DrawTraffic, Read, TextureUse, draw_traffic, min_seconds, part_of
from glinfer.inspect.report import Spread
from glinfer.models.choice import plan_for
from glinfer.models.fast.rows import chunk_plan
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.ops.kernels import KernelOptions

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
        assert read_of(found, "x") == 512 * 4
        assert read_of(found, "consts") == 2048 * 4
        assert found.written == 2048 * 4

    def test_an_embedding_reads_one_row_of_each_table(self) -> None:
        found = self.at(7)["embed"]
        assert [(read.sampler, read.bytes) for read in found.reads] == [("wte", 2048), ("wpe", 2048), ("picks", 0)]
        chosen = by_name(self.PLAN, {**self.PLAN.values_for(7), "token": -1})["embed"]
        assert read_of(chosen, "picks") == 64 * 4

    @pytest.mark.parametrize("place", [1, 64, 65, 2048])
    def test_attention_reads_the_tokens_that_are_held(self, place: int) -> None:
        found = self.at(place)
        # The keys of all, and one query: 512 floats each.
        assert read_of(found["h.0.attn.scores"], "cache") == (place + 1) * 2048
        assert read_of(found["h.0.attn.values"], "cache") == place * 2048
        groups = -(-place // 64)
        assert found["h.0.attn.scores"].written == groups * 8 * 64 * 4
        assert read_of(found["h.0.attn.values"], "scores") == groups * 8 * 64 * 4

    def test_every_matrix_is_read_once_in_a_token(self) -> None:
        reads = Counter[str]()
        for found in self.at(5).values():
            reads.update({read.tensor: read.bytes for read in found.reads})
        for tensor in self.PLAN.of_kind("weight"):
            if tensor.name not in ("wte", "wpe"):
                assert reads[tensor.name] == tensor.layout_within(EDGE).nbytes, tensor.name

    def test_what_blending_adds_to_is_read_too(self) -> None:
        kernels = KernelOptions(part_steps=8, split_values=True, blends=True)
        plan = plan_for(GAB, "fast", kernels=kernels)
        found = by_name(plan, plan.values_for(1))
        assert read_of(found["h.0.mlp.fc_out"], "") == found["h.0.mlp.fc_out"].written == 512 * 4
        assert read_of(found["h.0.attn.values"], "") == 0  # what was cleared holds nothing

    def test_fewer_bits_are_fewer_bytes(self) -> None:
        plan = plan_for(GAB, "fast", weights="q8", kernels=KernelOptions())
        found = by_name(plan, plan.values_for(1))["h.2.mlp.fc_in"]
        assert read_of(found, "weight") == 2048 * 512
        assert {read.format for read in found.reads if read.sampler == "weight"} == {"rgba32ui"}


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

    @pytest.mark.parametrize(("window", "seen"), [(0, 40), (16, 16)])
    def test_heads_that_share_keys_read_those_that_a_token_sees(self, window: int, seen: int) -> None:
        shape = f"family=mistral,blocks=1,heads=4,kv_heads=2,dim=64,inner=96,vocab=200,context=128,window={window}"
        plan = plan_for(ModelConfig.from_options(shape), "fast", kernels=KernelOptions())
        found = by_name(plan, plan.values_for(40))
        # Two heads of keys, four of queries, 16 floats each.
        assert read_of(found["h.0.attn.scores"], "cache") == 2 * seen * 64 + 4 * 64
        assert read_of(found["h.0.attn.values"], "cache") == 2 * seen * 64
        assert [(read.sampler, read.bytes) for read in found["embed"].reads] == [("wte", 64 * 4), ("picks", 0)]
        assert read_of(found["h.0.attn.qkv"], "rope") == 64
        assert found["h.0.attn.qkv"].written == (2 + 2 + 4) * 64  # keys, values and queries

    def test_a_table_in_blocks_is_read_a_row_at_a_time(self) -> None:
        config = ModelConfig.from_options("family=llama,blocks=1,heads=2,dim=32,inner=64,vocab=256,context=64,tied=1")
        plan = plan_for(config, "fast", formats={"model.embed_tokens.weight": "Q8_0"}, kernels=KernelOptions())
        found = by_name(plan, plan.values_for(1))
        table = plan.table["lm_head.weight"].layout_within(EDGE).nbytes
        assert read_of(found["embed"], "weight") == table // 256
        assert read_of(found["lm_head"], "weight") == table


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("wte", "weight", "embeddings"),
        ("transformer.wpe.weight", "weight", "embeddings"),
        ("model.embed_tokens.weight", "weight", "embeddings"),
        ("rope", "weight", "embeddings"),
        ("h.11.attn.qkv.weight", "weight", "block 11"),
        ("transformer.h.3.ln_1.bias", "weight", "block 3"),
        ("model.layers.7.self_attn.{q,k,v}_proj.weight", "weight", "block 7"),
        ("cache.2.k", "cache", "block 2"),
        ("h.0.attn.cache", "cache", "block 0"),
        ("lm_head.consts", "weight", "head"),
        ("model.norm.weight", "weight", "head"),
        ("picks", "cache", "head"),
        ("h.0.attn.scores", "activation", "scratch"),
        ("tokens", "input", "inputs"),
    ],
)
def test_parts_of_a_model(name: str, kind: str, part: str) -> None:
    assert part_of(name, kind) == part


def test_fetching_takes_the_time_of_its_formats() -> None:
    reads = [Read("a", "t", "rgba32f", 300), Read("b", "t", "rgba16f", 100), Read("c", "t", "r32i", 10)]
    assert min_seconds(reads, {"rgba32f": 100.0, "rgba16f": 50.0}) == pytest.approx(3 + 2 + 0.2)


@pytest.mark.parametrize(
    ("context", "expected"), [(1, [1]), (16, [1, 16]), (64, [1, 16, 64]), (300, [1, 16, 64, 256, 300])]
)
def test_places_of_growth(context: int, expected: list[int]) -> None:
    assert places(context) == expected


# A report that nobody measured


def draw(index: int, name: str, kind: str, ms: float, size: int) -> DrawProfile:
    reads = (Read("weight", f"{name}.weight", "rgba32f", size), Read("x", "hidden.a", "rgba32f", 1000))
    return DrawProfile(
        index, name, kind, "gemv", "gemv", reads, ("out",), 1, 64, {"STEPS": 4}, ms, 0.01, size + 1000, 256
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
    @pytest.mark.parametrize("timing", [TIMESTAMPS, FENCES])
    def test_it_keeps_the_rules(self, timing: str) -> None:
        assert complaints(trace(report(timing=timing))) == []

    @pytest.mark.parametrize(
        "damage",
        [
            lambda found: found["traceEvents"][-2].pop("ts"),
            lambda found: found["traceEvents"][6].update(dur=-1.0),
            lambda found: found["traceEvents"][6].update(ph="B"),
            lambda found: found["traceEvents"][-1].update(args={"GB/s": "many"}),
            lambda found: found["traceEvents"].__setitem__(slice(0, 5), []),
            lambda found: found["traceEvents"][-3].update(dur=1e9),
            lambda found: found["traceEvents"][-1].update(ts=0.0),
            lambda found: found.pop("traceEvents") and found.update(traceEvents=[]),
        ],
    )
    def test_the_rules_catch(self, damage: Callable[[dict[str, Any]], object]) -> None:
        found = copy.deepcopy(trace(report()))
        damage(found)
        assert complaints(found)

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

    def test_a_clock_that_is_a_little_off_begins_at_zero(self) -> None:
        line = report().timeline
        early = dataclasses.replace(line, bounds=(line.start - 300, *line.bounds[1:]))
        assert complaints(trace(report(timeline=early))) == []

    def test_the_file_is_json(self, tmp_path: Path) -> None:
        write_trace(tmp_path / "t.json", report(model='naïve "quotes"\n'))
        assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["displayTimeUnit"] == "ms"


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
    assert not re.search(r"@import|url\((?!#)", page)
    assert set(re.findall(r"https?://[^\"'\s<>]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_a_page_can_be_read_without_seeing_it(page: str) -> None:
    found = Page(page)
    assert found.tags["svg"] == found.tags["desc"] == 5
    assert [name for name, count in found.ids.items() if count > 1] == []
    assert set(found.labels) <= set(found.ids)
    assert page.count("<title>") > 10  # tooltips of bars and tiles
    assert "<title>1 h.0.attn.qkv: 1.000 ms" in page
    assert found.tags["h1"] == 1
    assert '<html lang="en">' in page


def test_names_are_escaped(page: str) -> None:
    assert Page(page).tags["script"] == 1  # the page's own
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page


def test_pictures_follow_the_reader(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    assert "currentColor" in page
    for sentinel in ("#010203", "#040506", "#070809"):
        assert sentinel not in page


def test_tables_hold_the_numbers(page: str) -> None:
    assert page.count('<table class="sortable">') == 3
    assert '<td class="right" data-value="3.0">3.000</td>' in page
    assert "something was left out" in page
    assert "88.9% of a plain run" in page


def test_without_growth_and_ceilings_there_are_fewer_pictures() -> None:
    found = Page(profile_page(report(growth=(), ceilings=())))
    assert found.tags["svg"] == 4


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "glinfer.inspect.profile.charts", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"needs matplotlib.*pip install .*\[plots\]'"):
        check_charts()


@pytest.mark.parametrize("sizes", [[5.0, 4.0, 4.0, 3.0, 1.0, 1.0, 0.5], [1.0], [1e9, 1.0, 1.0], [2.0, 0.0]])
def test_a_mosaic_is_to_scale_and_fills_its_place(sizes: list[float]) -> None:
    width, height = 10.0, 4.0
    tiles = charts.mosaic(sizes, (0.0, 0.0, width, height))
    assert len(tiles) == len(sizes)
    scale = width * height / sum(sizes)
    for (x, y, wide, high), size in zip(tiles, sizes, strict=True):
        assert wide * high == pytest.approx(size * scale, abs=1e-6)
        assert -1e-9 <= x <= x + wide <= width + 1e-6
        assert -1e-9 <= y <= y + high <= height + 1e-6
    for place, one in enumerate(tiles):
        for other in tiles[place + 1 :]:
            overlap = [min(one[a] + one[a + 2], other[a] + other[a + 2]) - max(one[a], other[a]) for a in (0, 1)]
            assert min(overlap) < 1e-6


def test_a_mosaic_has_no_needles() -> None:
    tiles = charts.mosaic([1.0] * 24, (0.0, 0.0, 6.0, 4.0))
    assert max(max(wide / high, high / wide) for _, _, wide, high in tiles) < 2.0


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
        assert made.notes == ("the two differ in weights: f32 before, q8 after",)
        text = comparison_page(made)
        assert Page(text).tags["svg"] == 1
        assert "the two differ in weights" in text
        assert json.loads(json.dumps(made.to_json()))["total"]["before"]["draws"] == 4

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("", "no JSON"),
            ("[" * 100_000, "no JSON"),
            ("[]", "other JSON"),
            ('{"traceEvents": []}', "other JSON"),
            ('{"report": "glinfer profile", "version": 99}', "version 99"),
            ('{"report": "glinfer profile", "version": 1}', "damaged"),
        ],
    )
    def test_what_is_no_report_is_refused(self, tmp_path: Path, text: str, found: str) -> None:
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(FormatError, match=rf"x.json: found .*{found}.*; expected what 'glinfer profile --json'"):
            read_summary(tmp_path / "x.json")

    @pytest.mark.parametrize(
        "damage",
        [
            lambda found: found.pop("kinds"),
            lambda found: found.update(kinds=3),
            lambda found: found["kinds"][0].update(ms="fast"),
            lambda found: found["kinds"][0].update(ms=-1.0),
            lambda found: found["kinds"][0].pop("bytes_read"),
            lambda found: found["wall"].update(median=None),
            lambda found: found.update(wall=[]),
        ],
    )
    def test_damaged_reports_are_refused(self, tmp_path: Path, damage: Callable[[dict[str, Any]], object]) -> None:
        found = report().to_json()
        damage(found)
        (tmp_path / "x.json").write_text(json.dumps(found))
        with pytest.raises(FormatError, match=r"x.json: found a report that is damaged") as raised:
            read_summary(tmp_path / "x.json")
        assert "\n" not in str(raised.value)


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


def test_one_run_is_its_own_middle() -> None:
    found = Timings(TIMESTAMPS, timelines=[Timeline(0, 5, ((0, 1),), (0, 5))])
    assert found.middle == found.timelines
    assert found.usual is found.timelines[0]
