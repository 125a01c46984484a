"""Layers that use the keys and values of earlier ones: prompts end before them, and the fast plan continues there."""

from __future__ import annotations

import dataclasses

from each_case import each_case
from tiny_models import tiny

from glinfer.kernels.options import KernelOptions, default_kernels
from glinfer.lower.fused.lowering import PROJECTED
from glinfer.lower.fused.rows import chunk_plan
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import PlanOptions

KERNELS = {"llvmpipe": KernelOptions(), "GPU": default_kernels("GPU", 1024.0, "f32")}
CASES = [(name, size, shared) for name in KERNELS for size in (0, 8) for shared in (1, 2, 3)]


@each_case(("name", "embeddings", "shared"), CASES)
def test_a_prompt_hands_over_what_the_fast_plan_goes_on_from(name: str, embeddings: int, shared: int) -> None:
    small = tiny("gemma4_text", num_hidden_layers=5)
    config = dataclasses.replace(small, hidden_size_per_layer_input=embeddings, num_kv_shared_layers=shared)
    options = PlanOptions(config, "f32", KERNELS[name], 2048)
    fast, chunk = fast_plan(options), chunk_plan(options, rows=8, cache_slots=64, export_residual=True)
    last = f"h.{4 - shared}.attn.qkv"
    assert fast.draws[fast.last_layer].name == last
    handed = [name for name in chunk.shared if name != PROJECTED]
    assert handed == [each for each in fast.draws[fast.last_layer].reads if each.startswith("hidden")]
    assert (PROJECTED in chunk.shared) == (embeddings > 0)
    own = [draw.name for draw in chunk.draws if draw.name.startswith("h.")]
    assert own[-1] == f"h.{4 - shared}.attn.store"
    caches = [f"h.{layer}.attn.cache" for layer in range(5 - shared)]
    assert [tensor.name for tensor in chunk.of_kind("cache")] == caches
    assert [tensor.name for tensor in fast.of_kind("cache")] == ["picks", *caches]
