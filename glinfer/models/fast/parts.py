"""The parts of all fast plans: the tensors that they declare, and the draws that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.families.layer import Experts
from glinfer.gl.layouts.blocks import BYTES, BlockLayout, blocks_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.models.options import PlanOptions
from glinfer.models.plan import PlanBuilder
from glinfer.models.transforms.fold import Weight, Weights
from glinfer.models.transforms.low_rank import AdapterRanks
from glinfer.models.transforms.recipe import Recipe, Recipes
from glinfer.ops.flat.delta import DELTA_EPS
from glinfer.ops.fused.cached import SLOT_TOKENS, Heads, score_slots
from glinfer.ops.fused.delta import DeltaHeads, delta_conv, delta_norm, delta_recall, delta_row, delta_scores
from glinfer.ops.fused.delta_chunk import (
    MOST_ONE_BY_ONE,
    delta_carry,
    delta_ends,
    delta_join,
    delta_lower,
    delta_solve,
    delta_unit,
    join_sizes,
)
from glinfer.ops.fused.dense import Matrix, RawRows, Turning, parts_of_steps, shared_parts
from glinfer.ops.fused.experts import mix_experts, padded, route, rowwise_gemv
from glinfer.ops.fused.low_rank import ADAPTER, CHOICE_FLOATS, LowRankSum, lora_down
from glinfer.ops.fused.norms import post_norm
from glinfer.ops.fused.rows import RowInterleaved
from glinfer.ops.fused.turn import turn_heads
from glinfer.ops.spec import RunValue, TensorSpec
from glinfer.quant.formats import CACHE_FORMATS, CacheChoice

Stream = TypeVar("Stream", TensorSpec, RowInterleaved)
"""The residual stream of a plan: one row in a tensor, or many rows in interleaved tensors."""


class PartsBuilder(ABC, Generic[Stream]):
    """A plan under construction, over the weights of :class:`glinfer.models.transforms.fold.Weights`.

    All plans of one model declare a weight, or a cache of equally many slots, with one name and one layout, so that
    they can share the textures.

    Attributes:
        hidden: the residual stream before and after the attention; one tensor where blending adds to it in place.
        mixed: the weighted sums of the attention.
        opened: those sums times the gates, where attention has gates.
        projected, convolved: what a convolution reads and what it writes, where layers convolve.
        inner: the input of the MLP's last product.
        branch: the output of a branch that is normalised before it is added, where layers have that.
    """

    shares_norms = False
    """Whether products behind a norm are shared out too, since rows are too few to fill a GPU."""
    hidden: tuple[Stream, Stream]
    mixed: Stream | TensorSpec
    opened: Stream | TensorSpec | None = None
    projected: Stream | None = None
    convolved: Stream | None = None
    inner: Stream
    branch: Stream | None = None

    def __init__(self, name: str, max_rows: int, run_values: Sequence[RunValue], options: PlanOptions) -> None:
        """An empty plan."""
        self.config, self.kernels, self.max_texture_size = options.config, options.kernels, options.max_texture_size
        self.cache_format = cache_format(options.cache)
        self.recipes, self.adapters = Weights(options.config, options.weights, options.formats), options.adapters
        self.plan = PlanBuilder(name, max_rows, run_values, long_after=options.config.long_after)
        self.attention_width = options.config.num_attention_heads * self.recipes.head_floats

    def blocks(self, name: str, slots: int, floats: int) -> TensorSpec:
        """An activation [slots, floats] in blocks."""
        tiles, pitch = self.kernels.tiles, self.kernels.pitch
        layout = BlockLayout.of((slots, floats), self.max_texture_size, tiles=tiles, pitch=pitch)
        return self.plan.laid_out(name, "activation", layout)

    def cache(self, name: str, slots: int, floats: int) -> TensorSpec:
        """A cache [slots, floats]."""
        layout = BlockLayout.by_block((slots, floats), self.max_texture_size)
        return self.plan.laid_out(name, "cache", layout)

    @property
    def in_bytes(self) -> bool:
        """Whether keys and values are kept in bytes, and queries where they are computed."""
        return self.cache_format.attention == BYTES

    def layer_cache(self, layer: int, slots: int, every: int) -> TensorSpec:
        """The cache of one layer: keys and values of ``slots`` tokens, queries once for each ``every`` tokens.

        In bytes it has no queries. Of a convolution it is B · x of each token.
        """
        layout = layer_cache_layout(self.recipes, layer, slots, every, self.cache_format, self.max_texture_size)
        return self.plan.laid_out(f"h.{layer}.{self.config.layer(layer).branch}.cache", "cache", layout)

    def sinks(self, layer: int) -> TensorSpec | None:
        """The sinks of a layer's heads; None where it has none."""
        return self.of_layer(layer, "attn.sinks") if self.config.layer(layer).sinks else None

    @property
    def convolves(self) -> bool:
        """Whether any layer convolves."""
        return any(self.config.layer(layer).convolves for layer in range(self.config.num_hidden_layers))

    @property
    def delta_heads(self) -> list[DeltaHeads]:
        """The heads of each layer with a delta rule."""
        return list(map(self.recipes.delta, delta_layers(self.config)))

    def apply_delta_rule(
        self,
        layer: int,
        projected: TensorSpec,
        slots: int,
        every: int,
        *,
        rows: TensorSpec | None = None,
        piece: int = 0,
        ends: bool = False,
    ) -> None:
        """Draw the delta rule of a layer on what the product before it made, see :mod:`glinfer.ops.fused.delta`.

        Args:
            layer: its number.
            projected: [rows, floats], one row a slot.
            slots, every: of the caches, see :meth:`layer_cache`.
            rows: the table of rows; None for the token at the run value position.
            piece: the most rows that follow each other in a sequence; 0 where none do.
            ends: draw only what the layer keeps for later tokens.
        """
        heads, name = self.recipes.delta(layer), f"h.{layer}.delta"
        layouts = delta_cache_layouts(self.recipes, layer, slots, every, self.max_texture_size)
        inputs, cache = (
            self.plan.laid_out(f"{name}.{part}", "cache", layout)
            for part, layout in zip(("inputs", "cache"), layouts, strict=True)
        )
        self.store(f"{name}.store", projected, inputs)
        mixed = self.delta_inputs(layer, projected, inputs, rows=rows, solves=piece > MOST_ONE_BY_ONE)
        queries = None if ends else self.row_vector("delta.scores.queries", heads.scores)
        self.keep_delta_rows(name, mixed, cache, queries, heads, rows=rows, piece=piece)
        if queries is None:
            return
        shared: dict[str, Any] = {"rows": rows, "kernels": self.kernels}
        results = self.row_vector("delta.results", heads.rule.values)
        self.plan.draw(
            delta_recall(f"{name}.results", mixed, queries, cache, results, heads, queries=True, **shared),
            delta_norm(
                f"{name}.mixed",
                results,
                projected,
                self.of_layer(layer, "delta.norm"),
                self.row_vector("delta.mixed", heads.rule.values),
                heads,
                eps=self.config.layer_norm_eps,
                **shared,
            ),
        )

    def delta_inputs(
        self, layer: int, projected: TensorSpec, inputs: TensorSpec, *, rows: TensorSpec | None, solves: bool
    ) -> TensorSpec:
        """Draw queries, keys, values, decays and shares; where it ``solves``, lengths are a pass of their own."""
        heads, name = self.recipes.delta(layer), f"h.{layer}.delta"
        mixed, decay = self.row_vector("delta.given", heads.mixed), self.of_layer(layer, "delta.decay")
        shared: dict[str, Any] = {"eps": DELTA_EPS, "rows": rows, "kernels": self.kernels}
        found = self.row_vector("delta.raw", heads.mixed) if solves else mixed
        conv = projected, inputs, self.of_layer(layer, "delta.taps"), decay, found
        self.plan.draw(delta_conv(f"{name}.conv", *conv, heads, unit=not solves, **shared))
        if solves:
            self.plan.draw(delta_unit(f"{name}.unit", found, mixed, heads, **shared))
        return mixed

    def keep_delta_rows(
        self,
        name: str,
        mixed: TensorSpec,
        cache: TensorSpec,
        queries: TensorSpec | None,
        heads: DeltaHeads,
        *,
        rows: TensorSpec | None,
        piece: int,
    ) -> None:
        """Draw what a delta rule keeps of rows, and store it; ``queries`` gets the weights of tokens for those."""
        kept, draw, solves = self.row_vector("delta.kept", heads.kept), self.plan.draw, piece > MOST_ONE_BY_ONE
        keys = self.row_vector("delta.scores.keys", heads.scores)
        shared: dict[str, Any] = {"rows": rows, "kernels": self.kernels}
        run: dict[str, Any] = {**shared, "piece": piece}
        early, late = dict[str, Any](), dict[str, Any]()
        if solves:
            early["ends"] = ended = self.row_vector("delta.ends", heads.ends)
            draw(delta_ends(f"{name}.ends", cache, ended, heads, **run))
        if piece:
            draw(delta_row(f"{name}.early", mixed, cache, kept, heads, **early, **run))
            self.store(f"{name}.early_store", kept, cache)
        draw(delta_scores(f"{name}.scores", mixed, cache, keys, queries, heads, **shared))
        if piece:
            late["apart"] = apart = self.row_vector("delta.apart", heads.rule.values)
            draw(delta_recall(f"{name}.apart", mixed, keys, cache, apart, heads, queries=False, **run))
        late |= self.solve_delta_rule(name, mixed, keys, heads, run) if solves else {"scores": keys}
        draw(delta_row(f"{name}.row", mixed, cache, kept, heads, **late, **run))
        self.store(f"{name}.row_store", kept, cache)

    def solve_delta_rule(
        self, name: str, mixed: TensorSpec, scores: TensorSpec, heads: DeltaHeads, run: dict[str, Any]
    ) -> dict[str, TensorSpec]:
        """Draw what makes the corrections of all rows of a run a product, see :mod:`glinfer.ops.fused.delta_chunk`.

        Returns:
            The further inputs of :func:`glinfer.ops.fused.delta.delta_row`.
        """
        columns, draw = heads.over_run(run["piece"]), self.plan.draw
        solved, other = (self.row_vector(f"delta.{each}", columns) for each in ("solved", "other"))
        draw(delta_solve(f"{name}.solve", mixed, scores, solved, heads, **run))
        for number, size in enumerate(join_sizes(run["piece"])):
            joined = self.row_vector("delta.solved" if number % 2 else "delta.joined", columns)
            draw(delta_lower(f"{name}.lower.{size}", mixed, scores, solved, other, heads, size=size, **run))
            draw(delta_join(f"{name}.join.{size}", solved, other, joined, heads, size=size, **run))
            solved = joined
        draw(delta_carry(f"{name}.carry", mixed, solved, other, heads, **run))
        return {"solved": solved, "carry": other}

    @abstractmethod
    def store(self, name: str, x: TensorSpec, cache: TensorSpec) -> None:
        """Draw the copy of rows, one a slot, to the slots of their tokens in a cache."""

    def weight(self, name: str, among: Iterable[Weight]) -> TensorSpec:
        """The weight of this name."""
        layout = next(each.layout for each in among if each.name == name)
        return self.plan.laid_out(name, "weight", layout(self.kernels.quad, self.max_texture_size))

    def of_model(self, name: str) -> TensorSpec:
        """A weight outside of all products and layers, or a norm of the stream."""
        return self.weight(name, self.recipes.of_model())

    def of_layer(self, layer: int, kind: str) -> TensorSpec:
        """A weight of a layer that no product has."""
        return self.weight(f"h.{layer}.{kind}", self.recipes.of_layer(layer))

    def of_product(self, recipe: Recipe, part: str) -> TensorSpec:
        """A weight of a product."""
        return self.weight(f"{recipe.name}.{part}", self.recipes.of_product(recipe, self.adapters))

    def tables(self) -> tuple[TensorSpec, TensorSpec | None]:
        """The token embeddings, and those of positions, or None where positions are rotary."""
        recipes = self.recipes
        wte = self.of_product(recipes.head(), "weight") if recipes.table_is_head else self.of_model("wte")
        return wte, self.of_model("wpe") if recipes.places else None

    def matrix(self, recipe: Recipe) -> Matrix:
        """The packed matrix of a product with its constants and its gain."""
        weight, consts = (self.of_product(recipe, each) for each in ("weight", "consts"))
        gain = self.of_product(recipe, "gain") if recipe.has_gain else None
        biased = self.recipes.biased(recipe)
        return Matrix(weight, consts, recipe.width, gain, recipe.gated, biased, self.low_rank(recipe))

    def low_rank(self, recipe: Recipe) -> LowRankSum | None:
        """What adapters add to a product; None where they change none of its matrices."""
        _, ranks = self.adapters.places(recipe)
        if not ranks:
            return None
        down, up = (self.of_product(recipe, each) for each in ("lora_down", "lora_up"))
        experts = self.config.layer(0).experts
        used = 1 if experts is None or recipe.experts == 1 else experts.stacked.used
        inner = self.inner_of_adapters(f"lora.inner.{used * ranks}", used * ranks)
        count, biased = len(self.adapters.names), self.recipes.norm_is_biased(recipe)
        return LowRankSum(down, up, inner, count, biased, self.adapter_table, recipe.experts, used)

    @abstractmethod
    def inner_of_adapters(self, name: str, ranks: int) -> TensorSpec:
        """Declare the inner vectors of adapters, [rows, ranks]."""

    adapter_table: TensorSpec | None = None
    """The table of rows, where it says which adapter a row has."""

    def adapt(self, recipe: Recipe, x: TensorSpec | RowInterleaved, rows: Extent, **chosen: Any) -> None:
        """Draw the inner vectors of the adapters of a product, for the product that follows, or of chosen experts."""
        low_rank = self.low_rank(recipe)
        if low_rank is None:
            return
        name, parts = f"{recipe.name}.lora", 1
        if self.parts_of(recipe) > 1:
            parts = parts_of_steps(4 * blocks_for(recipe.width), self.kernels.part_steps)
        shared: dict[str, Any] = {"rows": rows, "parts": parts, "kernels": self.kernels}
        self.plan.draw(lora_down(name, f"{recipe.kind}.lora", x, low_rank, **shared, **chosen))

    def turning(self, layer: int) -> Turning | None:
        """The outputs that a layer turns by their positions or normalises; None where it does neither."""
        of, heads = self.config.layer(layer), self.recipes.heads(layer)
        if of.rope is None:
            return Turning(None, heads.kv_floats, heads.queries_at, heads.floats) if of.head_norms else None
        table = self.of_model(self.recipes.ropes[of.rope])
        positions = self.config.max_position_embeddings if self.config.long_after else 0
        return Turning(table, heads.kv_floats, heads.queries_at, positions=positions, apart=of.rope.scales_queries)

    @abstractmethod
    def product(
        self,
        recipe: Recipe,
        x: Stream | TensorSpec | RawRows,
        out: Stream,
        *,
        residual: Stream | None = None,
        activation: str = "none",
        cap: float = 0.0,
        adds: bool = False,
        parts: int = 1,
        clears: str = "",
        raw: bool = False,
    ) -> None:
        """Draw a product, with the norm of its recipe, or its bare sums."""

    def add(self, recipe: Recipe, x: Stream | TensorSpec | RawRows, residual: Stream, out: Stream) -> None:
        """Draw a product that is added to the residual stream, normalised before where the layer has that."""
        if recipe.post_norm:
            assert self.branch is not None
            parts = self.parts_of(recipe)
            shared: dict[str, Any] = {"adds": True, "parts": parts, "clears": "all"} if parts > 1 else {}
            self.product(recipe, x, self.branch, **shared)
            self.post_norm(recipe, self.branch, residual, out)
        elif residual is not out:
            self.product(recipe, x, out, residual=residual)
        else:
            self.product(recipe, x, out, adds=True, parts=self.parts_of(recipe))

    def parts_of(self, recipe: Recipe) -> int:
        """Instances that share a product which blending adds to the residual stream."""
        return shared_parts(self.matrix(recipe), self.kernels.part_steps)

    @abstractmethod
    def post_norm(self, recipe: Recipe, x: Stream, residual: Stream, out: Stream) -> None:
        """Draw the norm behind a product, and the sum with the residual stream."""

    def draw_post_norm(
        self, recipe: Recipe, x: RowInterleaved, residual: RowInterleaved, out: RowInterleaved, slots: Extent
    ) -> None:
        """Draw it for rows in slots."""
        name = recipe.named(recipe.post_kind)
        self.plan.draw(
            post_norm(
                name,
                recipe.post_kind,
                x,
                self.weight(name, self.recipes.of_product(recipe, self.adapters)),
                out,
                residual=None if residual.names == out.names else residual,
                slots=slots,
                eps=self.config.layer_norm_eps,
                kernels=self.kernels,
            )
        )

    @property
    def has_post_norms(self) -> bool:
        """Whether layers normalise what their branches add."""
        return self.config.layer(0).norm_after

    def after_mixing(self, layer: int) -> None:
        """Draw the rest of a layer: the output projection and the MLP, both added to the residual stream."""
        before, behind = self.hidden
        of = self.config.layer(layer)
        mixed: Stream | TensorSpec | None = self.opened if of.gated else self.mixed
        if of.convolves:
            mixed = self.convolved
        elif of.delta is not None:
            mixed = self.row_vector("delta.mixed", of.delta.values)
        assert mixed is not None
        self.add(self.recipes.mixing_out(layer), mixed, before, behind)
        experts = of.experts
        if experts is not None:
            self.use_experts(layer, experts, behind, before)
        else:
            self.add(self.recipes.down(layer), self.expanded(layer, behind), behind, before)

    def use_experts(self, layer: int, experts: Experts, residual: Stream, out: Stream) -> None:
        """Draw the choice of each row's experts, their products, and the sum that is added to the residual stream."""
        name, config, kernels = f"h.{layer}.mlp", self.config, self.kernels
        x, rows = self.rows_of(layer, residual)
        chooses, experts = experts, experts.stacked
        logits = self.row_vector("mlp.router", experts.count)
        choice = self.row_vector("mlp.choice", CHOICE_FLOATS * experts.used)
        router, eps = self.recipes.router(layer), config.layer_norm_eps
        shared: dict[str, Any] = {"rows": rows, "kernels": kernels}
        self.adapt(router, x, rows)
        self.plan.draw(
            rowwise_gemv(router.name, "mlp.router", x, self.matrix(router), logits, norm_eps=eps, **shared),
            route(f"{name}.choice", "mlp.choice", logits, choice, chooses, **shared),
        )
        parts, choice = self.expert_products(layer, experts, x, choice, rows)
        stream, target, slots = self.as_rows(residual, out)
        self.plan.draw(
            mix_experts(
                f"{name}.mix",
                "mlp.mix",
                parts,
                choice,
                target,
                experts,
                residual=None if stream.names == target.names else stream,
                slots=slots,
                **shared,
            )
        )

    def expert_products(
        self, layer: int, experts: Experts, x: TensorSpec, choice: TensorSpec, rows: Extent
    ) -> tuple[TensorSpec | RowInterleaved, TensorSpec]:
        """Draw the products of rows with their experts; returns those, and the choices that say where each lies.

        Here each row is computed by itself.
        """
        config, up, down = self.config, self.recipes.up(layer), self.recipes.down(layer)
        inner = self.row_vector("mlp.inner", experts.used * padded(config.intermediate_size))
        parts = self.row_vector("mlp.parts", experts.used * padded(config.hidden_size))
        chosen: dict[str, Any] = {"rows": rows, "kernels": self.kernels, "experts": experts, "choice": choice}
        norm: dict[str, Any] = {"norm_eps": config.layer_norm_eps, "activation": config.hidden_act}
        self.adapt(up, x, rows, choice=choice)
        self.plan.draw(rowwise_gemv(up.name, "mlp.fc_in", x, self.matrix(up), inner, **norm, **chosen))
        self.adapt(down, inner, rows, choice=choice, apart=config.intermediate_size)
        self.plan.draw(rowwise_gemv(down.name, "mlp.fc_out", inner, self.matrix(down), parts, apart=True, **chosen))
        return parts, choice

    @abstractmethod
    def rows_of(self, layer: int, x: Stream) -> tuple[TensorSpec, Extent]:
        """The rows of the stream in one tensor, a row a slot, and their number."""

    @abstractmethod
    def row_vector(self, name: str, floats: int) -> TensorSpec:
        """An activation with a row a slot."""

    @abstractmethod
    def as_rows(self, residual: Stream, out: Stream) -> tuple[RowInterleaved, RowInterleaved, Extent]:
        """The stream before and behind a branch as interleaved rows, and their slots."""

    def expanded(self, layer: int, x: Stream) -> Stream | RawRows:
        """Draw the MLP's first product, which instances share if its reader finishes it; returns that one's input."""
        recipe, config = self.recipes.up(layer), self.config
        if not self.raw_inner:
            self.product(recipe, x, self.inner, activation=config.hidden_act)
            return self.inner
        self.product(recipe, x, self.inner, adds=True, parts=self.parts_of(recipe), clears="all", raw=True)
        return RawRows(self.inner, self.matrix(recipe), config.hidden_act, config.layer_norm_eps)

    @property
    def raw_inner(self) -> bool:
        """Whether the MLP's first product leaves bare sums."""
        shares = self.shares_norms and self.kernels.part_steps > 0 and self.kernels.split_inner
        return shares and self.config.layer(0).norm_before and not self.has_experts and not self._reads_inner

    @property
    def has_experts(self) -> bool:
        """Whether layers have experts."""
        return self.config.layer(0).experts is not None

    @cached_property
    def _reads_inner(self) -> bool:
        """Whether an adapter reads the row between the MLP's products, or adds to it after the norm."""
        recipes, places = self.recipes, self.adapters.places
        return any(
            places(recipes.down(layer))[1] or (places(up := recipes.up(layer))[1] and recipes.norm_is_biased(up))
            for layer in (range(self.config.num_hidden_layers) if self.adapters.names else ())
        )

    @property
    def inner_floats(self) -> int:
        """Floats of a row between the MLP's products."""
        return RawRows.floats(self.matrix(self.recipes.up(0))) if self.raw_inner else self.config.intermediate_size

    def shared_norm_parts(self, recipe: Recipe, cache: TensorSpec) -> int:
        """Instances that share keys, values and queries, which go into a slot of a cache; blending adds them up."""
        layout = cache.layout
        assert isinstance(layout, BlockLayout)
        # Sums of half floats would be rounded once for each instance. Bytes are rounded in a pass behind.
        into_slot = layout.format_name == "rgba32f" and layout.slot_is_rectangular
        shared = self.kernels.split_norms and (into_slot or self.in_bytes)
        return self.parts_of(recipe) if shared and self.shares_norms else 1

    def turn_heads(
        self,
        layer: int,
        x: RowInterleaved,
        turning: Turning,
        out: RowInterleaved,
        *,
        rows: TensorSpec | None,
        slots: Extent = 1,
        first: Extent = 0,
    ) -> None:
        """Draw the pass that normalises and turns the heads of keys and queries."""
        name = f"h.{layer}.attn"
        gains = self.of_layer(layer, "attn.qkv.turn")
        self.plan.draw(
            turn_heads(
                f"{name}.turn",
                x,
                gains,
                turning,
                out,
                head_dim=self.config.head_dim,
                eps=self.config.layer_norm_eps,
                whole=self.config.layer(layer).head_norms == "width",
                rows=rows,
                slots=slots,
                first=first,
                kernels=self.kernels,
            )
        )

    @property
    def turns_apart(self) -> bool:
        """Whether heads are turned in a pass of their own, which normalises them first."""
        return bool(self.config.family.head_norms)


