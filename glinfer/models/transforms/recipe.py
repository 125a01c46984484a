"""What the products of fast plans are made of: which tensors of a checkpoint, in which order of rows, in which packing.

Every family goes the same way. Where a matrix is floats, what stands around it is **folded** into it: the gain of the
norm before it, the norm's bias, and of LayerNorm the mean. Where a file has it in half floats or blocks it is **kept**:
its bits stay, and the gain goes onto the inputs instead. Rows are put in the order in which passes write them: the
elements that rotary positions turn together lie side by side, heads are padded to whole quads, gate and up take turns.
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
"""The number of a row of zeros."""
Formats = Mapping[str, str]
"""The format of each tensor of a file, see :meth:`glinfer.formats.checkpoint.Checkpoint.formats`."""
Rows = npt.NDArray[np.intp]
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True)
class Recipe:
    """One product of a fast plan.

    Attributes:
        name: of the product, such as ``h.0.attn.qkv``.
        sources: the matrices whose rows it has, one below the other, without ``.weight``; a whole name of a table.
        rows: which row of them each row of the product is; :data:`PADDING` for zeros.
        inputs: which column each input is, likewise; None for all in order.
        packing: of :data:`glinfer.quant.formats.WORD_FORMATS` or of blocks in groups.
        kept: whether the file's bits stay, so that nothing is folded in.
        norm: the norm that comes before it, without ``.weight``; empty for none.
        writes_stream: whether its outputs are added to the residual stream.
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
        family, names: its family, and what that calls tensors.
    """

    def __init__(self, config: ModelConfig, weights: str, formats: Formats | None = None) -> None:
        """Of a model in a weight format.

        Args:
            config: the model's shape.
            weights: ``file`` or a key of :data:`glinfer.quant.formats.WEIGHT_FORMATS`.
            formats: what the file has; left out, float32.

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
        """Floats of one head with its padding: whole quads."""
        return head_floats(self.config)

    def heads(self, layer: int) -> Heads:
        """How the heads of a layer lie in a row of its cache."""
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
        """Whether the mean of the residual stream is taken away where it is written, by folding."""
        names = (name for name, shape in weight_shapes(self.config).items() if len(shape) == 2)
        return self.family.norm == "layer" and (
            self._weights != FROM_FILE or all(self._formats.get(name, F32) == F32 for name in names)
        )

    @property
    def sums(self) -> bool:
        """Whether passes behind a norm take the mean away themselves, by way of the weights' sums."""
        return self.family.norm == "layer" and not self.centred

    def _packing(self, sources: tuple[str, ...], *, head: bool = False, whole: bool = True) -> tuple[str, bool]:
        """The packing of a product, and whether its bits are kept; ``whole`` if no column is padded."""
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
        """Keys, values and queries, as a row of the cache has them."""
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
        """The elements of a head in the order in which rotary positions turn pairs that follow each other."""
        if self.family.positions != "halves":
            return None
        half = self.config.head_dim // 2
        return np.arange(2 * half).reshape(2, half).T.reshape(-1)

    @property
    def turned_places(self) -> Rows:
        """Where each element of a head of keys or queries lies among those of its head."""
        order = self._turned_order
        return np.arange(self.config.head_dim) if order is None else np.argsort(order)

    def out(self, layer: int) -> Recipe:
        """The projection of the heads' sums."""
        source = self.names.of("output", layer)
        config = self.config
        inputs = None
        if config.head_dim != self.head_floats:
            inputs = _heads_in_place(config.num_attention_heads, config.head_dim, self.head_floats)
        rows = np.arange(config.hidden_size)
        return self._recipe(f"h.{layer}.attn.out_proj", (source,), rows, inputs=inputs, writes_stream=True)

    def up(self, layer: int) -> Recipe:
        """The first product of the MLP, of a gate and what it lets through where the family has one."""
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
        """How embeddings are kept: a texture format of floats, or a packing of blocks."""
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
        """What embeddings are multiplied with."""
        return float(np.float32(self.config.hidden_size) ** np.float32(0.5)) if self.family.scaled_embeddings else 1.0


def weight_name(source: str) -> str:
    """The name of a matrix."""
    return f"{source}.weight"


def head_floats(config: ModelConfig) -> int:
    """Floats of one head with its padding: whole quads."""
    return -(-config.head_dim // QUAD_FLOATS) * QUAD_FLOATS


def _heads_in_place(heads: int, dim: int, floats: int, order: Rows | None = None) -> Rows:
    """Which row each of [heads · floats] is, of heads of ``dim`` rows in an order of their own."""
    place = np.full((heads, floats), PADDING)
    place[:, :dim] = dim * np.arange(heads)[:, None] + (np.arange(dim) if order is None else order)
    return place.reshape(-1)


def _moved(rows: Rows, by: int) -> Rows:
    return np.where(rows == PADDING, PADDING, rows + by)


def taken(array: npt.NDArray[_Number], rows: Rows, axis: int = 0) -> npt.NDArray[_Number]:
    """Rows, or columns, of an array in an order, zeros for :data:`PADDING`."""
    if len(rows) == array.shape[axis] and np.array_equal(rows, np.arange(len(rows))):
        return array
    found = np.take(array, np.where(rows == PADDING, 0, rows), axis=axis)
    index: list[slice | npt.NDArray[np.bool_]] = [slice(None)] * array.ndim
    index[axis] = rows == PADDING
    found[tuple(index)] = 0
    return found
