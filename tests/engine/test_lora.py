"""LoRA adapters beside the weights: the logits of merged weights, and for each sequence its own adapter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_adapters import ALL, made_pairs, write_peft
from tiny_models import in_floats, in_formats, tiny

import glinfer
from glinfer import BatchRequest
from glinfer.engine.model import Model
from glinfer.errors import GlinferError, InputError
from glinfer.families import DECODERS
from glinfer.formats import Checkpoint, save_checkpoint
from glinfer.formats.adapters.merge import merged, read_adapter
from glinfer.gl.context import Device, Limits
from glinfer.models.choice import plan_for
from glinfer.models.plan import PlanLimits
from glinfer.models.regions import places_in_one
from glinfer.models.transforms.low_rank import NO_ADAPTERS, AdapterRanks
from glinfer.ops.kernels import KernelOptions
from glinfer.quant.formats import BLOCK_FORMATS

pytestmark = pytest.mark.gl

SHARED = KernelOptions(
    tiles=8,
    cover="points",
    part_steps=4,
    split_values=True,
    split_norms=True,
    split_inner=True,
    rows_per_draw=8,
    blends=True,
    fused=True,
)
FAMILIES = [name for name in DECODERS if DECODERS[name].huggingface is not None]
IDS = list(range(3, 25))
TOLERANCE = 1e-4
"""Of the range of the logits, as for peers: sums are added in another order, and attention here is sharp."""
GREEDY = {"max_tokens": 6, "temperature": 0}


def shape(family: str) -> Any:
    further: dict[str, Any] = {}
    if family == "granite":
        further = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 4.0}
    return tiny(family, tie_word_embeddings=family in ("gemma", "gemma2", "gemma3_text", "gpt2"), **further)


def outcomes(path: Path, name: str | None, device: Device, **options: Any) -> list[Any]:
    """Logits behind a prompt in pieces, and token by token, and a text's likelihoods."""
    with glinfer.load(path, device=device, **options) as model, model.session() as session:
        session.use_adapter(model.adapters.number(name))
        for token in IDS:
            session.step(token)
        return [model.logits(IDS, lora=name), session.logits(), model.score([IDS], lora=name)[0].logprobs]


def check_family(device: Device, folder: Path, made: Checkpoint, kernels: KernelOptions | None) -> None:
    config = made.config
    path = folder / ("model.gguf" if made.packed else "model.safetensors")
    save_checkpoint(made, path, dtype="file" if made.packed else "float32")
    less = (20 / config.hidden_size) ** 0.5  # so that outputs change as much in wide models as in narrow ones
    roles = ALL if config.tie_word_embeddings else (*ALL, "head")
    form = config.family.huggingface
    turns: Any = {"alternate": form is not None and form.experts is not None and form.experts.alternate}
    adapters = {
        "all": write_peft(folder / "all", made_pairs(config, 3, roles, 1, 0.3 * less), **turns),
        "some": write_peft(
            folder / "some", made_pairs(config, 20, ["projection", "down"], 2, 0.1 * less), use_rslora=True, **turns
        ),
    }
    for name, adapter in adapters.items():
        save_checkpoint(merged(made, [read_adapter(adapter, config)]), folder / f"{name}.safetensors")
        expected = outcomes(folder / f"{name}.safetensors", None, device, kernels=kernels)
        found = outcomes(path, name, device, kernels=kernels, lora=adapters)
        for one, other in zip(found, expected, strict=True):
            assert np.abs(one - other).max() <= TOLERANCE * np.ptp(expected[0])
        # A prompt in pieces and token by token, and one adapter or several: the same bits. A delta rule is solved for
        # the rows of a piece together, in another order of sums.
        if config.family.delta_rule:
            assert np.abs(found[0] - found[1]).max() <= TOLERANCE * np.ptp(expected[0])
        else:
            np.testing.assert_array_equal(found[0], found[1])
        alone = outcomes(path, None, device, kernels=kernels, lora=adapter)
        np.testing.assert_array_equal(alone[0], found[0])
    if kernels is None:
        plain = outcomes(path, None, device)
        for one, other in zip(outcomes(path, "base", device, lora=adapters), plain, strict=True):
            np.testing.assert_array_equal(one, other)
        assert np.abs(plain[0] - expected[0]).max() > 0.01 * np.ptp(expected[0])


@pytest.mark.slow  # tests of recorded figures show the same, see test_peft.py
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_merged_weights(device: Device, tmp_path: Path, family: str) -> None:
    check_family(device, tmp_path, in_floats(shape(family)), None)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "gemma2"])
