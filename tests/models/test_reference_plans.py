"""Reference plans of the families beside Gab without a GPU: counts, textures, arrays, and which model has which."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from tiny_models import ROTARY, in_floats, in_formats, tiny, unpacked

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats.tensors import weight_shapes
from glinfer.kernels.options import KernelOptions
from glinfer.lower.feed import runs
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.gab import reference_plan
from glinfer.lower.plain.weights import DecoderWeights, stored_formats
from glinfer.lower.plans import (
    DEFAULT_WEIGHTS,
    ReferencePlans,
    is_published,
    plan_for,
    weights_for,
    weights_named,
)
from glinfer.lower.ropes import rope_names
from glinfer.program.oracle import final_tensors
from glinfer.quant.formats import GROUP_FORMS

EDGE = 16384
OTHERS = sorted(set(DECODERS) - {"gab"})
LLAMA_1B = ModelConfig.from_options(
    "family=llama,vocab=128256,dim=2048,heads=32,kv_heads=8,blocks=16,inner=8192,context=4096,tied=1"
)


def plans(config: ModelConfig, formats: Mapping[str, str] | None = None, weights: str = "file") -> ReferencePlans:
    return ReferencePlans(PlanOptions(config, weights, KernelOptions(), EDGE, formats))


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


def test_what_a_weight_format_means() -> None:
    cases: list[tuple[str, Mapping[str, str] | None, str]] = [
        ("file", None, "f32"),
        ("file", {"a": "F32", "b": "F32"}, "f32"),
        ("file", {"a": "F32", "b": "F16"}, "file"),
        ("file", {"a": "Q8_ROW"}, "file"),
        ("f32", {"a": "F16"}, "f32"),
        ("q8", None, "q8"),
    ]
    for weights, formats, expected in cases:
        assert weights_named(weights, formats) == expected
        assert weights_named(weights, formats, "reference") == expected


def test_the_default_is_q8_for_blocks_and_the_format_of_any_other_file() -> None:
    cases: list[tuple[Mapping[str, str] | None, str, str]] = [
        (None, "f32", "f32"),
        ({"a": "F32", "b": "F32"}, "f32", "f32"),
        ({"a": "F32", "b": "F16"}, "file", "file"),
        ({"a": "BF16"}, "file", "file"),
        ({"a": "Q8_ROW", "b": "Q16_ROW"}, "file", "file"),
        *(({"a": "F32", "b": "BF16", "c": name}, "q8", "file") for name in GROUP_FORMS),
    ]
    for formats, fast, reference in cases:
        assert weights_named(DEFAULT_WEIGHTS, formats) == fast
        assert weights_named(DEFAULT_WEIGHTS, formats, "reference") == reference


def test_what_is_built_by_default_is_what_the_default_stands_for() -> None:
    made = in_formats(tiny("llama", 16, hidden_size=32), "Q4_0")
    for plan, name in (("fast", "q8"), ("reference", "file")):
        given = {"formats": made.formats(), "tokens": 1}
        default, named = plan_for(made.config, plan, **given), plan_for(made.config, plan, weights=name, **given)
        assert default.tensors == named.tensors
        ours, theirs = weights_for(made, plan), weights_for(made, plan, name)
        assert [*ours] == [*theirs]
        assert all(np.array_equal(ours[each], theirs[each]) for each in ours)


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(InputError, match=r"\Athere is no weight format 'q3'; expected one of [^\n]*\Z"):
        plan_for(tiny("llama"), "reference", weights="q3")
    with pytest.raises(InputError, match=r"\Athe reference plan keeps its weights in f32, found q8; [^\n]*\Z"):
        plan_for(tiny("llama"), "reference", weights="q8")
    with pytest.raises(PlanError, match=r"\Athere is no weight format 'q3' for a reference plan; expected [^\n]*\Z"):
        plans(tiny("llama"), weights="q3").of(12)
    with pytest.raises(PlanError, match=r"\A16777216 layers need more than [0-9]+ draws; expected fewer\Z"):
        plan_for(tiny("llama", num_hidden_layers=1 << 24), "reference")
    with pytest.raises(PlanError, match=r"\Atensor model\.embed_tokens\.weight: [^\n]* 65667072 texels[^\n]*\Z"):
        plan_for(LLAMA_1B, "reference", max_texture_size=2048)
    with pytest.raises(
        PlanError, match=r"\Adraw h\.0\.attn\.q_turned: cannot rotate 7 of 7 elements of a head in pairs\Z"
    ):
        plan_for(tiny("llama", 7), "reference")


# Textures


def test_every_weight_of_the_file_is_read() -> None:
    for family in OTHERS:
        config = tiny(family)
        plan = plan_for(config, "reference") if family in ROTARY else plans(config).of(48)
        expected = set(weight_shapes(config)) | set(rope_names(config).values())
        expected |= {"rope.queries"} if FAMILIES[family].scaled_queries else set()
        assert {tensor.name for tensor in plan.of_kind("weight")} == expected, family
        assert (plan.name, plan.max_rows) == ("reference", 48)


# Numbers, by the oracle alone


@pytest.mark.parametrize(("family", "form"), [("llama", "F16"), ("gpt2", "Q4_0"), ("llama", "Q8_ROW")])
def test_a_packed_model_is_the_model_of_its_weights(family: str, form: str) -> None:
    checkpoint = in_formats(tiny(family, 16, hidden_size=32, intermediate_size=64), form)
    found = []
    for each in (checkpoint, unpacked(checkpoint)):
        stored = stored_formats(each.config, "file", each.formats())
        plan = ReferencePlans(PlanOptions(each.config, "file", KernelOptions(), 256, each.formats())).of(12)
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
