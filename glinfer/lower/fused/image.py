"""The plan ``image``: the patches of a square of an image, which all see each other, and the rows that come of them.

A row is a patch. Its first vector is its position's, from the table of embeddings, plus the product of its pixels.
After the last norm, neighbouring patches are joined to one row, whose product is a vector of the language model.
"""

from __future__ import annotations

from typing import Any

from glinfer.config import ModelConfig
from glinfer.families.layer import Rope
from glinfer.kernels.fused.rows import RowInterleaved
from glinfer.kernels.fused.rowwise import merge_rows
from glinfer.kernels.spec import Pass, RunValue
from glinfer.lower.fused.encode import EncodeLowering
from glinfer.lower.fused.rows import ROW_ANGLES, slots_for
from glinfer.lower.options import PlanOptions
from glinfer.program.plan import Plan

PIXELS, PLACES, SEEN, DEEP = "pixels", "places", "image.rows", "image.deep.{}"
_FIRST = 1024


def image_plan(options: PlanOptions, patches: int | None = None) -> Plan:
    """The plan ``image`` of an image encoder.

    Each run reads the table ``rows``, whose tokens are the positions of the patches, and ``pixels.n``, the numbers of
    patches n, n + T, …, for T targets. Patches that make one token are neighbours in the table. It leaves token t of
    the language model in row t of ``image.rows``. Inputs: those of :func:`glinfer.lower.fused.rows.chunk_plan`, and
    ``texts``, the number of tokens.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    most = options.config.max_position_embeddings
    patches = min(most, _FIRST) if patches is None and options.config.family.by_grid else patches or most
    return _ImageLowering.plan_of(options, patches)


def tokens_of(config: ModelConfig) -> int:
    """Tokens of the language model that the patches of a square make."""
    return config.max_position_embeddings // config.patches_per_token


class _ImageLowering(EncodeLowering):
    name = "image"

    def further_values(self, rows: int, texts: int = 0, usual: int | None = None) -> list[RunValue]:
        """The number of tokens, and that of their slots."""
        self.tokens = -(-rows // self.config.patches_per_token)
        return super().further_values(rows, self.tokens, min(self.tokens, tokens_of(self.config)))

    def angles(self, rope: Rope) -> dict[str, Any]:
        """The angles of each patch, by its row and column."""
        return {"table": self._by_token(ROW_ANGLES, self.recipes.rope_floats(rope)), "by_row": True}

    def build(self, export_residual: bool = False) -> Plan:
        config, product, results = self.config, self.recipes.patches(), list[str]()
        assert product is not None
        pixels, (first, second) = self.dealt(PIXELS, self.slots, config.patch_floats, "input"), self.hidden
        if config.family.by_grid:
            self.add(product, pixels, self.dealt(PLACES, self.slots, config.hidden_size, "input"), first)
        else:
            self.embed()
            self.add(product, pixels, first, second)
            self.hidden = second, first
        for layer in self.graph.layers:
            self.draw_layer(layer)
            if layer.number in config.deepstack_layers:
                number = 1 + config.deepstack_layers.index(layer.number)
                results += self._merged(f"merge.{number}", self.hidden[0], DEEP.format(number), 2 * number)
        x, free = self.hidden
        normed = self.rows("hidden.c", config.hidden_size) if self.in_place else free
        self.normalize("final.norm", x, normed)
        return self.plan.build(*results, *self._merged("merge", normed, SEEN, 0))

    def _merged(self, name: str, x: RowInterleaved, out: str, first: int) -> tuple[str, ...]:
        """Draw tokens of joined patches, by the dense matrices from ``first`` on; returns the names of the result."""
        slots, width = slots_for(self.tokens, self.targets), self.config.hidden_size * self.config.patches_per_token
        found = self.dealt("image.merged", slots, width)
        self.plan.draw(merge_rows(Pass(name, self.kernels, "merge", "text_slots"), x, found))
        return self.dense(found, range(len(self.config.dense))[first : first + 2], out, "image.inner").names
