"""Folding changes no result: the fast plan on folded weights, in float64, is the reference plan on the checkpoint's.

And what is kept of a file keeps its bits, in the order in which passes write rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from goldens import ModelWriter, gab_records
from tiers import tiered
from tiny_models import ROTARY, in_floats, in_formats, off_centre, packed_as, tiny, unpacked

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats import Checkpoint, load_checkpoint
from glinfer.formats.packed import PACKED_FORMATS, block_weights
from glinfer.formats.tensors import weight_shapes
from glinfer.models.choice import plan_for, weights_for
from glinfer.models.fast.token import LOGITS, fast_plan
from glinfer.models.feed import runs
from glinfer.models.options import PlanOptions
from glinfer.models.oracle import final_tensors, relative_error
from glinfer.models.reference.gab import LOGITS as REFERENCE_LOGITS
from glinfer.models.reference.gab import TOKENS, reference_plan
from glinfer.models.session import weight_matrix
from glinfer.models.transforms import fold as fold_module
from glinfer.models.transforms.fold import FoldedWeights
from glinfer.models.transforms.recipe import PADDING, Recipes, head_floats, taken
from glinfer.ops.kernels import KernelOptions
from glinfer.quant.formats import WEIGHT_FORMATS, WIDE
from glinfer.quant.ggml import blocks_of, dequantize
from glinfer.quant.groups import wide_values
from glinfer.quant.words import decode

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
# Of every other family one, and what only some have: heads of all sizes, shared keys, windows, biases, tied embeddings.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OTHERS = {
    **{family: tiny(family, 6) for family in sorted(set(DECODERS) - {"gab"})},
    "shared keys": tiny("llama", 16, num_attention_heads=6, num_key_value_heads=2, hidden_size=21),
    "heads of 2": tiny("llama", 2, num_attention_heads=5, num_key_value_heads=5),
    "heads of 18": tiny("qwen3", 18, num_attention_heads=4, num_key_value_heads=1),
    "heads of 64": tiny("gemma", 64, num_key_value_heads=1, tie_word_embeddings=True),
    "windows": tiny("mistral", 8, sliding_window=3, max_window_layers=1, num_key_value_heads=1),
    "biases": tiny("llama", 10, attention_bias=True, mlp_bias=True, num_key_value_heads=1),
    "biases of qwen2": tiny("qwen2", 8, attention_bias=True),
    "neighbours": tiny("gift_of_gab", 12, mlp_bias=True, tie_word_embeddings=True),
    "tied gpt2": tiny("gpt2", 10, tie_word_embeddings=True),
    "wide inside": tiny("llama", 8, intermediate_size=130),
    "far positions": tiny("llama", 8, rope_theta=5e5, rope_scaling={**LLAMA3, "original_max_position_embeddings": 16}),
}
ALL = {**SHAPES, **OTHERS}


def plan_of(config: ModelConfig, weight_format: str = "f32", formats: Mapping[str, str] | None = None) -> Any:
    return fast_plan(
        PlanOptions(config, weights=weight_format, kernels=KernelOptions(), max_texture_size=2048, formats=formats)
    )


def fold(config: ModelConfig, tensors: Mapping[str, Array], weight_format: str) -> dict[str, Array]:
    return dict(FoldedWeights(Checkpoint(config, tensors, "test"), weight_format))


def kept(checkpoint: Checkpoint) -> dict[str, Array]:
    return dict(FoldedWeights(checkpoint, "file"))


def fast_logits(
    config: ModelConfig,
    folded: Mapping[str, Array],
    ids: Sequence[int],
    weight_format: str = "f32",
    formats: Mapping[str, str] | None = None,
) -> Array:
    """[tokens, vocab]: the logits after every token, from the oracle of the fast plan."""
    plan, caches = plan_of(config, weight_format, formats), {}
    return np.array([final_tensors(plan, folded, *given, caches)[LOGITS][0] for given in runs(plan, ids)])


def reference_logits(config: ModelConfig, weights: Any, ids: Sequence[int]) -> Array:
    """The logits after the tokens: after every one of Gab and GPT-2, else after the last."""
    if not FAMILIES[config.model_type].rotary:
        tokens = {TOKENS: np.array(ids, dtype=np.int32)[:, None]}
        plan = reference_plan(config, all_rows=True)
        return final_tensors(plan, weights, tokens, {"rows": len(ids)})[REFERENCE_LOGITS]
    plan = plan_for(config, "reference", max_texture_size=256)
    arrays = weights_for(Checkpoint(config, weights, "test"), "reference")
    ((inputs, values),) = runs(plan, ids)
    return final_tensors(plan, arrays, inputs, values)[LOGITS]


def error_of(found: Array, config: ModelConfig, weights: Any, ids: Sequence[int]) -> float:
    """How far the logits after each token are from those of the reference plan, where that has them."""
    expected = reference_logits(config, weights, ids)
    return relative_error(found[-len(expected) :], expected)


def some_ids(config: ModelConfig, count: int) -> list[int]:
    count = min(count, config.max_position_embeddings)
    return [int(token) for token in np.random.default_rng(4).integers(0, config.vocab_size, count)]


@pytest.mark.parametrize("act", ["gelu_new", "gelu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_folded_model_is_the_same_model(shape: str, act: str) -> None:
    config = SHAPES[shape].with_gelu("tanh" if act == "gelu_new" else "erf")
    assert config.hidden_act == act
    weights, ids = off_centre(config), some_ids(config, 9)
    found = fast_logits(config, fold(config, weights, "f32"), ids)
    assert len(found) == len(reference_logits(config, weights, ids))
    assert error_of(found, config, weights, ids) <= 1e-6


@pytest.mark.parametrize("shape", OTHERS)
def test_the_folded_model_of_every_family_is_the_same_model(shape: str) -> None:
    config = OTHERS[shape]
    weights, ids = off_centre(config), some_ids(config, 9)
    found = fast_logits(config, fold(config, weights, "f32"), ids)
    for count in (1, 2, len(ids)):
        assert error_of(found[:count], config, weights, ids[:count]) <= 2e-6, count


def test_the_comparison_can_fail() -> None:
    weights, ids = off_centre(ODD), some_ids(ODD, 9)
    folded = fold(ODD, weights, "f32")
    assert error_of(fast_logits(ODD.with_gelu("erf"), folded, ids), ODD, weights, ids) > 1e-5
    for name in ("h.0.attn.qkv.consts", "h.1.mlp.fc_out.weight", "wpe", "lm_head.consts"):
        changed = {**folded, name: folded[name] * np.float32(1.001)}
        assert error_of(fast_logits(ODD, changed, ids), ODD, weights, ids) > 2e-6, name


def test_the_comparison_of_other_families_can_fail() -> None:
    config = tiny("qwen3", 18, num_attention_heads=4, num_key_value_heads=2)
    weights, ids = off_centre(config), some_ids(config, 9)
    folded = fold(config, weights, "f32")
    for name, array in folded.items():
        if array.any():
            changed = {**folded, name: array * np.float32(1.01)}
            assert error_of(fast_logits(config, changed, ids), config, weights, ids) > 1e-5, name
    swapped = {**folded, "h.0.attn.qkv.turn": folded["h.0.attn.qkv.turn"][::-1]}
    assert error_of(fast_logits(config, swapped, ids), config, weights, ids) > 1e-5


def test_more_tokens_than_one_slot_of_scores() -> None:
    weights, ids = off_centre(ODD), some_ids(ODD, 70)
    found = fast_logits(ODD, fold(ODD, weights, "f32"), ids)
    assert len(found) == 70
    assert error_of(found, ODD, weights, ids) <= 1e-6


@pytest.mark.parametrize("model", ["tiny", "odd"])
def test_the_folded_models_give_the_published_probabilities(golden_model: ModelWriter, model: str) -> None:
    checkpoint = load_checkpoint(golden_model(model))
    folded = fold(checkpoint.config, checkpoint.tensors, "f32")
    for case in gab_records(model):
        if len(case["tokens"]) <= 80:  # the oracle takes them one by one
            logits = fast_logits(checkpoint.config, folded, case["tokens"])[-1]
            probs = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            assert np.abs(probs - np.array(case["cpu_probs"])).max() <= 1e-6
            assert int(probs.argmax()) == case["argmax"]


# Formats


def fits(folded: Mapping[str, Array], plan: Any) -> None:
    """The arrays are those that the plan uploads: names, shapes and types."""
    wanted = plan.of_kind("weight")
    assert {tensor.name for tensor in wanted} == set(folded)
    for tensor in wanted:
        assert weight_matrix(tensor, folded).shape == tensor.shape  # which checks shape and type


@pytest.mark.parametrize("weight_format", sorted(WEIGHT_FORMATS))
@pytest.mark.parametrize("shape", ALL)
def test_the_arrays_are_those_that_the_plan_asks_for(shape: str, weight_format: str) -> None:
    config = ALL[shape]
    fits(fold(config, off_centre(config), weight_format), plan_of(config, weight_format))


@tiered("name", PACKED_FORMATS, keep=[0, 1, 2, 10, 12])
@pytest.mark.parametrize("family", DECODERS)
def test_the_arrays_of_a_packed_file_are_those_that_the_plan_asks_for(family: str, name: str) -> None:
    checkpoint = in_formats(tiny(family, 16, hidden_size=32, intermediate_size=96), name)
    fits(FoldedWeights(checkpoint, "file"), plan_of(checkpoint.config, "file", checkpoint.formats()))


def test_names_are_known_without_making_arrays() -> None:
    folded = FoldedWeights(Checkpoint(tiny("llama"), {}, "no tensors at all"), "f32")
    assert len(folded) == len(list(folded)) == len(set(folded)) == 2 + 2 * (4 * 2 + 1)
    for name in folded:
        assert name in folded
    for name in (
        "wpe",
        "no.such.weight",
        "h.2.attn.qkv.weight",
        "h.0.attn.qkv.gain",
        "h.0.attn.qkv.turn",
        "wte.weight",
    ):
        assert name not in folded
        with pytest.raises(KeyError, match=name.replace(".", r"\.")):
            folded[name]


def test_fewer_bits_give_nearly_the_same_logits() -> None:
    for config in (ModelConfig(70, 64, 4, 2, 20), tiny("llama", 16, hidden_size=64, intermediate_size=128)):
        weights, ids = off_centre(config), some_ids(config, 12)
        errors = {
            name: error_of(fast_logits(config, fold(config, weights, name), ids, name), config, weights, ids)
            for name in WEIGHT_FORMATS
        }
        assert errors["f32"] <= 1e-6
        assert 1e-6 < errors["f16"] <= 2e-3
        assert 1e-6 < errors["q16"] <= 2e-3
        # One part in 256 of the largest of a row and group at each weight.
        assert errors["f16"] < errors["q8"] <= 4e-2


@pytest.mark.parametrize("weight_format", sorted(WEIGHT_FORMATS))
@pytest.mark.parametrize("config", [ODD, tiny("llama", 6)], ids=["gab", "llama"])
def test_every_format_is_the_float32_model_with_its_weights_rounded(config: ModelConfig, weight_format: str) -> None:
    """Unpacked again, and run as float32, the packed weights give what the packed model gives."""
    packing, head_packing, _ = WEIGHT_FORMATS[weight_format]
    weights, ids = off_centre(config), some_ids(config, 5)
    folded, widths = fold(config, weights, weight_format), fold(config, weights, "f32")
    unpacked: dict[str, Array] = {name: folded[name].astype(np.float32) for name in folded if "." not in name}
    assert len(unpacked) == 2
    for name in (name.removesuffix(".weight") for name in folded if name.endswith(".weight")):
        consts, width = folded[f"{name}.consts"], widths[f"{name}.weight"].shape[1]
        scales = consts[:, :4] if consts.shape[1] == 5 else None
        wide = decode(folded[f"{name}.weight"], scales, head_packing if name == "lm_head" else packing, width)
        unpacked[f"{name}.weight"] = wide.astype(np.float32)
        unpacked[f"{name}.consts"] = consts[:, -1:]
    found = fast_logits(config, folded, ids, weight_format)
    assert relative_error(fast_logits(config, unpacked, ids), found) <= 1e-6


# What folding does


@pytest.mark.parametrize(
    "shape", ["heads of 5", "heads of 17", "heads of 16", "shared keys", "heads of 18", "heads of 2"]
)
def test_the_padding_of_heads_is_zero(shape: str) -> None:
    """So the padding of queries, keys and values is zero as well, and takes no part in anything."""
    config = ALL[shape]
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    floats, width = head_floats(config), config.head_dim
    assert floats % 16 == 0
    assert 0 <= floats - width < 16
    folded = fold(config, off_centre(config), "f32")
    place = Recipes(config, "f32").heads(0)
    assert (place.count, place.kv, place.floats) == (heads, kv_heads, floats)
    assert place.queries_at % 64 == 0
    biased = "h.0.attn.qkv.consts" if folded["h.0.attn.qkv.consts"].any() else "h.0.attn.qkv.weight"
    for name in ("h.0.attn.qkv.weight", biased):
        whole = folded[name]
        assert len(whole) == place.cols == place.queries_at + heads * floats
        assert not whole[2 * kv_heads * floats : place.queries_at].any()
        rows = np.concatenate([whole[: 2 * kv_heads * floats], whole[place.queries_at :]]).reshape(
            2 * kv_heads + heads, floats, -1
        )
        assert not rows[:, width:].any()
        assert rows[:, :width].any(axis=(0, 2)).all()
    columns = folded["h.0.attn.out_proj.weight"][:, : heads * floats].reshape(-1, heads, floats)
    assert not columns[:, :, width:].any()
    assert columns[:, :, :width].any(axis=(0, 1)).all()


@pytest.mark.parametrize("family", ROTARY)
def test_elements_that_turn_together_lie_side_by_side(family: str) -> None:
    """Of keys and queries, each head by itself; values stay in order. Gift of Gab has neighbours in its file."""
    config = tiny(family, 18, num_attention_heads=4, num_key_value_heads=2)
    recipe, place = Recipes(config, "f32").qkv(0), Recipes(config, "f32").heads(0)
    pairs = np.arange(18).reshape(9, 2) if family == "gift_of_gab" else np.arange(18).reshape(2, 9).T
    heads = recipe.rows[: 4 * 32].reshape(4, 32), recipe.rows[place.queries_at :].reshape(4, 32)
    assert (recipe.rows[4 * 32 : place.queries_at] == PADDING).all()
    sources = ["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"]
    assert [source.removeprefix("model.layers.0.") for source in recipe.sources] == sources
    for number, rows in enumerate(np.concatenate(heads)):
        assert (rows[18:] == PADDING).all()
        order = np.arange(18) if number in (2, 3) else pairs.reshape(-1)  # 2 and 3 are the values
        assert np.array_equal(rows[:18], 18 * number + order)
    places = Recipes(config, "f32").turned_places
    assert np.array_equal(recipe.rows[places], np.arange(18))


def test_a_table_of_turns_leaves_the_padding_alone() -> None:
    config = tiny("llama", 6, rope_theta=100.0)
    table = FoldedWeights(in_floats(config), "f32")["rope"].astype(np.float64)
    assert table.shape == (48, 16)
    angles = np.arange(48)[:, None] * 100.0 ** (-np.arange(3) / 3)
    assert np.abs(table[:, 0:6:2] - np.cos(angles)).max() <= 1e-6
    assert np.abs(table[:, 1:6:2] - np.sin(angles)).max() <= 1e-6
    assert (table[:, 6::2] == 1.0).all()
    assert not table[:, 7::2].any()


def test_gains_of_heads_follow_the_order_of_their_elements() -> None:
    config = tiny("qwen3", 6)
    checkpoint = in_floats(config)
    gains = FoldedWeights(checkpoint, "f32")["h.1.attn.qkv.turn"]
    assert gains.shape == (2, 16)
    for row, letter in zip(gains, "kq", strict=True):
        expected = checkpoint.tensors[f"model.layers.1.self_attn.{letter}_norm.weight"]
        assert np.array_equal(row[:6], expected[[0, 3, 1, 4, 2, 5]])
        assert not row[6:].any()


@pytest.mark.parametrize("inner", [24, 64, 130])
def test_gate_and_up_take_turns_block_by_block(inner: int) -> None:
    config = tiny("llama", intermediate_size=inner)
    checkpoint = in_floats(config)
    folded = FoldedWeights(checkpoint, "f32")
    found = folded["h.1.mlp.fc_in.weight"]
    blocks = -(-inner // 64)
    assert len(found) == len(folded["h.1.mlp.fc_in.consts"]) == 2 * 64 * blocks
    gain = checkpoint.tensors["model.layers.1.post_attention_layernorm.weight"].astype(np.float64)
    by_block = found.reshape(blocks, 2, 64, -1)[..., : config.hidden_size]
    for number, part in enumerate(("gate", "up")):
        expected = (checkpoint.tensors[f"model.layers.1.mlp.{part}_proj.weight"] * gain).astype(np.float32)
        mine = by_block[:, number].reshape(blocks * 64, -1)
        assert np.array_equal(mine[:inner], expected)
        assert not mine[inner:].any()


def test_gains_of_norms_are_folded_in_with_their_offset() -> None:
    for family, offset in (("llama", 0.0), ("gemma", 1.0)):
        checkpoint = in_floats(tiny(family))
        matrix = checkpoint.floats("lm_head.weight").astype(np.float64)
        gain = checkpoint.floats("model.norm.weight").astype(np.float64) + offset
        found = FoldedWeights(checkpoint, "f32")["lm_head.weight"][:, :20]
        assert np.array_equal(found, (matrix * gain).astype(np.float32))


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


def test_the_stream_of_rms_norms_keeps_its_mean() -> None:
    checkpoint = in_floats(tiny("llama", 16))
    folded = FoldedWeights(checkpoint, "f32")
    assert np.array_equal(folded["wte"], checkpoint.floats("model.embed_tokens.weight"))
    for name, source in (("attn.out_proj", "self_attn.o_proj"), ("mlp.fc_out", "mlp.down_proj")):
        expected = checkpoint.floats(f"model.layers.0.{source}.weight")
        assert np.array_equal(folded[f"h.0.{name}.weight"][:, : expected.shape[1]], expected)


@pytest.mark.parametrize("config", [ODD, tiny("llama", 16)], ids=["gab", "llama"])
def test_the_checkpoints_arrays_are_not_changed(config: ModelConfig) -> None:
    weights = off_centre(config)
    before = {name: array.copy() for name, array in weights.items()}
    for array in weights.values():
        array.flags.writeable = False
    for weight_format in WEIGHT_FORMATS:
        folded = fold(config, weights, weight_format)
        assert not any(np.shares_memory(array, weights[name]) for array in folded.values() for name in weights)
    assert all(np.array_equal(weights[name], before[name]) for name in before)


# What is kept of a file


@tiered("name", PACKED_FORMATS, keep=[0, 1, 2, 12])
@pytest.mark.parametrize("family", ["llama", "gemma", "qwen3", "gift_of_gab", "gpt2", "gab"])
def test_a_packed_model_is_the_model_of_its_weights(family: str, name: str) -> None:
    """Of RMSNorm with gains of the inputs, of LayerNorm with sums of the weights; nothing is rounded."""
    width = max(32, block_weights(name))
    changes = {"intermediate_size": 2 * width, "tie_word_embeddings": family in ("gemma", "gpt2")}
    if family in ROTARY:
        changes |= {"hidden_size": width, "num_key_value_heads": 1}
    checkpoint = in_formats(tiny(family, width // 2, **changes), name)
    assert set(checkpoint.formats().values()) == {"F32", name}
    ids = some_ids(checkpoint.config, 5)
    found = fast_logits(checkpoint.config, kept(checkpoint), ids, "file", checkpoint.formats())
    # Where the mean is large, so is what the sums, rounded to float32, take away again.
    limit = 2e-6 if family in ROTARY else 3e-5
    assert error_of(found, checkpoint.config, unpacked(checkpoint).tensors, ids) <= limit


def test_the_comparison_of_packed_models_can_fail() -> None:
    checkpoint = in_formats(tiny("gpt2", 16, intermediate_size=64), "Q8_0")
    folded, ids = kept(checkpoint), some_ids(checkpoint.config, 5)
    for name in ("h.0.attn.qkv.consts", "h.1.mlp.fc_in.gain", "lm_head.consts"):
        changed = {**folded, name: folded[name] * np.float32(1.001)}
        found = fast_logits(checkpoint.config, changed, ids, "file", checkpoint.formats())
        assert error_of(found, checkpoint.config, unpacked(checkpoint).tensors, ids) > 1e-4, name


@pytest.mark.parametrize("name", ["Q4_0", "F16", "Q8_ROW"])
def test_heads_with_padding_stay_exact_in_every_format(name: str) -> None:
    """The columns of the output projection are spread out, which blocks of 32 cannot be: those become floats."""
    checkpoint = in_formats(tiny("llama", 24, num_attention_heads=4, hidden_size=32), name)
    recipe = Recipes(checkpoint.config, "file", checkpoint.formats()).out(0)
    assert (recipe.packing, recipe.kept) == {"Q4_0": ("f32", False), "F16": ("f16", True), "Q8_ROW": ("i8", True)}[name]
    ids = some_ids(checkpoint.config, 5)
    found = fast_logits(checkpoint.config, kept(checkpoint), ids, "file", checkpoint.formats())
    assert error_of(found, checkpoint.config, unpacked(checkpoint).tensors, ids) <= 2e-6


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K"])
def test_the_blocks_of_a_file_stay_as_they_are(name: str) -> None:
    width = 32 if name == "Q8_0" else 256
    checkpoint = in_formats(tiny("llama", width // 2, hidden_size=width, intermediate_size=width), name)
    folded, recipes = FoldedWeights(checkpoint, "file"), Recipes(checkpoint.config, "file", checkpoint.formats())
    for recipe in (recipes.qkv(0), recipes.out(1), recipes.up(1), recipes.down(0), recipes.head()):
        assert (recipe.packing, recipe.kept) == (name, True)
        found = blocks_of(folded[f"{recipe.name}.weight"], name, width)
        whole = np.concatenate([checkpoint.packed[f"{source}.weight"].blocks for source in recipe.sources])
        assert np.array_equal(found, taken(whole, recipe.rows))
        assert sorted(set(recipe.rows) - {PADDING}) == list(range(len(whole))), "every row once"
    assert np.array_equal(blocks_of(folded["wte"], name, width), checkpoint.packed["model.embed_tokens.weight"].blocks)


@pytest.mark.parametrize(("family", "offset"), [("llama", 0.0), ("gemma", 1.0), ("gpt2", 0.0)])
def test_gains_go_onto_the_inputs_where_bits_are_kept(family: str, offset: float) -> None:
    checkpoint = in_formats(tiny(family, 16, hidden_size=32, intermediate_size=64), "Q8_0")
    folded = FoldedWeights(checkpoint, "file")
    gains = {name for name in folded if name.endswith(".gain")}
    assert gains == {f"h.{layer}.{part}.gain" for layer in (0, 1) for part in ("attn.qkv", "mlp.fc_in")} | {
        "lm_head.gain"
    }
    norm = "transformer.ln_f.weight" if family == "gpt2" else "model.norm.weight"
    assert np.array_equal(folded["lm_head.gain"], (checkpoint.floats(norm) + np.float32(offset))[None])


@pytest.mark.parametrize("name", ["Q4_1", "F16"])
def test_the_sum_of_a_rows_weights_stands_for_the_mean(name: str) -> None:
    """Behind LayerNorm alone: what writes to the stream, and what RMSNorm precedes, has no sums."""
    checkpoint = in_formats(tiny("gpt2", 16, intermediate_size=64), name)
    folded = FoldedWeights(checkpoint, "file")
    matrix = checkpoint.floats("transformer.h.1.mlp.fc_in.weight").astype(np.float64)
    gain, beta = (checkpoint.floats(f"transformer.h.1.ln_2.{part}").astype(np.float64) for part in ("weight", "bias"))
    bias = checkpoint.floats("transformer.h.1.mlp.fc_in.bias")
    expected = np.stack([matrix @ gain, bias + matrix @ beta], axis=1)
    assert np.abs(folded["h.1.mlp.fc_in.consts"] - expected).max() <= 1e-6 * np.abs(expected).max()
    assert folded["h.1.mlp.fc_out.consts"].shape[1] == folded["h.1.attn.out_proj.consts"].shape[1] == 1
    assert np.array_equal(folded["h.1.mlp.fc_out.consts"][:, 0], checkpoint.floats("transformer.h.1.mlp.fc_out.bias"))
    assert np.array_equal(folded["wpe"], checkpoint.floats("transformer.wpe.weight")), "the stream keeps its mean"
    llama = FoldedWeights(in_formats(tiny("llama", 16, hidden_size=32), name), "file")
    assert {llama[f"{part}.consts"].shape[1] for part in ("h.0.attn.qkv", "lm_head")} == {1}


def test_rows_of_different_blocks_lie_in_one_matrix_exactly() -> None:
    config = tiny("llama", 16, hidden_size=32, intermediate_size=64)
    usual = {name: "Q8_0" for name, shape in weight_shapes(config).items() if len(shape) == 2}
    odd = {"model.layers.0.self_attn.v_proj.weight": "Q4_1", "model.layers.1.mlp.gate_proj.weight": "Q5_0"}
    checkpoint = in_formats(config, usual | odd)
    recipes = Recipes(config, "file", checkpoint.formats())
    packings = {recipe.name: recipe.packing for layer in (0, 1) for recipe in (recipes.qkv(layer), recipes.up(layer))}
    assert packings == {
        "h.0.attn.qkv": WIDE,
        "h.1.attn.qkv": "Q8_0",
        "h.0.mlp.fc_in": "Q8_0",
        "h.1.mlp.fc_in": WIDE,
    }
    folded = kept(checkpoint)
    sources = [f"model.layers.0.self_attn.{letter}_proj.weight" for letter in "kvq"]
    expected = np.concatenate([checkpoint.floats(source) for source in sources]).astype(np.float64)
    found = wide_values(folded["h.0.attn.qkv.weight"])
    assert np.allclose(found, taken(expected, recipes.qkv(0).rows), rtol=3e-7, atol=1e-7)
    ids = some_ids(config, 5)
    fits(folded, plan_of(config, "file", checkpoint.formats()))
    logits = fast_logits(config, folded, ids, "file", checkpoint.formats())
    assert error_of(logits, config, unpacked(checkpoint).tensors, ids) <= 2e-6


@pytest.mark.parametrize("other", ["", "F16", "Q8_ROW"])
def test_other_mixtures_become_floats(other: str) -> None:
    config = tiny("llama", 16, hidden_size=32, intermediate_size=64)
    usual = {name: "Q8_0" for name, shape in weight_shapes(config).items() if len(shape) == 2}
    checkpoint = in_formats(config, usual | {"model.layers.0.self_attn.k_proj.weight": other})
    recipe = Recipes(config, "file", checkpoint.formats()).qkv(0)
    assert (recipe.packing, recipe.kept) == ("f32", False)
    ids = some_ids(config, 5)
    logits = fast_logits(config, kept(checkpoint), ids, "file", checkpoint.formats())
    assert error_of(logits, config, unpacked(checkpoint).tensors, ids) <= 2e-6


@pytest.mark.parametrize(
    ("name", "table", "shared"),
    [("F16", "rgba16f", False), ("BF16", "rgba32f", False), ("Q8_ROW", "rgba32f", False), ("Q6_K", "Q6_K", True)],
)
def test_tied_embeddings_in_blocks_are_read_out_of_the_vocabularys_matrix(name: str, table: str, shared: bool) -> None:
    checkpoint = in_formats(tiny("gemma", 128, hidden_size=256, tie_word_embeddings=True), name)
    recipes = Recipes(checkpoint.config, "file", checkpoint.formats())
    assert (recipes.table_format, recipes.table_is_head) == (table, shared)
    folded = FoldedWeights(checkpoint, "file")
    assert ("wte" not in folded) is shared
    if not shared:
        assert np.array_equal(folded["wte"].astype(np.float32), checkpoint.floats("model.embed_tokens.weight"))
    assert checkpoint.config.embedding_scale == 16.0


@pytest.mark.parametrize(
    ("tokens", "positions"), [("F16", ""), ("", "F16"), ("Q8_0", ""), ("Q8_0", "F16"), ("F16", "Q8_0")]
)
def test_positions_are_kept_as_their_own_format_says(tokens: str, positions: str) -> None:
    names = {"transformer.wte.weight": tokens, "transformer.wpe.weight": positions}
    checkpoint = in_formats(tiny("gpt2", 16), names)
    folded = FoldedWeights(checkpoint, "file")
    assert folded["wpe"].dtype == (np.float16 if positions == "F16" else np.float32)
    assert np.array_equal(folded["wpe"].astype(np.float32), checkpoint.floats("transformer.wpe.weight"))
    if tokens != "Q8_0":
        assert np.array_equal(folded["wte"].astype(np.float32), checkpoint.floats("transformer.wte.weight"))
    fits(folded, plan_of(checkpoint.config, "file", checkpoint.formats()))


def test_a_named_format_folds_what_a_file_has_packed() -> None:
    checkpoint = in_formats(tiny("llama", 16, hidden_size=32), "Q8_0")
    found, expected = (FoldedWeights(each, "q16") for each in (checkpoint, unpacked(checkpoint)))
    assert set(found) == set(expected)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_packing_is_that_of_ggml() -> None:
    """Of what the tests above compare with themselves."""
    tensor = off_centre(tiny("llama", 16, hidden_size=32))["lm_head.weight"]
    assert np.abs(dequantize(packed_as(tensor, "Q8_0").blocks, "Q8_0") - tensor).max() <= np.abs(tensor).max() / 250


# Refusals


def test_an_unknown_format_is_refused() -> None:
    known = ", ".join((*WEIGHT_FORMATS, "file"))
    with pytest.raises(PlanError, match=rf"\Athere is no weight format 'q4'; expected one of {known}\Z"):
        FoldedWeights(in_floats(ODD), "q4")


@pytest.mark.parametrize("head_dim", [1, 7])
def test_elements_without_another_to_turn_with_are_refused(head_dim: int) -> None:
    message = rf"\Aheads of {head_dim} elements; expected an even number, as elements turn in pairs\Z"
    with pytest.raises(PlanError, match=message):
        Recipes(tiny("llama", head_dim), "f32")
    with pytest.raises(PlanError, match=message):
        plan_for(tiny("gift_of_gab", head_dim), "fast")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("transformer.wpe.weight", ""),
        ("transformer.h.1.ln_2.bias", r"h\.1\.mlp\.fc_in: "),
        ("lm_head.bias", "lm_head: "),
        ("transformer.h.0.attn.v_proj.weight", r"h\.0\.attn\.qkv: "),
    ],
)
def test_a_missing_tensor_is_named(name: str, place: str) -> None:
    weights = off_centre(ODD)
    del weights[name]
    with pytest.raises(PlanError, match=rf"\A{place}the checkpoint has no tensor {name}\Z"):
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


@pytest.mark.parametrize("weights", ["file", "q8", "f16"])
@pytest.mark.parametrize("family", ["llama", "gemma", "gpt_oss"])
def test_pieces_of_a_matrix_have_the_bits_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, family: str, weights: str
) -> None:
    """Of floats and of blocks, of one source and of several, with padding between their rows."""
    packed = in_formats(tiny(family, 18, hidden_size=64, intermediate_size=96), "Q8_0")
    found = {}
    for size in (1 << 30, 1):  # all rows together, and row by row
        monkeypatch.setattr(fold_module, "_PIECE_WEIGHTS", size)
        found[size] = dict(FoldedWeights(packed, weights))
    whole, apart = found.values()
    for name, array in whole.items():
        assert array.dtype == apart[name].dtype, name
        assert np.array_equal(array.view(np.uint8), apart[name].view(np.uint8)), name
