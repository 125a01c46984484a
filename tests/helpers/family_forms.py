"""One draw for each variant of the shaders of models' plans, in families that between them have all of it."""

from __future__ import annotations

from flat_ops import flat_ops
from shader_variants import variants

from glinfer.kernels import DrawSpec
from qa.programs import planned

FEW = ("apertus ", "qwen3_5_text ", "nemotron_h ", "qwen3_moe ", "lfm2 ", "gemma2 ", "gemma4_text ")
FEW += ("gab odd ", "bert ", "llama adapters", "choice", "siglip image", "llama images", "qwen3_vl image")
"""Rows of programs that between them have a layer of each kind, and every shader."""
MORE = ("qwen3 ", "lfm2_moe ", "gab ", "olmo2 ", "lfm3 ", "hunyuan_v1_dense ", "qwen2_moe ", "gemma4_moe ", "bitnet ")
MORE += ("ernie4_5_moe ", "nomic_bert_moe ", "deepseek_v3 ")
"""Further rows, with which every #if is decided both ways; for a new one add a row that decides it."""
KERNELS = ("software webgl2", "tuned")
"""Options that between them decide every #if both ways."""


def family_forms(*, few: bool = False) -> dict[str, DrawSpec]:
    """One draw for each variant, by a name for messages; of ops that are kernels of ``device.ops`` those in windows.

    With ``few`` every shader is there, though not every variant.
    """
    flat, kernels = flat_ops(), KERNELS[:1] if few else KERNELS
    rows = FEW if few else FEW + MORE
    plans = (make() for row, name, _, make in planned() if name.startswith(kernels) and row.startswith(rows))
    made = (draw for plan in plans for draw in plan.draws if draw.op not in flat or dict(draw.defines).get("WINDOW"))
    return {f"family {number}: {draw.op} {draw.name}": draw for number, (_, _, draw) in enumerate(variants(made))}
