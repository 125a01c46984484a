"""Plans for many rows at once over the fast plan's weights and caches: a chunk of one sequence, or a token of many.

* ``chunk`` puts the keys and values of tokens that follow each other in a sequence into its cache. It ends with the
  keys and values of the last block, since only the last token of a prompt needs more.
* ``score`` goes on to the log-probability of each row's wanted token; its rows may belong to several sequences.
* ``batch`` runs one token of each of many sequences, which is given or was chosen by the run before, and chooses the
  next ones.

Every pass computes a row as the fast plan does, with the same weights and the same order of sums.
"""

from __future__ import annotations

from typing import Any

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.models.fast.parts import PartsBuilder, kind_of
from glinfer.models.fast.token import HIDDEN
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.models.transforms.recipe import Recipe
from glinfer.ops.fused.cached import SLOT_TOKENS, cached_scores, cached_values, score_slots
from glinfer.ops.fused.dense import Turning
from glinfer.ops.fused.embed import embed_rows
from glinfer.ops.fused.gemm import gemm
from glinfer.ops.fused.norms import norm_floats, row_norms
from glinfer.ops.fused.rows import ROW_WORDS, RowInterleaved
from glinfer.ops.fused.sample import pick_rows
from glinfer.ops.fused.score import score_rows
from glinfer.ops.fused.tiles import store_rows, take_row, tile_scores, tile_values
from glinfer.ops.spec import RunValue, TensorSpec
from glinfer.quant.formats import is_grouped

ROWS, LOGITS, SCORES, PICKS = "rows", "row.logits", "row.likelihoods", "row.picks"


def chunk_plan(
    options: PlanOptions,
    *,
    rows: int,
    cache_slots: int,
    every: int | None = None,
    likelihoods: bool = False,
    export_residual: bool = False,
) -> Plan:
    """The plan ``chunk``, or with ``likelihoods`` the plan ``score``.

    Each run reads the table ``rows``, which is written before it. Run values: ``rows``, the rows of the table that are
    run; ``row_slots`` = ⌈rows / targets⌉; ``score_slots`` = row_slots times the most groups of 64 tokens that a row
    sees, padding rows of the last slot included; ``strip_first``, the cache slot of the first row.

    Args:
        options: the options of all fast plans.
        rows: the most rows of one run; rounded up to whole slots.
        cache_slots: slots of the caches, a multiple of 64.
        every: slots of one sequence; all of them where it is left out.
        likelihoods: compute the logits, and score each row's wanted token.
        export_residual: copy row ``last_row``, a run value, before the last block to the decode plan, which continues
            from there.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    return _ChunkBuilder(options, rows, cache_slots, every or cache_slots, likelihoods).build(export_residual)


def fitting_chunk_plan(options: PlanOptions, *, rows: int, **further: Any) -> Plan:
    """The chunk plan of at most ``rows`` rows, halved until their scores fit a texture.

    The arguments are those of :func:`chunk_plan`.

    Raises:
        PlanError: not even the rows of a single slot fit.
    """
    while True:
        try:
            return chunk_plan(options, rows=rows, **further)
        except PlanError:
            if rows <= options.kernels.rows_per_draw:
                raise
            rows = max(options.kernels.rows_per_draw, rows // 2)


def batch_plan(options: PlanOptions, *, sequences: int, capacity: int) -> Plan:
    """The plan ``batch``: one token of each of ``sequences`` sequences, a draw a layer more than the fast plan.

    Sequence s has the cache slots from ``s · capacity`` on, and row s of the table ``rows``, which is written before
    each run; its token may be the one that the run before chose. Run values: ``rows``, always ``sequences``;
    ``score_slots`` = the most groups of 64 tokens that one sequence has, times the table's rows.

    Args:
        options: the options of all fast plans.
        sequences: number of sequences.
        capacity: the most tokens of a sequence, a multiple of 64.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    return _BatchBuilder(options, sequences, capacity).build()