def test_instances_may_share_the_sums(device: Device, tmp_path: Path, family: str) -> None:
    check_family(device, tmp_path, in_floats(shape(family)), SHARED)


FORMS = [("llama", form) for form in BLOCK_FORMATS if not form.endswith("_ROW")]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "form"), [*FORMS, ("gpt2", "F16"), ("gpt2", "Q4_1"), ("gpt2", "Q4_K")])
def test_the_weights_keep_their_blocks(device: Device, tmp_path: Path, family: str, form: str) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    further = {"head_dim": 128} if family == "llama" else {"hidden_act": "gelu_new"}
    config = tiny(family, **{"hidden_size": 256, "num_attention_heads": 2, "intermediate_size": 256, **further})
    check_family(device, tmp_path, in_formats(config, form), None)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama in Q4_1, and two adapters of other ranks for other matrices."""
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    folder = tmp_path_factory.mktemp("lora")
    config = tiny("llama", hidden_size=64, intermediate_size=64, head_dim=32, tie_word_embeddings=False)
    save_checkpoint(in_formats(config, "Q4_1"), folder / "model.gguf", dtype="file")
    write_peft(folder / "a", made_pairs(config, 3, seed=1))
    write_peft(folder / "b", made_pairs(config, 20, ["projection", "down"], seed=2))
    return folder


@pytest.fixture
def model(blocks: Path, device: Device) -> Iterator[Model]:
    with glinfer.load(blocks / "model.gguf", device=device, lora={"a": blocks / "a", "b": blocks / "b"}) as opened:
        yield opened


def test_each_sequence_of_a_batch_has_its_own_adapter(model: Model) -> None:
    names = ("base", "a", "b", None)
    alone = {
        (name, skipped): model.generate(IDS[skipped:], lora=name, **GREEDY) for name in names for skipped in (0, 1)
    }
    assert len({tuple(alone[name, 0]) for name in names}) == 3
    assert alone[None, 0] == alone["base", 0]
    requests = [BatchRequest(IDS[skipped:], {"lora": name, **GREEDY}, (name, skipped)) for name, skipped in alone]
    # In few places, others take over where what a prompt begins with was run with another adapter.
    assert {result.request.key: result.ids for result in model.batch(requests, slots=3)} == alone


def test_each_sequence_of_a_batch_has_its_own_adapter_of_experts(device: Device, tmp_path: Path) -> None:
    config = tiny("qwen3_next")
    save_checkpoint(in_floats(config), tmp_path / "model.safetensors")
    adapters = {
        "a": write_peft(tmp_path / "a", made_pairs(config, 3, ["gate", "up", "router", "shared_down"], 1)),
        "b": write_peft(tmp_path / "b", made_pairs(config, 20, ["down", "shared_router"], 2)),
    }
    with glinfer.load(tmp_path / "model.safetensors", device=device, lora=adapters) as model:
        alone = {name: model.generate(IDS, lora=name, **GREEDY) for name in ("base", "a", "b")}
        assert len({tuple(ids) for ids in alone.values()}) == 3
        requests = [BatchRequest(IDS, {"lora": name, **GREEDY}, name) for name in alone]
        assert {result.request.key: result.ids for result in model.batch(requests, slots=3)} == alone


def test_each_sequence_of_a_batch_has_its_own_adapter_of_delta_rules(device: Device, tmp_path: Path) -> None:
    config = tiny("qwen3_5_text")
    save_checkpoint(in_floats(config), tmp_path / "model.safetensors")
    adapters = {
        "a": write_peft(tmp_path / "a", made_pairs(config, 3, ["delta_in"], 1)),
        "b": write_peft(tmp_path / "b", made_pairs(config, 20, ["delta_out"], 2)),
    }
    with glinfer.load(tmp_path / "model.safetensors", device=device, lora=adapters) as model:
        alone = {name: model.generate(IDS, lora=name, **GREEDY) for name in ("base", "a", "b")}
        assert len({tuple(ids) for ids in alone.values()}) == 3
        requests = [BatchRequest(IDS, {"lora": name, **GREEDY}, name) for name in alone]
        assert {result.request.key: result.ids for result in model.batch(requests, slots=3)} == alone


@pytest.mark.slow
def test_lists_and_guesses_have_the_adapter_too(model: Model) -> None:
    alone = {(name, skipped): model.generate(IDS[skipped:], lora=name, **GREEDY) for name in "ab" for skipped in (0, 1)}
    assert model.generate(IDS, lora="a", speculate="ngram", **GREEDY) == alone["a", 0]
    assert model.generate([IDS, IDS[1:]], lora="b", **GREEDY) == [alone["b", 0], alone["b", 1]]


def test_streams_of_several_adapters_take_turns(model: Model) -> None:
    expected = {name: model.generate(IDS, lora=name, **GREEDY) for name in ("a", "b")}
    streams = {name: model.stream(IDS, lora=name, **GREEDY) for name in ("a", "b")}
    found: dict[str, list[Any]] = {name: [] for name in streams}
    for _ in range(GREEDY["max_tokens"]):
        for name, stream in streams.items():
            found[name].append(next(stream))
    assert found == expected


def test_its_draws_and_textures_are_counted(model: Model) -> None:
    counts = {row.kind: row.count for row in model.draws().rows}
    assert {kind: count for kind, count in counts.items() if kind.endswith(".lora")} == dict.fromkeys(
        ("attn.qkv.lora", "attn.out_proj.lora", "mlp.fc_in.lora", "mlp.fc_out.lora"), 2
    )
    before = model.device.draws_issued
    with model.session() as session:
        session.prefill([3, 4])
        session.logits()
        assert session.draws_issued == model.device.draws_issued - before == 2 * (model.draws().total - 1) - 1
    assert model.verify_textures().ok


def test_what_is_refused(blocks: Path, device: Device, model: Model) -> None:
    with pytest.raises(InputError, match="no adapter 'c'; expected one of a, b, base"):
        model.generate(IDS, lora="c")
    with pytest.raises(InputError, match="request 0: there is no adapter"):
        model.batch([BatchRequest(IDS, {"lora": "c"})])
    for lora, words in (
        ({"base": blocks / "a"}, "named 'base'"),
        ({"": blocks / "a"}, "named ''"),
        ({"a": 3}, "expected the path"),
        ([blocks / "a"], "lora is list"),
        (blocks / "model.gguf", r"general\.type"),
        (blocks / "none", "no such adapter"),
    ):
        with pytest.raises(GlinferError, match=words) as error:
            glinfer.load(blocks / "model.gguf", device=device, lora=lora)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="beside the fast plan"):
        glinfer.load(blocks / "model.gguf", device=device, lora=blocks / "a", plan="reference")


def test_an_adapter_named_default_is_that_of_texts_that_name_none(blocks: Path, device: Device, model: Model) -> None:
    lora = {"b": blocks / "b", "default": blocks / "a"}
    with glinfer.load(blocks / "model.gguf", device=device, lora=lora) as other:
        np.testing.assert_array_equal(other.logits(IDS), model.logits(IDS, lora="a"))
        np.testing.assert_array_equal(other.logits(IDS, lora="base"), model.logits(IDS))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_plans_stay_within_what_webgl2_guarantees(family: str) -> None:
    from glinfer.models.fast.rows import batch_plan, chunk_plan
    from glinfer.models.options import PlanOptions

    config, least = shape(family), Limits.webgl2_minimum()
    weights = [name for name, each in weight_names(config).items() if len(each) == 2]
    ranks = AdapterRanks(("a", "b"), dict.fromkeys(weights, 9))
    limits = PlanLimits(least.max_texture_size, 8, least.max_texture_units)
    plan_for(config, "fast", adapters=ranks, max_texture_size=least.max_texture_size).check_limits(limits)
    for kernels in (KernelOptions(), KernelOptions(rows_per_draw=8, blends=True)):
        options = PlanOptions(config, "f32", kernels, least.max_texture_size, adapters=ranks)
        chunk_plan(options, rows=16, cache_slots=64, likelihoods=True).check_limits(limits)
        batch_plan(options, sequences=9, capacity=64).check_limits(limits)


def test_activations_still_share_one_texture() -> None:
    """The products' inputs are regions as without adapters; the inner vectors of adapters have their own."""
    config = shape("llama")
    ranks = AdapterRanks(("a",), {name: 4 for name, each in weight_names(config).items() if len(each) == 2})
    kernels = dataclasses.replace(SHARED, split_inner=False)
    plain, adapted = (
        places_in_one(plan_for(config, "fast", kernels=kernels, adapters=each), 2048) for each in (NO_ADAPTERS, ranks)
    )
    assert plain
    assert adapted == plain


def weight_names(config: Any) -> dict[str, tuple[int, ...]]:
    from glinfer.formats import weight_shapes

    return weight_shapes(config)
