"""Plans for many rows at once over the fast plan's weights and caches: a chunk of one sequence, or a token of many.

* ``chunk`` puts the keys and values of tokens that follow each other in a sequence into its cache. It ends with the
  keys and values of the last block, since only the last token of a prompt needs more.
* ``score`` goes on to the log-probability of each row's wanted token; its rows may belong to several sequences.
* ``drafted`` goes on to the choice of the token after each row, as the table says: the rows are a sequence's newest
  token and drafted ones after it.
* ``batch`` runs one token of each of many sequences, which is given or was chosen by the run before, and chooses the
  next ones.

Every pass computes a row as the fast plan does, with the same weights and the same order of sums.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

from glinfer.errors import PlanError
from glinfer.families.layer import Experts
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.models.fast.parts import PartsBuilder, adapter_values, delta_layers
from glinfer.models.fast.token import HIDDEN
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.models.transforms.recipe import Recipe, Recipes
from glinfer.ops.fused.cached import SLOT_TOKENS, cached_scores, cached_values, score_slots
from glinfer.ops.fused.convolve import PARTS, part_floats, short_conv, store_gated
from glinfer.ops.fused.dense import RawRows, Turning
from glinfer.ops.fused.embed import embed_rows
from glinfer.ops.fused.expert_groups import (
    expert_gemm,
    few_rows,
    group_experts,
    most_groups,
    place_experts,
    tally_experts,
    tally_rows,
)
from glinfer.ops.fused.experts import join_rows
from glinfer.ops.fused.gates import gate_heads
from glinfer.ops.fused.gemm import gemm
from glinfer.ops.fused.low_rank import CHOICE_FLOATS
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

    Each run reads the table ``rows``, which is written before it. Inputs: ``rows``, the rows of the table that are
    run; ``longest``, the most tokens that a row sees, padding rows of the last slot included; ``strip_first``, the
    cache slot of the first row.

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
    builder = _ScoreBuilder if likelihoods else ChunkBuilder
    return builder(options, rows, cache_slots, every or cache_slots).build(export_residual)


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
    each run; its token may be the one that the run before chose. Inputs: ``rows``, always ``sequences``; ``longest``,
    the tokens of the longest sequence.

    Args:
        options: the options of all fast plans.
        sequences: number of sequences.
        capacity: the most tokens of a sequence, a multiple of 64.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    return _BatchBuilder(options, sequences, capacity).build()


def drafted_plan(options: PlanOptions, *, rows: int, cache_slots: int) -> Plan:
    """The plan ``drafted``: tokens that follow each other in a sequence, with the choice of the token after each.

    Table, inputs and errors are those of :func:`chunk_plan`. The choice of row r is in row r of ``row.picks``,
    drawn with the noise that the table gives the row (:func:`glinfer.ops.fused.sample.pick_rows`); keys and values go
    to the cache, so that a sequence keeps the rows that it accepts and overwrites the others.

    Args:
        options: the options of all fast plans.
        rows: the most rows of one run.
        cache_slots: slots of the caches, a multiple of 64.
    """
    return _DraftedBuilder(options, rows, cache_slots, cache_slots).build()


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
        self.branch = self.interleaved("row.branch", config.hidden_size) if self.has_post_norms else None
        self.raw = self.interleaved("row.raw", self.recipes.qkv_floats) if self.turns_apart else None
        if self.convolves:
            self.projected = self.interleaved("row.conv.projected", PARTS * part_floats(config.hidden_size))
            self.convolved = self.interleaved("row.conv.mixed", config.hidden_size)
        # In the format of half floats where the cache is, so that every plan rounds keys, values and queries alike.
        self.qkv = self.interleaved("row.qkv", cols, format_name=self.cache_format.rows)
        if not self.has_experts:
            self.inner = self.interleaved("row.inner", self.inner_floats)

    def interleaved(self, name: str, floats: int, *, format_name: str = "rgba32f") -> RowInterleaved:
        shape, tiles = (self.slots, floats), self.kernels.row_tiles
        layout = BlockLayout.of(shape, self.max_texture_size, tiles=tiles, format_name=format_name)
        return self.interleaved_as(name, layout)

    def interleaved_as(self, name: str, layout: BlockLayout) -> RowInterleaved:
        names = (f"{name}.{number}" for number in range(self.targets))
        return RowInterleaved(tuple(self.plan.laid_out(each, "activation", layout) for each in names))

    def embed(self, picks: TensorSpec | None = None, out: RowInterleaved | None = None) -> None:
        (wte, wpe), out = self.tables(), self.hidden[0] if out is None else out
        self.plan.draw(
            embed_rows(
                "embed",
                self.row_table,
                wte,
                wpe,
                out,
                slots=self.used,
                picks=picks,
                scale=self.config.embedding_scale,
                typed=bool(self.config.type_vocab_size),
                kernels=self.kernels,
            )
        )

    def inner_of_adapters(self, name: str, ranks: int) -> TensorSpec:
        """Declare the inner vectors of adapters, in a slot of one tensor for each row."""
        shape = self.slots * self.targets, ranks
        layout = BlockLayout.of(shape, self.max_texture_size, tiles=self.kernels.row_tiles)
        return self.plan.laid_out(name, "activation", layout)

    def keys_and_values(self, layer: int, *, together: bool) -> TensorSpec:
        """Compute keys, values and queries of a layer, and store keys and values in its cache."""
        recipes, name = self.recipes, f"h.{layer}.attn"
        recipe = recipes.qkv(layer)
        cache = self.layer_cache(layer, self.cache_slots, self.every)
        turning = self.turning(layer)
        if self.raw is None:
            parts = self.shared_norm_parts(recipe, cache)
            shared: dict[str, Any] = {"adds": True, "parts": parts, "clears": "all"} if parts > 1 else {}
            self.product(recipe, self.hidden[0], self.qkv, turning=turning, **shared)
        else:
            assert turning is not None
            self.product(recipe, self.hidden[0], self.raw)
            self.turn_heads(layer, self.raw, turning, self.qkv, rows=self.row_table, slots=self.used)
        self.plan.draw(
            store_rows(f"{name}.store", self.qkv, self.row_table, cache, together=together, kernels=self.kernels)
        )
        return cache

    def gated(self, layer: int, *, together: bool) -> TensorSpec:
        """Compute the three parts of a layer's convolution, and store the product of two of them in its cache."""
        assert self.projected is not None
        cache, kernels = self.layer_cache(layer, self.cache_slots, self.every), self.kernels
        self.product(self.recipes.conv_in(layer), self.hidden[0], self.projected)
        name, rows = f"h.{layer}.conv.store", self.row_table
        self.plan.draw(store_gated(name, self.projected, cache, rows=rows, together=together, kernels=kernels))
        return cache

    def convolve(self, layer: int, cache: TensorSpec) -> None:
        """Draw the convolution of a layer over its cache."""
        assert self.projected is not None
        assert self.convolved is not None
        self.plan.draw(
            short_conv(
                f"h.{layer}.conv.mixed",
                self.projected,
                cache,
                self.of_layer(layer, "conv.taps"),
                self.convolved,
                length=self.config.layer(layer).taps,
                rows=self.row_table,
                slots=self.used,
                kernels=self.kernels,
            )
        )

    together = False
    """Whether rows may follow each other in a sequence."""

    def delta_rule(self, layer: int, *, ends: bool) -> None:
        """Draw the delta rule of a layer, each row by itself in a slot of one tensor."""
        floats, name = self.recipes.delta(layer).projected, f"h.{layer}.delta"
        projected = self.interleaved("row.delta.projected", floats)
        self.product(self.recipes.delta_in(layer), self.hidden[0], projected)
        joined, rows = self.row_vector("delta.projected", floats), self.row_table
        self.plan.draw(join_rows(f"{name}.rows", "delta.rows", projected, joined, rows="rows", kernels=self.kernels))
        piece = rows.shape[0] if self.together else 0
        self.apply_delta_rule(layer, joined, self.cache_slots, self.every, rows=rows, piece=piece, ends=ends)

    def store(self, name: str, x: TensorSpec, cache: TensorSpec) -> None:
        rows, kernels = RowInterleaved((x,)), self.kernels
        self.plan.draw(
            store_rows(name, rows, self.row_table, cache, together=self.together, kernels=kernels, kind="delta.store")
        )

    def open_gates(self, layer: int) -> None:
        """Draw the results of attention times their gates, where a layer has gates."""
        if not self.config.layer(layer).gated:
            return
        assert self.raw is not None
        mixed, raw, slots = self.mixed, self.raw, self.used
        if isinstance(mixed, TensorSpec):
            joined, name = self.row_vector("attn.raw", raw.cols), f"h.{layer}.attn.rows"
            self.plan.draw(join_rows(name, "attn.rows", raw, joined, rows="rows", kernels=self.kernels))
            mixed, raw, slots = RowInterleaved((mixed,)), RowInterleaved((joined,)), "rows"
        opened = self.opened
        assert opened is not None
        out = RowInterleaved((opened,)) if isinstance(opened, TensorSpec) else opened
        at, name = self.recipes.gates_at, f"h.{layer}.attn.gated"
        self.plan.draw(gate_heads(name, mixed, raw, out, gates_at=at, slots=slots, kernels=self.kernels))

    def mixed_layer(self, layer: int, *, together: bool, ends: bool = False) -> None:
        """Draw a layer; with ``ends`` only what it keeps for later tokens."""
        of = self.config.layer(layer)
        if of.convolves:
            cache = self.gated(layer, together=together)
            if not ends:
                self.convolve(layer, cache)
        elif of.delta is not None:
            self.delta_rule(layer, ends=ends)
        else:
            cache = self.keys_and_values(layer, together=together)
            if not ends:
                self.attend(layer, cache)
                self.open_gates(layer)
        if not ends:
            self.after_mixing(layer)

    @abstractmethod
    def attend(self, layer: int, cache: TensorSpec) -> None:
        """Draw the attention of a layer over its cache."""

    def head(self) -> RowInterleaved:
        logits = self.interleaved(LOGITS, self.config.vocab_size)
        self.product(self.recipes.head(), self.hidden[0], logits, cap=self.config.final_logit_softcapping)
        return logits

    def rows_of(self, layer: int, x: RowInterleaved) -> tuple[TensorSpec, Extent]:
        joined = self.row_vector("mlp.rows", x.cols)
        self.plan.draw(join_rows(f"h.{layer}.mlp.rows", "mlp.rows", x, joined, rows="rows", kernels=self.kernels))
        return joined, "rows"

    few = False
    """Whether rows are few, so that passes share their sums out as those of one row do."""

    def expert_products(
        self, layer: int, experts: Experts, x: TensorSpec, choice: TensorSpec, rows: Extent
    ) -> tuple[TensorSpec | RowInterleaved, TensorSpec]:
        """Draw the products of rows with their experts, rows of one expert together unless they are few.

        Where adapters change experts, each row is computed by itself, as its expert's adapter is its own.
        """
        up, down = self.recipes.up(layer), self.recipes.down(layer)
        adapted = any(self.adapters.places(each)[1] for each in (up, down))
        most = self.plan.max_rows
        if self.few or adapted or most <= self.few_expert_rows or most * experts.used < experts.count:
            return super().expert_products(layer, experts, x, choice, rows)
        name, config, targets = f"h.{layer}.mlp", self.config, self.targets
        groups = most_groups(self.slots * targets, targets, experts)
        tally = self.whole_vector("mlp.tally", tally_rows(self.slots * targets), experts.count)
        chosen = self.whole_vector("mlp.groups", groups, CHOICE_FLOATS * targets)
        places = self.row_vector("mlp.places", CHOICE_FLOATS * experts.used)
        inner = self.in_groups("mlp.inner", groups, config.intermediate_size)
        parts = self.in_groups("mlp.parts", groups, config.hidden_size)
        shared: dict[str, Any] = {"rows": rows, "kernels": self.kernels}
        norm: dict[str, Any] = {"norm_eps": config.layer_norm_eps, "activation": config.hidden_act}
        self.plan.draw(
            tally_experts(f"{name}.tally", choice, tally, experts, **shared),
            place_experts(f"{name}.places", choice, tally, places, experts, targets=targets, **shared),
            group_experts(f"{name}.groups", choice, tally, chosen, experts, targets=targets, **shared),
            expert_gemm(up.name, "mlp.fc_in", x, self.matrix(up), chosen, inner, experts, kernels=self.kernels, **norm),
            expert_gemm(
                down.name, "mlp.fc_out", inner, self.matrix(down), chosen, parts, experts, kernels=self.kernels
            ),
        )
        return parts, places

    @property
    def few_expert_rows(self) -> int:
        """The most rows that go one by one through their experts."""
        experts, config = self.config.layer(0).experts, self.config
        assert experts is not None
        return few_rows(self.plan.max_rows, experts.stacked, config.hidden_size, config.intermediate_size, self.kernels)

    def in_groups(self, name: str, groups: int, floats: int) -> RowInterleaved:
        """An activation with a row in each place of each group of rows."""
        names = [f"{name}.{number}" for number in range(self.targets)]
        return RowInterleaved(tuple(self.whole_vector(each, groups, floats) for each in names))

    def whole_vector(self, name: str, slots: int, floats: int) -> TensorSpec:
        """An activation [slots, floats]."""
        layout = BlockLayout.of((slots, floats), self.max_texture_size, tiles=self.kernels.row_tiles)
        return self.plan.laid_out(f"row.{name}", "activation", layout)

    def row_vector(self, name: str, floats: int) -> TensorSpec:
        return self.whole_vector(name, self.slots * self.targets, floats)

    def as_rows(self, residual: RowInterleaved, out: RowInterleaved) -> tuple[RowInterleaved, RowInterleaved, Extent]:
        return residual, out, self.used

    def post_norm(self, recipe: Recipe, x: RowInterleaved, residual: RowInterleaved, out: RowInterleaved) -> None:
        self.draw_post_norm(recipe, x, residual, out, self.used)

    def product(
        self,
        recipe: Recipe,
        x: RowInterleaved | TensorSpec | RawRows,
        out: RowInterleaved,
        *,
        residual: RowInterleaved | None = None,
        activation: str = "none",
        cap: float = 0.0,
        turning: Turning | None = None,
        adds: bool = False,
        parts: int = 1,
        clears: str = "",
        raw: bool = False,
        slots: Extent | None = None,
    ) -> None:
        if not isinstance(x, RawRows):
            self.adapt(recipe, x, "rows")
        norms = self.norms_of(recipe, x) if recipe.norm and not raw else {}
        self.plan.draw(
            gemm(
                recipe.name,
                recipe.kind,
                x,
                self.matrix(recipe),
                out,
                slots=self.used if slots is None else slots,
                **norms,
                turning=turning,
                rows=self.row_table if turning is not None else None,
                residual=residual,
                activation=activation,
                cap=cap,
                adds=adds,
                parts=parts,
                clears=clears,
                raw=raw,
                kernels=self.kernels,
            )
        )

    def norms_of(self, recipe: Recipe, x: RowInterleaved | TensorSpec | RawRows) -> dict[str, Any]:
        """The norm of a product's rows, as arguments of :func:`gemm`: here the product computes it."""
        return {"norm_eps": self.config.layer_norm_eps}


