"""The layouts of the caches of layers: keys and values, and rings of convolutions, delta rules and scans."""

from __future__ import annotations

from glinfer.config import ModelConfig
from glinfer.gl.layouts.blocks import BYTES, BlockLayout
from glinfer.kernels.fused.cached import SLOT_TOKENS, Heads, score_slots
from glinfer.kernels.fused.delta import RING, DeltaHeads, input_layout, input_ring
from glinfer.lower.weights.recipe import Recipes
from glinfer.quant.formats import CacheChoice


def attention_layout(heads: Heads, slots: int, every: int, format_name: str, max_texture_size: int) -> BlockLayout:
    """The layout of one layer's keys and values, see :meth:`glinfer.lower.fused.lowering.Lowering.layer_cache`."""
    bytes_alone = format_name == BYTES
    shape, aside = (slots, heads.queries_at if bytes_alone else heads.cols), 0 if bytes_alone else heads.aside
    return BlockLayout.by_block(shape, max_texture_size, aside=aside, every=every, format_name=format_name)


def delta_layers(config: ModelConfig) -> list[int]:
    """The layers with a delta rule or a scan."""
    return [layer for layer in range(config.num_hidden_layers) if config.layer(layer).delta is not None]


def rings_of(config: ModelConfig) -> list[int]:
    """The slots of a sequence in each ring of a model's caches."""
    taps = {config.layer(layer).taps for layer in range(config.num_hidden_layers)} - {0}
    return sorted({*map(input_ring, taps), *([RING] if delta_layers(config) else [])})


def layer_cache_layouts(
    recipes: Recipes, layer: int, slots: int, every: int, formats: CacheChoice, max_texture_size: int
) -> tuple[BlockLayout, ...]:
    """The layouts of all caches of one layer; PlanError if one does not fit such textures."""
    of, sequences = recipes.config.layer(layer), slots // every
    found: list[BlockLayout] = []
    if of.attends:
        found.append(attention_layout(recipes.heads(layer), slots, every, formats.attention, max_texture_size))
    if of.convolves:
        found.append(input_layout(of.taps, recipes.config.hidden_size, sequences, max_texture_size))
    if of.delta is not None:
        found += DeltaHeads(of.delta).layouts(of.taps, sequences, max_texture_size).values()
    return tuple(found)


def cache_slots(config: ModelConfig) -> int:
    """Slots of a cache with room for one whole context."""
    return score_slots(config.max_position_embeddings) * SLOT_TOKENS
