"""Weights for the fast plan: LayerNorm, attention scale and padding folded into the matrices, then packed.

Every consumer of the residual stream is a LayerNorm, which takes the mean away; so the mean may be taken away
where the stream is written: from each embedding, and from the columns of the output projections. Then LayerNorm
is a division by the root mean square, gamma scales the columns of the matrix behind it, beta times that matrix
is a bias, and a matrix–vector product can take the mean of squares in its own loop. The rows behind a norm are
centred as well: with quantised writers the stream's mean is only nearly zero. The attention scale goes into the
query's rows, and each head is padded to whole quads of 16 floats with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats.families import head_weight, weight_shapes
from glinfer.ops.quantise import encode
from glinfer.ops.spec import Array

Wide = npt.NDArray[np.float64]
QUAD_FLOATS = 16

WEIGHT_FORMATS: Mapping[str, tuple[str, str, str]] = {
    "f32": ("f32", "f32", "rgba32f"),
    "f16": ("f16", "f16", "rgba16f"),
    "q16": ("q16", "q16", "rgba16f"),
    "q8l": ("q8", "q16", "rgba16f"),
    "q8": ("q8", "q8", "rgba16f"),
}
"""What ``weights=`` takes: the packing of the blocks' matrices, of the vocabulary's, and the embeddings' texels.

``q8l`` leaves the vocabulary's matrix at 16 bits: an error there goes straight into the choice of the token.
"""


def packings(weight_format: str) -> tuple[str, str, str]:
    """What a weight format means, see :data:`WEIGHT_FORMATS`.

    Raises:
        PlanError: there is no such format.
    """
    if weight_format not in WEIGHT_FORMATS:
        raise PlanError(f"there is no weight format {weight_format!r}; expected one of {', '.join(WEIGHT_FORMATS)}")
    return WEIGHT_FORMATS[weight_format]


def head_floats(config: ModelConfig) -> int:
    """Floats of one head with its padding: whole quads."""
    return -(-config.head_dim // QUAD_FLOATS) * QUAD_FLOATS


def fold(config: ModelConfig, weights: Mapping[str, Array], weight_format: str) -> dict[str, Array]:
    """The fast plan's weights by tensor name.

    For each product ``<name>.weight`` [outputs, words] and ``<name>.consts`` [outputs, 5 or 1]: qkv, out_proj,
    fc_in, fc_out of each block, and lm_head; ``wte`` [V, D] and ``wpe`` [S, D].

    Raises:
        PlanError: there is no such format, or a weight is beyond its range.
    """
    return _Folder(config, weights, weight_format).run()


class _Folder:
    def __init__(self, config: ModelConfig, weights: Mapping[str, Array], weight_format: str) -> None:
        self.config, self.weights = config, weights
        self.names = weight_shapes(config).keys()
        self.block_format, self.head_format, self.table_format = packings(weight_format)
        self.folded: dict[str, Array] = {}

    def run(self) -> dict[str, Array]:
        for name in ("wte", "wpe"):
            table = _centred(self.take(f"transformer.{name}.weight"), axis=1)
            self.folded[name] = self.table(name, table)
        for block in range(self.config.num_hidden_layers):
            self.block(f"h.{block}")
        matrix, bias = self.behind_norm(self.take(head_weight(self.config)), "ln_f")
        self.product("lm_head", matrix, bias + self.bias("lm_head", len(bias)), self.head_format)
        return self.folded

    def take(self, name: str) -> Wide:
        if name not in self.weights:
            raise PlanError(f"the checkpoint has no tensor {name}")
        return np.asarray(self.weights[name], dtype=np.float64)

    def bias(self, name: str, outputs: int) -> Wide:
        """The bias of a matrix, zeros where the family has none."""
        return self.take(f"{name}.bias") if f"{name}.bias" in self.names else np.zeros(outputs)

    def table(self, name: str, table: Wide) -> Array:
        if self.table_format == "rgba32f":
            return table.astype(np.float32)
        with np.errstate(over="ignore"):
            halves = table.astype(np.float16)
        if not np.isfinite(halves).all():
            raise PlanError(f"{name}: a weight of {np.abs(table).max():.3g} is beyond float16's 65504; use f32")
        return halves

    def behind_norm(self, matrix: Wide, norm: str) -> tuple[Wide, Wide]:
        """A matrix that follows a LayerNorm, with its gamma and beta folded in: (matrix, bias)."""
        gamma, beta = self.take(f"transformer.{norm}.weight"), self.take(f"transformer.{norm}.bias")
        return _centred(matrix * gamma, axis=1), matrix @ beta

    def product(self, name: str, matrix: Wide, bias: Wide, packing: str) -> None:
        try:
            words, scales = encode(matrix.astype(np.float32), packing)
        except PlanError as error:
            raise PlanError(f"{name}: {error}") from None
        column = bias.astype(np.float32)[:, None]
        self.folded[f"{name}.weight"] = words
        self.folded[f"{name}.consts"] = column if scales is None else np.concatenate([scales, column], axis=1)

    def block(self, block: str) -> None:
        prefix, heads = f"transformer.{block}", self.config.num_attention_heads
        projections = []
        for letter in "qkv":
            name = f"{prefix}.attn.{letter}_proj"
            matrix, bias = self.behind_norm(self.take(f"{name}.weight"), f"{block}.ln_1")
            bias = bias + self.bias(name, len(bias))
            scale = 1.0 / math.sqrt(self.config.head_dim) if letter == "q" else 1.0
            both = np.concatenate([matrix, bias[:, None]], axis=1) * scale
            projections.append(_pad_heads(both, heads, head_floats(self.config)))
        stacked = np.concatenate(projections)
        self.product(f"{block}.attn.qkv", stacked[:, :-1], stacked[:, -1], self.block_format)
        out = _centred(self.take(f"{prefix}.attn.out_proj.weight"), axis=0)
        padded = _pad_heads(np.ascontiguousarray(out.T), heads, head_floats(self.config)).T
        bias = self.bias(f"{prefix}.attn.out_proj", len(padded))
        self.product(f"{block}.attn.out_proj", padded, bias - bias.mean(), self.block_format)
        matrix, bias = self.behind_norm(self.take(f"{prefix}.mlp.fc_in.weight"), f"{block}.ln_2")
        self.product(f"{block}.mlp.fc_in", matrix, bias + self.take(f"{prefix}.mlp.fc_in.bias"), self.block_format)
        matrix = _centred(self.take(f"{prefix}.mlp.fc_out.weight"), axis=0)
        bias = self.take(f"{prefix}.mlp.fc_out.bias")
        self.product(f"{block}.mlp.fc_out", matrix, bias - bias.mean(), self.block_format)


def _centred(matrix: Wide, axis: int) -> Wide:
    return np.asarray(matrix - matrix.mean(axis=axis, keepdims=True))


def _pad_heads(rows: Wide, heads: int, floats: int) -> Wide:
    """[heads · head_dim, n] → [heads · floats, n], with zero rows at the end of each head."""
    head_dim = len(rows) // heads
    if floats == head_dim:
        return rows
    padded = np.zeros((heads, floats, rows.shape[1]))
    padded[:, :head_dim] = rows.reshape(heads, head_dim, -1)
    return padded.reshape(heads * floats, -1)
