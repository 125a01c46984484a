"""A fast plan under construction: its tensors, weights and caches, and the draws of a product and of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glinfer.gl.layouts.blocks import BYTES, BlockLayout, blocks_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.dense import Matrix, RawRows, parts_of_steps, shared_parts
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.fused.low_rank import LowRankSum, lora_down
from glinfer.kernels.fused.rows import RowInterleaved, Vectors
from glinfer.kernels.fused.tiles import store_rows
from glinfer.kernels.spec import Pass, RunValue, TensorSpec
from glinfer.lower.fused.caches import attention_layout
from glinfer.lower.options import PlanOptions
from glinfer.lower.weights.fold import Weights
from glinfer.lower.weights.recipe import Recipe
from glinfer.program.plan import PlanBuilder
from glinfer.program.points import CENTRED, View
from glinfer.quant.formats import CACHE_FORMATS


class LoweringBase:
    """A fast plan without the draws of layers, for one row; subclasses have many.

    All plans of one model declare a weight, or a cache of equally many slots, with one name and one layout, so that
    they can share the textures.

    Attributes:
        table: the table of rows; None for the one row of the token at the run value ``position``.
        used, counted: the slots of rows that a run computes, and the rows.
        most_rows, prefix: rows of a tensor with a row a slot, and what the names of activations begin with.
        cache_slots, every: slots of the caches, and of each sequence.
        hidden: the residual stream before and after a branch; the same tensors where blending adds to it in place.
        streams: the two tensors of the stream; the same where one is enough.
        stores, normed_heads: whether a separate pass puts keys and values into the cache, or normalises heads.
        scores, stats: attention's scores, and their statistics where instances share its values.
        picks: the choices of the run before, where rows may take their tokens from these.
        in_bytes: whether keys and values are kept in bytes, and queries where they are computed.
        centred: what the name of the stream ends in where its mean was taken away.
        kept: the caches that the last layer has written, where later tokens need nothing else of it.
        branch: the output of a branch that is normalised before it is added, where layers have that.
    """

    few = False
    """Whether rows are too few to fill a GPU, so that products after a norm are shared out too."""
    together = False
    """Whether rows may follow each other in a sequence."""
    table: TensorSpec | None = None
    used: Extent = 1
    counted: Extent = 1
    most_rows = 1
    prefix = ""
    scores: TensorSpec
    stats: TensorSpec | None = None
    picks: TensorSpec | None = None
    projected: TensorSpec | None = None
    adapter_table: TensorSpec | None = None
    """The table of rows, where it says which adapter a row has."""

    def __init__(
        self,
        name: str,
        max_rows: int,
        run_values: Sequence[RunValue],
        options: PlanOptions,
        *,
        cache_slots: int,
        every: int,
    ) -> None:
        """An empty plan."""
        self.options, self.max_texture_size = options, options.max_texture_size
        self.config, self.kernels = options.config, options.kernels
        self.cache_format = CACHE_FORMATS[options.cache]
        self.recipes, self.adapters = Weights(options.config, options.weights, options.formats), options.adapters
        self.graph, self.weights = self.recipes.graph, self.recipes.by_name(options.adapters)
        self.plan = PlanBuilder(name, max_rows, run_values, long_after=options.config.long_after)
        self.in_bytes, self.centred = self.cache_format.attention == BYTES, CENTRED if self.recipes.centred else ""
        self.cache_slots, self.every, self.kept = cache_slots, every, list[str]()

    def declare(self, *, in_place: bool, stores: bool) -> None:
        """Declare what all layers share; with ``in_place`` blending adds to the residual stream."""
        width, layer = self.config.hidden_size, self.config.family.layer
        first = self.rows("hidden.a", width)
        self.streams = first, self.rows("hidden.b", width) if layer.scaled or not in_place else first
        self.in_place, self.hidden = in_place, (first, first) if in_place else self.streams
        self.stores, self.normed_heads = stores, bool(layer.head_norms or self.config.kv_lora_rank)
        if stores:
            self.qkv(0)
        if self.normed_heads:
            self.raw(0)
        self.branch = None if self.graph.layer(0).mixing.post_norm is None else self.rows("branch", width)

    def name_of(self, name: str, layer: int) -> str:
        """The name of an activation of attention's heads; layers with other heads than the first have their own."""
        heads, first = self.recipes.heads(layer), self.recipes.heads(0)
        return name if (heads.kv, heads.floats) == (first.kv, first.floats) else f"{name}.{heads.kv}x{heads.floats}"

    def qkv(self, layer: int) -> RowInterleaved:
        """Keys, values and queries of a layer, where they do not go straight into its cache."""
        # In the format of half floats where the cache is, so that every plan rounds keys, values and queries alike.
        return self.rows(self.name_of("attn.qkv", layer), self.recipes.heads(layer).cols, self.cache_format.rows)

    def raw(self, layer: int) -> RowInterleaved:
        """The same before heads are normalised and rotated."""
        return self.rows(self.name_of("attn.raw", layer), self.recipes.qkv_floats(layer))

    @property
    def images(self) -> TensorSpec | None:
        """The rows of images among the rows of a run; None where it has none."""
        return None

    def called(self, name: str) -> str:
        """The name of an activation of rows, in plans for many without the branch."""
        return f"{self.prefix}{name.removeprefix('attn.').removeprefix('mlp.')}" if self.prefix else name

    def rows(self, name: str, floats: int, format_name: str = "rgba32f") -> RowInterleaved:
        """An activation of the rows of a run."""
        return RowInterleaved((self.row_vector(name, floats),))

    def row_vector(self, name: str, floats: int) -> TensorSpec:
        """An activation in one tensor, with a row a slot."""
        return self.whole_vector(f"{self.prefix}{name}", self.most_rows, floats)

    def whole_vector(self, name: str, slots: int, floats: int) -> TensorSpec:
        """An activation [slots, floats] in one tensor."""
        return self.blocks(name, slots, floats)

    def by_row(self, layer: int, kind: str, x: RowInterleaved, name: str, rows: Extent = "rows") -> TensorSpec:
        """Draw x in one tensor, a row a slot, which is called ``name``; one row is in one already."""
        return x.tensors[0]

    def in_slots(self, name: str, kind: str = "") -> Pass:
        """A draw over the slots of rows."""
        return Pass(name, self.kernels, kind, self.used)

    def in_rows(self, name: str, kind: str = "") -> Pass:
        """A draw over one tensor with a row a slot."""
        return Pass(name, self.kernels, kind, self.counted)

    def store(
        self, name: str, x: RowInterleaved, cache: TensorSpec, kind: str = "", ring: int = 0, *, gated: bool = False
    ) -> None:
        """Draw the copy of rows, or of B · x, to their tokens' slots in a cache, or in rings of ``ring`` slots."""
        draw, first, of_ring = self.in_rows(name, kind), f"ring.{ring}" if ring else "position", (ring, self.every)
        rings, together = of_ring if ring else None, self.together and self.plan.max_rows > ring
        self.plan.draw(store_rows(draw, x, cache, self.table, first=first, together=together, ring=rings, gated=gated))

    def product(
        self, recipe: Recipe, x: Vectors | RawRows, out: RowInterleaved, *, raw: bool = False, **further: Any
    ) -> None:
        """Draw a product, with the norm of its recipe, or its bare sums; ``further`` are arguments of :func:`gemm`."""
        if not isinstance(x, RawRows):
            self.adapt(recipe, x)
        further |= self.norms_of(recipe, x) if recipe.norm and not raw else {}
        further |= {"alone": self.table is None, "rows": self.table, "raw": raw}
        self.plan.draw(gemm(self.in_slots(recipe.name), x, self.matrix(recipe), out, **further))

    def norms_of(self, recipe: Recipe, x: Vectors | RawRows) -> dict[str, Any]:
        """The norm of a product's rows, as arguments of :func:`gemm`: here the product computes it."""
        return {"norm_eps": self.config.layer_norm_eps}

    def value(self, name: str, view: View) -> None:
        """Name what the last draw has written, in the plan of one sequence; ``latent_`` what heads see of a latent."""
        head, _, last = name.rpartition(".")
        if self.config.kv_lora_rank and last in ("q", "k", "v", "mixed", "joined"):
            name = f"{head}.latent_{last}"
        if self.table is None:
            self.plan.value(name, view)

    def blocks(self, name: str, slots: int, floats: int) -> TensorSpec:
        """An activation [slots, floats] in blocks."""
        tiles, pitch = self.kernels.tiles, self.kernels.pitch
        layout = BlockLayout.of((slots, floats), self.max_texture_size, tiles=tiles, pitch=pitch)
        return self.plan.laid_out(name, "activation", layout)

    def cache(self, name: str, slots: int, floats: int) -> TensorSpec:
        """A cache [slots, floats]."""
        return self.plan.laid_out(name, "cache", BlockLayout.by_block((slots, floats), self.max_texture_size))

    def layer_cache(self, layer: int) -> TensorSpec:
        """The cache of one layer: keys and values of tokens, queries once for each ``every`` tokens.

        In bytes it has no queries. Layers that share keys and values share a cache.
        """
        layer = layer if (source := self.config.layer(layer).source) is None else source
        slots, form = (self.cache_slots, self.every), self.cache_format.attention
        layout = attention_layout(self.recipes.heads(layer), *slots, form, self.max_texture_size)
        return self.plan.laid_out(f"h.{layer}.{self.config.layer(layer).branch}.cache", "cache", layout)

    def weight(self, name: str) -> TensorSpec:
        """The weight of this name."""
        layout = self.weights[name].layout
        return self.plan.laid_out(name, "weight", layout(self.kernels.quad, self.max_texture_size))

    def weight_if_any(self, name: str) -> TensorSpec | None:
        """The weight of this name; None where the model has none."""
        return self.weight(name) if name in self.weights else None

    def matrix(self, recipe: Recipe) -> Matrix:
        """The packed matrix of a product with its constants and its gain."""
        weight, consts = (self.weight(f"{recipe.name}.{each}") for each in ("weight", "consts"))
        gain = self.weight_if_any(f"{recipe.name}.gain")
        biased = self.recipes.biased(recipe)
        return Matrix(weight, consts, recipe.width, gain, recipe.gated, biased, self.low_rank(recipe))

    def low_rank(self, recipe: Recipe) -> LowRankSum | None:
        """What adapters add to a product; None where they change none of its matrices."""
        _, ranks = self.adapters.ranges(recipe)
        if not ranks:
            return None
        down, up = (self.weight(f"{recipe.name}.{each}") for each in ("lora_down", "lora_up"))
        experts = self.config.experts
        used = 1 if experts is None or recipe.experts == 1 else experts.stacked.used
        inner = self.whole_vector(f"lora.inner.{used * ranks}", self.most_rows, used * ranks)
        count, biased = len(self.adapters.names), self.recipes.norm_is_biased(recipe)
        return LowRankSum(down, up, inner, count, biased, self.adapter_table, recipe.experts, used)

    def adapt(self, recipe: Recipe, x: Vectors, **chosen: Any) -> None:
        """Draw the inner vectors of the adapters of a product, for the product that follows, or of chosen experts."""
        low_rank = self.low_rank(recipe)
        if low_rank is None:
            return
        x, parts = x.tensors[0] if isinstance(x, RowInterleaved) and self.table is None else x, 1
        if self.parts_of(recipe) > 1:
            parts = parts_of_steps(4 * blocks_for(recipe.width), self.kernels.part_steps)
        self.plan.draw(lora_down(self.in_rows(f"{recipe.name}.lora"), x, low_rank, parts=parts, **chosen))

    @staticmethod
    def shared(parts: int, clears: str) -> dict[str, Any]:
        """The arguments of a product that instances share, whose sums blending adds up."""
        return {"adds": True, "parts": parts, "clears": clears} if parts > 1 else {}

    def parts_of(self, recipe: Recipe) -> int:
        """Instances that share a product which blending adds to the residual stream."""
        return shared_parts(self.matrix(recipe), self.kernels.part_steps)
