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

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.families.layer import Rope
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.formats.tensors import weight_shapes
from glinfer.models.ropes import rope_of
from glinfer.models.transforms.low_rank import AdapterRanks, down_matrix, up_matrix
from glinfer.models.transforms.recipe import PADDING, Formats, Recipe, Recipes, taken, weight_name
from glinfer.ops.spec import Array
from glinfer.quant.formats import F16, GROUP_FORMS, WIDE, WORD_FORMATS
from glinfer.quant.ggml import integers_and_scales, words_of
from glinfer.quant.groups import wide_words
from glinfer.quant.parts import Bytes
from glinfer.quant.threads import PIECE_WEIGHTS, in_threads
from glinfer.quant.words import FILE_INTEGERS, encode, integer_words

Wide = npt.NDArray[np.float64]
_Matrix = Array | PackedTensor
TABLE, POSITIONS = "wte", "wpe"


class FoldedWeights(Mapping[str, Array]):
    """The fast plans' weights by tensor name; each is made on demand, and not kept.

    Each product has ``<name>.weight`` [outputs, words] and ``<name>.consts`` [outputs, 1 to 6]; behind a norm or with a
    factor, if its bits are kept, ``<name>.gain`` [1, inputs]; and with normalised heads ``<name>.turn`` [2, floats],
    the gains of keys and queries, of one head or of all. A norm behind a branch has ``<branch>.post_norm`` [1, D].
    Heads with sinks have ``<layer>.attn.sinks`` [1, heads].
    A convolution over L positions has ``<layer>.conv.taps`` [L, D], its bias, if there is one, in a row more; that
    before a delta rule ``<layer>.delta.taps`` [L, channels], beside ``<layer>.delta.decay`` [2, heads], the factor and
    the shift of its decays, and ``<layer>.delta.norm`` [1, elements of a head].
    Besides these there are ``wte`` [V, D], ``wpe`` [S, D], and for each kind of angles ``rope`` [S, head_floats].
    LoRA adapters have ``<name>.lora_down`` and ``<name>.lora_up``, see :mod:`glinfer.models.transforms.low_rank`.
    Models that embed texts have ``wpe`` [types · S, D] if there are token types, and for each norm of the stream itself
    ``<name>.norm`` [1 or 2, D], its gain and its bias.
    """

    def __init__(self, checkpoint: Checkpoint, weights: str, formats: Formats | None = None) -> None:
        """Make the weights from a checkpoint, in a weight format; ``formats`` are the file's.

        Raises:
            PlanError: there is no such format.
        """
        self._checkpoint = checkpoint
        self._recipes = Recipes(checkpoint.config, weights, checkpoint.formats() if formats is None else formats)
        self._shapes = weight_shapes(checkpoint.config)
        recipes, made = self._recipes, self._recipes.products()
        self._products = {recipe.name: recipe for recipe in made}
        self._ropes = {name: rope for rope, name in recipes.ropes.items()}
        self._post_norms = {each.post_name: each.post_norm for each in made if each.post_norm}
        self._norms, self._taps, self._sinks = recipes.norms(), recipes.taps(), recipes.sinks()
        self._delta = recipes.delta_tables()
        self._ranks = AdapterRanks.of(checkpoint.adapters)
        self._made_names = dict.fromkeys(self._names_made())
        self._encoded: tuple[str, Array, Array] | None = None
        self._adapters = list(checkpoint.adapters.values())

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
        if name in self._taps:
            return self._taps_table(self._taps[name])
        if name in self._sinks:
            return self._floats(weight_name(self._recipes.names.of("sinks", self._sinks[name])))[None]
        if name in self._delta:
            return self._delta_table(*self._delta[name])
        if name in self._norms:
            return self._norm_table(self._norms[name])
        if name == POSITIONS and self._checkpoint.config.type_vocab_size:
            return self._places()
        if name == POSITIONS:
            return self._table(POSITIONS, weight_name(self._recipes.names.positions), self._recipes.positions_format)
        if name in self._ropes:
            return self._rope(self._ropes[name])
        if name in self._post_norms:
            gain = self._gain(self._post_norms[name]) * self._checkpoint.config.residual_multiplier
            return gain[None].astype(np.float32)
        product, _, part = name.rpartition(".")
        recipe = self._products[product]
        if part == "gain":
            return self._input_gain(recipe)[None].astype(np.float32)
        if part == "turn":
            return self._head_gains(recipe)
        if part == "lora_down":
            return encode(self._down(recipe).astype(np.float32), "f32")[0]
        if part == "lora_up":
            return self._up(recipe).astype(np.float32)
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
        found += self._ropes if recipes.family.rotary else []
        found += [POSITIONS] if recipes.places else []
        found += [*self._post_norms, *self._norms, *self._taps, *self._sinks, *self._delta]
        for name, recipe in self._products.items():
            found += [f"{name}.weight", f"{name}.consts"]
            found += [f"{name}.gain"] if recipe.has_gain else []
            found += [f"{name}.lora_down", f"{name}.lora_up"] if self._ranks.places(recipe)[1] else []
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

    def _input_gain(self, recipe: Recipe) -> Wide:
        """The factor of each input of a matrix that keeps its bits."""
        gain = self._gain(recipe.norm) if recipe.norm else np.ones(self._shapes[weight_name(recipe.sources[0])][1])
        gain = gain * recipe.scale
        return gain if recipe.inputs is None else taken(gain, recipe.inputs)

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
        bias, sources = self._bias(recipe), [self._source(weight_name(source)) for source in recipe.sources]
        gain, scale = self._gain(recipe.norm) if recipe.norm else None, recipe.scale
        if self._recipes.family.norm == "layer":  # means are taken of whole columns
            matrix = np.concatenate([self._take(weight_name(source)) for source in recipe.sources])
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

    def _down(self, recipe: Recipe) -> Wide:
        """A of all adapters of a product, with the norm before it folded in."""
        matrix = self._stacked(recipe)
        if recipe.norm:
            matrix = matrix * self._gain(recipe.norm)
            if self._recipes.family.norm == "layer":
                matrix = _centred(matrix, axis=1)
        return matrix if recipe.inputs is None else taken(matrix, recipe.inputs, axis=1)

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
            matrix = np.concatenate([self._take(weight_name(source)) for source in recipe.sources])
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

    def _places(self) -> Array:
        """The sum of position and token type, [types · positions, D]: those of the first type, then the second."""
        names, config = self._recipes.names, self._checkpoint.config
        places = self._take(weight_name(names.token_types))[:, None]
        if not config.family.rotary:
            places = places + self._take(weight_name(names.positions))
        return self._stored(POSITIONS, places.reshape(-1, config.hidden_size), self._recipes.positions_format)

    def _norm_bias(self, norm: str) -> Wide:
        """The bias of a LayerNorm, or zeros."""
        name = f"{norm}.bias"
        return self._take(name) if name in self._shapes else np.zeros(self._checkpoint.config.hidden_size)

    def _norm_table(self, norm: str) -> Array:
        """The gain of a norm of the stream, and the bias of LayerNorm, [1 or 2, D]."""
        rows = [self._gain(norm)]
        if f"{norm}.bias" in self._shapes:
            rows.append(self._take(f"{norm}.bias"))
        return np.stack(rows).astype(np.float32)

    def _taps_table(self, layer: int) -> Array:
        """The weights of a convolution, [positions, D], and its bias behind them."""
        name = self._recipes.taps_source(layer)
        taps = self._floats(weight_name(name))[:, 0].T
        bias = [self._floats(f"{name}.bias")[None]] if f"{name}.bias" in self._shapes else []
        return np.ascontiguousarray(np.concatenate([taps, *bias]), dtype=np.float32)

    def _delta_table(self, part: str, layer: int) -> Array:
        """The factors and shifts of the decays of a delta rule, [2, heads], or the gains of its norm, [1, elements]."""
        names = self._recipes.names
        if part == "norm":
            return self._floats(weight_name(names.of("delta_norm", layer)))[None].astype(np.float32)
        rates, shifts = (self._take(names.of(role, layer)) for role in ("decay_rate", "decay_shift"))
        return np.stack([-np.exp(rates), shifts]).astype(np.float32)

    def _rope(self, rope: Rope) -> Array:
        """Cosine and sine of each pair of a head, [positions, head_floats]; the rest of a head is turned by nothing."""
        table = rope_of(self._checkpoint.config, rope)
        turns = np.zeros((len(table), self._recipes.head_floats), dtype=np.float32)
        turns[:, 0::2] = 1.0
        turns[:, : rope.dim] = table
        return turns

    def _head_gains(self, recipe: Recipe) -> Array:
        """The gains of keys and of queries, in the order of a head's rows: of one head, or of all, then zeros."""
        recipes = self._recipes
        names, heads, floats = recipes.names, recipes.heads(0), recipes.head_floats
        prefix, order = recipes.layer_prefix(recipe), recipe.rows[:floats]
        found = np.zeros((2, recipes.gain_floats), dtype=np.float32)
        for row, letter, count in ((0, "k", heads.kv), (1, "q", heads.count)):
            gain = self._take(weight_name(prefix + names.head_norm.format(letter))) + recipes.family.norm_offset
            by_head = gain.reshape(count if recipes.family.head_norms == "width" else 1, -1)
            found[row, : len(by_head) * floats] = taken(by_head, order, axis=1).reshape(-1)
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
        places = order[slice(*np.searchsorted(in_order, (above + start, above + end)))]
        for array, rows in zip(found, make(read(source, start, end)), strict=True):
            array[places] = rows[recipe.rows[places] - above - start]

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
    if recipe.inputs is not None:
        rows = taken(rows, recipe.inputs, axis=1)
    words, scales = encode(np.asarray(rows, dtype=np.float32), recipe.packing)
    return (words,) if scales is None else (words, scales)


def _centred(matrix: Wide, axis: int) -> Wide:
    return np.asarray(matrix - matrix.mean(axis=axis, keepdims=True))