def attention_layout(heads: Heads, slots: int, every: int, format_name: str, max_texture_size: int) -> BlockLayout:
    """The layout of one layer's cache, see :meth:`PartsBuilder.layer_cache`.

    Raises:
        PlanError: it does not fit such textures.
    """
    bytes_alone = format_name == BYTES
    shape, aside = (slots, heads.queries_at if bytes_alone else heads.cols), 0 if bytes_alone else heads.aside
    return BlockLayout.by_block(shape, max_texture_size, aside=aside, every=every, format_name=format_name)


def adapter_values(adapters: AdapterRanks) -> list[RunValue]:
    """The run value of plans whose rows all have one adapter, where the model has any."""
    count = len(adapters.names)
    return [RunValue(ADAPTER, 0, count, usual=adapters.default)] if count else []


def delta_layers(config: ModelConfig) -> list[int]:
    """The layers with a delta rule."""
    return [layer for layer in range(config.num_hidden_layers) if config.layer(layer).delta is not None]


def delta_cache_layouts(
    recipes: Recipes, layer: int, slots: int, every: int, max_texture_size: int
) -> tuple[BlockLayout, BlockLayout]:
    """The layouts of what the convolution before a delta rule reads, and of the rule's own cache.

    Both are float32 whatever the format of other caches, since errors of a state go on from span to span.

    Raises:
        PlanError: one does not fit such textures.
    """
    heads = recipes.delta(layer)
    inputs = BlockLayout.by_block((slots, heads.projected), max_texture_size, aside=heads.aside, every=every)
    return inputs, BlockLayout.by_block((slots, heads.kept), max_texture_size, every=every)


