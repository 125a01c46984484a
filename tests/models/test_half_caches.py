"""Keys and values in half floats: the same bits in every plan, near to float32, half the memory, and no silent ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import agree
from apart import APART
from bound_engines import bound_engine, checked_draws
from made_models import IDS, fresh, mixed, of_family, opened, worst
from rounded_caches import PROMPT, REQUESTS, check_forks_rewinds_and_full_contexts, one_by_one
from tiers import tiered

import glinfer
from glinfer.cli.app import run
from glinfer.engine.batch import SchedulerOptions, places_for, sequence_bytes
from glinfer.engine.loading import prepare
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.errors import InputError, NumbersError, PlanError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Limits, open_device
from glinfer.inspect.verify.greedy import verify_greedy
from glinfer.models.session import Session
from glinfer.ops.kernels import KernelOptions

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
HALF_STEP = 2.0**-11
"""By how much rounding to half floats changes a number, relative to it."""
several_families = tiered("family", APART, keep=(APART.index("mistral"),))


@pytest.fixture
def model() -> Iterator[Model]:
    """A llama, whose keys are shared by heads and turned by their positions."""
    with opened(of_family("llama"), cache="f16") as made:
        yield made


def alike(found: Array, expected: Array) -> bool:
    """Where shaders differ in the last digits, some keys and values are rounded to the other half float."""
    return agree(found, expected, 4 * HALF_STEP)


@tiered("family", APART, keep=1)
def test_a_chunk_a_batch_and_single_tokens_give_the_same_bits(family: str) -> None:
    with opened(mixed(family) if family != "gab" else of_family("gab"), cache="f16") as model:
        assert alike(fresh(model, PROMPT), one_by_one(model, PROMPT))
        for result in model.batch(REQUESTS, slots=3):
            assert result.ids == model.generate(result.request.prompt, **result.request.options)  # type: ignore[call-overload]


@several_families
def test_it_is_near_to_float32_and_not_the_same(family: str) -> None:
    checkpoint = of_family(family)
    with opened(checkpoint) as floats, opened(checkpoint, cache="f16", device=floats.device) as halves:
        assert (floats.cache, halves.cache) == ("f32", "f16")
        expected, found = fresh(floats, PROMPT), fresh(halves, PROMPT)
        name = "blocks.0.conv.gated" if checkpoint.config.layer(0).convolves else "blocks.0.attn.k"
        keys, rounded = (each.capture(name, PROMPT)[name] for each in (floats, halves))
        scores = [each.score([PROMPT])[0].logprobs for each in (floats, halves)]
    assert 0 < worst(found, expected) < 20 * HALF_STEP
    assert 0 < np.abs(scores[0] - scores[1]).max() < 0.02
    assert rounded.dtype == np.float32
    assert np.array_equal(rounded, rounded.astype(np.float16))
    assert (np.abs(rounded - keys) <= HALF_STEP * np.abs(keys) + 2.0**-25).all()
    assert (rounded != keys).any()


@pytest.mark.slow
@several_families
def test_every_draw_is_that_of_float64_but_for_the_rounding(family: str) -> None:
    checkpoint = of_family(family)
    with open_device() as device:
        for kernels in (KernelOptions(), KernelOptions(quad=False, rows_per_draw=2)):
            checks = checked_draws(checkpoint, device, PROMPT, "fast", kernels=kernels, cache="f16")
            assert all(check.passed for check in checks), [check for check in checks if not check.passed][:1]
        with bound_engine(checkpoint, device, "fast", cache="f16") as engine:
            assert verify_greedy(engine, checkpoint, PROMPT, 5).passed


def test_what_a_driver_would_cut_off_is_found() -> None:
    """A cache that is one step of half floats beside what it should hold."""
    checkpoint = of_family("llama")

    def cut(session: Session) -> None:
        """Have weights whose keys are half a step larger than those that the oracle knows."""
        texture = session.texture("h.0.attn.qkv.weight")
        texture.upload(texture.read() * np.float32(1 + 1.5 * HALF_STEP))

    with open_device() as device:
        checks = checked_draws(
            checkpoint, device, PROMPT, "fast", kernels=KernelOptions(), cache="f16", hooks={"on_bound": cut}
        )
    assert [check.name for check in checks if not check.exact] == ["h.0.attn.qkv"]


def test_forks_rewinds_and_full_contexts_are_as_with_a_fresh_sequence(model: Model) -> None:
    check_forks_rewinds_and_full_contexts(model, alike)


@pytest.mark.parametrize("letter", "qkv")
def test_patched_keys_values_and_queries_are_rounded_and_used(model: Model, letter: str) -> None:
    name = f"blocks.0.attn.{letter}"
    found = model.capture([name, "logits"], PROMPT)
    with model.patch(name, found[name]):
        assert np.array_equal(model.capture("logits", PROMPT)["logits"], found["logits"])
    with model.patch(name, found[name] + 0.3):
        other = model.capture([name, "logits"], PROMPT)
    assert np.array_equal(other[name], (found[name] + np.float32(0.3)).astype(np.float16))
    assert np.abs(other["logits"] - found["logits"]).max() > 1e-4
    with (
        pytest.raises(PlanError, match=r"^h\.0\.attn\.cache: found 70000; float16 ends at 65504$"),
        model.patch(name, np.full_like(found[name], 7e4)),
    ):
        model.capture("logits", PROMPT)


def test_caches_take_half_the_bytes_and_memory_has_room_for_twice_the_sequences() -> None:
    with open_device() as device:
        sizes = {}
        for cache in ("f32", "f16"):
            with opened(of_family("llama"), cache=cache, device=device) as model:
                caches = [tensor for tensor in model.plan.tensors if tensor.name.endswith("attn.cache")]
                sizes[cache] = sum(model.bound.texture(tensor.name).layout.nbytes for tensor in caches)
                config = model.config
                assert sizes[cache] == sequence_bytes(config, 64, cache)
    assert sizes["f32"] == 2 * sizes["f16"] > 0
    memory = 7 * sizes["f32"]
    assert places_for(config, SchedulerOptions(memory=memory), 16384, "f32") == (7, 64)
    assert places_for(config, SchedulerOptions(memory=memory), 16384, "f16") == (14, 64)
    with pytest.raises(InputError, match="the cache of one sequence of 64 tokens takes"):
        places_for(config, SchedulerOptions(memory=sizes["f16"] - 1), 16384, "f16")


@pytest.mark.slow
def test_within_the_limits_of_webgl2() -> None:
    checkpoint = of_family("qwen3")
    with (
        opened(checkpoint, cache="f16", limits=Limits.webgl2_minimum()) as model,
        opened(checkpoint, cache="f16") as usual,
    ):
        assert alike(fresh(model, PROMPT), one_by_one(model, PROMPT))
        assert worst(fresh(model, PROMPT), fresh(usual, PROMPT)) < 20 * HALF_STEP


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
        assert worst(before, fresh(floats, good)) < 20 * HALF_STEP
        uses: list[Callable[[], object]] = [
            lambda: model.logits(bad),
            lambda: model.generate(bad, max_tokens=3, temperature=0),
            lambda: model.generate(bad, max_tokens=3, seed=1, top_k=5),
            lambda: model.generate([token], max_tokens=2, seed=1),
            lambda: list(model.batch([BatchRequest(good), BatchRequest(bad)])),
            lambda: model.score([good, bad]),
        ]
        for use in uses:
            with pytest.raises(NumbersError) as caught:
                use()
            assert "\n" not in str(caught.value)
            assert "NaN began in pass h.0.attn.qkv (shaders/gemv.frag), token " in str(caught.value)
            assert "half floats end at 65504: try cache='f32' (--cache f32)" in str(caught.value)
            for count in (1, 2, 3, 6, len(good)):
                assert alike(model.logits(good[:count]), one_by_one(model, good[:count]))
            assert model.score([good])[0].total == scored
        assert alike(model.logits(good), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "f8"}, "there is no cache format 'f8'; expected one of f32, f16, q8"),
        ({"cache": None}, "there is no cache format None; expected one of f32, f16, q8"),
        ({"cache": "f16", "plan": "reference"}, "the reference plan has no cache, found f16; leave cache out"),
    ],
)
def test_formats_that_there_are_not_are_refused(small: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        glinfer.load(small, **options)


COMMANDS = ["generate", "chat", "eval", "bench", "verify", "info", "draws", "profile", "export-web", "demo"]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_the_option_and_refuse_others_in_one_line(
    command: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, str(small), "--cache", "f8"]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "'f8' is not one of 'f32', 'f16', 'q8'" in told.err


def test_commands_count_and_check_half_caches(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {}
    for command in (["info"], ["draws"]):
        for cache in ("f32", "f16"):
            assert run([*command, str(small), "--cache", cache, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            sizes[command[0], cache] = found.get("model", found)["texture_bytes"]["cache"]
    picks = 2 * sizes["info", "f16"] - sizes["info", "f32"]
    assert 0 < picks < sizes["info", "f16"]  # choices of tokens, which stay floats
    assert sizes["info", "f16"] == sizes["draws", "f16"]
    assert run(["verify", str(small), "--cache", "f16", "--draws", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["runs"]
    assert report["cache"] == "f16"
    assert run(["generate", str(small), "--ids", "1,2,3", "--max-tokens", "3", "--cache", "f16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cache"] == "f16"
    settings = ["--ids", "1,2,3,4", "--b", "cache=f16", "--json"]
    assert run(["diff", str(small), *settings]) == 0
    assert json.loads(capsys.readouterr().out)["b"]["cache"] == "f16"


@pytest.mark.slow
def test_eval_compares_caches(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a cache. " * 4, encoding="utf-8")
    given = ["eval", str(small), "--text", str(text), "--compare", "cache=f16, q8+cache=f16,q8"]
    assert run([*given, "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    formats = [(report["weights"], report["cache"]) for report in reports]
    assert formats == [("f32", "f32"), ("f32", "f16"), ("q8", "f16"), ("q8", "f32")]
    exact, halves, *_ = (report["bits_per_byte"] for report in reports)
    assert exact != halves == pytest.approx(exact, rel=1e-3)
    assert reports[1]["cache_bytes"] < 0.6 * reports[0]["cache_bytes"]
    assert run(given) == 0
    shown = capsys.readouterr().out
    assert "cache" in shown.split("\n")[0]
    assert run([*given[:-1], "cache=f8"]) == 2
    assert (
        "found 'cache=f8' in --compare; expected some of f32, f16, q16, q8l, q8, cache=f32 or cache=f16 or cache=q8"
        in (capsys.readouterr().err)
    )


def test_other_kernels_keep_the_cache_that_was_asked_for() -> None:
    """Those that take the place of the chosen ones where a driver refuses a shader."""
    with open_device() as device:
        prepared = prepare(of_family("gab"), device, "fast", "q8", cache="f16")
    for plan in (prepared.plan, prepared.shaped(KernelOptions())[0]):
        assert {tensor.name: tensor.format for tensor in plan.of_kind("cache")} == {
            "h.0.attn.cache": "rgba16f",
            "h.1.attn.cache": "rgba16f",
            "picks": "rgba32f",
        }
