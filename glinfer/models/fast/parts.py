"""The parts of all fast plans: the tensors that they declare, and the draws that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.models.options import PlanOptions
from glinfer.models.plan import PlanBuilder
from glinfer.models.transforms.recipe import Recipe, Recipes
from glinfer.ops.fused.cached import SLOT_TOKENS, Heads, score_slots
from glinfer.ops.fused.dense import Matrix, Turning, shared_parts
from glinfer.ops.fused.rows import RowInterleaved
from glinfer.ops.fused.turn import turn_heads
from glinfer.ops.spec import RunValue, TensorSpec
from glinfer.quant.formats import CACHE_FORMATS, GROUP_FORMS, is_grouped, is_scaled

Stream = TypeVar("Stream", TensorSpec, RowInterleaved)
"""The residual stream of a plan: one row in a tensor, or many rows in interleaved tensors."""


class PartsBuilder(ABC, Generic[Stream]):
    """A plan under construction, over the weights that :class:`glinfer.models.transforms.fold.FoldedWeights` makes.

    All plans of one model declare a weight, or a cache of equally many slots, with one name and one layout, so that
    they can share the textures.

    Attributes:
        hidden: the residual stream before and behind the attention; one tensor where blending adds to it in place.
        mixed: the weighted sums of the attention.
        inner: the input of the MLP's last product.
    """

    hidden: tuple[Stream, Stream]
    mixed: Stream | TensorSpec
    inner: Stream

    def __init__(self, name: str, max_rows: int, run_values: Sequence[RunValue], options: PlanOptions) -> None:
        """An empty plan."""
        self.config, self.kernels, self.max_texture_size = options.config, options.kernels, options.max_texture_size
        self.cache_format = cache_format(options.cache)
        self.recipes = Recipes(options.config, options.weights, options.formats)
        self.plan = PlanBuilder(name, max_rows, run_values)
        self.attention_width = options.config.num_attention_heads * self.recipes.head_floats
        self._declared: dict[str, TensorSpec] = {}

    def blocks(self, name: str, slots: int, floats: int) -> TensorSpec:
        """An activation [slots, floats] in blocks."""
        tiles, pitch = self.kernels.tiles, self.kernels.pitch
        layout = BlockLayout.of((slots, floats), self.max_texture_size, tiles=tiles, pitch=pitch)
        return self.plan.laid_out(name, "activation", layout)

    def cache(self, name: str, slots: int, floats: int) -> TensorSpec:
        """A cache [slots, floats]."""
        layout = BlockLayout.by_block((slots, floats), self.max_texture_size)
        return self.plan.laid_out(name, "cache", layout)

    def attention_cache(self, layer: int, slots: int, every: int) -> TensorSpec:
        """The cache of one layer: keys and values of ``slots`` tokens, queries once for each ``every`` tokens."""
        layout = attention_layout(self.recipes.heads(layer), slots, every, self.cache_format, self.max_texture_size)
        return self.plan.laid_out(f"h.{layer}.attn.cache", "cache", layout)

    def table(self, name: str, rows: int, cols: int, format_name: str = "rgba32f") -> TensorSpec:
        """A weight that is read a row at a time, declared at the first call."""
        if name not in self._declared:
            layout = RowLayout.of((rows, cols), format_name, self.max_texture_size)
            self._declared[name] = self.plan.laid_out(name, "weight", layout)
        return self._declared[name]

    def tables(self) -> tuple[TensorSpec, TensorSpec | None]:
        """The token embeddings, and those of positions, or None where positions are rotary."""
        config, recipes = self.config, self.recipes
        form, width = recipes.table_format, config.hidden_size
        if recipes.table_is_head:
            wte = self.packed(recipes.head())
        elif form in GROUP_FORMS:
            layout = GroupedLayout.of(config.vocab_size, width, form, self.kernels.quad, self.max_texture_size)
            wte = self.plan.laid_out("wte", "weight", layout)
        else:
            wte = self.table("wte", config.vocab_size, width, form)
        if recipes.family.rotary:
            return wte, None
        return wte, self.table("wpe", config.max_position_embeddings, width, recipes.positions_format)

    def matrix(self, recipe: Recipe) -> Matrix:
        """The packed matrix of a product with its constants and its gain."""
        name, inputs = recipe.name, self.inputs_of(recipe)
        weight = self.packed(recipe)
        if f"{name}.consts" not in self._declared:
            sums, scaled = self.recipes.sums and bool(recipe.norm), is_scaled(recipe.packing)
            layout = ConstantLayout.of(len(recipe.rows), scaled, self.kernels.quad, self.max_texture_size, sums=sums)
            self._declared[f"{name}.consts"] = self.plan.laid_out(f"{name}.consts", "weight", layout)
        gain = self.table(f"{name}.gain", 1, inputs) if recipe.kept and recipe.norm else None
        gated = self.recipes.family.gated and name.endswith("mlp.fc_in")
        return Matrix(weight, self._declared[f"{name}.consts"], inputs, gain, gated)

    def packed(self, recipe: Recipe) -> TensorSpec:
        """The packed matrix of a product, declared at the first call."""
        name, packing, quad, size = f"{recipe.name}.weight", recipe.packing, self.kernels.quad, self.max_texture_size
        if name not in self._declared:
            kind: type[GroupedLayout] | type[GemvLayout] = GroupedLayout if is_grouped(packing) else GemvLayout
            layout = kind.of(len(recipe.rows), self.inputs_of(recipe), packing, quad, size)
            self._declared[name] = self.plan.laid_out(name, "weight", layout)
        return self._declared[name]

    def inputs_of(self, recipe: Recipe) -> int:
        """Number of inputs of a product, with the padding of heads."""
        if recipe.inputs is not None:
            return len(recipe.inputs)
        if recipe.name.endswith("attn.out_proj"):
            return self.attention_width
        return self.config.intermediate_size if recipe.name.endswith("mlp.fc_out") else self.config.hidden_size

    def turning(self, heads: Heads) -> Turning | None:
        """The outputs that rotary positions turn; None where the family has other positions."""
        if not self.recipes.family.rotary:
            return None
        table = self.table("rope", self.config.max_position_embeddings, heads.floats)
        return Turning(table, heads.kv_floats, heads.queries_at)

    @abstractmethod
    def product(
        self,
        recipe: Recipe,
        x: Stream | TensorSpec,
        out: Stream,
        *,
        residual: Stream | None = None,
        activation: str = "none",
        adds: bool = False,
        parts: int = 1,
    ) -> None:
        """Draw a product, with the norm of its recipe."""

    def add(self, recipe: Recipe, x: Stream | TensorSpec, residual: Stream, out: Stream) -> None:
        """Draw a product that is added to the residual stream."""
        if residual is not out:
            self.product(recipe, x, out, residual=residual)
        else:
            self.product(recipe, x, out, adds=True, parts=self.parts_of(recipe))

    def parts_of(self, recipe: Recipe) -> int:
        """Instances that share a product which blending adds to the residual stream."""
        return shared_parts(self.matrix(recipe), self.kernels.part_steps)

    def after_attention(self, layer: int) -> None:
        """Draw the rest of a layer: the output projection and the MLP, both added to the residual stream."""
        before, behind = self.hidden
        self.add(self.recipes.out(layer), self.mixed, before, behind)
        self.product(self.recipes.up(layer), behind, self.inner, activation=self.config.hidden_act)
        self.add(self.recipes.down(layer), self.inner, behind, before)

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
        gains = self.table(f"{name}.qkv.turn", 2, self.recipes.head_floats)
        self.plan.draw(
            turn_heads(
                f"{name}.turn",
                x,
                gains,
                turning,
                out,
                head_dim=self.config.head_dim,
                eps=self.config.layer_norm_eps,
                rows=rows,
                slots=slots,
                first=first,
                kernels=self.kernels,
            )
        )

    @property
    def turns_apart(self) -> bool:
        """Whether heads are turned in a pass of their own, which normalises them first."""
        return self.recipes.family.head_norms


def attention_layout(heads: Heads, slots: int, every: int, format_name: str, max_texture_size: int) -> BlockLayout:
    """The layout of one layer's cache, see :meth:`PartsBuilder.attention_cache`.

    Raises:
        PlanError: it does not fit such textures.
    """
    shape = slots, heads.cols
    return BlockLayout.by_block(shape, max_texture_size, aside=heads.aside, every=every, format_name=format_name)


def cache_format(cache: str) -> str:
    """The texture format of a value of ``cache=``.

    Raises:
        PlanError: there is no such cache format.
    """
    if cache not in CACHE_FORMATS:
        raise PlanError(f"there is no cache format {cache!r}; expected one of {', '.join(CACHE_FORMATS)}")
    return CACHE_FORMATS[cache]


def kind_of(name: str) -> str:
    """The kind of a product, which tables group by: its name without the block's."""
    return name.split(".", 2)[-1] if name.startswith("h.") else name


def cache_slots(config: ModelConfig) -> int:
    """Slots of a cache with room for one whole context."""
    return score_slots(config.max_position_embeddings) * SLOT_TOKENS
