"""What the plans over folded and packed weights have in common: how they declare tensors."""

from __future__ import annotations

from collections.abc import Sequence

from glinfer.config import ModelConfig
from glinfer.gl.blocks import BlockLayout, RowLayout
from glinfer.gl.packing import ConstantLayout, GemvLayout
from glinfer.models.fold import head_floats, packings
from glinfer.models.plan import PlanBuilder
from glinfer.ops.cached import SLOT_TOKENS, score_slots
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import RunValue, TensorSpec


class PartsBuilder:
    """A plan under construction, over the weights that :func:`glinfer.models.fold.fold` makes.

    Plans for one model declare a weight, or a cache of as many slots, under the same name and with the same layout, so
    that they can share the textures.
    """

    def __init__(
        self,
        name: str,
        max_rows: int,
        run_values: Sequence[RunValue],
        config: ModelConfig,
        weights: str,
        kernels: Kernels,
        max_texture_size: int,
    ) -> None:
        """An empty plan; the arguments are those of the plans."""
        self.config, self.kernels, self.max_texture_size = config, kernels, max_texture_size
        self.packing, self.head_packing, self.table_format = packings(weights)
        self.plan = PlanBuilder(name, max_rows, run_values)
        self.head_floats = head_floats(config)
        self.attention_width = config.num_attention_heads * self.head_floats

    def blocks(self, name: str, slots: int, floats: int) -> TensorSpec:
        """An activation [slots, floats], a slot's blocks dealt to tiles."""
        tiles, pitch = self.kernels.tiles, self.kernels.pitch
        layout = BlockLayout.of((slots, floats), self.max_texture_size, tiles=tiles, pitch=pitch)
        return self.plan.laid_out(name, "activation", layout)

    def cache(self, name: str, slots: int, floats: int) -> TensorSpec:
        """A cache [slots, floats]."""
        layout = BlockLayout.by_block((slots, floats), self.max_texture_size)
        return self.plan.laid_out(name, "cache", layout)

    def attention_cache(self, block: str, slots: int) -> TensorSpec:
        """The queries, keys and values of one block, for so many tokens."""
        return self.cache(f"{block}.attn.cache", slots, 3 * self.attention_width)

    def tables(self) -> tuple[TensorSpec, TensorSpec]:
        """The token and the position embeddings."""
        wte, wpe = (
            self.plan.laid_out(
                name,
                "weight",
                RowLayout.of((rows, self.config.hidden_size), self.table_format, self.max_texture_size),
            )
            for name, rows in (("wte", self.config.vocab_size), ("wpe", self.config.max_position_embeddings))
        )
        return wte, wpe

    def weights(
        self, name: str, outputs: int, inputs: int, packing: str | None = None
    ) -> tuple[TensorSpec, TensorSpec]:
        """The packed matrix and the constants of one product."""
        packing, quad, size = packing or self.packing, self.kernels.quad, self.max_texture_size
        weight = self.plan.laid_out(f"{name}.weight", "weight", GemvLayout.of(outputs, inputs, packing, quad, size))
        scaled = packing in ("q16", "q8")
        return weight, self.plan.laid_out(f"{name}.consts", "weight", ConstantLayout.of(outputs, scaled, quad, size))


def kind_of(name: str) -> str:
    """What tables group a product by: its name without the block's."""
    return name.split(".", 2)[-1] if name.startswith("h.") else name


def cache_slots(config: ModelConfig) -> int:
    """Slots of a cache with room for one whole context."""
    return score_slots(config.max_position_embeddings) * SLOT_TOKENS
