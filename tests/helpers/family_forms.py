"""One draw for each variant of the shaders of models' plans: all families, weight formats and kernel options."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence

from family_layers import layers_of
from flat_ops import flat_ops
from shader_variants import variants

from glinfer.config import POOLINGS, ModelConfig
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats.packed import PACKED_FORMATS
from glinfer.formats.tensors import weight_shapes
from glinfer.models.choice import reference_plans
from glinfer.models.fast.choice import choice_plan
from glinfer.models.fast.encode import encode_plan
from glinfer.models.fast.rows import batch_plan, chunk_plan, drafted_plan
from glinfer.models.fast.token import fast_plan
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.models.transforms.low_rank import AdapterRanks
from glinfer.ops import DrawSpec
from glinfer.ops.kernels import KernelOptions
from glinfer.quant.formats import WEIGHT_FORMATS

KERNELS = (
    KernelOptions(mantissa=True, fused=True),
    KernelOptions(tiles=4, rows_per_draw=8, largest_cell=4, cover="points", lookup_texture=True, blends=True),
    KernelOptions(quad=False, rows_per_draw=1, unroll=2),
    KernelOptions(
        quad=False,
        mantissa=True,
        rows_per_draw=2,
        part_steps=8,
        split_norms=True,
        split_inner=True,
        split_values=True,
        blends=True,
    ),
)
MIXED = ("Q4_0", "Q8_0", "Q5_1", "Q4_1")
FEW = ("qwen3_5_text", "qwen3_moe", "lfm2", "gemma2")
"""Families that between them have a layer of each kind."""


def of_family(family: str) -> ModelConfig:
    """A model whose rows are whole blocks of 256, its heads shared, padded and in windows where the family has them."""
    rotary = FAMILIES[family].rotary
    shape = {"head_dim": 40, "num_key_value_heads": 2} if rotary else {}
    window = 40 if family in ("mistral", "qwen3", "gemma2", "gemma3_text", "gpt_oss") else 0
    turned = {"rotary_layers": (1, 0)} if family in ("olmo2", "qwen3", "smollm3") else {}
    values = {"linear_value_head_dim": 64} if FAMILIES[family].delta_rule else {}
    bounded = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} if family == "gemma2" else {}
    return ModelConfig(
        70,
        256,
        4,
        2,
        130,
        256,
        model_type=family,
        hidden_act="silu" if FAMILIES[family].gated else "gelu_new",
        sliding_window=window,
        **bounded,
        **turned,
        **shape,  # type: ignore[arg-type]
        **{**layers_of(family), **values},
    )


def formats_of(config: ModelConfig, form: str) -> dict[str, str]:
    """The formats of a file whose matrices are in one, or in turn in several that are ``mixed``."""
    names = [name for name, shape in weight_shapes(config).items() if len(shape) == 2]
    positions = f"{config.family.names.positions}.weight"
    turns = itertools.cycle(MIXED if form == "mixed" else (form,))
    return {name: "F32" if name == positions else next(turns) for name in names}


def _decoders(options: PlanOptions) -> list[Plan]:
    return [
        fast_plan(options),
        chunk_plan(options, rows=20, cache_slots=192, export_residual=True),
        chunk_plan(options, rows=20, cache_slots=192, likelihoods=True),
        drafted_plan(options, rows=16, cache_slots=192),
        batch_plan(options, sequences=3, capacity=128),
    ]


def _of_weights(weights: str, kernels: KernelOptions) -> Iterator[Plan]:
    """Plans of Gab in a weight format: in narrow textures, where a cache is no strip, with choices, and over bytes."""
    config = ModelConfig(70, 34, 2, 2, 130)
    for edge in (2048, 512):
        plans = _decoders(PlanOptions(config, weights, kernels, edge))
        yield from plans
        for masked, changed in ((False, False), (True, True)):
            yield choice_plan(plans[-1], kernels=kernels, max_texture_size=edge, masked=masked, changed=changed)
    if weights == "f32":
        yield from _decoders(PlanOptions(config, weights, kernels, 2048, cache="q8"))


def _adapted(family: str, kernels: KernelOptions) -> list[Plan]:
    config = of_family(family)
    changed = {name: 4 for name, shape in weight_shapes(config).items() if len(shape) == 2}
    options = PlanOptions(config, "f32", kernels, 2048, adapters=AdapterRanks(("a", "b"), changed))
    further = [chunk_plan(options, rows=20, cache_slots=192), batch_plan(options, sequences=3, capacity=128)]
    return [fast_plan(options), *further]


def _plans(families: Collection[str], kernels: Sequence[KernelOptions], weights: Collection[str]) -> Iterator[Plan]:
    """Every family with all options, every format with some, adapters and embedders."""
    for family, (place, options) in itertools.product(families, enumerate(kernels)):
        config = of_family(family)
        config = dataclasses.replace(config, conv_bias=config.family.convolves and place % 2 == 1)
        plan_options = PlanOptions(config, "f32", options, 2048)
        yield from _decoders(plan_options)
        yield reference_plans(config, "f32", None, options, 2048).of(20)
        if config.family.delta_rule:
            yield chunk_plan(plan_options, rows=48, cache_slots=192)  # solved in two blocks
    for number, form in enumerate(("mixed", *PACKED_FORMATS) if weights == WEIGHT_FORMATS else ("mixed",)):
        for place, family in enumerate(("llama", "gpt2")):
            config = of_family(family)
            options = kernels[(number + place) % len(kernels)]
            yield from _decoders(PlanOptions(config, "file", options, 2048, formats_of(config, form)))
    for form, options in itertools.product(weights, kernels):
        yield from _of_weights(form, options)
    for family, options in itertools.product(("llama", "gpt2", "qwen3_moe"), kernels):
        yield from _adapted(family, options)
    poolings = itertools.cycle(POOLINGS[1:])
    embedders = [*(name for name in FAMILIES if name not in DECODERS), "qwen3"]
    for family, options in itertools.product(embedders, kernels):
        config = dataclasses.replace(of_family(family), pooling=next(poolings), type_vocab_size=2 * (family == "bert"))
        yield encode_plan(PlanOptions(config, "f32", options, 2048), rows=20)


def family_forms(*, few: bool = False) -> dict[str, DrawSpec]:
    """One draw for each variant, by a name for messages; of ops that are kernels of ``device.ops`` those in windows.

    With ``few`` every shader is there, though not every variant.
    """
    flat = flat_ops()
    plans = _plans(FEW, KERNELS[1:2], ["f32", "q8"]) if few else _plans(DECODERS, KERNELS, WEIGHT_FORMATS)
    made = (draw for plan in plans for draw in plan.draws if draw.op not in flat or dict(draw.defines).get("WINDOW"))
    return {f"family {number}: {draw.op} {draw.name}": draw for number, (_, _, draw) in enumerate(variants(made))}
