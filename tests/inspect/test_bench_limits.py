"""Limits of `glinfer bench`: the work of each figure, as the engine really does it, and the times that follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import glinfer
from glinfer.cli.bench import show_limits
from glinfer.config import ModelConfig
from glinfer.engine import prefill
from glinfer.engine.model import Model
from glinfer.inspect.bench.decoding import BatchRow, DecodeReport, DecodeRow, EngineReport, with_limits
from glinfer.inspect.bench.engines import BatchDecoder
from glinfer.inspect.bench.limits import Limit, Workload, batch_work, fetched_bytes, limit_of, prompt_work, token_work
from glinfer.inspect.ceiling import CeilingReport, FetchRate
from glinfer.inspect.timing import Spread
from glinfer.lower.plans import plan_for
from glinfer.program.tuning import default_kernels

pytestmark = pytest.mark.gl

# small.gab: 2 blocks of width 32 with 4 heads and 128 inner, 300 tokens.
BLOCK, HEAD, WIDTH = 4 * 32 * 32 + 2 * 32 * 128, 300 * 32, 32
RATES = (FetchRate("rgba32f", 1 << 24, "texture", 1e9), FetchRate("rgba32ui", 1 << 24, "texture", 2e9))
CEILING = CeilingReport("renderer", RATES, 2e9, 10.0, 5.0, 20.0)


@pytest.fixture(scope="module")
def model(small: Path) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patch, glinfer.load(small) as opened:
        patch.setattr(prefill, "MAX_SINGLE_TOKENS_BEFORE", 0)
        yield opened


class TestWork:
    def test_multiply_adds_of_a_token(self, model: Model) -> None:
        for tokens in (1, 20):
            assert token_work(model, tokens).multiply_adds == 2 * (BLOCK + 2 * WIDTH * tokens) + HEAD

    def test_multiply_adds_of_a_prompt(self, model: Model) -> None:
        tokens, stored = 20, 2 * WIDTH * WIDTH
        first = tokens * BLOCK + 2 * WIDTH * sum(range(1, tokens + 1))
        last = tokens * stored + (BLOCK - stored) + 2 * WIDTH * tokens
        assert prompt_work(model, tokens).multiply_adds == first + last + HEAD

    def test_bytes_grow_with_cached_tokens_and_with_sequences(self, model: Model) -> None:
        def fetched(work: Workload) -> int:
            return sum(work.fetched.values())

        each = 2 * 2 * 4 * 16 * 4  # keys and values of two blocks, whose heads have 16 floats with padding
        one = fetched(token_work(model, 1))
        assert fetched(token_work(model, 20)) - one == 19 * each
        assert fetched(batch_work(model, 1, 5, 15)) - one == 4 * (each + 2 * 4 * 16 * 4)  # and queries
        whole = sum(fetched_bytes(model.plan, 1 << 14, sequences=0).values())
        assert 4 * (2 * BLOCK + HEAD) < whole < one

    def test_a_token_fetches_all_matrices_whatever_the_kernels(self) -> None:
        for family, renderer in (("llama", "NVIDIA H200/PCIe/SSE2"), ("gab", "llvmpipe (LLVM 15.0.6, 256 bits)")):
            shape = f"family={family},blocks=2,heads=8,dim=512,inner=2048,vocab=300,context=64"
            edge, kernels = 1 << 14, default_kernels(renderer, 64, "q8")
            config = ModelConfig.from_options(shape)
            plan = plan_for(config, "fast", weights="q8", kernels=kernels, max_texture_size=edge)
            matrices = [each for each in plan.of_kind("weight") if each.name.startswith("h.")]
            whole, head = sum(each.layout_within(edge).nbytes for each in matrices), 300 * 512
            assert whole + head < sum(fetched_bytes(plan, edge, sequences=0).values()) < whole + 1.2 * head, (
                family,
                renderer,
            )

    def test_passes_are_the_draws_that_are_issued(self, model: Model) -> None:
        for tokens in (2, 20, 60):
            with model.session() as session:
                session.prefill(list(range(5, 5 + tokens)))
                session.logits()
                assert session.draws_issued == prompt_work(model, tokens).passes
                before = session.draws_issued
                session.step(7)
                session.generate_ids(1)
                session.generate_ids(1)
                assert session.draws_issued - before == 2 * token_work(model, tokens).passes

    def test_passes_of_a_batch(self, model: Model) -> None:
        batch = BatchDecoder(model, 3, 64)
        try:
            batch.prefill(list(range(5, 25)))
            batch.decode(10, 1, "greedy")
            before = model.device.draws_issued
            batch.decode(10, 6, "greedy")
            shorter = model.device.draws_issued - before
            batch.decode(10, 8, "greedy")
            assert model.device.draws_issued - before - 2 * shorter == 2 * batch.draws
        finally:
            batch.close()


class TestLimit:
    def test_each_bound_is_work_over_a_rate(self) -> None:
        limit = limit_of(Workload({"rgba32f": 16_000_000, "rgba32ui": 32_000_000, "r32f": 0}, 6_000_000, 150), CEILING)
        assert (limit.fetch_ms, limit.multiply_ms, limit.passes_ms) == pytest.approx((2.0, 3.0, 1.5))
        assert (limit.bound_by, limit.limit_ms, limit.text(12.0)) == ("multiply", 3.0, "25% multiply")
        assert limit.to_json()["bound_by"] == "multiply"

        for bounds, name in (((3.0, 2.0, 1.0), "fetch"), ((1.0, 2.0, 3.0), "passes")):
            assert (Limit(*bounds).bound_by, Limit(*bounds).limit_ms) == (name, 3.0)


def test_figures_of_other_engines_have_none(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    spread = Spread.of([2.0])
    labels, samplings = ("glinfer f32", "other"), ("default", "greedy")
    rows = [
        DecodeRow(label, 20, name, spread, spread, 1.0, spread, None)
        for label, name in zip(("glinfer f32", *labels), (*samplings, "greedy"), strict=True)
    ]
    batch = [BatchRow("glinfer f32", 20, 3, name, spread, 1.0, 500.0, 16) for name in samplings]
    engines = tuple(map(EngineReport, labels))
    report = DecodeReport("fast", "renderer", 16, 1, engines, tuple(rows), batch=tuple(batch))
    show_limits(report)
    assert capsys.readouterr().out == "", "nothing was measured"
    found = with_limits(report, {"glinfer f32": model}, CEILING)
    own, _, other = found.rows
    assert own.token_limit == limit_of(token_work(model, 5), CEILING), "the first token of a block of 16"
    assert own.prefill_limit == limit_of(prompt_work(model, 20), CEILING)
    assert found.batch[0].limit == limit_of(batch_work(model, 5, 3, 16), CEILING)
    assert (other.token_limit, other.prefill_limit, found.ceiling) == (None, None, CEILING)
    show_limits(found)
    figures = [line.split("  ")[1].strip() for line in capsys.readouterr().out.splitlines() if "glinfer" in line]
    assert figures == ["token, read back", "token, pipelined", "prompt", "batch of 3"]


def test_a_cache_in_bytes_is_fetched_with_its_scales(small: Path) -> None:
    sizes = {}
    for cache in ("f32", "q8"):
        with glinfer.load(small, cache=cache) as model:
            sizes[cache] = token_work(model, 9).fetched
    queries = 2 * 4 * 16 * 4  # beside the keys, in floats only
    floats = sizes["f32"]["rgba32f"] - sizes["q8"]["rgba32f"] - queries
    assert sizes["q8"]["rgba8i"] == pytest.approx(floats * 34 / 128, rel=0.01)