def layer_cache_layouts(
    recipes: Recipes, layer: int, slots: int, every: int, formats: CacheChoice, max_texture_size: int
) -> tuple[BlockLayout, ...]:
    """The layouts of all caches of one layer.

    Raises:
        PlanError: one does not fit such textures.
    """
    if recipes.config.layer(layer).delta is not None:
        return delta_cache_layouts(recipes, layer, slots, every, max_texture_size)
    return (layer_cache_layout(recipes, layer, slots, every, formats, max_texture_size),)


def layer_cache_layout(
    recipes: Recipes, layer: int, slots: int, every: int, formats: CacheChoice, max_texture_size: int
) -> BlockLayout:
    """The layout of one layer's cache, see :meth:`PartsBuilder.layer_cache`.

    Raises:
        PlanError: it does not fit such textures.
    """
    if recipes.config.layer(layer).convolves:
        shape = slots, recipes.config.hidden_size
        return BlockLayout.by_block(shape, max_texture_size, every=every, format_name=formats.convolution)
    return attention_layout(recipes.heads(layer), slots, every, formats.attention, max_texture_size)


def cache_format(cache: str) -> CacheChoice:
    """The texture formats of a value of ``cache=``.

    Raises:
        PlanError: there is no such cache format.
    """
    if cache not in CACHE_FORMATS:
        raise PlanError(f"there is no cache format {cache!r}; expected one of {', '.join(CACHE_FORMATS)}")
    return CACHE_FORMATS[cache]


def cache_slots(config: ModelConfig) -> int:
    """Slots of a cache with room for one whole context."""
    return score_slots(config.max_position_embeddings) * SLOT_TOKENS
