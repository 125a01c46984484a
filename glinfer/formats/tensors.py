"""The list of a model's tensors, from its configuration and the record of its family, for every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.families.names import Names
from glinfer.graph.model import graph_of
from glinfer.graph.nodes import ModelTensor

Shapes = dict[str, tuple[int, ...]]
EXPERT_ROLES = ("gate", "up", "down")
"""The roles of the matrices of each expert, or of the MLP in a layer without experts."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, which holds the rows, or the columns, of one or more tensors of the model.

    Attributes:
        name: its name in the file.
        tensors: those of the model.
        folded: the shape of a vector in GGUF files, if it is a matrix there; or of the pixels of patches in all files.
    """

    name: str
    tensors: tuple[ModelTensor, ...]
    folded: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows together."""
        first, *rest = self.tensors
        if self.by_columns:
            return (first.shape[0], sum(tensor.shape[1] for tensor in self.tensors))
        return (first.shape[0] + sum(tensor.shape[0] for tensor in rest), *first.shape[1:])

    @property
    def by_columns(self) -> bool:
        """Whether the tensors are side by side, as the embeddings of layers are."""
        return self.tensors[0].role == "per_layer_table" and len(self.tensors) > 1

    @property
    def experts(self) -> int:
        """The number of experts that the tensors belong to; 1 for other tensors."""
        first = self.tensors[0]
        return len({tensor.letter for tensor in self.tensors}) if first.role in EXPERT_ROLES else 1

    @property
    def outer_shape(self) -> tuple[int, ...]:
        """The shape in GGUF files, without the dimension of 1 of a convolution or a shared expert's router."""
        if self.folded:
            return self.folded
        if self.tensors[0].role == "shared_router":
            return self.shape[1:]
        return self.shape[::2] if len(self.shape) == 3 else self.stacked_shape

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """The shape in a file, [experts, rows, inputs] if it holds the matrices of several experts."""
        rows, *inputs = self.shape
        return (rows, *inputs) if self.experts == 1 else (self.experts, rows // self.experts, *inputs)

    def split(self, rows: npt.NDArray[Any]) -> Iterator[tuple[ModelTensor, npt.NDArray[Any]]]:
        """Split rows into those of each tensor, or into the columns of each, as views."""
        if self.by_columns:
            return zip(self.tensors, np.split(rows, len(self.tensors), axis=1), strict=True)
        ends = list(accumulate(tensor.shape[0] for tensor in self.tensors))
        return zip(self.tensors, np.split(rows, ends[:-1]), strict=True)


def tensors_of(config: ModelConfig) -> Iterator[ModelTensor]:
    """Every tensor of a model in order of computation; a head tied to the embeddings is left out."""
    return graph_of(config).tensors()


def weight_shapes(config: ModelConfig) -> Shapes:
    """The shape of every tensor of a model, by its name in a checkpoint, see :class:`glinfer.families.names.Names`.

    With width D, inner width I, vocabulary V, S positions, H heads and G key-value heads of d elements each:
    embeddings and head [V, D], learned positions [S, D], queries [H·d, D], keys and values [G·d, D], attention output
    [D, H·d], gate and up [I, D], down [D, I], norms [D], norms of heads [d], or of all heads together [H·d] and [G·d].
    A convolution over L positions has [3·D, D], [D, 1, L] and [D, D]. Biases have one number a row, and sinks are [H].
    In gated attention, queries are [2·H·d, D]: the queries of each head, then its gates. In a delta rule with H heads
    of v values and G heads of k keys, queries, keys and values are [2·G·k + H·v, D], gates [H·v, D], decays and shares
    [H, D], and the output [D, H·v].
    The embeddings of each layer with P elements are [V, P], and their projections together [layers·P, D]; the third
    branch of a layer has [P, D], [D, P] and a norm [D], and the factor after the layer is [1].
    With E experts in a layer, the router is [E, D], and each expert has its own gate, up and down. A shared expert has
    these too, and a router [1, D] for its weight.
    """
    names = config.family.names
    return {tensor.name(names): tensor.shape for tensor in tensors_of(config)}


def stored_tensors(config: ModelConfig, names: Names) -> list[StoredTensor]:
    """Every tensor that a file with these names must have, embeddings first; tensors that share a name are joined."""
    found: dict[str, list[ModelTensor]] = {}
    for tensor in tensors_of(config):
        found.setdefault(tensor.name(names), []).append(tensor)
    return [StoredTensor(name, tuple(each), _folded(config, each[0])) for name, each in found.items()]


def _folded(config: ModelConfig, tensor: ModelTensor) -> tuple[int, ...]:
    """The shape of a vector of a scan in GGUF files, or of the pixels of patches in all files."""
    if tensor.role == "patches" and tensor.part == "weight":
        return tensor.shape[0], 3, *((2,) if config.family.by_grid else ()), config.patch_size, config.patch_size
    rule = None if tensor.layer is None or not config.family.scans else config.layer(tensor.layer).delta
    if rule is None or tensor.part == "bias":
        return ()
    if tensor.role == "delta_norm":
        return rule.norm_groups, rule.values // rule.norm_groups
    return (rule.heads, 1) if tensor.role in ("decay_rate", "skip") else ()


def tensors_per_layer(config: ModelConfig) -> int:
    """The most tensors of a layer, without listing all layers: a file may name absurdly many.

    All layers count as layers with experts if any are.
    """
    graph = graph_of(replace(config, num_dense_layers=0))
    period = min(config.num_hidden_layers, max(1, len(config.layer_types)))
    return max(sum(1 for _ in graph.layer(layer).tensors()) for layer in range(period))


def head_weight(config: ModelConfig) -> str:
    """The name of the head's matrix: the token embedding if the two are tied."""
    return f"{config.family.names.vocabulary(tied=config.tie_word_embeddings)}.weight"
