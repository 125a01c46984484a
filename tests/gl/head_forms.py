"""Every form of the draws that only decoders' plans have: heads split off and appended, and attention in a window."""

from __future__ import annotations

from glinfer.config import ModelConfig
from glinfer.models.choice import decoder_plans
from glinfer.ops import DrawSpec
from glinfer.ops.kernels import Kernels

HEAD_OPS = frozenset({"split_heads", "append_heads"})
"""Ops over tensors of four elements a texel that belong to these plans alone: there is no kernel of ``device.ops`` of
them. test_heads.py draws them."""


def head_forms() -> dict[str, DrawSpec]:
    """One draw for each shader and set of defines, by a name for messages."""
    found: dict[tuple[object, ...], tuple[str, DrawSpec]] = {}
    for family in ("gpt2", "gift_of_gab", "mistral", "qwen3"):
        for dim in (6, 8, 12):
            window = 3 if family in ("mistral", "qwen3") else 0
            shape = {"head_dim": 0 if family == "gpt2" else dim, "sliding_window": window}
            config = ModelConfig(31, 2 * dim, 2, 1, 40, 24, model_type=family, **shape)  # type: ignore[arg-type]
            for kernels in (Kernels(), Kernels(targets=8, lookup_texture=True)):
                plans = decoder_plans(config, "f32", None, kernels, 64)
                for plan in (plans.fast(), plans.fast(16), plans.reference(40)):
                    for spec in plan.draws:
                        if spec.op in HEAD_OPS or "WINDOW" in dict(spec.defines):
                            form = (spec.shader, spec.vertex, spec.defines)
                            name = f"{len(found)}: {plan.name} {spec.name}, {family}, heads of {dim}"
                            found.setdefault(form, (name, spec))
    return dict(found.values())
