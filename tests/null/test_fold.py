"""Folding changes no result: the fast plan on folded weights, in float64, is the reference plan on the checkpoint's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats import load_checkpoint, random_checkpoint
from glinfer.models.fast import LOGITS, fast_plan
from glinfer.models.fold import WEIGHT_FORMATS, fold, head_floats
from glinfer.models.gab import LOGITS as REFERENCE_LOGITS
from glinfer.models.gab import TOKENS, reference_plan
from glinfer.models.oracle import final_tensors, relative_error
from glinfer.models.session import weight_matrix
from glinfer.ops.kernels import Kernels
from glinfer.ops.quantise import decode

Array = np.ndarray[Any, Any]
ODD = ModelConfig(37, 15, 3, 2, 70)
# Vocabulary, width, heads, blocks, context: one of everything, one head, a head of one float, heads of less than a
# quad, of exactly one, of one and a bit, of a block and a bit; an inner width that is no multiple of 4.
SHAPES = {
    "ones": ModelConfig(1, 1, 1, 1, 1),
    "one head": ModelConfig(7, 5, 1, 1, 9),
    "heads of one": ModelConfig(19, 6, 6, 2, 9),
    "heads of 5": ODD,
    "heads of 16": ModelConfig(65, 32, 2, 1, 9),
    "heads of 17": ModelConfig(64, 51, 3, 1, 9),
    "heads of 65": ModelConfig(11, 65, 1, 1, 9),
    "narrow inside": ModelConfig(23, 12, 2, 2, 9, intermediate_size=7),
    "large epsilon": ModelConfig(23, 12, 2, 2, 9, layer_norm_eps=0.3),
}


def plan_of(config: ModelConfig, weight_format: str = "f32") -> Any:
    return fast_plan(config, weights=weight_format, kernels=Kernels(), max_texture_size=2048)


def fast_logits(config: ModelConfig, folded: dict[str, Array], ids: list[int], weight_format: str = "f32") -> Array:
    """[tokens, vocab]: the logits after every token, from the oracle of the fast plan."""
    plan, caches, found = plan_of(config, weight_format), {}, []
    for place, token in enumerate(ids):
        values = {**plan.values_for(place + 1), "token": token}
        found.append(final_tensors(plan, folded, {}, values, caches)[LOGITS][0])
    return np.array(found)


def reference_logits(config: ModelConfig, weights: Any, ids: list[int]) -> Array:
    tokens = {TOKENS: np.array(ids, dtype=np.int32)[:, None]}
    plan = reference_plan(config, all_rows=True)
    return final_tensors(plan, weights, tokens, {"rows": len(ids)})[REFERENCE_LOGITS]


def some_ids(config: ModelConfig, count: int) -> list[int]:
    count = min(count, config.max_position_embeddings)
    return [int(token) for token in np.random.default_rng(4).integers(0, config.vocab_size, count)]


def off_centre(config: ModelConfig, seed: int = 5) -> dict[str, Array]:
    """Random weights with everything that folding takes out or in: means, gammas, betas and biases far from trivial."""
    random = np.random.default_rng(seed)
    tensors = random_checkpoint(config, seed=seed, scale=0.2).tensors
    return {
        name: (tensor + random.standard_normal(tensor.shape if tensor.ndim == 1 else (1, 1)) * 0.5).astype(np.float32)
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("act", ["gelu_new", "gelu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_folded_model_is_the_same_model(shape: str, act: str) -> None:
    config = SHAPES[shape].with_gelu("tanh" if act == "gelu_new" else "erf")
    assert config.hidden_act == act
    weights, ids = off_centre(config), some_ids(config, 9)
    found = fast_logits(config, fold(config, weights, "f32"), ids)
    assert relative_error(found, reference_logits(config, weights, ids)) <= 1e-6


def test_the_comparison_can_fail() -> None:
    weights, ids = off_centre(ODD), some_ids(ODD, 9)
    expected = reference_logits(ODD, weights, ids)
    folded = fold(ODD, weights, "f32")
    assert relative_error(fast_logits(ODD.with_gelu("erf"), folded, ids), expected) > 1e-5
    for name in ("h.0.attn.qkv.consts", "h.1.mlp.fc_out.weight", "wpe", "lm_head.consts"):
        changed = {**folded, name: folded[name] * np.float32(1.001)}
        assert relative_error(fast_logits(ODD, changed, ids), expected) > 2e-6, name


def test_more_tokens_than_one_slot_of_scores() -> None:
    weights, ids = off_centre(ODD), some_ids(ODD, 70)
    found = fast_logits(ODD, fold(ODD, weights, "f32"), ids)
    assert len(found) == 70
    assert relative_error(found, reference_logits(ODD, weights, ids)) <= 1e-6


@pytest.mark.parametrize("model", ["tiny", "odd"])
def test_the_folded_models_give_the_published_probabilities(shared: Path, model: str) -> None:
    checkpoint = load_checkpoint(shared / "gab" / f"{model}.gab")
    folded = fold(checkpoint.config, checkpoint.tensors, "f32")
    cases = [case for case in json.loads((shared / "gab" / "golden.json").read_text("utf-8")) if case["model"] == model]
    assert cases
    for case in cases:
        if len(case["tokens"]) <= 80:  # the oracle takes them one by one
            logits = fast_logits(checkpoint.config, folded, case["tokens"])[-1]
            probs = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            assert np.abs(probs - np.array(case["cpu_probs"])).max() <= 1e-6
            assert int(probs.argmax()) == case["argmax"]


# Formats


@pytest.mark.parametrize("weight_format", sorted(WEIGHT_FORMATS))
@pytest.mark.parametrize("shape", SHAPES)
def test_the_arrays_are_those_that_the_plan_asks_for(shape: str, weight_format: str) -> None:
    config = SHAPES[shape]
    folded = fold(config, off_centre(config), weight_format)
    wanted = plan_of(config, weight_format).of_kind("weight")
    assert {tensor.name for tensor in wanted} == set(folded)
    for tensor in wanted:
        assert weight_matrix(tensor, folded).shape == tensor.shape  # which checks shape and type


def test_fewer_bits_give_nearly_the_same_logits() -> None:
    config = ModelConfig(70, 64, 4, 2, 20)
    weights, ids = off_centre(config), some_ids(config, 12)
    expected = reference_logits(config, weights, ids)
    errors = {
        name: relative_error(fast_logits(config, fold(config, weights, name), ids, name), expected)
        for name in WEIGHT_FORMATS
    }
    assert errors["f32"] <= 1e-6
    assert 1e-6 < errors["f16"] <= 2e-3
    assert 1e-6 < errors["q16"] <= 2e-3
    # One part in 256 of the largest of a row and group at each weight.
    assert errors["f16"] < errors["q8"] <= 4e-2


@pytest.mark.parametrize("weight_format", sorted(WEIGHT_FORMATS))
def test_every_format_is_the_float32_model_with_its_weights_rounded(weight_format: str) -> None:
    """Unpacked again, and run as float32, the packed weights give what the packed model gives."""
    packing, head_packing, _ = WEIGHT_FORMATS[weight_format]
    weights, ids = off_centre(ODD), some_ids(ODD, 5)
    folded, widths = fold(ODD, weights, weight_format), fold(ODD, weights, "f32")
    unpacked: dict[str, Array] = {name: folded[name].astype(np.float32) for name in ("wte", "wpe")}
    for name in (name.removesuffix(".weight") for name in folded if name.endswith(".weight")):
        consts, width = folded[f"{name}.consts"], widths[f"{name}.weight"].shape[1]
        scales = consts[:, :4] if consts.shape[1] == 5 else None
        wide = decode(folded[f"{name}.weight"], scales, head_packing if name == "lm_head" else packing, width)
        unpacked[f"{name}.weight"] = wide.astype(np.float32)
        unpacked[f"{name}.consts"] = consts[:, -1:]
    found = fast_logits(ODD, folded, ids, weight_format)
    assert relative_error(fast_logits(ODD, unpacked, ids), found) <= 1e-6


# What folding does


@pytest.mark.parametrize("shape", ["heads of 5", "heads of 17", "heads of 16"])
def test_the_padding_of_heads_is_zero(shape: str) -> None:
    """So the padding of queries, keys and values is zero as well, and takes no part in anything."""
    config = SHAPES[shape]
    heads, floats, width = config.num_attention_heads, head_floats(config), config.head_dim
    assert floats % 16 == 0
    assert 0 <= floats - width < 16
    folded = fold(config, off_centre(config), "f32")
    for name in ("weight", "consts"):
        rows = folded[f"h.0.attn.qkv.{name}"].reshape(3 * heads, floats, -1)
        assert not rows[:, width:].any()
        assert rows[:, :width].any(axis=(0, 2)).all()
    columns = folded["h.0.attn.out_proj.weight"][:, : heads * floats].reshape(-1, heads, floats)
    assert not columns[:, :, width:].any()
    assert columns[:, :, :width].any(axis=(0, 1)).all()


def test_whatever_is_written_to_the_stream_has_mean_zero() -> None:
    folded = fold(ODD, off_centre(ODD), "f32")
    for name, axis in (("wte", 1), ("wpe", 1), ("h.0.attn.out_proj.weight", 0), ("h.1.mlp.fc_out.weight", 0)):
        assert np.abs(folded[name].astype(np.float64).mean(axis=axis)).max() <= 1e-7, name
    assert abs(float(folded["h.0.mlp.fc_out.consts"].astype(np.float64).mean())) <= 1e-7
    assert not folded["h.0.attn.out_proj.consts"].any()


def test_whatever_reads_the_stream_through_a_norm_ignores_its_mean() -> None:
    """The mean is not quite zero where rounded weights write to the stream; so it must not matter."""
    folded = fold(ODD, off_centre(ODD), "f32")
    for name in ("h.0.attn.qkv", "h.1.attn.qkv", "h.0.mlp.fc_in", "lm_head"):
        rows = folded[f"{name}.weight"][:, : ODD.hidden_size].astype(np.float64)
        assert np.abs(rows.sum(axis=1)).max() <= 1e-6, name


def test_the_checkpoints_arrays_are_not_changed() -> None:
    weights = off_centre(ODD)
    before = {name: array.copy() for name, array in weights.items()}
    for array in weights.values():
        array.flags.writeable = False
    for weight_format in WEIGHT_FORMATS:
        folded = fold(ODD, weights, weight_format)
        assert not any(np.shares_memory(array, weights[name]) for array in folded.values() for name in weights)
    assert all(np.array_equal(weights[name], before[name]) for name in before)


# Refusals


def test_an_unknown_format_is_refused() -> None:
    known = ", ".join(WEIGHT_FORMATS)
    with pytest.raises(PlanError, match=rf"\Athere is no weight format 'q4'; expected one of {known}\Z"):
        fold(ODD, off_centre(ODD), "q4")


@pytest.mark.parametrize("name", ["transformer.wpe.weight", "transformer.h.1.ln_2.bias", "lm_head.bias"])
def test_a_missing_tensor_is_named(name: str) -> None:
    weights = off_centre(ODD)
    del weights[name]
    with pytest.raises(PlanError, match=rf"\Athe checkpoint has no tensor {name}\Z"):
        fold(ODD, weights, "f32")


@pytest.mark.parametrize(
    ("tensor", "place", "message"),
    [
        ("transformer.wte.weight", "wte", "; use f32"),
        ("transformer.wpe.weight", "wpe", "; use f32"),
        ("transformer.h.0.attn.k_proj.weight", r"h\.0\.attn\.qkv", "; use f32 or q16"),
        ("transformer.h.1.mlp.fc_out.weight", r"h\.1\.mlp\.fc_out", "; use f32 or q16"),
        ("lm_head.weight", "lm_head", "; use f32 or q16"),
    ],
)
def test_a_weight_beyond_float16_is_named(tensor: str, place: str, message: str) -> None:
    weights = off_centre(ODD)
    weights[tensor][1, 2] = 1e9
    with pytest.raises(PlanError, match=rf"\A{place}: a weight of \S+ is beyond float16's 65504{message}\Z"):
        fold(ODD, weights, "f16")
    fold(ODD, weights, "f32")