def few_chunk_rows(options: PlanOptions) -> int:
    """The most tokens of a prompt that take less time in a plan of their own, where experts take rows one by one."""
    config, kernels, experts = options.config, options.kernels, options.config.layer(0).experts
    if experts is None:
        return 0
    recipes = Recipes(config, options.weights, options.formats)
    together = [recipes.delta(layer).most_together for layer in delta_layers(config)]
    rows = min(kernels.chunk, config.max_position_embeddings, *together)
    return few_rows(rows, experts.stacked, config.hidden_size, config.intermediate_size, kernels)


class ChunkBuilder(_RowsBuilder):
    """Rows that follow each other in a sequence, several of which may share a run."""

    mixed: RowInterleaved
    name = "chunk"
    has_head = False
    """Whether the last layer goes on to the end, and :meth:`finish` to a head."""
    together = True

    def __init__(self, options: PlanOptions, rows: int, cache_slots: int, every: int) -> None:
        """Declare what all layers share."""
        config, kernels, max_texture_size = options.config, options.kernels, options.max_texture_size
        slots = max(1, slots_for(rows, kernels.rows_per_draw))
        # A row sees its own sequence alone; the padding rows of the last slot may lie beyond its end.
        longest = min(config.max_position_embeddings, cache_slots) + kernels.rows_per_draw
        groups, seen = score_slots(longest), ("ceildiv", "longest", SLOT_TOKENS)
        values = [
            RunValue("longest", 1, longest, usual=longest),
            RunValue("rows", 1, rows, usual="tokens"),
            RunValue("row_slots", 1, slots, ("ceildiv", "rows", kernels.rows_per_draw)),
            RunValue("score_slots", 1, groups * slots, ("multiply", seen, "row_slots")),
            RunValue("strip_first", 0, cache_slots - 1),
            RunValue("last_row", 0, rows - 1, ("add", "rows", -1)),
            *adapter_values(options.adapters),
        ]
        if self.few and kernels.split_values:
            values.append(RunValue("score_groups", 1, groups, seen))
        self.rows_per_draw, self._few_chunk_rows = kernels.rows_per_draw, few_chunk_rows(options)
        values += self.further_values(rows)
        super().__init__(self.name, values, options, rows, cache_slots, every)
        self.used = "row_slots"
        most = min((heads.most_together for heads in self.delta_heads), default=self.row_table.shape[0])
        if self.row_table.shape[0] > most:
            raise PlanError(
                f"a plan for {self.row_table.shape[0]} rows that follow each other; expected at most {most}, as the "
                "delta rule of a layer takes them in together"
            )
        self.mixed = self.interleaved("row.mixed", self.attention_width)
        if config.family.gated_attention:
            self.opened = self.interleaved("row.gated", self.attention_width)
        # In one tile a cell covers few slots, and is skipped if none of them sees it.
        layout = BlockLayout.of((groups * slots, config.num_attention_heads * BLOCK_FLOATS), max_texture_size)
        self.scores = self.interleaved_as("row.scores", layout)

    @property
    def few_expert_rows(self) -> int:
        """As of the largest plan, so that a smaller one beside it is for rows that go one by one."""
        return self._few_chunk_rows

    def further_values(self, rows: int) -> list[RunValue]:
        """The run values of this plan alone."""
        return []

    def build(self, export_residual: bool = False) -> Plan:
        """The whole plan."""
        self.embed()
        last = self.config.num_hidden_layers - 1
        for layer in range(last + 1):
            self.layer(layer, ends=layer == last and not self.has_head)
        self.finish()
        results = self.plan.last_written
        if export_residual:
            stream = self.blocks(HIDDEN, 1, self.config.hidden_size)
            self.plan.draw(take_row("take", self.hidden[0], stream, kernels=self.kernels))
            results, self.plan.shared = (*results, HIDDEN), (HIDDEN,)
        return self.plan.build(*results)

    def finish(self) -> None:
        """Draw what follows the last layer: nothing, since only the last token of a prompt needs a head."""

    def layer(self, layer: int, ends: bool) -> None:
        """Draw a layer, or with ``ends`` what it keeps for later tokens alone."""
        self.mixed_layer(layer, together=True, ends=ends)

    def attend(self, layer: int, cache: TensorSpec) -> None:
        """Draw the attention of a layer over its cache."""
        heads, name, table = self.recipes.heads(layer), f"h.{layer}.attn", self.row_table
        self.plan.draw(
            tile_scores(f"{name}.scores", self.qkv, cache, table, self.scores, heads, kernels=self.kernels),
            tile_values(
                f"{name}.values",
                self.scores,
                cache,
                table,
                self.mixed,
                heads,
                kernels=self.kernels,
                sinks=self.sinks(layer),
                split=self.few and self.kernels.split_values,
            ),
        )

    def norms_of(self, recipe: Recipe, x: RowInterleaved | TensorSpec | RawRows) -> dict[str, Any]:
        """Draw the norms of a product's rows in a pass of their own, unless rows are few."""
        if self.few:
            return super().norms_of(recipe, x)
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

    @cached_property
    def norms(self) -> TensorSpec:
        """The norms of the rows, declared at the first use."""
        shape = slots_for(self.plan.max_rows, self.targets), norm_floats(self.targets, centred=self.recipes.sums)
        return self.plan.laid_out("row.norms", "activation", BlockLayout.by_block(shape, self.max_texture_size))

    def parts_of(self, recipe: Recipe) -> int:
        """One, unless rows are few: several rows are fragments enough."""
        return super().parts_of(recipe) if self.few else 1


