"""Recipes for the products of fast plans: the tensors of a checkpoint that make a matrix, its rows and its packing.

Every family goes the same way. A matrix of floats is **folded**: it takes in the gain and the bias of the norm before
it, and for LayerNorm the mean. A matrix that its file has in half floats or blocks is **kept**: its bits stay, and the
gain goes to the inputs instead. Rows are in the order in which passes write them: elements that rotary positions turn
together lie side by side, heads are padded to whole quads, and blocks of gate and up alternate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats.tensors import weight_shapes
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.ops.fused.cached import Heads
from glinfer.quant.formats import F16, F32, FROM_FILE, GROUP_FORMS, KEPT, WEIGHT_FORMATS, WIDE

QUAD_FLOATS = 16
PADDING = -1
"""Row number that stands for a row of zeros."""
Formats = Mapping[str, str]
"""The format of each tensor of a file, see :meth:`glinfer.formats.checkpoint.Checkpoint.formats`."""
Rows = npt.NDArray[np.intp]
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True)
class Recipe:
    """One product of a fast plan.

    Attributes:
        name: name of the product, such as ``h.0.attn.qkv``.
        sources: names of the matrices, stacked one below the other, without ``.weight``.
        rows: row of the stacked sources for each row of the product; :data:`PADDING` for zeros.
        inputs: column of the sources for each input, or :data:`PADDING`; None for all in order.
        packing: of :data:`glinfer.quant.formats.WORD_FORMATS` or of blocks in groups.
        kept: whether the file's bits are kept, so that nothing is folded in.
        norm: name of the norm before the product, without ``.weight``; empty for none.
        writes_stream: whether the outputs are added to the residual stream.
    """

    name: str
    sources: tuple[str, ...]
    rows: Rows
    inputs: Rows | None
    packing: str
    kept: bool
    norm: str = ""
    writes_stream: bool = False


class Recipes:
    """The products of all fast plans of one model.

    Attributes:
        config: the model's shape.
        family, names: the record of its family, and the family's names of tensors.
    """

    def __init__(self, config: ModelConfig, weights: str, formats: Formats | None = None) -> None:
        """Make the recipes of a model in a weight format.

        Args:
            config: the model's shape.
            weights: ``file`` or a key of :data:`glinfer.quant.formats.WEIGHT_FORMATS`.
            formats: the format of each tensor of the file; float32 where it is left out.

        Raises:
            PlanError: there is no such weight format, or heads cannot be turned.
        """
        if weights not in (*WEIGHT_FORMATS, FROM_FILE):
            known = ", ".join((*WEIGHT_FORMATS, FROM_FILE))
            raise PlanError(f"there is no weight format {weights!r}; expected one of {known}")
        self.config, self.family, self.names = config, config.family, config.family.names
        self._weights, self._formats = weights, formats or {}
        if self.family.rotary and config.head_dim % 2:
            raise PlanError(f"heads of {config.head_dim} elements; expected an even number, as elements turn in pairs")

    @property
    def head_floats(self) -> int:
        """Floats of one head, padded to whole quads."""
        return head_floats(self.config)

    def heads(self, layer: int) -> Heads:
        """The heads of a layer in a row of its cache."""
        config = self.config
        return Heads(
            config.num_attention_heads,
            config.num_key_value_heads,
            self.head_floats,
            config.head_dim**-0.5,
            config.window_of(layer),
        )

    @cached_property
    def centred(self) -> bool:
        """Whether folding takes the mean of the residual stream away where it is written."""
        names = (name for name, shape in weight_shapes(self.config).items() if len(shape) == 2)
        return self.family.norm == "layer" and (
            self._weights != FROM_FILE or all(self._formats.get(name, F32) == F32 for name in names)
        )

    @property
    def sums(self) -> bool:
        """Whether passes behind a norm take the mean away themselves, using the weights' sums."""
        return self.family.norm == "layer" and not self.centred

    def _packing(self, sources: tuple[str, ...], *, head: bool = False, whole: bool = True) -> tuple[str, bool]:
        """The packing of a product, and whether its bits are kept; ``whole`` says that no column is padded."""
        if self._weights != FROM_FILE:
            choice = WEIGHT_FORMATS[self._weights]
            return choice.vocabulary if head else choice.matrices, False
        found = {self._formats.get(weight_name(source), F32) for source in sources}
        if len(found) > 1 and found <= GROUP_FORMS.keys() and whole:
            return WIDE, True
        (form,) = found if len(found) == 1 else (F32,)
        if form == F32 or (form in GROUP_FORMS and not whole):
            return "f32", False
        return KEPT[form], True

    def _recipe(
        self,
        name: str,
        sources: tuple[str, ...],
        rows: Rows,
        *,
        inputs: Rows | None = None,
        norm: str = "",
        writes_stream: bool = False,
        head: bool = False,
    ) -> Recipe:
        packing, kept = self._packing(sources, head=head, whole=inputs is None)
        return Recipe(name, sources, rows, inputs, packing, kept, norm, writes_stream)

    def qkv(self, layer: int) -> Recipe:
        """Keys, values and queries, in the order of a row of the cache."""
        names, heads, config = self.names, self.heads(layer), self.config
        sources = tuple(names.of("projection", layer, letter) for letter in "kvq")
        keys = _heads_in_place(config.num_key_value_heads, config.head_dim, heads.floats, self._turned_order)
        values = _heads_in_place(config.num_key_value_heads, config.head_dim, heads.floats)
        queries = _heads_in_place(config.num_attention_heads, config.head_dim, heads.floats, self._turned_order)
        count = config.num_key_value_heads * config.head_dim
        between = np.full(heads.queries_at - 2 * heads.kv_floats, PADDING)
        rows = np.concatenate([keys, _moved(values, count), between, _moved(queries, 2 * count)])
        return self._recipe(f"h.{layer}.attn.qkv", sources, rows, norm=names.of("attention_norm", layer))

    @cached_property
    def _turned_order(self) -> Rows | None:
        """The elements of a head in the order that puts rotary pairs side by side; None if they already are."""
        if self.family.positions != "halves":
            return None
        half = self.config.head_dim // 2
        return np.arange(2 * half).reshape(2, half).T.reshape(-1)

    @property
    def turned_places(self) -> Rows:
        """The place of each element of a head of keys or queries within its head."""
        order = self._turned_order
        return np.arange(self.config.head_dim) if order is None else np.argsort(order)

    def out(self, layer: int) -> Recipe:
        """The output projection of attention."""
        source = self.names.of("output", layer)
        config = self.config
        inputs = None
        if config.head_dim != self.head_floats:
            inputs = _heads_in_place(config.num_attention_heads, config.head_dim, self.head_floats)
        rows = np.arange(config.hidden_size)
        return self._recipe(f"h.{layer}.attn.out_proj", (source,), rows, inputs=inputs, writes_stream=True)

    def up(self, layer: int) -> Recipe:
        """The first product of the MLP, with alternating blocks of gate and up where the family has a gate."""
        inner, norm = self.config.intermediate_size, self.names.of("mlp_norm", layer)
        gate, up = (self.names.of(role, layer) for role in ("gate", "up"))
        if not self.family.gated:
            return self._recipe(f"h.{layer}.mlp.fc_in", (up,), np.arange(inner), norm=norm)
        blocks = np.full(blocks_for(inner) * BLOCK_FLOATS, PADDING)
        blocks[:inner] = np.arange(inner)
        by_block = blocks.reshape(-1, BLOCK_FLOATS)
        rows = np.stack([by_block, _moved(by_block, inner)], axis=1).reshape(-1)
        return self._recipe(f"h.{layer}.mlp.fc_in", (gate, up), rows, norm=norm)

    def down(self, layer: int) -> Recipe:
        """The second product of the MLP."""
        source = self.names.of("down", layer)
        return self._recipe(f"h.{layer}.mlp.fc_out", (source,), np.arange(self.config.hidden_size), writes_stream=True)

    def head(self) -> Recipe:
        """The vocabulary's matrix."""
        rows = np.arange(self.config.vocab_size)
        source = self.names.vocabulary(tied=self.config.tie_word_embeddings)
        return self._recipe("lm_head", (source,), rows, norm=self.names.final_norm, head=True)

    @property
    def table_format(self) -> str:
        """The format of embeddings: a texture format of floats, or a packing of blocks."""
        if self._weights != FROM_FILE:
            return WEIGHT_FORMATS[self._weights].embeddings
        form = self._formats.get(weight_name(self.names.embeddings), F32)
        return form if form in GROUP_FORMS else "rgba16f" if form == F16 else "rgba32f"

    @property
    def positions_format(self) -> str:
        """The texture format of learned positions."""
        if self._weights != FROM_FILE:
            return WEIGHT_FORMATS[self._weights].embeddings
        return "rgba16f" if self._formats.get(weight_name(self.names.positions)) == F16 else "rgba32f"

    @property
    def table_is_head(self) -> bool:
        """Whether embeddings are read out of the vocabulary's matrix."""
        head = self.head()
        return self.config.tie_word_embeddings and head.kept and head.packing == self.table_format

    @property
    def embedding_scale(self) -> float:
        """The factor of embeddings."""
        return float(np.float32(self.config.hidden_size) ** np.float32(0.5)) if self.family.scaled_embeddings else 1.0


