"""Plans of decoders without a GPU: how many draws each family takes, which textures, and that they fit and agree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.formats.families import FAMILIES, weight_shapes
from glinfer.formats.packed import PackedTensor
from glinfer.ggml import pack
from glinfer.models.choice import DecoderPlans, decoder_plans, is_decoder, plan_for, weights_for
from glinfer.models.oracle import run_plan
from glinfer.models.plan import Plan, PlanLimits, draw_table
from glinfer.ops.kernels import Kernels

ROOT = Path(__file__).resolve().parents[2]
Array = np.ndarray[Any, Any]
EDGE = 16384
DECODERS = sorted(set(FAMILIES) - {"gab"})
LLAMA_1B = ModelConfig(
    128256,
    2048,
    32,
    16,
    4096,
    8192,
    hidden_act="silu",
    model_type="llama",
    tie_word_embeddings=True,
    num_key_value_heads=8,
    rope_theta=5e5,
    rope_scaling={
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },  # type: ignore[arg-type]
)


def tiny(family: str, head_dim: int = 8, **changes: Any) -> ModelConfig:
    """Two layers of two heads, for 48 tokens."""
    gpt2 = family == "gpt2"
    given: dict[str, Any] = {
        "vocab_size": 31,
        "hidden_size": 2 * head_dim if gpt2 else 20,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "max_position_embeddings": 48,
        "intermediate_size": 24,
        "hidden_act": "silu" if FAMILIES[family].gated else "gelu",
        "model_type": family,
        "head_dim": 0 if gpt2 else head_dim,
        **changes,
    }
    return ModelConfig(**given)


def plans(config: ModelConfig, formats: Mapping[str, str] | None = None, weights: str = "file") -> DecoderPlans:
    return decoder_plans(config, weights, formats, Kernels(), EDGE)


def kinds(plan: Plan) -> dict[str, int]:
    return {row.kind: row.count for row in draw_table(plan, 1).rows}


# Counts


@pytest.mark.parametrize(
    ("family", "fast", "reference"),
    [
        ("llama", (30, 32), 55),
        ("mistral", (30, 32), 55),
        ("qwen2", (30, 32), 55),
        ("qwen3", (30, 32), 71),
        ("gemma", (31, 33), 56),
        ("gift_of_gab", (28, 30), 51),
        ("gpt2", (29, 31), 48),
    ],
)
def test_how_many_draws_a_token_takes(family: str, fast: tuple[int, int], reference: int) -> None:
    """Of the fast plan: with heads of whole texels, and of others, which are joined by a draw a layer."""
    for head_dim, count in zip((8, 6), fast, strict=True):
        made = plans(tiny(family, head_dim))
        assert len(made.fast().draws) == count
        assert len(made.fast(16).draws) == fast[1] + 1, "the last row of many is taken out"
        assert len(made.fast(16, likelihoods=True).draws) == fast[1] + 4
        assert len(made.reference(48).draws) == reference


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("layers", [1, 5])
def test_every_layer_takes_as_many(family: str, layers: int) -> None:
    two, more = plans(tiny(family)), plans(tiny(family, num_hidden_layers=layers))
    for one, other in ((two.fast(), more.fast()), (two.reference(48), more.reference(48))):
        rest = sum(count for kind, count in kinds(one).items() if kind.split(".")[0] in ("embed", "lm_head", "probs"))
        assert (len(one.draws) - rest) % 2 == 0
        assert len(other.draws) == rest + (len(one.draws) - rest) // 2 * layers


def test_the_passes_of_llama() -> None:
    assert kinds(plans(tiny("llama")).fast()) == {
        "embed": 1,
        "attn.norm": 4,
        "attn.qkv": 2,
        "attn.heads": 2,
        "attn.cache": 2,
        "attn.mixed": 4,
        "attn.out": 2,
        "mlp.norm": 4,
        "mlp.gate_up": 2,
        "mlp.gate": 2,
        "mlp.down": 2,
        "lm_head": 3,
    }


def test_matrices_of_different_formats_do_not_lie_together() -> None:
    """Two more products and one draw that puts them side by side; one more product for the gate."""
    config, layer = tiny("llama", 16, hidden_size=32, intermediate_size=64), "model.layers.0"
    usual = dict.fromkeys(weight_shapes(config), "Q8_0") | {
        name: "F32" for name, shape in weight_shapes(config).items() if len(shape) == 1
    }
    assert len(plans(config, usual).fast().draws) == 30
    odd_v = usual | {f"{layer}.self_attn.v_proj.weight": "Q4_0"}
    assert len(plans(config, odd_v).fast().draws) == 30 + 3
    odd_gate = usual | {f"{layer}.mlp.gate_proj.weight": "Q4_0"}
    assert len(plans(config, odd_gate).fast().draws) == 30 + 1
    assert len(plans(config, odd_v).reference(48).draws) == len(plans(config).reference(48).draws)
    table = plans(config, odd_v).fast().table
    assert f"{layer}.self_attn.{{q,k,v}}_proj.weight" not in table
    assert "model.layers.1.self_attn.{q,k,v}_proj.weight" in table


# Which model runs so


def test_who_is_a_decoder() -> None:
    assert not is_decoder(ModelConfig.from_options(""))
    assert not is_decoder(tiny("gpt2"))
    assert not is_decoder(tiny("gpt2"), dict.fromkeys(weight_shapes(tiny("gpt2")), "F32"))
    assert is_decoder(tiny("gpt2"), {"transformer.wte.weight": "Q8_0"})
    assert all(is_decoder(tiny(family)) for family in DECODERS if family != "gpt2")


@pytest.mark.parametrize("name", ["fast", "reference"])
@pytest.mark.parametrize("family", [family for family in DECODERS if family != "gpt2"])
def test_the_plan_by_its_name_is_the_families(family: str, name: str) -> None:
    plan = plan_for(tiny(family), name)
    assert (plan.name, plan.max_rows) == (name, 48)
    made = plans(tiny(family))
    assert [draw.name for draw in plan.draws] == [
        draw.name for draw in (made.fast() if name == "fast" else made.reference(48)).draws
    ]


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(InputError, match=r"\Athere is no weight format 'q3'; expected one of [^\n]*\Z"):
        plan_for(tiny("llama"), "fast", weights="q3")
    with pytest.raises(PlanError, match=r"\Athere is no weight format 'q3'; expected one of file, f32, [^\n]*\Z"):
        plans(tiny("llama"), weights="q3")
    with pytest.raises(PlanError, match=r"\A16777216 layers need more than [0-9]+ draws; expected fewer\Z"):
        plan_for(tiny("llama", num_hidden_layers=1 << 24), "fast")
    with pytest.raises(PlanError, match=r"\Atensor model\.embed_tokens\.weight: [^\n]* 65667072 texels[^\n]*\Z"):
        plan_for(LLAMA_1B, "fast", max_texture_size=2048)


# Textures


@pytest.mark.parametrize("family", DECODERS)
def test_every_weight_of_the_file_is_read_by_both_plans(family: str) -> None:
    config = tiny(family)
    expected = set(weight_shapes(config)) | ({"rope"} if FAMILIES[family].rotary else set())
    for plan in (plans(config).fast(), plans(config).fast(16), plans(config).reference(48)):
        found = set()
        for tensor in plan.of_kind("weight"):
            start, brace, rest = tensor.name.partition("{")
            inside, _, end = rest.partition("}")
            found |= {start + part + end for part in inside.split(",")} if brace else {tensor.name}
        assert found == expected


def test_a_run_of_many_tokens_shares_weights_and_caches() -> None:
    made = plans(tiny("qwen3"))
    one, many, judge = made.fast(), made.fast(16), made.fast(8, likelihoods=True)
    for other in (many, judge):
        for kind in ("weight", "cache"):
            assert {each.name: each for each in other.of_kind(kind)} == {each.name: each for each in one.of_kind(kind)}


def test_run_values_follow_the_tokens() -> None:
    made = plans(tiny("llama", num_key_value_heads=1))
    assert made.fast().values_for(5) == {"position": 4, "rows": 1, "appended": 1}
    assert made.fast(16).values_for(16) == {"position": 0, "rows": 16, "appended": 16, "last_row": 15}
    assert made.fast(16).values_for(17) == {"position": 16, "rows": 1, "appended": 1, "last_row": 0}
    assert made.reference(48).values_for(7) == {"last_row": 6}


BILLION = 4 * 1_235_814_400  # bytes of float32: parameters with the tied vocabulary once
ROPE_BYTES = 4 * 4096 * 64
PADDING = 1 << 16  # bytes of a texture's last line, which no row fills, at most


@pytest.mark.parametrize(
    ("weights", "least", "most"),
    [
        ("f32", BILLION, 1.0005 * BILLION),
        ("f16", BILLION / 2, 1.001 * BILLION / 2),
        ("q16", BILLION / 2, 1.01 * BILLION / 2),
        ("q8", BILLION / 4, 1.02 * BILLION / 4),
        ("q8l", BILLION / 4 + 128256 * 2048, 1.02 * BILLION / 4 + 128256 * 2048),
    ],
)
def test_a_billion_parameters_fit(weights: str, least: float, most: float) -> None:
    """Llama 3.2 1B, without GL: nothing is allocated, and every texture is one that nearly every renderer has."""
    made = decoder_plans(LLAMA_1B, weights, None, Kernels(), EDGE)
    one, many = made.fast(), made.fast(512)
    for plan in (one, many):
        assert plan.validate(PlanLimits(EDGE, 4, 16)) is plan
        assert least <= plan.texture_bytes(EDGE, "weight") <= most + ROPE_BYTES
        assert plan.texture_bytes(EDGE, "cache") == 2 * 16 * 8 * 4096 * 64 * 4
    # Of long rows of floats the parts of each are added up by a draw of its own; of fewer bits a quad shares them.
    assert len(one.draws) == 1 + 16 * 14 + 3
    assert one.texture_bytes(EDGE, "activation") < 1 << 20
    assert many.texture_bytes(EDGE, "activation") < 1 << 28
    assert one.texture_bytes(EDGE, "input") < 1 << 10


def test_a_billion_parameters_by_the_reference_plan() -> None:
    made = decoder_plans(LLAMA_1B, "f32", None, Kernels(), EDGE)
    short, whole = made.reference(64), made.reference(4096)
    for plan in (short, whole):
        assert plan.validate(PlanLimits(EDGE, 4, 16)) is plan
        assert plan.texture_bytes(EDGE, "cache") == 0
    assert BILLION <= short.texture_bytes(EDGE, "weight") <= 1.0005 * BILLION
    assert short.texture_bytes(EDGE, "activation") < 1 << 24
    assert whole.texture_bytes(EDGE, "activation") > 2 * 4 * 32 * 4096**2, "scores and probabilities of all heads"


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "Q6_K", "BF16", "F16"])
def test_blocks_take_the_bytes_of_their_file_and_little_more(name: str) -> None:
    matrices = {each: shape for each, shape in weight_shapes(LLAMA_1B).items() if len(shape) == 2}
    plan = decoder_plans(LLAMA_1B, "file", dict.fromkeys(matrices, name), Kernels(), EDGE).fast()
    blocks = {"Q8_0": 34 / 32, "Q4_0": 18 / 32, "Q4_K": 144 / 256, "Q6_K": 210 / 256, "BF16": 2.0, "F16": 2.0}
    in_file = blocks[name] * sum(rows * cols for rows, cols in matrices.values())
    found = plan.texture_bytes(EDGE, "weight") - ROPE_BYTES
    assert in_file <= found <= 1.06 * in_file
    assert len(plan.draws) == 1 + 16 * 14 + 3


@pytest.mark.parametrize("weights", ["file", "f32", "f16", "q16", "q8", "q8l"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_arrays_are_those_that_the_plan_uploads(family: str, weights: str) -> None:
    config = tiny(family, 16, hidden_size=32, intermediate_size=64)
    floats = random_checkpoint(config)
    packed = {
        name: PackedTensor("Q4_0", pack(tensor, "Q4_0"))
        for name, tensor in floats.tensors.items()
        if tensor.ndim == 2 and "wpe" not in name and "v_proj" not in name
    }
    tensors = {name: tensor for name, tensor in floats.tensors.items() if name not in packed}
    checkpoint = Checkpoint(config, tensors, "test", packed)
    plan = plan_for(config, "fast", weights=weights, formats=checkpoint.formats())
    arrays = weights_for(checkpoint, "fast", weights)
    for tensor in plan.of_kind("weight"):
        assert tensor.name in arrays
        array = np.atleast_2d(arrays[tensor.name])
        assert array.shape == tensor.shape, tensor.name
        expected = {"rgba32f": np.float32, "rgba16f": np.float16, "rgba32ui": np.uint32}[tensor.format]
        assert array.dtype == expected, tensor.name
    assert "no.such.weight" not in arrays
    assert len(arrays) == len(list(arrays)) == len(weight_shapes(config))


# Numbers: both plans, by the oracle alone


@pytest.mark.parametrize("family", DECODERS)
def test_the_oracles_of_all_plans_agree(family: str) -> None:
    """One token a run, five a run, and the whole sequence: the same logits in float64."""
    config = tiny(family, 6, sliding_window=3 if family == "mistral" else 0, max_position_embeddings=12)
    checkpoint = random_checkpoint(config, scale=0.3)
    formats = {"transformer.wte.weight": "F16"} if family == "gpt2" else None  # so that it is a decoder
    made = decoder_plans(config, "f32", formats, Kernels(targets=2), 256)
    weights = weights_for(checkpoint, "fast", "f32") if family != "gpt2" else _as_decoder(checkpoint)
    ids = np.random.default_rng(1).integers(0, 31, (9, 1), dtype=np.int32)

    def last(plan: Plan, tokens: Array, values: Mapping[str, int], caches: dict[str, Array]) -> Array:
        (found,) = (
            written
            for draw, written in run_plan(plan, weights, {"tokens": tokens}, values, caches)
            if draw.outputs == ("logits",)
        )
        return found

    by_token: dict[str, Array] = {}
    heads, one = config.num_key_value_heads, made.fast()
    for place in range(9):
        values = {"position": place, "rows": 1, "appended": heads}
        found = last(one, ids[place : place + 1], values, by_token)
    by_chunk: dict[str, Array] = {}
    many, size = made.fast(5), 5
    for start in range(0, 9, size):
        count = min(size, 9 - start)
        padded = np.zeros((size, 1), np.int32)
        padded[:count] = ids[start : start + count]
        values = {"position": start, "rows": count, "appended": heads * count, "last_row": count - 1}
        chunked = last(many, padded, values, by_chunk)
    whole = last(made.reference(12), np.pad(ids, ((0, 3), (0, 0))), {"last_row": 8}, {})
    assert np.ptp(whole) > 0.1
    for other in (found, chunked):
        assert np.abs(other - whole).max() < 1e-9 * np.ptp(whole)
    for name, cache in by_token.items():
        one_by_one, together = (each.reshape(heads, 12, 6)[:, :9] for each in (cache, by_chunk[name]))
        assert np.abs(one_by_one - together).max() <= 1e-12, name


def _as_decoder(checkpoint: Checkpoint) -> Mapping[str, Array]:
    """The arrays of GPT-2's plans for weights in blocks, all of them floats."""
    from glinfer.models.decoder import DecoderWeights, stored_formats

    return DecoderWeights(checkpoint, stored_formats(checkpoint.config, "f32"))


def test_decoder_plans_need_no_opengl() -> None:
    code = (
        "import sys\nfrom glinfer.config import ModelConfig\n"
        "from glinfer.models.decoder import Setting, stored_formats\n"
        "from glinfer.models.decoder_fast import decoder_plan\nfrom glinfer.models.llama import STYLES\n"
        "from glinfer.ops.kernels import Kernels\n"
        "config = ModelConfig(31, 20, 2, 2, 48, 24, model_type='llama', hidden_act='silu')\n"
        "setting = Setting(config, STYLES['llama'], stored_formats(config, 'f32'), Kernels(), 2048)\n"
        "plan = decoder_plan(setting)\n"
        "assert len(plan.draws) == 32\n"
        "print(sorted({'moderngl', 'glcontext'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