class _ScoreBuilder(ChunkBuilder):
    name, has_head = "score", True

    def finish(self) -> None:
        """Score each row's wanted token."""
        self.plan.draw(
            score_rows(
                "score",
                self.head(),
                self.row_table,
                self.interleaved(SCORES, BLOCK_FLOATS),
                vocab=self.config.vocab_size,
                slots=self.used,
                kernels=self.kernels,
            )
        )


class _DraftedBuilder(ChunkBuilder):
    """Few rows: norms are computed in the products, and sums are shared out, as the plan ``fast`` does both."""

    name, has_head, few, shares_norms = "drafted", True, True, True

    def finish(self) -> None:
        """Choose the token after each row."""
        shape = self.row_table.shape[0], BLOCK_FLOATS
        picks = self.plan.laid_out(PICKS, "activation", BlockLayout.by_block(shape, self.max_texture_size))
        vocab = self.config.vocab_size
        self.plan.draw(
            pick_rows("pick", self.head(), self.row_table, picks, vocab=vocab, count="rows", kernels=self.kernels)
        )


class _BatchBuilder(_RowsBuilder):
    mixed: TensorSpec

    def __init__(self, options: PlanOptions, sequences: int, capacity: int) -> None:
        config, kernels = options.config, options.kernels
        if capacity < 1 or capacity % SLOT_TOKENS:
            raise PlanError(f"room for {capacity} tokens; expected a multiple of {SLOT_TOKENS}")
        rows = slots_for(sequences, kernels.rows_per_draw) * kernels.rows_per_draw
        longest = min(capacity, config.max_position_embeddings)
        groups = score_slots(longest)
        values = [
            RunValue("longest", 1, longest, usual=longest),
            RunValue("rows", sequences, sequences),
            RunValue("score_slots", rows, groups * rows, ("multiply", ("ceildiv", "longest", SLOT_TOKENS), rows)),
        ]
        super().__init__("batch", values, options, sequences, sequences * capacity, capacity)
        self.adapter_table = self.row_table
        self.scores = self.blocks("row.scores", groups * rows, config.num_attention_heads * BLOCK_FLOATS)
        self.mixed = self.blocks("row.mixed", rows, self.attention_width)
        if config.family.gated_attention:
            self.opened = self.blocks("row.gated", rows, self.attention_width)

    def build(self) -> Plan:
        config, picks = self.config, self.cache(PICKS, self.row_table.shape[0], BLOCK_FLOATS)
        self.embed(picks)
        for layer in range(config.num_hidden_layers):
            self.mixed_layer(layer, together=False)
        logits = self.head()
        self.plan.draw(
            pick_rows(
                "pick", logits, self.row_table, picks, vocab=config.vocab_size, count="rows", kernels=self.kernels
            )
        )
        return self.plan.build()

    def attend(self, layer: int, cache: TensorSpec) -> None:
        table, queries = self.row_table, None
        heads, name = self.recipes.heads(layer), f"h.{layer}.attn"
        if self.in_bytes:
            queries, rows = self.row_vector("queries", heads.cols), table.shape[0]
            join = join_rows(f"{name}.queries", "attn.queries", self.qkv, queries, rows=rows, kernels=self.kernels)
            self.plan.draw(join)
        self.plan.draw(
            cached_scores(
                f"{name}.scores", cache, self.scores, heads, kernels=self.kernels, rows=table, queries=queries
            ),
            cached_values(
                f"{name}.values",
                self.scores,
                cache,
                self.mixed,
                heads,
                kernels=self.kernels,
                rows=table,
                sinks=self.sinks(layer),
            ),
        )


def slots_for(rows: int, targets: int) -> int:
    """Slots of ``rows`` rows, one in each render target."""
    return -(-rows // targets)
