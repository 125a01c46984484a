"""The layouts of the caches of layers: keys and values, inputs of convolutions, and rings of delta rules and scans."""

from __future__ import annotations

from glinfer.config import ModelConfig
from glinfer.gl.layouts.blocks import BYTES, BlockLayout
from glinfer.kernels.fused.cached import SLOT_TOKENS, Heads, score_slots
from glinfer.kernels.fused.delta import RING, DeltaHeads, input_ring
from glinfer.lower.weights.recipe import Recipes
from glinfer.quant.formats import CacheChoice


def attention_layout(heads: Heads, slots: int, every: int, format_name: str, max_texture_size: int) -> BlockLayout:
    """The layout of one layer's cache, see :meth:`glinfer.lower.fused.lowering.Lowering.layer_cache`, or PlanError."""
    bytes_alone = format_name == BYTES
    shape, aside = (slots, heads.queries_at if bytes_alone else heads.cols), 0 if bytes_alone else heads.aside
    return BlockLayout.by_block(shape, max_texture_size, aside=aside, every=every, format_name=format_name)


def delta_layers(config: ModelConfig) -> list[int]:
    """The layers with a delta rule or a scan."""
    return [layer for layer in range(config.num_hidden_layers) if config.layer(layer).delta is not None]


def rings_of(config: ModelConfig) -> list[int]:
    """The slots of a sequence in each ring of a model's caches."""
    taps = {config.layer(layer).taps for layer in delta_layers(config)}
    return sorted({RING, *map(input_ring, taps)}) if taps else []


def layer_cache_layouts(
    recipes: Recipes, layer: int, slots: int, every: int, formats: CacheChoice, max_texture_size: int
) -> tuple[BlockLayout, ...]:
    """The layouts of all caches of one layer; PlanError if one does not fit such textures."""
    of = recipes.config.layer(layer)
    found: list[BlockLayout] = []
    if of.attends or of.convolves:
        found.append(layer_cache_layout(recipes, layer, slots, every, formats, max_texture_size))
    if of.delta is not None:
        found += DeltaHeads(of.delta).layouts(of.taps, slots // every, max_texture_size).values()
    return tuple(found)


def layer_cache_layout(
    recipes: Recipes, layer: int, slots: int, every: int, formats: CacheChoice, max_texture_size: int
) -> BlockLayout:
    """The layout of one layer's cache, see :meth:`glinfer.lower.fused.lowering.Lowering.layer_cache`, or PlanError."""
    if recipes.config.layer(layer).convolves:
        shape = slots, recipes.config.hidden_size
        return BlockLayout.by_block(shape, max_texture_size, every=every, format_name=formats.convolution)
    return attention_layout(recipes.heads(layer), slots, every, formats.attention, max_texture_size)


def cache_slots(config: ModelConfig) -> int:
    """Slots of a cache with room for one whole context."""
    return score_slots(config.max_position_embeddings) * SLOT_TOKENS