class _RowsBuilder(PartsBuilder[RowInterleaved]):
    """The parts of both kinds of plans: rows in slots, one in each render target."""

    def __init__(
        self, name: str, run_values: list[RunValue], options: PlanOptions, rows: int, cache_slots: int, every: int
    ) -> None:
        if rows < 1:
            raise PlanError(f"a plan for {rows} rows; expected at least 1")
        super().__init__(name, rows, run_values, options)
        config, kernels, max_texture_size = options.config, options.kernels, options.max_texture_size
        if cache_slots < 1 or cache_slots % SLOT_TOKENS:
            raise PlanError(f"a cache of {cache_slots} slots; expected a multiple of {SLOT_TOKENS}")
        self.targets, self.slots = kernels.rows_per_draw, slots_for(rows, kernels.rows_per_draw)
        self.cache_slots, self.every = cache_slots, every
        table = RowLayout.of((self.slots * self.targets, ROW_WORDS), "rgba32ui", max_texture_size)
        self.row_table = self.plan.laid_out(ROWS, "input", table)
        self.used: Extent = self.slots
        first = self.interleaved("row.hidden.a", config.hidden_size)
        self.hidden = (first, first if kernels.blends else self.interleaved("row.hidden.b", config.hidden_size))
        cols = self.recipes.heads(0).cols
        self.raw = self.interleaved("row.raw", cols) if self.turns_apart else None
        # In the cache's format, so that every plan rounds a row's keys, values and queries alike.
        self.qkv = self.interleaved("row.qkv", cols, format_name=self.cache_format)
        self.inner = self.interleaved("row.inner", config.intermediate_size)

    def interleaved(self, name: str, floats: int, *, format_name: str = "rgba32f") -> RowInterleaved:
        shape, tiles = (self.slots, floats), self.kernels.row_tiles
        layout = BlockLayout.of(shape, self.max_texture_size, tiles=tiles, format_name=format_name)
        return self.interleaved_as(name, layout)

    def interleaved_as(self, name: str, layout: BlockLayout) -> RowInterleaved:
        names = (f"{name}.{number}" for number in range(self.targets))
        return RowInterleaved(tuple(self.plan.laid_out(each, "activation", layout) for each in names))

    def embed(self, picks: TensorSpec | None = None) -> None:
        (wte, wpe), out = self.tables(), self.hidden[0]
        self.plan.draw(
            embed_rows(
                "embed",
                self.row_table,
                wte,
                wpe,
                out,
                slots=self.used,
                picks=picks,
                scale=self.recipes.embedding_scale,
                kernels=self.kernels,
            )
        )

    def keys_and_values(self, layer: int, *, together: bool) -> TensorSpec:
        """Compute keys, values and queries of a layer, and store keys and values in its cache."""
        recipes, name = self.recipes, f"h.{layer}.attn"
        heads, recipe = recipes.heads(layer), recipes.qkv(layer)
        turning = self.turning(heads)
        if self.raw is None:
            self.product(recipe, self.hidden[0], self.qkv, turning=turning)
        else:
            assert turning is not None
            self.product(recipe, self.hidden[0], self.raw)
            self.turn_heads(layer, self.raw, turning, self.qkv, rows=self.row_table, slots=self.used)
        cache = self.attention_cache(layer, self.cache_slots, self.every)
        self.plan.draw(
            store_rows(f"{name}.store", self.qkv, self.row_table, cache, together=together, kernels=self.kernels)
        )
        return cache

    def head(self) -> RowInterleaved:
        logits = self.interleaved(LOGITS, self.config.vocab_size)
        self.product(self.recipes.head(), self.hidden[0], logits)
        return logits

    def product(
        self,
        recipe: Recipe,
        x: RowInterleaved | TensorSpec,
        out: RowInterleaved,
        *,
        residual: RowInterleaved | None = None,
        activation: str = "none",
        turning: Turning | None = None,
        adds: bool = False,
        parts: int = 1,
    ) -> None:
        self.plan.draw(
            gemm(
                recipe.name,
                kind_of(recipe.name),
                x,
                self.matrix(recipe),
                out,
                slots=self.used,
                **(self.norms_of(recipe, x) if recipe.norm else {}),
                turning=turning,
                rows=self.row_table if turning is not None else None,
                residual=residual,
                activation=activation,
                adds=adds,
                parts=parts,
                kernels=self.kernels,
            )
        )

    def norms_of(self, recipe: Recipe, x: RowInterleaved | TensorSpec) -> dict[str, Any]:
        """The norm of a product's rows, as arguments of :func:`gemm`: here the product computes it."""
        return {"norm_eps": self.config.layer_norm_eps}


