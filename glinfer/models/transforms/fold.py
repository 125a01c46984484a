"""The arrays that fast plans upload, made from a checkpoint by the recipes of :mod:`glinfer.models.transforms.recipe`.

Every consumer of the residual stream is a norm. LayerNorm takes the mean away, so in a model of floats the mean can be
taken away where the stream is written: from each embedding, and from the columns of the output projections. Then
LayerNorm is a division by the root mean square, gamma scales the columns of the matrix behind it, beta times that
matrix is a bias, and a product takes the mean of squares in its own loop. The rows behind a norm are centred too, since
with quantised writers the stream's mean is only nearly zero.

Where the bits of a file are kept, gamma becomes a gain of the inputs, and the sum of a row's weights times gamma says
what the mean of the inputs adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.formats.tensors import weight_shapes
from glinfer.models.reference.parts import rope_of
from glinfer.models.transforms.recipe import Formats, Recipe, Recipes, taken, weight_name
from glinfer.ops.spec import Array
from glinfer.quant.formats import F16, GROUP_FORMS, WIDE, WORD_FORMATS
from glinfer.quant.ggml import Bytes, integers_and_scales, words_of
from glinfer.quant.groups import wide_words
from glinfer.quant.words import FILE_INTEGERS, encode, integer_words

Wide = npt.NDArray[np.float64]
TABLE, POSITIONS, ROPE = "wte", "wpe", "rope"


class FoldedWeights(Mapping[str, Array]):
    """The fast plans' weights by tensor name; each is made on demand, and not kept.

    Each product has ``<name>.weight`` [outputs, words] and ``<name>.consts`` [outputs, 1 to 6]; behind a norm, if its
    bits are kept, ``<name>.gain`` [1, inputs]; and with normalised heads ``<name>.turn`` [2, head_floats], the gains of
    keys and queries. Besides these there are ``wte`` [V, D], ``wpe`` [S, D] and ``rope`` [S, head_floats].
    """

    def __init__(self, checkpoint: Checkpoint, weights: str, formats: Formats | None = None) -> None:
        """Make the weights from a checkpoint, in a weight format; ``formats`` are the file's.

        Raises:
            PlanError: there is no such format.
        """
        self._checkpoint = checkpoint
        self._recipes = Recipes(checkpoint.config, weights, checkpoint.formats() if formats is None else formats)
        self._shapes = weight_shapes(checkpoint.config)
        layers = range(checkpoint.config.num_hidden_layers)
        recipes = self._recipes
        made = [recipes.head()]
        for layer in layers:
            made += [
                self._recipes.qkv(layer),
                self._recipes.out(layer),
                self._recipes.up(layer),
                self._recipes.down(layer),
            ]
        self._products = {recipe.name: recipe for recipe in made}
        self._made_names = dict.fromkeys(self._names_made())
        self._encoded: tuple[str, Array, Array] | None = None

    def __getitem__(self, name: str) -> Array:
        """One array.

        Raises:
            KeyError: there is no such tensor.
            PlanError: the checkpoint lacks a tensor, or a weight is beyond the range of the format.
        """
        if name not in self._made_names:
            raise KeyError(name)
        if name == TABLE:
            return self._table(TABLE, weight_name(self._recipes.names.embeddings), self._recipes.table_format)
        if name == POSITIONS:
            return self._table(POSITIONS, weight_name(self._recipes.names.positions), self._recipes.positions_format)
        if name == ROPE:
            return self._rope()
        product, _, part = name.rpartition(".")
        recipe = self._products[product]
        if part == "gain":
            return self._gain(recipe.norm)[None].astype(np.float32)
        if part == "turn":
            return self._head_gains(recipe)
        weight, consts = self._made(recipe)
        return {"weight": weight, "consts": consts}[part]

    def kept_tensors(self, name: str) -> tuple[list[PackedTensor], Recipe | None] | None:
        """The tensors whose bits an array keeps, in the order of their rows, and the recipe of a product.

        None for arrays that are computed: folded or quantised ones, and matrices in several formats.
        """
        packed = self._checkpoint.packed
        if name == TABLE:
            table = packed.get(weight_name(self._recipes.names.embeddings))
            form = self._recipes.table_format
            kept = table is not None and form == {F16: "rgba16f"}.get(table.format, table.format)
            return ([table], None) if table is not None and kept and not self._recipes.centred else None
        product, _, part = name.rpartition(".")
        recipe = self._products.get(product)
        if recipe is None or part != "weight" or not recipe.kept or recipe.packing in ("f32", WIDE):
            return None
        return [packed[weight_name(source)] for source in recipe.sources], recipe

    def _names_made(self) -> list[str]:
        recipes = self._recipes
        found = [] if recipes.table_is_head else [TABLE]
        found += [ROPE] if recipes.family.rotary else [POSITIONS]
        for name, recipe in self._products.items():
            found += [f"{name}.weight", f"{name}.consts"]
            found += [f"{name}.gain"] if recipe.kept and recipe.norm else []
            found += [f"{name}.turn"] if recipes.family.head_norms and name.endswith("qkv") else []
        return found

    def __contains__(self, name: object) -> bool:
        """Whether there is such an array, without making it."""
        return name in self._made_names

    def __iter__(self) -> Iterator[str]:
        """The names of all arrays."""
        return iter(self._made_names)

    def __len__(self) -> int:
        """Number of arrays."""
        return len(self._made_names)

    def _floats(self, name: str) -> Array:
        try:
            return self._checkpoint.floats(name)
        except KeyError:
            raise PlanError(f"the checkpoint has no tensor {name}") from None

    def _take(self, name: str) -> Wide:
        return np.asarray(self._floats(name), dtype=np.float64)

    def _gain(self, norm: str) -> Wide:
        return self._take(weight_name(norm)) + self._recipes.family.norm_offset

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
        parts = []
        for source in recipe.sources:
            rows = self._rows_of(source)
            parts.append(self._take(f"{source}.bias") if f"{source}.bias" in self._shapes else np.zeros(rows))
        return np.concatenate(parts)

    def _rows_of(self, source: str) -> int:
        return self._shapes[weight_name(source)][0]

    def _folded(self, recipe: Recipe) -> tuple[Array, Array]:
        layer_norm = self._recipes.family.norm == "layer"
        # One multiplication in floats rounds like one in doubles that is rounded afterwards, in half the time.
        take = self._take if layer_norm or self._recipes.family.norm_offset else self._floats
        matrix: Array = np.concatenate([take(weight_name(source)) for source in recipe.sources])
        bias = self._bias(recipe)
        if recipe.norm:
            if layer_norm:
                bias = bias + matrix @ self._take(f"{recipe.norm}.bias")
            matrix = matrix * self._gain(recipe.norm).astype(matrix.dtype)
            if layer_norm:
                matrix = _centred(matrix, axis=1)
        if recipe.writes_stream and self._recipes.centred:
            matrix, bias = _centred(matrix, axis=0), bias - bias.mean()
        if recipe.inputs is not None:
            matrix = taken(matrix, recipe.inputs, axis=1)
        words, scales = encode(np.asarray(taken(matrix, recipe.rows), dtype=np.float32), recipe.packing)
        return words, self._consts(recipe, bias, scales, np.zeros(len(bias)))

    def _kept(self, recipe: Recipe) -> tuple[Array, Array]:
        bias, sums = self._bias(recipe), np.zeros(sum(map(self._rows_of, recipe.sources)))
        if recipe.norm and self._recipes.family.norm == "layer":
            matrix = np.concatenate([self._take(weight_name(source)) for source in recipe.sources])
            bias = bias + matrix @ self._take(f"{recipe.norm}.bias")
            sums = matrix @ self._gain(recipe.norm)
        packed = [self._checkpoint.packed[weight_name(source)] for source in recipe.sources]
        if recipe.packing == WIDE:
            words: Array = taken(np.concatenate([wide_words(each.blocks, each.format) for each in packed]), recipe.rows)
        elif recipe.packing in GROUP_FORMS:
            blocks = np.concatenate([each.blocks for each in packed]) if len(packed) > 1 else packed[0].blocks
            words = words_of(np.ascontiguousarray(taken(blocks, recipe.rows)), recipe.packing)
        elif recipe.packing in FILE_INTEGERS:
            words, scales = self._kept_integers(recipe, np.concatenate([each.blocks for each in packed]))
            return words, self._consts(recipe, bias, scales, sums)
        else:
            floats = np.concatenate([each.floats() for each in packed])
            if recipe.inputs is not None:
                floats = taken(floats, recipe.inputs, axis=1)
            words = np.asarray(encode(np.asarray(taken(floats, recipe.rows), dtype=np.float32), recipe.packing)[0])
        return words, self._consts(recipe, bias, None, sums)

    def _kept_integers(self, recipe: Recipe, blocks: Bytes) -> tuple[Array, Array]:
        """The words and scales of rows of integers, each followed by its scale."""
        numbers, scales = integers_and_scales(blocks, WORD_FORMATS[recipe.packing].keeps)
        if recipe.inputs is not None:
            numbers = taken(numbers, recipe.inputs, axis=1)
        return integer_words(taken(numbers, recipe.rows), taken(scales, recipe.rows), recipe.packing)

    def _consts(self, recipe: Recipe, bias: Wide, scales: Array | None, sums: Wide) -> Array:
        parts = [] if scales is None else [scales]
        if self._recipes.sums and recipe.norm:
            parts.append(taken(sums, recipe.rows).astype(np.float32)[:, None])
        parts.append(taken(bias, recipe.rows).astype(np.float32)[:, None])
        return np.concatenate(parts, axis=1)

    def _table(self, name: str, source: str, form: str) -> Array:
        if form in GROUP_FORMS:
            return words_of(np.ascontiguousarray(self._checkpoint.packed[source].blocks), form)
        table = _centred(self._take(source), axis=1) if self._recipes.centred else self._floats(source)
        if form == "rgba32f":
            return table.astype(np.float32)
        with np.errstate(over="ignore"):
            halves = table.astype(np.float16)
        if not np.isfinite(halves).all():
            raise PlanError(f"{name}: a weight of {np.abs(table).max():.3g} is beyond float16's 65504; use f32")
        return halves

    def _rope(self) -> Array:
        """Cosine and sine of each pair of a head, [positions, head_floats]; padding is turned by nothing."""
        config = self._checkpoint.config
        table = rope_of(config)
        turns = np.zeros((len(table), self._recipes.head_floats), dtype=np.float32)
        turns[:, 0::2] = 1.0
        turns[:, : config.head_dim] = table
        return turns

    def _head_gains(self, recipe: Recipe) -> Array:
        """The gains of keys and of queries, in the order of a head's rows."""
        config, names = self._checkpoint.config, self._recipes.names
        prefix = recipe.norm.removesuffix(names.attention_norm)
        order = recipe.rows[: self._recipes.head_floats]
        gains = [self._take(weight_name(prefix + names.head_norm.format(letter))) for letter in "kq"]
        assert len(gains[0]) == config.head_dim
        return np.stack([taken(gain + self._recipes.family.norm_offset, order) for gain in gains]).astype(np.float32)


def _centred(matrix: Wide, axis: int) -> Wide:
    return np.asarray(matrix - matrix.mean(axis=axis, keepdims=True))
