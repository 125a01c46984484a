"""Keys and values in half floats or in bytes: near to float32, the same in every plan, and no silent ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import agree
from bound_engines import bound_engine, checked_draws
from commands import ran_json
from made_models import IDS, fresh, of_family, opened, worst
from rounded_caches import PROMPT, REQUESTS, check_forks_rewinds_and_full_contexts, one_by_one
from tiers import tiered

import glinfer
from glinfer.cli.app import run
from glinfer.engine.batch import SchedulerOptions, sequence_bytes, slots_and_capacity
from glinfer.engine.loading import _plans, prepare
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.errors import InputError, NumbersError, PlanError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Limits, open_device
from glinfer.inspect.verify.greedy import verify_greedy
from glinfer.kernels.options import KernelOptions
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import PlanOptions

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
STEPS = {"f16": 2.0**-11, "q8": 1 / 127}
"""By how much rounding changes a number: relative to it in half floats, to the largest of its group in bytes."""
CACHES = list(STEPS)
PLAIN = KernelOptions(quad=False, rows_per_draw=2)


@pytest.fixture(scope="module", params=CACHES)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """A llama, whose keys are shared by heads and turned by their positions."""
    with opened(of_family("llama"), cache=request.param) as made:
        yield made


def alike(cache: str) -> Callable[[Array, Array], bool]:
    """Where shaders differ in the last digits, some keys and values are rounded to the number beside."""
    if cache != "q8":
        return lambda found, expected: agree(found, expected, 4 * STEPS["f16"] if cache == "f16" else 1e-5)
    return lambda found, expected: worst(found, expected) < 2 * STEPS["q8"]


@tiered(
    ("cache", "family", "kernels"),
    [
        ("f16", "llama", None),
        ("q8", "llama", None),
        ("f16", "gemma3_text", PLAIN),
        ("q8", "mistral", PLAIN),
        ("f16", "gab", KernelOptions()),
        ("q8", "olmo2", KernelOptions()),
    ],
    keep=2,
    ids=["f16", "q8", "f16-gemma3", "q8-mistral", "f16-gab", "q8-olmo2"],
)
def test_every_draw_is_that_of_float64_but_for_the_rounding(
    cache: str, family: str, kernels: KernelOptions | None
) -> None:
    checkpoint = of_family(family)
    with open_device() as device:
        checks = checked_draws(checkpoint, device, PROMPT, "fast", kernels=kernels, cache=cache)
        assert all(check.passed for check in checks), [check for check in checks if not check.passed][:1]
        with bound_engine(checkpoint, device, "fast", cache=cache) as engine:
            assert verify_greedy(engine, checkpoint, PROMPT, 5).passed


def test_keys_and_values_are_captured_as_the_queries_meet_them(model: Model) -> None:
    with opened(of_family("llama"), device=model.device) as floats:
        names = [f"blocks.0.attn.{letter}" for letter in "qkv"]
        exact, found = floats.capture(names, PROMPT), model.capture(names, PROMPT)
        step, logits = STEPS[model.cache], (floats.logits(PROMPT), model.logits(PROMPT))
    assert 0 < worst(logits[1], logits[0]) < 20 * step
    for name in names[1:] if model.cache == "q8" else names:
        differ = np.abs(found[name] - exact[name])
        assert 0 < differ.max() <= 0.51 * step * (1 + 2.0**-7) * np.abs(exact[name]).max() * (1 + (step < 1e-3))
        if model.cache == "f16":
            assert np.array_equal(found[name], found[name].astype(np.float16))
            assert (differ <= step * np.abs(exact[name]) + 2.0**-25).all()
    if model.cache == "q8":
        assert np.array_equal(found[names[0]], exact[names[0]])


@tiered(("cache", "family"), [("f32", "llama"), ("q8", "gab"), ("f16", "gpt2"), ("q8", "mistral")])
def test_a_chunk_a_batch_and_single_tokens_agree(cache: str, family: str) -> None:
    with opened(of_family(family), cache=cache) as model:
        assert alike(cache)(fresh(model, PROMPT), one_by_one(model, PROMPT))
        for result in model.batch(REQUESTS, slots=3):
            assert result.ids == model.generate(result.request.prompt, **result.request.options)  # type: ignore[call-overload]


@pytest.mark.slow
def test_sequences_of_every_kind_are_as_fresh_ones(model: Model) -> None:
    """Forks, rewinds and full contexts; scores near to those of floats; rows that are copied keep their bits."""
    check_forks_rewinds_and_full_contexts(model, alike(model.cache))
    with opened(of_family("llama"), device=model.device) as floats:
        scores = [each.score([PROMPT])[0].logprobs for each in (floats, model)]
    assert 0 < np.abs(scores[0] - scores[1]).max() < {"f16": 0.02, "q8": 0.2}[model.cache]
    requests = [BatchRequest([*IDS[:33], token], {"max_tokens": 4, "temperature": 0}) for token in IDS[40:45]]
    results = list(model.batch(requests, slots=3))
    assert sum(result.stats.reused_tokens for result in results) >= 4 * 33
    for result in results:
        assert result.ids == model.generate(result.request.prompt, max_tokens=4, temperature=0)


@pytest.mark.slow
@pytest.mark.parametrize("letter", "qkv")
def test_patched_keys_values_and_queries_are_rounded_and_used(model: Model, letter: str) -> None:
    """What was captured keeps its bits when it is put back, and that of all tokens before."""
    name = f"blocks.0.attn.{letter}"
    found = model.capture([name, "logits"], PROMPT)
    with model.patch(name, found[name]):
        assert np.array_equal(model.capture("logits", PROMPT)["logits"], found["logits"])
    moved = found[name] + np.float32(0.3)
    with model.patch(name, moved):
        other = model.capture([name, "logits"], PROMPT)
    assert np.abs(other["logits"] - found["logits"]).max() > 1e-4
    if model.cache == "q8":
        near = 0.0 if letter == "q" else STEPS["q8"] * np.abs(moved).max()
        assert np.abs(other[name] - moved).max() <= near
        return
    assert np.array_equal(other[name], moved.astype(np.float16))
    with (
        pytest.raises(PlanError, match=r"^h\.0\.attn\.cache: found 70000; float16 ends at 65504$"),
        model.patch(name, np.full_like(found[name], 7e4)),
    ):
        model.capture("logits", PROMPT)


def test_memory_has_room_for_more_sequences() -> None:
    config, sizes = of_family("llama").config, {}
    for cache in ("f32", *CACHES):
        plan = fast_plan(PlanOptions(config, "f32", KernelOptions(), 2048, cache=cache))
        caches = [tensor for tensor in plan.tensors if tensor.name.endswith("attn.cache")]
        sizes[cache] = sum(tensor.layout_within(2048).nbytes for tensor in caches)
        assert sizes[cache] == sequence_bytes(config, 64, cache)
        if cache == "q8":  # eight and a half bits a number, and whole blocks
            rows, columns = caches[0].shape
            assert sizes[cache] == len(caches) * rows * (columns + 64 * -(-columns // 1024))
    assert sizes["f32"] == 2 * sizes["f16"] > 0
    assert sizes["q8"] < 0.6 * sizes["f16"]
    memory = 7 * sizes["f32"]
    places = [slots_and_capacity(config, SchedulerOptions(memory=memory), 16384, cache) for cache in ("f32", "f16")]
    assert places == [(7, 64), (14, 64)]
    assert slots_and_capacity(config, SchedulerOptions(memory=7 * sizes["q8"]), 16384, "q8") == (7, 64)
    with pytest.raises(InputError, match="the cache of one sequence of 64 tokens takes"):
        slots_and_capacity(config, SchedulerOptions(memory=sizes["f16"] - 1), 16384, "f16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache", "family", "limits"),
    [
        ("f16", "qwen3", Limits.webgl2_minimum()),
        ("q8", "lfm2", Limits.webgl2_minimum()),
        ("q8", "llama", Limits(512, 4, 16, 16384, 1.0)),  # caches in several lines of blocks
    ],
)
def test_within_smaller_limits(cache: str, family: str, limits: Limits) -> None:
    checkpoint = of_family(family)
    with opened(checkpoint, cache=cache, limits=limits) as small, opened(checkpoint, cache=cache) as usual:
        assert alike(cache)(fresh(small, PROMPT), one_by_one(small, PROMPT))
        assert worst(fresh(small, PROMPT), fresh(usual, PROMPT)) < {"f16": 20, "q8": 2}[cache] * STEPS[cache]
        found = [[result.ids for result in each.batch(REQUESTS, slots=3)] for each in (small, usual)]
        assert found[0] == found[1]


def far(part: str) -> tuple[Checkpoint, int]:
    """A llama whose keys, or values, are beyond half floats in one place of one token, in float32 as good as any.

    In its first layer they depend on the token alone; what meets them is as much smaller as they are larger.
    """
    made = of_family("llama")
    tensors = dict(made.tensors)
    layer = "model.layers.0"
    normed = tensors["model.embed_tokens.weight"] * tensors[f"{layer}.input_layernorm.weight"]
    normed = normed / np.sqrt((tensors["model.embed_tokens.weight"] ** 2).mean(axis=1, keepdims=True) + 1e-5)
    large, small = (f"{layer}.self_attn.{letter}_proj.weight" for letter in {"k": "kq", "v": "vo"}[part])
    peaks = np.abs(normed @ tensors[large].T).max(axis=1)
    second, first = np.argsort(peaks)[-2:]
    factor = np.float32(65504 / np.sqrt(peaks[first] * peaks[second]))
    tensors[large], tensors[small] = tensors[large] * factor, tensors[small] / factor
    return Checkpoint(made.config, tensors, "far"), int(first)


@tiered("part", "kv", keep=0)
def test_what_is_beyond_half_floats_is_told_in_one_line_and_breaks_nothing_else(part: str) -> None:
    checkpoint, token = far(part)
    good = [each for each in IDS[:20] if each != token]
    bad = [*good[:5], token, *good[5:8]]
    with opened(checkpoint) as floats, opened(checkpoint, cache="f16", device=floats.device) as model:
        before, scored = fresh(model, good), model.score([good])[0].total
        assert np.isfinite(floats.logits(bad)).all()
        assert worst(before, fresh(floats, good)) < 20 * STEPS["f16"]
        uses: list[Callable[[], object]] = [
            lambda: model.logits(bad),
            lambda: model.generate(bad, max_tokens=3, temperature=0),
            lambda: model.generate([token], max_tokens=2, seed=1, top_k=5),
            lambda: list(model.batch([BatchRequest(good), BatchRequest(bad)])),
            lambda: model.score([good, bad]),
        ]
        for use in uses:
            with pytest.raises(NumbersError) as caught:
                use()
            assert "NaN began in pass h.0.attn.qkv (shaders/gemm.frag), token " in str(caught.value)
            assert "half floats end at 65504: try cache='f32' (--cache f32)" in str(caught.value)
            for count in (1, 6, len(good)):
                assert alike("f16")(model.logits(good[:count]), one_by_one(model, good[:count]))
            assert model.score([good])[0].total == scored


def test_formats_that_there_are_not_are_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"cache": "f8"}, "there is no cache format 'f8'; expected one of f32, f16, q8"),
        ({"cache": None}, "there is no cache format None; expected one of f32, f16, q8"),
        ({"cache": "f16", "plan": "reference"}, "the reference plan has no cache, found f16; leave cache out"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            glinfer.load(small, **options)
    commands = ("generate", "chat", "eval", "bench", "verify", "info", "draws", "profile", "export-web", "demo")
    for command in commands:
        assert run([command, str(small), "--cache", "f8"]) == 2
        printed = capsys.readouterr()
        assert printed.err.count("\n") == 1, command
        assert "'f8' is not one of 'f32', 'f16', 'q8'" in printed.err


def test_commands_count_and_check_caches(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {}
    for command in ("info", "draws"):
        for cache in ("f32", "f16"):
            found = ran_json(capsys, command, small, "--cache", cache)
            sizes[command, cache] = found.get("model", found)["texture_bytes"]["cache"]
    picks = 2 * sizes["info", "f16"] - sizes["info", "f32"]
    assert 0 < picks < sizes["info", "f16"]  # choices of tokens, which stay floats
    assert sizes["info", "f16"] == sizes["draws", "f16"]
    assert run(["verify", str(small), "--cache", "q8", "--draws", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["runs"]
    assert report["cache"] == "q8"
    assert run(["generate", str(small), "--ids", "1,2,3", "--max-tokens", "3", "--cache", "q8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cache"] == "q8"


@pytest.mark.slow
def test_eval_and_diff_compare_caches(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", str(small), "--ids", "1,2,3,4", "--b", "cache=f16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["b"]["cache"] == "f16"
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a cache. " * 4, encoding="utf-8")
    given = ["eval", str(small), "--text", str(text), "--compare", "cache=f16, q8+cache=q8,q8"]
    reports = ran_json(capsys, *given)
    formats = [(report["weights"], report["cache"]) for report in reports]
    assert formats == [("f32", "f32"), ("f32", "f16"), ("q8", "q8"), ("q8", "f32")]
    exact, halves, *_ = (report["bits_per_byte"] for report in reports)
    assert exact != halves == pytest.approx(exact, rel=1e-3)
    assert reports[1]["cache_bytes"] < 0.6 * reports[0]["cache_bytes"]
    assert run(given) == 0
    assert "cache" in capsys.readouterr().out.split("\n")[0]
    assert run([*given[:-1], "cache=f8"]) == 2
    known = "f32, f16, q16, q8l, q8, cache=f32 or cache=f16 or cache=q8"
    assert f"found 'cache=f8' in --compare; expected some of {known}" in capsys.readouterr().err
    for twice, what in (("cache=f16+cache=q8", "cache"), ("q8+f16", "weights")):
        assert run([*given[:-1], twice]) == 2
        assert f"found two formats of the {what} in '{twice}' in --compare" in capsys.readouterr().err


def test_other_kernels_keep_the_cache_that_was_asked_for() -> None:
    """Those that take the place of the chosen ones where a driver refuses a shader."""
    with open_device() as device:
        prepared = prepare(of_family("gab"), device, "fast", "q8", cache="f16")
    other, _ = _plans("fast", replace(prepared.options, kernels=KernelOptions()))
    for plan in (prepared.plan, other):
        formats = {tensor.name: tensor.format for tensor in plan.of_kind("cache")}
        assert formats == {"h.0.attn.cache": "rgba16f", "h.1.attn.cache": "rgba16f", "picks": "rgba32f"}