class _ChunkBuilder(_RowsBuilder):
    mixed: RowInterleaved

    def __init__(self, options: PlanOptions, rows: int, cache_slots: int, every: int, likelihoods: bool) -> None:
        config, kernels, max_texture_size = options.config, options.kernels, options.max_texture_size
        self.likelihoods = likelihoods
        slots = max(1, slots_for(rows, kernels.rows_per_draw))
        # A row sees its own sequence alone; the padding rows of the last slot may lie beyond its end.
        groups = score_slots(min(config.max_position_embeddings, cache_slots) + kernels.rows_per_draw)
        values = [
            RunValue("rows", 1, rows, lambda tokens: tokens),
            RunValue("row_slots", 1, slots, lambda tokens: slots_for(tokens, kernels.rows_per_draw)),
            RunValue(
                "score_slots", 1, groups * slots, lambda tokens: groups * slots_for(tokens, kernels.rows_per_draw)
            ),
            RunValue("strip_first", 0, cache_slots - 1),
            RunValue("last_row", 0, rows - 1),
        ]
        super().__init__("score" if likelihoods else "chunk", values, options, rows, cache_slots, every)
        self.used = "row_slots"
        width = norm_floats(self.targets, centred=self.recipes.sums)
        self.norms = self.plan.laid_out(
            "row.norms", "activation", BlockLayout.by_block((slots, width), max_texture_size)
        )
        self.mixed = self.interleaved("row.mixed", self.attention_width)
        # In one tile a cell covers few slots, and is skipped if none of them sees it.
        layout = BlockLayout.of((groups * slots, config.num_attention_heads * BLOCK_FLOATS), max_texture_size)
        self.scores = self.interleaved_as("row.scores", layout)

    def build(self, export_residual: bool) -> Plan:
        self.embed()
        last = self.config.num_hidden_layers - 1
        for layer in range(last + 1):
            self.layer(layer, ends=layer == last and not self.likelihoods)
        if self.likelihoods:
            logits = self.head()
            self.plan.draw(
                score_rows(
                    "score",
                    logits,
                    self.row_table,
                    self.interleaved(SCORES, BLOCK_FLOATS),
                    vocab=self.config.vocab_size,
                    slots=self.used,
                    kernels=self.kernels,
                )
            )
        if export_residual:
            stream = self.blocks(HIDDEN, 1, self.config.hidden_size)
            self.plan.draw(take_row("take", self.hidden[0], stream, kernels=self.kernels))
        return self.plan.build()

    def layer(self, layer: int, ends: bool) -> None:
        cache = self.keys_and_values(layer, together=True)
        if ends:
            return
        heads, name, table = self.recipes.heads(layer), f"h.{layer}.attn", self.row_table
        self.plan.draw(
            tile_scores(f"{name}.scores", self.qkv, cache, table, self.scores, heads, kernels=self.kernels),
            tile_values(f"{name}.values", self.scores, cache, table, self.mixed, heads, kernels=self.kernels),
        )
        self.after_attention(layer)

    def norms_of(self, recipe: Recipe, x: RowInterleaved | TensorSpec) -> dict[str, Any]:
        """Draw the norms of a product's rows in a pass of their own."""
        assert isinstance(x, RowInterleaved)
        self.plan.draw(
            row_norms(
                f"{recipe.name}.norms",
                "norms",
                x,
                self.norms,
                slots=self.used,
                eps=self.config.layer_norm_eps,
                centred=self.recipes.sums,
                grouped=is_grouped(recipe.packing),
                kernels=self.kernels,
            )
        )
        return {"norms": self.norms}

    def parts_of(self, recipe: Recipe) -> int:
        """One: several rows are fragments enough."""
        return 1


class _BatchBuilder(_RowsBuilder):
    mixed: TensorSpec

    def __init__(self, options: PlanOptions, sequences: int, capacity: int) -> None:
        config, kernels = options.config, options.kernels
        if capacity < 1 or capacity % SLOT_TOKENS:
            raise PlanError(f"room for {capacity} tokens; expected a multiple of {SLOT_TOKENS}")
        rows = slots_for(sequences, kernels.rows_per_draw) * kernels.rows_per_draw
        groups = score_slots(min(capacity, config.max_position_embeddings))
        values = [
            RunValue("rows", sequences, sequences),
            RunValue("score_slots", rows, groups * rows, lambda tokens: groups * rows),
        ]
        super().__init__("batch", values, options, sequences, sequences * capacity, capacity)
        self.scores = self.blocks("row.scores", groups * rows, config.num_attention_heads * BLOCK_FLOATS)
        self.mixed = self.blocks("row.mixed", rows, self.attention_width)

    def build(self) -> Plan:
        config, picks = self.config, self.cache(PICKS, self.row_table.shape[0], BLOCK_FLOATS)
        self.embed(picks)
        for layer in range(config.num_hidden_layers):
            self.layer(layer)
        logits = self.head()
        self.plan.draw(
            pick_rows(
                "pick", logits, self.row_table, picks, vocab=config.vocab_size, count="rows", kernels=self.kernels
            )
        )
        return self.plan.build()

    def layer(self, layer: int) -> None:
        cache, table = self.keys_and_values(layer, together=False), self.row_table
        heads, name = self.recipes.heads(layer), f"h.{layer}.attn"
        self.plan.draw(
            cached_scores(f"{name}.scores", cache, self.scores, heads, kernels=self.kernels, rows=table),
            cached_values(f"{name}.values", self.scores, cache, self.mixed, heads, kernels=self.kernels, rows=table),
        )
        self.after_attention(layer)


def slots_for(rows: int, targets: int) -> int:
    """Slots of ``rows`` rows, one in each render target."""
    return -(-rows // targets)