def weight_name(source: str) -> str:
    """The name of a matrix in the checkpoint."""
    return f"{source}.weight"


def head_floats(config: ModelConfig) -> int:
    """Floats of one head with its padding: whole quads."""
    return -(-config.head_dim // QUAD_FLOATS) * QUAD_FLOATS


def _heads_in_place(heads: int, dim: int, floats: int, order: Rows | None = None) -> Rows:
    """The source row of each of [heads · floats] rows: heads of ``dim`` rows in ``order``, then padding."""
    place = np.full((heads, floats), PADDING)
    place[:, :dim] = dim * np.arange(heads)[:, None] + (np.arange(dim) if order is None else order)
    return place.reshape(-1)


def _moved(rows: Rows, by: int) -> Rows:
    return np.where(rows == PADDING, PADDING, rows + by)


def taken(array: npt.NDArray[_Number], rows: Rows, axis: int = 0) -> npt.NDArray[_Number]:
    """The rows, or columns, ``rows`` of an array, with zeros for :data:`PADDING`."""
    if len(rows) == array.shape[axis] and np.array_equal(rows, np.arange(len(rows))):
        return array
    found = np.take(array, np.where(rows == PADDING, 0, rows), axis=axis)
    index: list[slice | npt.NDArray[np.bool_]] = [slice(None)] * array.ndim
    index[axis] = rows == PADDING
    found[tuple(index)] = 0
    return found
