"""Folding changes no result: the fast plan on folded weights, in float64, is the reference plan on the checkpoint's.

And what is kept of a file keeps its bits, in the order in which passes write rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tiny_models import ROTARY, in_formats, off_centre, tiny, unpacked

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats import Checkpoint
from glinfer.formats.packed import PACKED_FORMATS, block_weights
from glinfer.formats.tensors import weight_shapes
from glinfer.kernels.options import KernelOptions
from glinfer.lower.feed import runs
from glinfer.lower.fused.token import LOGITS, fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.gab import LOGITS as REFERENCE_LOGITS
from glinfer.lower.plain.gab import TOKENS, reference_plan
from glinfer.lower.plans import plan_for, weights_for
from glinfer.lower.weights import fold as fold_module
from glinfer.lower.weights.fold import FoldedWeights
from glinfer.lower.weights.recipe import Recipes, taken
from glinfer.program.oracle import final_tensors, relative_error
from glinfer.program.session import weight_matrix
from glinfer.quant.formats import WEIGHT_FORMATS, WIDE
from glinfer.quant.groups import wide_values

Array = np.ndarray[Any, Any]
ODD = ModelConfig(37, 15, 3, 2, 70)
# Vocabulary, width, heads, blocks, context: one of everything, heads of less than a quad, of one and a bit, of a block
# and a bit; an inner width that is no multiple of 4.
SHAPES = {
    "ones": ModelConfig(1, 1, 1, 1, 1),
    "heads of 5": ODD,
    "heads of 17": ModelConfig(64, 51, 3, 1, 9),
    "heads of 65": ModelConfig(11, 65, 1, 1, 9),
    "narrow inside": ModelConfig(23, 12, 2, 2, 9, intermediate_size=7),
    "large epsilon": ModelConfig(23, 12, 2, 2, 9, layer_norm_eps=0.3),
}
# Of every other family one, and what only some have: heads of all sizes, shared keys, windows, biases, tied embeddings.
OTHERS = {
    **{family: tiny(family, 6) for family in sorted(set(DECODERS) - {"gab"})},
    "shared keys": tiny("llama", 16, num_attention_heads=6, num_key_value_heads=2, hidden_size=21),
    "heads of 2": tiny("llama", 2, num_attention_heads=5, num_key_value_heads=5),
    "heads of 18": tiny("qwen3", 18, num_attention_heads=4, num_key_value_heads=1),
    "heads of 64": tiny("gemma", 64, num_key_value_heads=1, tie_word_embeddings=True),
    "windows": tiny("mistral", 8, sliding_window=3, max_window_layers=1, num_key_value_heads=1),
    "biases": tiny("llama", 10, attention_bias=True, mlp_bias=True, num_key_value_heads=1),
    "neighbours": tiny("gift_of_gab", 12, mlp_bias=True, tie_word_embeddings=True),
    "tied gpt2": tiny("gpt2", 10, tie_word_embeddings=True),
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


def test_the_folded_model_is_the_same_model() -> None:
    for (shape, made), gelu in itertools.product(SHAPES.items(), ("tanh", "erf")):
        config = made.with_gelu(gelu)
        weights, ids = off_centre(config), some_ids(config, 9)
        found = fast_logits(config, fold(config, weights, "f32"), ids)
        assert len(found) == len(reference_logits(config, weights, ids))
        assert error_of(found, config, weights, ids) <= 1e-6, (shape, gelu)


@pytest.mark.parametrize("shape", OTHERS)
def test_the_folded_model_of_every_family_is_the_same_model(shape: str) -> None:
    config = OTHERS[shape]
    weights, ids = off_centre(config), some_ids(config, 9)
    found = fast_logits(config, fold(config, weights, "f32"), ids)
    for count in (2, len(ids)):
        assert error_of(found[:count], config, weights, ids[:count]) <= 2e-6, count


# Formats


def fits(folded: Mapping[str, Array], plan: Any) -> None:
    """The arrays are those that the plan uploads: names, shapes and types."""
    wanted = plan.of_kind("weight")
    assert {tensor.name for tensor in wanted} == set(folded)
    for tensor in wanted:
        assert weight_matrix(tensor, folded).shape == tensor.shape  # which checks shape and type


def test_the_arrays_are_those_that_the_plan_asks_for() -> None:
    formats = itertools.cycle(WEIGHT_FORMATS)
    for config in (ODD, OTHERS["llama"], *ALL.values()):
        weights = off_centre(config)
        for weight_format in itertools.islice(formats, 2):
            fits(fold(config, weights, weight_format), plan_of(config, weight_format))


def test_the_arrays_of_a_packed_file_are_those_that_the_plan_asks_for() -> None:
    for name, family in zip(itertools.cycle(PACKED_FORMATS), [*DECODERS] * 2, strict=False):
        checkpoint = in_formats(tiny(family, 16, hidden_size=32, intermediate_size=96), name)
        fits(FoldedWeights(checkpoint, "file"), plan_of(checkpoint.config, "file", checkpoint.formats()))


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


# What folding does


def test_rounding_keeps_inputs_with_small_gains() -> None:
    """Gemma's stream is large where the gains are small; a rounded matrix that absorbs them loses these columns."""
    config = tiny("gemma2", 16, hidden_size=64, num_hidden_layers=1)
    sizes = (4.0 ** np.random.default_rng(3).uniform(-4, 4, 64)).astype(np.float32)
    before = ("input_layernorm.weight", "pre_feedforward_layernorm.weight", "model.norm.weight")
    weights = {name: np.array(array) for name, array in off_centre(config).items()}
    for name, array in weights.items():
        if name.endswith("norm.weight"):
            array[...] = (1 + array) * (1 / sizes if name.endswith(before) else sizes) - 1
        elif name == "model.embed_tokens.weight":
            array *= sizes
    ids = some_ids(config, 9)
    for choice in ("q8", "q16"):
        found = fast_logits(config, fold(config, weights, choice), ids, choice)
        assert error_of(found, config, weights, ids) <= {"q8": 2e-2, "q16": 1e-3}[choice]


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


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "F16"),
        ("gemma", "BF16"),
        ("granite", "Q8_0"),
        ("qwen3", "Q8_ROW"),
        ("gift_of_gab", "Q8_0"),
        ("gpt2", "Q5_1"),
        ("gab", "Q4_K"),
    ],
)
def test_a_packed_model_is_the_model_of_its_weights(family: str, name: str) -> None:
    """Of RMSNorm with gains of the inputs, of LayerNorm with sums of the weights; nothing is rounded."""
    width = max(32, block_weights(name))
    changes = {"intermediate_size": 2 * width, "tie_word_embeddings": family in ("gemma", "gpt2")}
    if family in ROTARY:
        changes |= {"hidden_size": width, "num_key_value_heads": 1}
    if family == "granite":
        changes |= {"residual_multiplier": 0.4, "logits_scaling": 8.0}
    checkpoint = in_formats(tiny(family, width // 2, **changes), name)
    assert set(checkpoint.formats().values()) == {"F32", name}
    ids = some_ids(checkpoint.config, 5)
    found = fast_logits(checkpoint.config, kept(checkpoint), ids, "file", checkpoint.formats())
    # Where the mean is large, so is what the sums, rounded to float32, take away again.
    limit = 2e-6 if family in ROTARY else 3e-5
    assert error_of(found, checkpoint.config, unpacked(checkpoint).tensors, ids) <= limit


def test_rows_of_different_blocks_lie_in_one_matrix_exactly() -> None:
    config = tiny("llama", 16, hidden_size=32, intermediate_size=64)
    usual = {name: "Q8_0" for name, shape in weight_shapes(config).items() if len(shape) == 2}
    odd = {"model.layers.0.self_attn.v_proj.weight": "Q4_1", "model.layers.1.mlp.gate_proj.weight": "Q5_0"}
    checkpoint = in_formats(config, usual | odd)
    recipes = Recipes(config, "file", checkpoint.formats())
    packings = {recipe.name: recipe.packing for layer in (0, 1) for recipe in (recipes.qkv(layer), recipes.up(layer))}
    assert packings == {"h.0.attn.qkv": WIDE, "h.1.attn.qkv": "Q8_0", "h.0.mlp.fc_in": "Q8_0", "h.1.mlp.fc_in": WIDE}
    folded = kept(checkpoint)
    sources = [f"model.layers.0.self_attn.{letter}_proj.weight" for letter in "kvq"]
    expected = np.concatenate([checkpoint.floats(source) for source in sources]).astype(np.float64)
    found = wide_values(folded["h.0.attn.qkv.weight"])
    assert np.allclose(found, taken(expected, recipes.qkv(0).rows), rtol=3e-7, atol=1e-7)
    ids = some_ids(config, 5)
    fits(folded, plan_of(config, "file", checkpoint.formats()))
    logits = fast_logits(config, folded, ids, "file", checkpoint.formats())
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


def test_embeddings_keep_their_blocks_in_every_weight_format() -> None:
    """But for a model whose embeddings lose their mean."""
    checkpoint = in_formats(tiny("llama", 16, hidden_size=32), "Q4_1")
    for weights in WEIGHT_FORMATS:
        folded = FoldedWeights(checkpoint, weights)
        assert np.array_equal(folded["wte"], FoldedWeights(checkpoint, "file")["wte"])
        fits(folded, plan_of(checkpoint.config, weights, checkpoint.formats()))
    centred = in_formats(tiny("gpt2", 16), "Q4_1")
    assert Recipes(centred.config, "q8", centred.formats()).table_format == "rgba16f"


# Refusals


def test_elements_without_another_to_turn_with_are_refused() -> None:
    message = r"\Aheads of 7 elements; expected an even number, as elements turn in pairs\Z"
    with pytest.raises(PlanError, match=message):
        Recipes(tiny("llama", 7), "f32")
    with pytest.raises(PlanError, match=message):
        plan_for(tiny("gift_of_gab", 7), "fast")


def test_a_missing_tensor_is_named() -> None:
    for name, place in (
        ("transformer.wpe.weight", ""),
        ("transformer.h.1.ln_2.bias", r"h\.1\.mlp\.fc_in: "),
        ("transformer.h.0.attn.v_proj.weight", r"h\.0\.attn\.qkv: "),
    ):
        weights = off_centre(ODD)
        del weights[name]
        with pytest.raises(PlanError, match=rf"\A{place}the checkpoint has no tensor {name}\Z"):
            fold(ODD, weights, "f32")


def test_a_weight_beyond_float16_is_named() -> None:
    for tensor, place, message in (
        ("transformer.wpe.weight", "wpe", "; use f32"),
        ("transformer.h.0.attn.k_proj.weight", r"h\.0\.attn\.qkv", "; use f32 or q16"),
        ("lm_head.weight", "lm_head", "; use f32 or q16"),
    ):
        weights = off_centre(ODD)
        weights[tensor][1, 2] = 1e9
        with pytest.raises(PlanError, match=rf"\A{place}: a weight of \S+ is beyond float16's 65504{message}\Z"):
            fold(ODD, weights, "f16")
        fold(ODD, weights, "f32")


@pytest.mark.parametrize(("family", "weights"), [("llama", "file"), ("gemma", "q8"), ("gpt_oss", "file")])
def test_pieces_of_a_matrix_have_the_bits_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, family: str, weights: str
) -> None:
    """Of floats and of blocks, of one source and of several, with padding between their rows."""
    packed = in_formats(tiny(family, 18, hidden_size=64, intermediate_size=96), "Q8_0")
    found = {}
    for size in (1 << 30, 1):  # all rows together, and row by row
        monkeypatch.setattr(fold_module, "PIECE_WEIGHTS", size)
        found[size] = dict(FoldedWeights(packed, weights))
    whole, apart = found.values()
    for name, array in whole.items():
        assert array.dtype == apart[name].dtype, name
        assert np.array_equal(array.view(np.uint8), apart[name].view(np.uint8)), name
