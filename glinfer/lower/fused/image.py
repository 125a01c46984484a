"""The plan ``image``: the patches of a square of an image, which all see each other, and the rows that come of them.

A row is a patch. Its first vector is that of its place, from the table of embeddings, plus the product of its pixels.
After the last norm, neighbouring patches are joined to one row, whose product is a vector of the language model.
"""

from __future__ import annotations

from glinfer.config import ModelConfig
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.kernels.fused.cached import SLOT_TOKENS, score_slots
from glinfer.kernels.fused.merge import merge_rows
from glinfer.kernels.spec import RunValue
from glinfer.lower.fused.encode import EncodeLowering
from glinfer.lower.fused.rows import slots_for
from glinfer.lower.options import PlanOptions
from glinfer.program.plan import Plan

PIXELS, SEEN = "pixels", "image.rows"


def image_plan(options: PlanOptions) -> Plan:
    """The plan ``image`` of an image encoder.

    Each run reads the table ``rows``, whose tokens are the places of the patches, and ``pixels.n``, the numbers of
    patches n, n + T, …, for T targets. Patches that make one token are neighbours in the table. It leaves token t of
    the language model in row t of ``image.rows``. Inputs: those of :func:`glinfer.lower.fused.rows.chunk_plan`, and
    ``texts``, the number of tokens.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    targets = options.kernels.rows_per_draw
    rows = slots_for(options.config.max_position_embeddings, targets) * targets
    cache_slots = SLOT_TOKENS * (score_slots(rows) + 1)
    return _ImageLowering(options, rows, cache_slots, cache_slots).build()


def tokens_of(config: ModelConfig) -> int:
    """Tokens of the language model that the patches of a square make."""
    return config.max_position_embeddings // config.patches_per_token


class _ImageLowering(EncodeLowering):
    name = "image"

    def further_values(self, rows: int) -> list[RunValue]:
        """The number of tokens, and that of their slots."""
        most, targets = tokens_of(self.config), self.rows_per_draw
        text_slots = RunValue("text_slots", 1, slots_for(most, targets), ("ceildiv", "texts", targets))
        return [RunValue("texts", 1, most, usual=most), text_slots]

    def build(self, export_residual: bool = False) -> Plan:
        config = self.config
        layout = BlockLayout.of((self.slots, config.patch_floats), self.max_texture_size, tiles=self.kernels.row_tiles)
        pixels = self.rows_as(PIXELS, layout, "input")
        product, (first, second) = self.recipes.patches(), self.hidden
        assert product is not None
        self.embed()
        self.add(product, pixels, first, second)
        self.hidden = second, first
        for layer in self.graph.layers:
            self.draw_layer(layer)
        x, free = self.hidden
        normed = self.rows("hidden.c", config.hidden_size) if self.in_place else free
        self.normalize("final.norm", x, normed)
        slots = slots_for(tokens_of(config), self.targets)
        merged = self.of_texts("image.merged", slots, config.hidden_size * config.patches_per_token)
        self.plan.draw(merge_rows("merge", normed, merged, slots="text_slots", kernels=self.kernels))
        out = self.of_texts(SEEN, slots, config.dense[0][0])
        self.product(self.recipes.dense(0), merged, out, slots="text_slots")
        return self.plan.build()
