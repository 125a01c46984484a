"""The list of a model's tensors, made from its configuration and the record of its family, for every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.families.record import Names

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ModelTensor:
    """One tensor of a model.

    Attributes:
        role: the attribute of :class:`glinfer.families.record.Names` that names it.
        part: ``weight`` or ``bias``.
        shape: vectors [n], matrices [out, in].
        layer: the number of the layer; None outside of all layers.
        letter: ``q``, ``k``, ``v`` or ``o`` of projections and norms of heads.
    """

    role: str
    part: str
    shape: tuple[int, ...]
    layer: int | None = None
    letter: str = ""

    def name(self, names: Names) -> str:
        """The name of the tensor in files with these names."""
        return f"{names.of(self.role, self.layer, self.letter)}.{self.part}"

    @property
    def is_gain(self) -> bool:
        """Whether the tensor is the weight of a norm."""
        return self.role.endswith("norm") and self.part == "weight"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, which holds the rows of one or more tensors of the model."""

    name: str
    tensors: tuple[ModelTensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows together."""
        first, *rest = self.tensors
        return (first.shape[0] + sum(tensor.shape[0] for tensor in rest), *first.shape[1:])

    def split(self, rows: npt.NDArray[Any]) -> Iterator[tuple[ModelTensor, npt.NDArray[Any]]]:
        """Split rows into those of each tensor, as views."""
        ends = list(accumulate(tensor.shape[0] for tensor in self.tensors))
        return zip(self.tensors, np.split(rows, ends[:-1]), strict=True)


def tensors_of(config: ModelConfig) -> Iterator[ModelTensor]:
    """Every tensor of a model in order of computation; a head tied to the embeddings is left out."""
    family, width = config.family, config.hidden_size
    yield ModelTensor("embeddings", "weight", (config.vocab_size, width))
    if not family.rotary:
        yield ModelTensor("positions", "weight", (config.max_position_embeddings, width))
    for layer in range(config.num_hidden_layers):
        yield from _layer(config, layer)
    yield from _norm(config, "final_norm", None)
    if not config.tie_word_embeddings:
        yield ModelTensor("head", "weight", (config.vocab_size, width))
    if "head" in family.biases:
        yield ModelTensor("head", "bias", (config.vocab_size,))


def _norm(config: ModelConfig, role: str, layer: int | None) -> Iterator[ModelTensor]:
    for part in ("weight", "bias") if config.family.norm == "layer" else ("weight",):
        yield ModelTensor(role, part, (config.hidden_size,), layer)


def _layer(config: ModelConfig, layer: int) -> Iterator[ModelTensor]:
    family, width, inner = config.family, config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    biased = {
        *family.biases,
        *(family.attention_biases if config.attention_bias else ()),
        *(family.mlp_biases if config.mlp_bias else ()),
    }

    def linear(role: str, rows: int, columns: int, letter: str = "") -> Iterator[ModelTensor]:
        yield ModelTensor(role, "weight", (rows, columns), layer, letter)
        if (letter or role) in biased:
            yield ModelTensor(role, "bias", (rows,), layer, letter)

    yield from _norm(config, "attention_norm", layer)
    for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
        yield from linear("projection", rows, width, letter)
    yield from linear("output", width, queries, "o")
    if family.head_norms:
        for letter in "qk":
            yield ModelTensor("head_norm", "weight", (config.head_dim,), layer, letter)
    yield from _norm(config, "mlp_norm", layer)
    if family.gated:
        yield from linear("gate", inner, width)
    yield from linear("up", inner, width)
    yield from linear("down", width, inner)


def weight_shapes(config: ModelConfig) -> Shapes:
    """The shape of every tensor of a model, by its name in a checkpoint, see :class:`glinfer.families.record.Names`.

    With width D, inner width I, vocabulary V, S positions, H heads and G heads of keys and values of d elements each:
    embeddings and head [V, D], learned positions [S, D], queries [H·d, D], keys and values [G·d, D], the projection
    behind them [D, H·d], gate and up [I, D], down [D, I], norms [D], norms of heads [d]; biases have one number a row.
    """
    names = config.family.names
    return {tensor.name(names): tensor.shape for tensor in tensors_of(config)}


def stored_tensors(config: ModelConfig, names: Names) -> list[StoredTensor]:
    """Every tensor that a file with these names must have, the embeddings first; tensors with one name are joined."""
    found: dict[str, list[ModelTensor]] = {}
    for tensor in tensors_of(config):
        found.setdefault(tensor.name(names), []).append(tensor)
    return [StoredTensor(name, tuple(tensors)) for name, tensors in found.items()]


def tensors_per_layer(config: ModelConfig) -> int:
    """The number of tensors in each layer; no list of all is made, since files may name absurdly many layers."""
    return sum(1 for _ in _layer(config, 0))


def tensor_count(config: ModelConfig) -> int:
    """The number of tensors of a model, without listing them."""
    outside = sum(tensor.layer is None for tensor in tensors_of(replace(config, num_hidden_layers=1)))
    return outside + config.num_hidden_layers * tensors_per_layer(config)


def head_weight(config: ModelConfig) -> str:
    """The name of the vocabulary's matrix: the token embedding where the two are tied."""
    return f"{config.family.names.vocabulary(tied=config.tie_word_embeddings)}.weight"
