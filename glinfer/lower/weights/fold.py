"""The arrays that fast plans upload, made from a checkpoint by the recipes of :mod:`glinfer.lower.weights.recipe`.

Every consumer of the residual stream is a norm. LayerNorm takes the mean away, so in a model of floats the mean can be
taken away where the stream is written: from each embedding, and from the columns of the output projections. Then
LayerNorm is a division by the root mean square, gamma scales the columns of the next matrix, beta times that
matrix is a bias, and a product takes the mean of squares in its own loop. The rows after a norm are centred too, since
with quantised writers the stream's mean is only nearly zero.

Where the bits of a file are kept, gamma becomes a gain of the inputs, and the sum of a row's weights times gamma says
what the mean of the inputs adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.families.layer import Rope
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.gl.layouts.blocks import RowLayout
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.graph.nodes import (
    Attention,
    Branch,
    Convolution,
    DeltaMixing,
    ExpertMlps,
    LatentAttention,
    Linear,
    Mlp,
    ModelTensor,
    Norm,
    PerLayer,
)
from glinfer.kernels.fused.low_rank import RANK_STEP
from glinfer.kernels.spec import Array
from glinfer.lower.ropes import padded_rotations, rope_of
from glinfer.lower.weights.low_rank import AdapterRanks, down_matrix, up_matrix
from glinfer.lower.weights.recipe import PADDING, Recipe, Recipes, Rows, channels_in_order, taken, weight_name
from glinfer.quant.block_bytes import Bytes
from glinfer.quant.formats import F16, F32, GROUP_FORMS, WIDE, WORD_FORMATS, is_grouped, is_scaled
from glinfer.quant.ggml import integers_and_scales, words_of
from glinfer.quant.groups import wide_words
from glinfer.quant.threads import PIECE_WEIGHTS, in_threads
from glinfer.quant.words import FILE_INTEGERS, encode, integer_words

Wide = npt.NDArray[np.float64]
_Matrix = Array | PackedTensor


class Weight(NamedTuple):
    """One array of the fast plans.

    Attributes:
        name: name of the tensor.
        layout: its layout, given whether quads share their fetches and the largest side of a texture.
        make: makes the array.
        kept: tensors of the file whose bits the array keeps, in the order of its rows; empty for a computed array.
        recipe: the product that the array is the matrix of.
    """

    name: str
    layout: Callable[[bool, int], TexelLayout]
    make: Callable[[FoldedWeights], Array]
    kept: tuple[str, ...] = ()
    recipe: Recipe | None = None


class Weights(Recipes):
    """Every weight of a model's fast plans: its name, its layout, and how it is made from a checkpoint.

    Plans declare the weights that they read, and :class:`FoldedWeights` makes them.
    """

    def by_name(self, adapters: AdapterRanks) -> dict[str, Weight]:
        """All of them."""
        layers = map(self.of_layer, range(self.config.num_hidden_layers))
        products = (self.of_product(each, adapters) for each in self.products())
        return {each.name: each for each in chain(self.of_model(), *layers, *products)}

    def of_model(self) -> Iterator[Weight]:
        """Embeddings ``wte`` [V, D], positions ``wpe`` [types · S, D], angles ``rope`` [S, head_floats].

        The angles are twice as wide if queries have their own.

        ``wte`` is left out if embeddings are read out of the vocabulary's matrix. Each norm of the stream itself has
        ``norm`` [1 or 2, D], its gain and bias.
        """
        config, width = self.config, self.config.hidden_size
        if not self.table_is_head:
            yield self._embeddings("wte", self.graph.embeddings)
        if self.graph.per_layer_norm is not None:
            yield _gain("per_layer.gain", self.graph.per_layer_norm.name, config.hidden_size_per_layer_input)
        if self.position_rows:
            yield Weight("wpe", _table(self.position_rows, width, self.positions_format), FoldedWeights._positions)
        for rope, name in self.ropes.items():
            layout = _table(config.angle_rows, self.rope_floats(rope) * (1 + rope.scales_queries))
            yield Weight(name, layout, partial(FoldedWeights._rope, rope=rope))
        norms = {"embed.norm": self.graph.embedding_norm}
        for layer in self.graph.layers if self.family.layer.norms == "sum" else ():
            norms |= {f"h.{layer.number}.{each.name}.norm": each.sum_norm for each in (layer.mixing, layer.mlp)}
        norms["final.norm"] = self.graph.final_norm if config.embeds else None
        for name, norm in norms.items():
            if norm is not None:
                layout = _table(1 + (norm.bias is not None), width)
                yield Weight(name, layout, partial(FoldedWeights._norm_table, norm=norm))

    def _embeddings(self, name: str, node: Linear) -> Weight:
        """A table of embeddings."""
        source = weight_name(node.name)
        form, stored = self.format_of_table(source), self._formats.get(source, F32)
        keeps = form == {F32: "", F16: "rgba16f"}.get(stored, stored) and not self.centred
        layout = (_words if form in GROUP_FORMS else _table)(node.outputs, node.inputs, form)
        return Weight(name, layout, lambda made: made._table(name, source, form), (source,) if keeps else ())

    def of_layer(self, layer: int) -> Iterator[Weight]:
        """The weights of a layer that belong to no product.

        A convolution over L positions has ``taps`` [L, channels], and a row more for its bias. A delta rule has
        ``decay`` [2, heads], the factors and shifts of its decays, and ``norm`` [1, elements of a head]. In a scan
        ``decay`` has a third row, the factors of its values, and ``norm`` [1, values] may be missing. Normalised
        heads have ``turn`` [2, floats], the gains of keys and queries, of one head or of all. ``sinks`` is [1, heads],
        ``expert_bias`` [1, experts], ``sum_bias`` [1, D], and ``alphas`` [1, 2] are the numbers of xIELU. A layer may
        have its own embeddings ``table`` [V, P], and the factor ``scale`` [1, 1] of the stream.
        """
        of = self.graph.layer(layer)
        mlp = of.mlp.body
        if of.per_layer is not None:
            assert isinstance(of.per_layer.body, PerLayer)
            yield self._embeddings(f"h.{layer}.per_layer.table", of.per_layer.body.table)
        if of.scale is not None:
            yield self._vector(f"h.{layer}.scale", of.scale)
        if isinstance(mlp, Mlp) and mlp.alphas:
            yield self._vector(f"h.{layer}.mlp.alphas", *mlp.alphas)
        if isinstance(mlp, ExpertMlps) and mlp.choice_bias is not None:
            yield self._vector(f"h.{layer}.mlp.expert_bias", mlp.choice_bias)
        if isinstance(mlp, ExpertMlps) and mlp.sum_bias is not None:
            yield self._vector(f"h.{layer}.mlp.sum_bias", mlp.sum_bias)
        if isinstance(mlp, ExpertMlps) and mlp.norms is not None:
            assert of.mlp.post_norm is not None
            yield self._vector(f"h.{layer}.mlp.expert_scale", mlp.norms.scale)
            norms = {"shared": mlp.norms.shared, "chosen": mlp.norms.chosen, "sum": of.mlp.post_norm}
            for name, norm in norms.items():
                yield _gain(f"h.{layer}.mlp.norm.{name}", norm.name, self.config.hidden_size)
        for branch in of.mixings:
            yield from self._of_mixing(layer, branch)

    def _vector(self, name: str, *tensors: ModelTensor) -> Weight:
        """Vectors of the file side by side, in one row."""
        names = [each.name(self.names) for each in tensors]
        layout = _table(1, sum(each.shape[0] for each in tensors))
        return Weight(name, layout, lambda made: np.concatenate([*map(made._take, names)])[None])

    def _of_mixing(self, layer: int, branch: Branch) -> Iterator[Weight]:
        """The weights of a branch that mixes tokens which belong to no product."""
        node, name = branch.body, f"h.{layer}.{branch.name}"
        if isinstance(node, Attention):
            if node.q_norm is not None or node.of.latent is not None:
                layout = _table(2, self.gain_floats(layer))
                yield Weight(f"{name}.qkv.turn", layout, lambda made: made._head_gains(node, layer))
            if node.sinks is not None:
                yield self._vector(f"{name}.sinks", node.sinks)
            return
        assert isinstance(node, Convolution | DeltaMixing)
        channels, _, length = node.conv.weight.shape
        layout = _table(length + (node.conv.bias is not None), channels)
        order = channels_in_order(node.rule) if isinstance(node, DeltaMixing) else None
        yield Weight(f"{name}.taps", layout, partial(FoldedWeights._taps_table, conv=node.conv, order=order))
        if isinstance(node, DeltaMixing):
            rows = 2 + (node.skip is not None)
            yield Weight(f"{name}.decay", _table(rows, node.rule.heads), partial(FoldedWeights._decays, node=node))
            if node.norm is not None:
                yield self._vector(f"{name}.norm", node.norm.weight)

    def of_product(self, recipe: Recipe, adapters: AdapterRanks) -> Iterator[Weight]:
        """A product's ``weight`` [outputs, words] and ``consts`` [outputs, 1 to 6], which are made together.

        A matrix that does not absorb a norm's gain or a factor has ``gain`` [1, inputs] for them. A norm after the
        product has ``post_norm`` [1, D], one that rounds before it ``norm`` [1, inputs], adapters ``lora_down`` and
        ``lora_up``, see :mod:`glinfer.lower.weights.low_rank`.
        """
        name, outputs, packing = recipe.name, len(recipe.rows), recipe.packing
        kept = tuple(map(weight_name, recipe.sources)) if recipe.kept and packing not in ("f32", WIDE) else ()
        scaled, sums = is_scaled(packing), self.sums and bool(recipe.norm)
        layout = _words(outputs, recipe.width, packing)
        yield Weight(f"{name}.weight", layout, lambda made: made._made(recipe)[0], kept, recipe)
        layout = partial(ConstantLayout.of, outputs, scaled, sums=sums)
        yield Weight(f"{name}.consts", layout, lambda made: made._made(recipe)[1])
        if recipe.has_gain:
            yield Weight(f"{name}.gain", _table(1, recipe.width), lambda made: made._input_gain(recipe)[None])
        if recipe.post_norm:
            factor = self.config.residual_multiplier
            yield _gain(recipe.named(recipe.post_kind), recipe.post_norm, self.config.hidden_size, factor)
        if recipe.rounded:
            yield Weight(
                f"{name}.norm", _table(1, recipe.width), lambda made: recipe.ordered(made._gain(recipe.rounded))[None]
            )
        if ranks := adapters.ranges(recipe)[1]:
            count, each = len(adapters.names), ranks + RANK_STEP * self.norm_is_biased(recipe)
            layout = _words(count * recipe.experts * ranks, recipe.width, "f32", quads=False)
            yield Weight(f"{name}.lora_down", layout, lambda made: made._down(recipe))
            layout = _words(outputs, count * each, "f32", quads=False)
            yield Weight(f"{name}.lora_up", layout, lambda made: made._up(recipe))


def _table(rows: int, cols: int, form: str = "rgba32f") -> Callable[[bool, int], TexelLayout]:
    """The layout of a weight that is read a row at a time."""
    return lambda quad, size: RowLayout.of((rows, cols), form, size)


def _gain(name: str, norm: str, width: int, factor: float = 1.0) -> Weight:
    """The gain of a norm in a separate pass, times a factor, in one row."""
    return Weight(name, _table(1, width), lambda made: made._gain(norm)[None] * factor)


def _words(rows: int, cols: int, packing: str, *, quads: bool = True) -> Callable[[bool, int], TexelLayout]:
    """The layout of a matrix in a packing."""
    kind: type[GroupedLayout] | type[GemvLayout] = GroupedLayout if is_grouped(packing) else GemvLayout
    return lambda quad, size: kind.of(rows, cols, packing, quad and quads, size)


class FoldedWeights(Mapping[str, Array]):
    """The fast plans' weights by tensor name, see :class:`Weights`; each is made on demand, and not kept."""

    def __init__(self, checkpoint: Checkpoint, weights: str) -> None:
        """Make the weights from a checkpoint, in a weight format.

        Raises:
            PlanError: there is no such format.
        """
        self._checkpoint, self._adapters = checkpoint, list(checkpoint.adapters.values())
        self._ranks = AdapterRanks.of(checkpoint.adapters)
        self._recipes = recipes = Weights(checkpoint.config, weights, checkpoint.formats())
        self._shapes = recipes.shapes
        self._weights = recipes.by_name(self._ranks)
        self._encoded: tuple[str, Array, Array] | None = None

    def __getitem__(self, name: str) -> Array:
        """One array.

        Raises:
            KeyError: there is no such tensor.
            PlanError: the checkpoint lacks a tensor, or a weight is beyond the range of the format.
        """
        array = self._weights[name].make(self)
        return array.astype(np.float32) if array.dtype == np.float64 else array

    def kept_tensors(self, name: str) -> tuple[list[PackedTensor], Recipe | None]:
        """The tensors whose bits an array keeps, in the order of its rows, and the recipe of a product.

        Arrays that are computed have none: folded or quantised ones, and matrices in several formats.
        """
        weight = self._weights[name]
        return [self._checkpoint.packed[each] for each in weight.kept], weight.recipe

    def __contains__(self, name: object) -> bool:
        """Whether there is such an array, without making it."""
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        """The names of all arrays."""
        return iter(self._weights)

    def __len__(self) -> int:
        """Number of arrays."""
        return len(self._weights)

    def _absorbed(self, node: LatentAttention, name: str) -> Array:
        """The product of queries, or of results, that has absorbed those of the latent and of the query's vector.

        Rows of queries are those of each head on the latent, then the rotary ones; columns of results are latents.
        """
        of, inputs = node.widths, self._take(weight_name(name)).shape[1]
        kv = self._take(weight_name(node.kv.name)) * self._gain(node.latent_norm.name)
        keys, values = np.split(kv.reshape(node.heads, -1, of.rank), [of.key], axis=1)
        if name == node.out.name:
            out = self._take(weight_name(name)).reshape(-1, node.heads, of.value)
            return np.concatenate([out[:, head] @ values[head] for head in range(node.heads)], 1).astype(np.float32)
        stays, rotary = np.split(self._take(weight_name(name)).reshape(node.heads, -1, inputs), [of.key], axis=1)
        found = np.concatenate([keys.swapaxes(1, 2) @ stays, rotary], axis=1).reshape(-1, inputs)
        if node.low is not None and node.low_norm is not None:
            found = found * self._gain(node.low_norm.name) @ self._take(weight_name(node.low.name))
        return found.astype(np.float32)

    def _floats(self, name: str) -> Array:
        source = name.removesuffix(".absorbed.weight")
        for node in self._recipes.latent_nodes.values() if source != name else ():
            if source in (node.q.name, node.out.name):
                return self._absorbed(node, source)
        try:
            return self._checkpoint.floats(name)
        except KeyError:
            raise PlanError(f"the checkpoint has no tensor {name}") from None

    def _take(self, name: str) -> Wide:
        return np.asarray(self._floats(name), dtype=np.float64)

    def _gain(self, norm: str) -> Wide:
        return self._take(weight_name(norm)) + self._recipes.family.norm_offset

    def _input_gain(self, recipe: Recipe) -> Wide:
        """The factor of each input of a matrix that does not absorb it."""
        gain = self._gain(recipe.norm) if recipe.norm else np.ones(self._shapes[weight_name(recipe.sources[0])][1])
        return recipe.ordered(gain * recipe.scale)

    def _made(self, recipe: Recipe) -> tuple[Array, Array]:
        """Words and constants of a product, kept until another product is asked for."""
        if self._encoded is None or self._encoded[0] != recipe.name:
            try:
                words, consts = self._kept(recipe) if recipe.kept else self._folded(recipe)
            except PlanError as error:
                raise PlanError(f"{recipe.name}: {error}") from None
            self._encoded = recipe.name, words, consts
        return self._encoded[1:]

    def _bias(self, recipe: Recipe) -> Wide:
        """The biases of the sources, or zeros."""
        return np.concatenate([self._take_or_zeros(f"{each}.bias", self._rows_of(each)) for each in recipe.sources])

    def _matrix(self, recipe: Recipe) -> Wide:
        """The stacked sources."""
        return np.concatenate([self._take(weight_name(source)) for source in recipe.sources])

    def _rows_of(self, source: str) -> int:
        return self._shapes[weight_name(source)][0]

    def _folded(self, recipe: Recipe) -> tuple[Array, Array]:
        bias, sources = self._bias(recipe), [self._source(weight_name(source)) for source in recipe.sources]
        gain, scale = self._gain(recipe.norm) if recipe.norm else None, recipe.scale
        if recipe.apart:  # both are in the gain of the inputs
            gain, scale, bias = None, 1.0, bias * scale
        if self._recipes.family.norm == "layer":  # means are taken of whole columns
            matrix = self._matrix(recipe)
            if gain is not None:
                bias = bias + matrix @ self._norm_bias(recipe.norm)
                matrix = _centred(matrix * gain, axis=1)
            if scale != 1.0:
                matrix, bias = matrix * scale, bias * scale
            if recipe.writes_stream and self._recipes.centred:
                matrix, bias = _centred(matrix, axis=0), bias - bias.mean()
            sources, gain, scale = [matrix], None, 1.0
        # One multiplication in floats rounds like one in doubles that is rounded afterwards, in half the time.
        wide = self._recipes.family.norm == "layer" or self._recipes.family.norm_offset
        dtype = np.dtype(np.float64 if wide else np.float32)
        factors = None if gain is None else gain.astype(dtype)

        def fold(rows: Array) -> tuple[Array, ...]:
            rows = rows.astype(dtype, copy=False)
            if factors is not None:
                rows = rows * factors
            if scale != 1.0:
                rows = rows * dtype.type(scale)
            return _encoded(rows, recipe)

        words, *scales = _by_piece(sources, recipe, _float_rows, fold)
        consts = self._consts(recipe, bias * scale, scales[0] if scales else None, np.zeros(len(bias)))
        return words, consts

    def _source(self, name: str) -> _Matrix:
        """A matrix of the checkpoint, packed if it is."""
        packed = self._checkpoint.packed.get(name)
        return self._floats(name) if packed is None else packed

    def _stacked(self, recipe: Recipe) -> Wide:
        """A of all adapters of a product, as their files have it."""
        columns = self._shapes[weight_name(recipe.sources[0])][1]
        return down_matrix(recipe, self._ranks, self._adapters, columns)

    def _down(self, recipe: Recipe) -> Array:
        """A of all adapters of a product, with the norm before it folded in."""
        matrix = self._stacked(recipe)
        if recipe.norm:
            matrix = matrix * self._gain(recipe.norm)
            if self._recipes.family.norm == "layer":
                matrix = _centred(matrix, axis=1)
        return encode(recipe.ordered(matrix).astype(np.float32), "f32")[0]

    def _up(self, recipe: Recipe) -> Wide:
        """B of all adapters of a product, in the order of its rows."""
        rows = [self._rows_of(source) for source in recipe.sources]
        biased = self._recipes.norm_is_biased(recipe)
        behind = self._stacked(recipe) @ self._norm_bias(recipe.norm) if biased else None
        matrix = up_matrix(recipe, self._ranks, self._adapters, rows, behind)
        return _centred(matrix, axis=0) if recipe.writes_stream and self._recipes.centred else matrix

    def _kept(self, recipe: Recipe) -> tuple[Array, Array]:
        bias, sums = self._bias(recipe), np.zeros(sum(map(self._rows_of, recipe.sources)))
        if recipe.norm and self._recipes.family.norm == "layer":
            matrix = self._matrix(recipe)
            bias = bias + matrix @ self._norm_bias(recipe.norm)
            sums = matrix @ self._input_gain(recipe)
        bias = bias * recipe.scale
        packed = [self._checkpoint.packed[weight_name(source)] for source in recipe.sources]
        if recipe.packing == WIDE:
            words: Array = taken(np.concatenate([wide_words(each.blocks, each.format) for each in packed]), recipe.rows)
        elif recipe.packing in GROUP_FORMS:
            (words,) = _by_piece(packed, recipe, _packed_rows, lambda rows: (words_of(rows, recipe.packing),))
        elif recipe.packing in FILE_INTEGERS:
            words, scales = self._kept_integers(recipe, np.concatenate([each.blocks for each in packed]))
            return words, self._consts(recipe, bias, scales, sums)
        else:
            (words,) = _by_piece(packed, recipe, _float_rows, lambda rows: _encoded(rows, recipe))
        return words, self._consts(recipe, bias, None, sums)

    def _kept_integers(self, recipe: Recipe, blocks: Bytes) -> tuple[Array, Array]:
        """The words and scales of rows of integers, each followed by its scale."""
        numbers, scales = integers_and_scales(blocks, WORD_FORMATS[recipe.packing].keeps)
        return integer_words(taken(recipe.ordered(numbers), recipe.rows), taken(scales, recipe.rows), recipe.packing)

    def _consts(self, recipe: Recipe, bias: Wide, scales: Array | None, sums: Wide) -> Array:
        parts = [] if scales is None else [scales]
        if self._recipes.sums and recipe.norm:
            parts.append(taken(sums, recipe.rows).astype(np.float32)[:, None])
        parts.append(taken(bias, recipe.rows).astype(np.float32)[:, None])
        return np.concatenate(parts, axis=1)

    def _table(self, name: str, source: str, form: str) -> Array:
        if form in GROUP_FORMS:
            return words_of(np.ascontiguousarray(self._checkpoint.packed[source].blocks), form)
        table = _centred(self._take(source), axis=1) if self._recipes.centred else self._source(source)
        return self._stored(name, table, form)

    def _stored(self, name: str, table: _Matrix, form: str) -> Array:
        if form == "rgba32f":
            return _float_rows(table, 0, table.shape[0]).astype(np.float32)
        halves, step = np.empty(table.shape, dtype=np.float16), max(1, PIECE_WEIGHTS // table.shape[1])

        def fill(start: int) -> None:
            rows = _float_rows(table, start, start + step)
            with np.errstate(over="ignore"):
                halves[start : start + step] = rows
            if not np.isfinite(halves[start : start + step]).all():
                raise PlanError(f"{name}: a weight of {np.abs(rows).max():.3g} is beyond float16's 65504; use f32")

        in_threads(fill, range(0, len(halves), step))
        return halves

    def _positions(self) -> Array:
        """Learned positions, [S, D]; with token types, their sums: those of the first type, then the second."""
        names, config, form = self._recipes.names, self._checkpoint.config, self._recipes.positions_format
        if not config.type_vocab_size:
            return self._table("wpe", weight_name(names.positions), form)
        sums = self._take(weight_name(names.token_types))[:, None]
        if not config.family.rotary:
            sums = sums + self._take(weight_name(names.positions))
        return self._stored("wpe", sums.reshape(-1, config.hidden_size), form)

    def _norm_bias(self, norm: str) -> Wide:
        """The bias of a LayerNorm, or zeros."""
        return self._take_or_zeros(f"{norm}.bias", self._checkpoint.config.hidden_size)

    def _take_or_zeros(self, name: str, count: int) -> Wide:
        return self._take(name) if name in self._shapes else np.zeros(count)

    def _norm_table(self, norm: Norm) -> Array:
        """The gain of a norm of the stream, and the bias of LayerNorm, [1 or 2, D]."""
        gain = self._gain(norm.name)
        return gain[None] if norm.bias is None else np.stack([gain, self._take(f"{norm.name}.bias")])

    def _taps_table(self, conv: Linear, order: Rows | None) -> Array:
        """The weights of a convolution, and its bias after them, with the channels in an order."""
        taps = self._floats(weight_name(conv.name))[:, 0].T
        bias = [] if conv.bias is None else [self._floats(f"{conv.name}.bias")[None]]
        table = np.concatenate([taps, *bias])
        return np.ascontiguousarray(table if order is None else table[:, order], dtype=np.float32)

    def _decays(self, node: DeltaMixing) -> Array:
        """The factors and shifts of the decays of a delta rule, and the factors of a scan's values."""
        parts = [each for each in (node.rate, node.shift, node.skip) if each is not None]
        rates, *others = (self._take(each.name(self._recipes.names)) for each in parts)
        return np.stack([-np.exp(rates), *others])

    def _rope(self, rope: Rope) -> Array:
        """Cosine and sine of each pair of a head, [positions, head_floats]; the rest of a head is not rotated.

        Queries that are scaled have theirs after those of keys.
        """
        tables = (False, True)[: 1 + rope.scales_queries]
        pairs = (rope_of(self._checkpoint.config, rope, queries=queries) for queries in tables)
        return np.concatenate([padded_rotations(each, self._recipes.rope_floats(rope)) for each in pairs], axis=1)

    def _head_gains(self, node: Attention, layer: int) -> Array:
        """The gains of keys and of queries, in the order of a head's rows: of one head, or of all, then zeros."""
        order = self._recipes.rotated_head(node.of.head_dim)
        found = np.zeros((2, self._recipes.gain_floats(layer)), dtype=np.float32)
        if node.of.latent is not None:  # whose gain the products have absorbed
            return found + np.float32(1)
        for row, norm in zip(found, (node.k_norm, node.q_norm), strict=True):
            if norm is not None:
                by_head = self._gain(norm.name).reshape(-1, node.of.head_dim)
                row[: len(by_head) * len(order)] = taken(by_head, order, axis=1).reshape(-1)
        return found


def _by_piece(
    sources: Sequence[_Matrix],
    recipe: Recipe,
    read: Callable[[_Matrix, int, int], Array],
    make: Callable[[Array], tuple[Array, ...]],
) -> list[Array]:
    """The arrays of a product, made of few rows of a source at a time, on several cores.

    Args:
        sources: the matrices whose rows the product has.
        recipe: the product.
        read: gives rows [start, end) of a source.
        make: makes the rows of each array of such rows; of rows of zeros for padding.
    """
    empty = make(np.zeros_like(read(sources[0], 0, 1)))
    found = [np.empty((len(recipe.rows), *each.shape[1:]), dtype=each.dtype) for each in empty]
    for array, row in zip(found, empty, strict=True):
        array[recipe.rows == PADDING] = row
    order = np.argsort(recipe.rows, kind="stable")
    in_order = recipe.rows[order]

    def fill(piece: tuple[_Matrix, int, int, int]) -> None:
        source, above, start, end = piece
        targets = order[slice(*np.searchsorted(in_order, (above + start, above + end)))]
        for array, rows in zip(found, make(read(source, start, end)), strict=True):
            array[targets] = rows[recipe.rows[targets] - above - start]

    pieces, above, step = [], 0, max(1, PIECE_WEIGHTS // sources[0].shape[1])
    for source in sources:
        rows = source.shape[0]
        pieces += [(source, above, start, min(start + step, rows)) for start in range(0, rows, step)]
        above += rows
    in_threads(fill, pieces)
    return found


def _packed_rows(source: _Matrix, start: int, end: int) -> Array:
    """Rows [start, end) of a packed matrix, uint8 [rows, bytes]."""
    assert isinstance(source, PackedTensor)
    return np.ascontiguousarray(source.piece(start, end))


def _float_rows(source: _Matrix, start: int, end: int) -> Array:
    """Rows [start, end) of a matrix in floats."""
    if isinstance(source, PackedTensor):
        return PackedTensor(source.format, source.piece(start, end)).floats()
    return source[start:end]


def _encoded(rows: Array, recipe: Recipe) -> tuple[Array, ...]:
    """The words of rows of floats, and the scales of integers."""
    words, scales = encode(np.asarray(recipe.ordered(rows), dtype=np.float32), recipe.packing)
    return (words,) if scales is None else (words, scales)


def _centred(matrix: Wide, axis: int) -> Wide:
    return np.asarray(matrix - matrix.mean(axis=axis, keepdims=True))
