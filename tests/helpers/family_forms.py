"""Every variant of the shaders that the plans of all families and formats of files ask for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from family_layers import layers_of
from flat_ops import flat_ops
from shader_variants import variants

from glinfer.config import POOLINGS, ModelConfig
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats.packed import PACKED_FORMATS
from glinfer.formats.tensors import weight_shapes
from glinfer.models.choice import reference_plans
from glinfer.models.fast.encode import encode_plan
from glinfer.models.fast.rows import batch_plan, chunk_plan, drafted_plan
from glinfer.models.fast.token import fast_plan
from glinfer.models.options import PlanOptions
from glinfer.models.transforms.low_rank import AdapterRanks
from glinfer.ops import DrawSpec
from glinfer.ops.kernels import KernelOptions

KERNELS = (
    KernelOptions(mantissa=True),
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


def draws() -> Iterator[DrawSpec]:
    """Of all plans: families in turn with formats, and all formats with and without means to be taken away."""
    formats = ("", "mixed", *PACKED_FORMATS)
    for family, (number, form), (place, kernels) in itertools.product(DECODERS, enumerate(formats), enumerate(KERNELS)):
        if family not in ("llama", "gpt2") and form and number % len(DECODERS) != place:
            continue
        config = of_family(family)
        config = dataclasses.replace(config, conv_bias=config.family.convolves and place % 2 == 1)
        stored = formats_of(config, form) if form else None
        options = PlanOptions(config, "file" if form else "f32", kernels, 2048, stored)
        plans = [
            fast_plan(options),
            chunk_plan(options, rows=20, cache_slots=192, export_residual=True),
            chunk_plan(options, rows=20, cache_slots=192, likelihoods=True),
            drafted_plan(options, rows=16, cache_slots=192),
            batch_plan(options, sequences=3, capacity=128),
        ]
        if not form:
            plans.append(reference_plans(config, "f32", None, kernels, 2048).of(20))
        if config.family.delta_rule and not form:
            plans.append(chunk_plan(options, rows=48, cache_slots=192))  # solved in two blocks
        for plan in plans:
            yield from plan.draws
    for family, kernels in itertools.product(("llama", "gpt2", "qwen3_moe"), KERNELS):
        config = of_family(family)
        changed = {name: 4 for name, shape in weight_shapes(config).items() if len(shape) == 2}
        options = PlanOptions(config, "f32", kernels, 2048, adapters=AdapterRanks(("a", "b"), changed))
        yield from fast_plan(options).draws
        yield from chunk_plan(options, rows=20, cache_slots=192).draws
        yield from batch_plan(options, sequences=3, capacity=128).draws
    poolings = itertools.cycle(POOLINGS[1:])
    embedders = [*(name for name in FAMILIES if name not in DECODERS), "qwen3"]
    for family, kernels in itertools.product(embedders, KERNELS):
        config = dataclasses.replace(of_family(family), pooling=next(poolings), type_vocab_size=2 * (family == "bert"))
        yield from encode_plan(PlanOptions(config, "f32", kernels, 2048), rows=20).draws


def family_forms() -> dict[str, DrawSpec]:
    """One draw for each variant, by a name for messages; of ops that are kernels of ``device.ops`` those in windows."""
    flat = flat_ops()
    made = (draw for draw in draws() if draw.op not in flat or dict(draw.defines).get("WINDOW"))
    return {f"family {number}: {draw.op} {draw.name}": draw for number, (_, _, draw) in enumerate(variants(made))}
