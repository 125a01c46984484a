"""Keys and values in bytes with scales: the same tokens in every plan, near to float32, a quarter of the memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apart import APART
from bound_engines import bound_engine, checked_draws
from made_models import IDS, fresh, mixed, of_family, opened, worst
from rounded_caches import PROMPT, REQUESTS, check_forks_rewinds_and_full_contexts, one_by_one
from tiers import tiered

from glinfer.cli.app import run
from glinfer.engine.batch import SchedulerOptions, places_for, sequence_bytes
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.gl.context import Limits, open_device
from glinfer.inspect.verify.greedy import verify_greedy
from glinfer.models.fast.rows import batch_plan, chunk_plan, drafted_plan
from glinfer.models.fast.token import fast_plan, layer_draws
from glinfer.models.options import PlanOptions
from glinfer.ops.kernels import KernelOptions
from glinfer.quant.bytes import from_bytes, to_bytes

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
STEP = 1 / 127
"""The distance of two numbers, relative to the largest of their group."""
several_families = tiered("family", APART, keep=(APART.index("mistral"),))


@pytest.fixture
def model() -> Iterator[Model]:
    """A llama, whose keys are shared by heads and turned by their positions."""
    with opened(of_family("llama"), cache="q8") as made:
        yield made


def alike(found: Array, expected: Array) -> bool:
    """Where shaders differ in the last digits, some keys and values are rounded to the number beside."""
    return worst(found, expected) < 2 * STEP


@tiered("family", APART, keep=1)
def test_a_chunk_a_batch_and_single_tokens_agree(family: str) -> None:
    with opened(mixed(family) if family != "gab" else of_family("gab"), cache="q8") as model:
        assert alike(fresh(model, PROMPT), one_by_one(model, PROMPT))
        for result in model.batch(REQUESTS, slots=3):
            assert result.ids == model.generate(result.request.prompt, **result.request.options)  # type: ignore[call-overload]


@several_families
def test_it_is_near_to_float32_and_not_the_same(family: str) -> None:
    checkpoint = of_family(family)
    if all(checkpoint.config.layer(layer).convolves for layer in range(checkpoint.config.num_hidden_layers)):
        pytest.skip("a model whose layers all convolve has no keys")
    with opened(checkpoint) as floats, opened(checkpoint, cache="q8", device=floats.device) as model:
        expected, found = fresh(floats, PROMPT), fresh(model, PROMPT)
        scores = [each.score([PROMPT])[0].logprobs for each in (floats, model)]
    assert 0 < worst(found, expected) < 20 * STEP
    assert 0 < np.abs(scores[0] - scores[1]).max() < 0.2


def test_keys_and_values_are_captured_as_the_queries_meet_them(model: Model) -> None:
    with opened(of_family("llama"), device=model.device) as floats:
        names = [f"blocks.0.attn.{letter}" for letter in "qkv"]
        exact, found = floats.capture(names, PROMPT), model.capture(names, PROMPT)
    query, *others = names
    assert np.array_equal(found[query], exact[query])
    for name in others:
        differ = np.abs(found[name] - exact[name])
        assert 0 < differ.max() <= 0.51 * STEP * (1 + 2.0**-7) * np.abs(exact[name]).max()


@tiered("family", APART, keep=1)
@pytest.mark.parametrize(
    "kernels", [KernelOptions(), KernelOptions(quad=False, rows_per_draw=2)], ids=["quads", "plain"]
)
def test_every_draw_is_that_of_float64_but_for_the_rounding(family: str, kernels: KernelOptions) -> None:
    checkpoint = of_family(family)
    with open_device() as device:
        checks = checked_draws(checkpoint, device, PROMPT, "fast", kernels=kernels, cache="q8")
        assert all(check.passed for check in checks), [check for check in checks if not check.passed][:1]


@pytest.mark.slow
@several_families
def test_the_oracle_chooses_the_same_tokens(family: str) -> None:
    checkpoint = of_family(family)
    with open_device() as device, bound_engine(checkpoint, device, "fast", cache="q8") as engine:
        assert verify_greedy(engine, checkpoint, PROMPT, 5).passed


def test_what_is_rounded_to_the_number_beside_is_found() -> None:
    checkpoint = of_family("llama")

    def enlarge(session: Any) -> None:
        """Have weights whose values are three quarters of a step larger than those that the oracle knows."""
        texture = session.texture("h.0.attn.qkv.weight")
        texture.upload(texture.read() * np.float32(1 + 1.5 * STEP))

    with open_device() as device:
        hooks = {"on_bound": enlarge}
        checks = checked_draws(checkpoint, device, PROMPT, "fast", kernels=KernelOptions(), cache="q8", hooks=hooks)
    assert "h.0.attn.qkv" in [check.name for check in checks if not check.exact]


def test_forks_rewinds_and_full_contexts_are_as_with_a_fresh_sequence(model: Model) -> None:
    check_forks_rewinds_and_full_contexts(model, alike)


@pytest.mark.parametrize("letter", "qkv")
def test_patched_keys_values_and_queries_are_used(model: Model, letter: str) -> None:
    """What was captured keeps its bits when it is put back, and that of all tokens before."""
    name = f"blocks.0.attn.{letter}"
    found = model.capture([name, "logits"], PROMPT)
    with model.patch(name, found[name]):
        assert np.array_equal(model.capture("logits", PROMPT)["logits"], found["logits"])
    with model.patch(name, found[name] + np.float32(0.3)):
        other = model.capture([name, "logits"], PROMPT)
    near = 0.0 if letter == "q" else STEP * np.abs(found[name] + 0.3).max()
    assert np.abs(other[name] - (found[name] + np.float32(0.3))).max() <= near
    assert np.abs(other["logits"] - found["logits"]).max() > 1e-4


def test_beginnings_are_shared_and_copied(model: Model) -> None:
    """Rows that a place copies from another keep their bits."""
    requests = [BatchRequest([*IDS[:33], token], {"max_tokens": 4, "temperature": 0}) for token in IDS[40:45]]
    results = list(model.batch(requests, slots=3))
    assert sum(result.stats.reused_tokens for result in results) >= 4 * 33
    for result in results:
        assert result.ids == model.generate(result.request.prompt, max_tokens=4, temperature=0)


@tiered("family", APART, keep=1)
def test_plans_take_a_draw_more_where_the_product_writes_into_the_cache(family: str) -> None:
    """The pass that rounds, in the plan of one token; that which joins queries, in the plan of many sequences."""
    config = of_family(family).config
    attention = sum(not config.layer(layer).convolves for layer in range(config.num_hidden_layers))
    floats, halves = (
        [
            fast_plan(options),
            batch_plan(options, sequences=3, capacity=64),
            chunk_plan(options, rows=9, cache_slots=64, export_residual=True),
            chunk_plan(options, rows=9, cache_slots=64, likelihoods=True),
            drafted_plan(options, rows=4, cache_slots=64),
        ]
        for options in (PlanOptions(config, "f32", KernelOptions(), 2048, cache=cache) for cache in ("f32", "q8"))
    )
    more = [len(one.draws) - len(other.draws) for one, other in zip(halves, floats, strict=True)]
    assert more == [attention, attention, 0, 0, 0]
    layers = range(config.num_hidden_layers)
    assert len(halves[0].draws) == sum(layer_draws(config, layer, "q8") for layer in layers) + 3
    for plan in halves:
        kept = {tensor.name.split(".", 2)[-1]: tensor.format for tensor in plan.of_kind("cache") if "h." in tensor.name}
        expected = {"attn.cache": "rgba8i", "conv.cache": "rgba16f"}
        assert kept
        assert all(form == expected[name] for name, form in kept.items())


def test_a_cache_takes_8_and_a_half_bits_a_number_and_whole_blocks() -> None:
    config = of_family("llama").config
    wide = PlanOptions(config, "f32", KernelOptions(), 2048, cache="q8")
    cache = fast_plan(wide).table["h.0.attn.cache"]
    assert cache.layout is not None
    keys_and_values = cache.shape[1]
    assert cache.layout.nbytes == cache.shape[0] * (keys_and_values + 64 * -(-keys_and_values // 1024))
    with open_device() as device, opened(of_family("llama"), cache="q8", device=device) as model:
        caches = [tensor for tensor in model.plan.tensors if tensor.name.endswith("attn.cache")]
        size = sum(model.bound.texture(tensor.name).layout.nbytes for tensor in caches)
    assert size == sequence_bytes(config, 64, "q8") < 0.6 * sequence_bytes(config, 64, "f16")
    assert places_for(config, SchedulerOptions(memory=7 * size), 16384, "q8") == (7, 64)


@tiered("family", ["qwen3", "lfm2", "gab"], keep=1)
def test_within_the_limits_of_webgl2(family: str) -> None:
    checkpoint = of_family(family)
    with (
        opened(checkpoint, cache="q8", limits=Limits.webgl2_minimum()) as model,
        opened(checkpoint, cache="q8") as usual,
    ):
        assert alike(fresh(model, PROMPT), one_by_one(model, PROMPT))
        assert alike(fresh(model, PROMPT), fresh(usual, PROMPT))


@pytest.mark.slow
def test_caches_in_several_lines_of_blocks(model: Model) -> None:
    """A batch whose sequences exceed one line of a texture."""
    found = [result.ids for result in model.batch(REQUESTS, slots=3)]
    with opened(of_family("llama"), cache="q8", limits=Limits(512, 4, 16, 16384, 1.0)) as small:
        assert [result.ids for result in small.batch(REQUESTS, slots=3)] == found


def test_commands_count_and_check_caches_in_bytes(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(small), "--cache", "q8", "--draws", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["runs"]
    assert report["cache"] == "q8"
    assert run(["generate", str(small), "--ids", "1,2,3", "--max-tokens", "3", "--cache", "q8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cache"] == "q8"
    assert run(["diff", str(small), "--ids", "1,2,3,4", "--b", "cache=q8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["b"]["cache"] == "q8"
    assert run(["verify", str(small), "--plan", "reference", "--cache", "q8"]) == 2
    assert "the reference plan has no cache, found q8; leave cache out" in capsys.readouterr().err


@pytest.mark.slow
def test_eval_compares_caches_in_bytes(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a cache. " * 4, encoding="utf-8")
    assert run(["eval", str(small), "--text", str(text), "--compare", "cache=q8,q8+cache=q8", "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [(report["weights"], report["cache"]) for report in reports] == [("f32", "f32"), ("f32", "q8"), ("q8", "q8")]
    exact, rounded, _ = (report["bits_per_byte"] for report in reports)
    assert exact != rounded == pytest.approx(exact, rel=1e-2)


def test_what_the_texture_holds_is_what_the_rule_says(model: Model) -> None:
    with (
        opened(of_family("llama"), device=model.device) as floats,
        model.session() as session,
        floats.session() as other,
    ):
        other.prefill(PROMPT)
        session.prefill(PROMPT)
        held = session._bound.read("h.0.attn.cache", len(PROMPT))  # type: ignore[attr-defined]
        exact = other._bound.read("h.0.attn.cache", len(PROMPT))[:, : held.shape[1]]  # type: ignore[attr-defined]
    expected = from_bytes(*to_bytes(np.ascontiguousarray(exact)))
    assert (held == expected).mean() > 0.99
