"""Reference plans of the families beside Gab without a GPU: counts, textures, arrays, and which model has which."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import ROTARY, in_floats, in_formats, tiny, unpacked

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats.tensors import weight_shapes
from glinfer.models.choice import ReferencePlans, is_published, plan_for, reference_plans, weights_for, weights_named
from glinfer.models.feed import runs
from glinfer.models.oracle import final_tensors
from glinfer.models.plan import Plan, PlanLimits, draw_table
from glinfer.models.reference.gab import reference_plan
from glinfer.models.reference.parts import DecoderWeights, stored_formats
from glinfer.ops.kernels import KernelOptions

ROOT = Path(__file__).resolve().parents[2]
Array = np.ndarray[Any, Any]
EDGE = 16384
OTHERS = sorted(set(DECODERS) - {"gab"})
LLAMA_1B = ModelConfig.from_options(
    "family=llama,vocab=128256,dim=2048,heads=32,kv_heads=8,blocks=16,inner=8192,context=4096,tied=1"
)
BILLION = 4 * 1_235_814_400  # bytes of float32: parameters with the tied vocabulary once


def plans(config: ModelConfig, formats: Mapping[str, str] | None = None, weights: str = "file") -> ReferencePlans:
    return reference_plans(config, weights, formats, KernelOptions(), EDGE)


def kinds(plan: Plan) -> dict[str, int]:
    return {row.kind: row.count for row in draw_table(plan, 1).rows}


# Counts


@pytest.mark.parametrize(
    ("family", "draws"),
    [
        ("llama", 55),
        ("mistral", 55),
        ("qwen2", 55),
        ("qwen3", 71),
        ("gemma", 56),
        ("gift_of_gab", 51),
        ("gpt2", 48),
    ],
)
def test_how_many_draws_a_sequence_takes(family: str, draws: int) -> None:
    for head_dim in (8, 6):
        assert len(plans(tiny(family, head_dim)).of(48).draws) == draws


@pytest.mark.parametrize("family", OTHERS)
@pytest.mark.parametrize("layers", [1, 5])
def test_every_layer_takes_as_many(family: str, layers: int) -> None:
    one, two, more = (plans(tiny(family, num_hidden_layers=count)).of(48) for count in (1, 2, layers))
    rest = sum(count for kind, count in kinds(two).items() if kind.split(".")[0] in ("embed", "lm_head", "probs"))
    first, second = len(one.draws) - rest, len(two.draws) - len(one.draws)
    assert (first == second) == (not FAMILIES[family].convolves and not FAMILIES[family].delta_rule)
    assert len(more.draws) == rest + first * (layers - layers // 2) + second * (layers // 2)


def test_matrices_of_different_formats_take_no_more() -> None:
    config = tiny("llama", 16, hidden_size=32, intermediate_size=64)
    usual = {name: "Q8_0" if len(shape) == 2 else "F32" for name, shape in weight_shapes(config).items()}
    odd = usual | {"model.layers.0.self_attn.v_proj.weight": "Q4_0"}
    assert len(plans(config, odd).of(48).draws) == len(plans(config).of(48).draws)


# Which model has which


def test_the_published_plan_is_that_of_gab_and_of_gpt2_in_floats() -> None:
    gpt2 = tiny("gpt2")
    assert is_published(tiny("gab"))
    assert is_published(gpt2)
    assert is_published(gpt2, dict.fromkeys(weight_shapes(gpt2), "F32"))
    assert not is_published(gpt2, {"transformer.wte.weight": "Q8_0"})
    assert not any(is_published(tiny(family)) for family in ROTARY)
    assert plan_for(gpt2, "reference").draws == reference_plan(gpt2).draws
    packed = in_formats(tiny("gpt2", 16), "F16")
    plan = plan_for(packed.config, "reference", formats=packed.formats())
    assert [draw.name for draw in plan.draws] == [draw.name for draw in plans(packed.config).of(48).draws]


@pytest.mark.parametrize("family", ROTARY)
def test_the_plan_by_its_name_is_the_familys(family: str) -> None:
    plan = plan_for(tiny(family), "reference")
    assert (plan.name, plan.max_rows) == ("reference", 48)
    assert [draw.name for draw in plan.draws] == [draw.name for draw in plans(tiny(family)).of(48).draws]


@pytest.mark.parametrize(
    ("weights", "formats", "expected"),
    [
        ("file", None, "f32"),
        ("file", {"a": "F32", "b": "F32"}, "f32"),
        ("file", {"a": "F32", "b": "F16"}, "file"),
        ("file", {"a": "Q8_ROW"}, "file"),
        ("f32", {"a": "F16"}, "f32"),
        ("q8", None, "q8"),
    ],
)
def test_what_a_weight_format_means(weights: str, formats: Mapping[str, str] | None, expected: str) -> None:
    assert weights_named(weights, formats) == expected


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(InputError, match=r"\Athere is no weight format 'q3'; expected one of [^\n]*\Z"):
        plan_for(tiny("llama"), "reference", weights="q3")
    with pytest.raises(InputError, match=r"\Athe reference plan keeps its weights in f32, found q8; [^\n]*\Z"):
        plan_for(tiny("llama"), "reference", weights="q8")
    with pytest.raises(PlanError, match=r"\Athere is no weight format 'q3' for a reference plan; expected [^\n]*\Z"):
        plans(tiny("llama"), weights="q3")
    with pytest.raises(PlanError, match=r"\A16777216 layers need more than [0-9]+ draws; expected fewer\Z"):
        plan_for(tiny("llama", num_hidden_layers=1 << 24), "reference")
    with pytest.raises(PlanError, match=r"\Atensor model\.embed_tokens\.weight: [^\n]* 65667072 texels[^\n]*\Z"):
        plan_for(LLAMA_1B, "reference", max_texture_size=2048)
    with pytest.raises(PlanError, match=r"\Adraw h\.0\.attn\.q_turned: heads of 7 elements [^\n]*\Z"):
        plan_for(tiny("llama", 7), "reference")


# Textures


@pytest.mark.parametrize("family", OTHERS)
def test_every_weight_of_the_file_is_read(family: str) -> None:
    config = tiny(family)
    expected = set(weight_shapes(config)) | ({"rope"} if FAMILIES[family].rotary else set())
    assert {tensor.name for tensor in plans(config).of(48).of_kind("weight")} == expected


def test_run_values_follow_the_tokens() -> None:
    assert plans(tiny("llama", num_key_value_heads=1)).of(48).values_for(7) == {"last_row": 6}


def test_a_billion_parameters_fit() -> None:
    """Llama 3.2 1B, without GL: nothing is allocated, and every texture is one that nearly every renderer has."""
    made = plans(LLAMA_1B, weights="f32")
    short, whole = made.of(64), made.of(4096)
    for plan in (short, whole):
        assert plan.validate(PlanLimits(EDGE, 4, 16)) is plan
        assert plan.texture_bytes(EDGE, "cache") == 0
    assert BILLION <= short.texture_bytes(EDGE, "weight") <= 1.0005 * BILLION
    assert short.texture_bytes(EDGE, "activation") < 1 << 24
    assert whole.texture_bytes(EDGE, "activation") > 2 * 4 * 32 * 4096**2, "scores and probabilities of all heads"


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "Q6_K", "BF16", "F16"])
def test_blocks_take_the_bytes_of_their_file_and_little_more(name: str) -> None:
    matrices = {each: shape for each, shape in weight_shapes(LLAMA_1B).items() if len(shape) == 2}
    plan = plans(LLAMA_1B, dict.fromkeys(matrices, name)).of(64)
    blocks = {"Q8_0": 34 / 32, "Q4_0": 18 / 32, "Q4_K": 144 / 256, "Q6_K": 210 / 256, "BF16": 2.0, "F16": 2.0}
    in_file = blocks[name] * sum(rows * cols for rows, cols in matrices.values())
    assert in_file <= plan.texture_bytes(EDGE, "weight") - 4 * 4096 * 64 <= 1.06 * in_file


@pytest.mark.parametrize("weights", ["file", "f32"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_arrays_are_those_that_the_plan_uploads(family: str, weights: str) -> None:
    config = tiny(family, 16, hidden_size=32, intermediate_size=64)
    names = [name for name, shape in weight_shapes(config).items() if len(shape) == 2 and "v_proj" not in name]
    checkpoint = in_formats(config, {name: "Q4_0" for name in names if "wpe" not in name})
    plan = plan_for(config, "reference", weights=weights, formats=checkpoint.formats())
    arrays = weights_for(checkpoint, "reference", weights)
    for tensor in plan.of_kind("weight"):
        assert tensor.name in arrays
        array = np.atleast_2d(arrays[tensor.name])
        assert array.shape == tensor.shape, tensor.name
        expected = {"rgba32f": np.float32, "rgba16f": np.float16, "rgba32ui": np.uint32}[tensor.format]
        assert array.dtype == expected, tensor.name
    assert "no.such.weight" not in arrays
    assert len(arrays) == len(list(arrays)) == len(weight_shapes(config))


# Numbers, by the oracle alone


@pytest.mark.parametrize("form", ["F16", "BF16", "Q4_0", "Q8_ROW"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_packed_model_is_the_model_of_its_weights(family: str, form: str) -> None:
    checkpoint = in_formats(tiny(family, 16, hidden_size=32, intermediate_size=64), form)
    found = []
    for each in (checkpoint, unpacked(checkpoint)):
        stored = stored_formats(each.config, "file", each.formats())
        plan = reference_plans(each.config, "file", each.formats(), KernelOptions(), 256).of(12)
        ((inputs, values),) = runs(plan, [3, 1, 4, 1, 5])
        found.append(final_tensors(plan, DecoderWeights(each, stored), inputs, values)["logits"])
    assert np.ptp(found[0]) > 0.1
    assert np.abs(found[0] - found[1]).max() <= 1e-9 * np.ptp(found[0])


def test_gpt2_by_both_reference_plans() -> None:
    """The published one, and that of the other families, which takes over where matrices are packed."""
    checkpoint = in_floats(tiny("gpt2", 6))
    ids = [3, 1, 4, 1, 5, 9]
    published, other = plan_for(checkpoint.config, "reference"), plans(checkpoint.config).of(12)
    ((inputs, values),) = runs(published, ids)
    expected = final_tensors(published, checkpoint.tensors, inputs, values)["logits"]
    ((inputs, values),) = runs(other, ids)
    arrays = DecoderWeights(checkpoint, stored_formats(checkpoint.config, "f32"))
    found = final_tensors(other, arrays, inputs, values)["logits"]
    assert np.abs(found - expected).max() <= 1e-9 * np.ptp(expected)


def test_reference_plans_need_no_opengl() -> None:
    code = (
        "import sys\nfrom glinfer.config import ModelConfig\n"
        "from glinfer.models.reference.parts import ReferenceOptions, stored_formats\n"
        "from glinfer.models.reference.decoder import reference_decoder_plan\n"
        "from glinfer.ops.kernels import KernelOptions\n"
        "config = ModelConfig(31, 20, 2, 2, 48, 24, model_type='llama', hidden_act='silu')\n"
        "options = ReferenceOptions(config, stored_formats(config, 'f32'), KernelOptions(), 2048)\n"
        "assert len(reference_decoder_plan(options, rows=48).draws) == 55\n"
        "print(sorted({'moderngl', 'glcontext'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
