"""The plan ``encode``: whole texts at once, several in a run, and one vector of each.

Each text begins in its own slot, and its rows see nothing of the others. All layers share
one texture for keys and values. After the last layer the vectors of a text's tokens are pooled, and multiplied by the
model's dense matrices.
"""

from __future__ import annotations

from glinfer.errors import PlanError
from glinfer.graph.nodes import Branch, ExpertMlps, Layer, Mlp
from glinfer.kernels.fused.cached import SLOT_TOKENS, score_slots
from glinfer.kernels.fused.norms import normalize_rows
from glinfer.kernels.fused.rows import ROW_WORDS, RowInterleaved, Vectors
from glinfer.kernels.fused.rowwise import pool_rows
from glinfer.kernels.spec import Pass, RunValue, TensorSpec
from glinfer.lower.fused.caches import attention_layout
from glinfer.lower.fused.rows import ChunkLowering, halved, slots_for
from glinfer.lower.options import PlanOptions
from glinfer.program.plan import Plan

TEXTS, EMBEDDINGS = "texts", "text.embeddings"
_POOLED = {"mean_sqrt_len_tokens": "mean_sqrt_len", "max": "max", "weightedmean": "weightedmean"}
"""A model's pooling for :func:`glinfer.kernels.fused.rowwise.pool_rows`; of one token alone it is the mean."""


def encode_plan(options: PlanOptions, *, rows: int) -> Plan:
    """The plan ``encode`` of a model that embeds texts.

    Each run reads the tables ``rows`` and ``texts``, which are written before it
    (:func:`glinfer.lower.feed.encode_feed`), and leaves the vector of text t in row t of ``text.embeddings``.
    Inputs: those of :func:`glinfer.lower.fused.rows.chunk_plan`, and ``texts``, their number.

    ``rows``, the most rows of one run, and so the most tokens of a text, are rounded up to whole slots.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    return EncodeLowering.plan_of(options, rows)


def fitting_encode_plan(options: PlanOptions, *, rows: int) -> Plan:
    """The plan ``encode`` of at most ``rows`` rows, halved until it fits a texture, but of no fewer than a text has.

    Raises:
        PlanError: a text of the whole context does not fit.
    """
    least = options.config.max_position_embeddings
    return halved(lambda count: encode_plan(options, rows=count), max(rows, least), least)


class EncodeLowering(ChunkLowering):
    """Whole texts, or images, whose rows all see each other."""

    name, has_head = "encode", True

    @classmethod
    def plan_of(cls, options: PlanOptions, rows: int) -> Plan:
        """The plan of at most ``rows`` rows, rounded up to whole slots."""
        targets = options.kernels.rows_per_draw
        rows = slots_for(rows, targets) * targets
        # A text's last group of 16 tokens may extend past the last row.
        cache_slots = SLOT_TOKENS * (score_slots(rows) + 1)
        return cls(options, rows, cache_slots, cache_slots).build()

    def further_values(self, rows: int, texts: int = 0, usual: int | None = None) -> list[RunValue]:
        """The number of texts, and that of their slots."""
        # As many texts as there are slots of rows, each of which belongs to one.
        targets = self.rows_per_draw
        texts = texts or slots_for(rows, targets)
        text_slots = RunValue("text_slots", 1, slots_for(texts, targets), ("ceildiv", "texts", targets))
        return [RunValue("texts", 1, texts, usual=usual), text_slots]

    def build(self, export_residual: bool = False) -> Plan:
        """The whole plan."""
        config, family = self.config, self.recipes.family
        # Where blending adds to the stream in place, what is normalised goes on in another texture.
        self.other = self.rows("hidden.c", config.hidden_size) if self.kernels.blends else self.hidden[1]
        self.text_slots = slots_for(self.slots, self.targets)
        self.texts = self.read_table(TEXTS, self.text_slots * self.targets, ROW_WORDS, "rgba32ui")
        if family.embedding_norm:
            self.embed(out=self.other)
            self.normalize("embed.norm", self.other, self.hidden[0])
        else:
            self.embed()
        for layer in self.graph.layers:
            self.draw_layer(layer)
        self.finish()
        return self.plan.build()

    def layer_cache(self, layer: int) -> TensorSpec:
        """Keys and values of one layer, in a texture that the next one overwrites."""
        heads, form = self.recipes.heads(layer), self.cache_format.attention
        layout = attention_layout(heads, self.cache_slots, self.every, form, self.max_texture_size)
        if not layout.in_one_line:
            raise PlanError(
                f"keys of {self.cache_slots} tokens need several lines of texels; expected one; use fewer rows"
            )
        return self.plan.laid_out("row.cache", "activation", layout)

    def normalize(self, name: str, x: RowInterleaved, out: RowInterleaved) -> None:
        """Draw a norm of the stream itself."""
        centred = self.recipes.family.norm == "layer"
        norms, gains = self.row_norms(f"{name}.factors", x, "row.norms.whole", centred=centred), self.weight(name)
        self.plan.draw(normalize_rows(self.in_slots(name, "normalize"), x, norms, gains, out, centred=centred))

    def after_mixing(self, layer: Layer, mixed: list[tuple[Branch, Vectors]]) -> None:
        """Draw the rest of a layer, with its norms after each sum where the family has them there."""
        if layer.mixing.sum_norm is None:
            super().after_mixing(layer, mixed)
            return
        ((_, joined),) = mixed
        stream, other, in_place, number = self.hidden[0], self.other, self.kernels.blends, layer.number
        summed, body = stream if in_place else other, layer.mlp.body
        self.add(self.recipes.mixing_out(number), joined, stream, summed)
        between = other if in_place else stream
        self.normalize(f"h.{number}.attn.norm", summed, between)
        summed = between if in_place else other
        if isinstance(body, ExpertMlps):
            self.use_experts(number, body, between, summed)
        else:
            assert isinstance(body, Mlp)
            self.add(self.recipes.down(number), self.expanded(number, body, between), between, summed)
        self.normalize(f"h.{number}.mlp.norm", summed, stream)

    def finish(self) -> None:
        """Pool the rows of each text, and apply the steps after the pooling."""
        config, x = self.config, self.hidden[0]
        if self.recipes.family.layer.norms != "sum":
            self.normalize("final.norm", x, self.other)
            x = self.other
        pooled = "text.pooled" if config.dense else EMBEDDINGS
        found = self.dealt(pooled, self.text_slots, config.hidden_size)
        draw, how = Pass("pool", self.kernels, rows="text_slots"), _POOLED.get(config.pooling, "mean")
        self.plan.draw(pool_rows(draw, x, self.texts, found, how=how))
        self.dense(found, range(len(config.dense)), EMBEDDINGS, "text.dense.{}")

    def dense(self, x: RowInterleaved, numbers: range, out: str, between: str) -> RowInterleaved:
        """Draw dense matrices one after the other, from the vectors of texts to ``out``, by way of ``between``."""
        used, self.used = self.used, "text_slots"
        for number in numbers:
            outputs, _, activation = self.config.dense[number]
            target = self.dealt(out if number == numbers[-1] else between.format(number), x.slots, outputs)
            self.product(self.recipes.dense(number), x, target, activation=activation)
            x = target
        self.used = used
        return x
