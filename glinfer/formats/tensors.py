"""The list of a model's tensors, from its configuration and the record of its family, for every format."""

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
EXPERT_ROLES = ("gate", "up", "down")
"""The roles of the matrices of each expert, or of the MLP in a layer without experts."""


@dataclass(frozen=True)
class ModelTensor:
    """One tensor of a model.

    Attributes:
        role: the attribute of :class:`glinfer.families.record.Names` that names it.
        part: ``weight`` or ``bias``; empty if the role is the whole name.
        shape: vectors [n], matrices [out, in], the weights of a convolution [elements, 1, positions].
        layer: the number of the layer; None outside of all layers.
        letter: ``q``, ``k``, ``v`` or ``o`` of projections and norms of heads; ``qkv``, ``z``, ``b`` or ``a`` of a
            delta rule; the number of an expert, or of a dense layer after the pooling.
    """

    role: str
    part: str
    shape: tuple[int, ...]
    layer: int | None = None
    letter: str = ""

    def name(self, names: Names) -> str:
        """The name of the tensor in files with these names."""
        name = names.of(self.role, self.layer, self.letter)
        ending = names.endings.get(f"{self.role}.{self.part}", f".{self.part}" if self.part else "")
        return f"{name}{ending}"

    @property
    def is_gain(self) -> bool:
        """Whether the tensor is the weight of a norm to which the family's offset is added."""
        return self.role.endswith("norm") and self.role != "delta_norm" and self.part == "weight"


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

    @property
    def experts(self) -> int:
        """The number of experts that the tensors belong to; 1 for other tensors."""
        first = self.tensors[0]
        return len({tensor.letter for tensor in self.tensors}) if first.role in EXPERT_ROLES else 1

    @property
    def outer_shape(self) -> tuple[int, ...]:
        """The shape in GGUF files, without the dimension of 1 of a convolution or a shared expert's router."""
        if self.tensors[0].role == "shared_router":
            return self.shape[1:]
        return self.shape[::2] if len(self.shape) == 3 else self.stacked_shape

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """The shape in a file, [experts, rows, inputs] if it holds the matrices of several experts."""
        rows, *inputs = self.shape
        return (rows, *inputs) if self.experts == 1 else (self.experts, rows // self.experts, *inputs)

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
    if config.type_vocab_size:
        yield ModelTensor("token_types", "weight", (config.type_vocab_size, width))
    if family.embedding_norm:
        yield from _norm(config, "embedding_norm", None)
    for layer in range(config.num_hidden_layers):
        yield from _layer(config, layer)
    if family.norms != "sum":
        yield from _norm(config, "final_norm", None)
    inputs = width
    for number, (outputs, biased, _) in enumerate(config.dense):
        yield ModelTensor("dense", "weight", (outputs, inputs), letter=str(number))
        if biased:
            yield ModelTensor("dense", "bias", (outputs,), letter=str(number))
        inputs = outputs
    if not config.tie_word_embeddings:
        yield ModelTensor("head", "weight", (config.vocab_size, width))
    if "head" in family.biases:
        yield ModelTensor("head", "bias", (config.vocab_size,))


def _norm(config: ModelConfig, role: str, layer: int | None) -> Iterator[ModelTensor]:
    biased = config.family.norm == "layer" and config.family.norm_biases
    for part in ("weight", "bias") if biased else ("weight",):
        yield ModelTensor(role, part, (config.hidden_size,), layer)


def _layer(config: ModelConfig, layer: int) -> Iterator[ModelTensor]:
    family, width, inner = config.family, config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    biased = {
        *family.biases,
        *(family.attention_biases if config.attention_bias else ()),
        *(family.mlp_biases if config.mlp_bias else ()),
        *(("conv_in", "conv", "conv_out") if config.conv_bias else ()),
    }

    def linear(role: str, rows: int, *columns: int, letter: str = "") -> Iterator[ModelTensor]:
        yield ModelTensor(role, "weight", (rows, *columns), layer, letter)
        if role in biased or letter in biased:
            yield ModelTensor(role, "bias", (rows,), layer, letter)

    of = config.layer(layer)
    if of.norm_before and (layer or family.first_norm):
        yield from _norm(config, "attention_norm", layer)
    if of.convolves:
        yield from linear("conv_in", 3 * width, width)
        yield from linear("conv", width, 1, of.taps)
        yield from linear("conv_out", width, width)
    elif of.delta is not None:
        heads = of.delta.heads
        for letter, rows in (("qkv", of.delta.channels), ("z", of.delta.values), ("b", heads), ("a", heads)):
            yield ModelTensor("delta_in", "weight", (rows, width), layer, letter)
        yield ModelTensor("delta_conv", "weight", (of.delta.channels, 1, of.taps), layer)
        for role in ("decay_shift", "decay_rate"):
            yield ModelTensor(role, "", (heads,), layer)
        yield ModelTensor("delta_norm", "weight", (of.delta.value,), layer)
        yield ModelTensor("delta_out", "weight", (width, of.delta.values), layer)
    else:
        gates = 2 if of.gated else 1
        for letter, rows in (("q", gates * queries), ("k", keys), ("v", keys)):
            yield from linear("projection", rows, width, letter=letter)
        yield from linear("output", width, queries, letter="o")
        if of.sinks:
            yield ModelTensor("sinks", "weight", (config.num_attention_heads,), layer)
    if of.head_norms:
        for letter, rows in (("q", queries), ("k", keys)):
            normed = config.head_dim if of.head_norms == "head" else rows
            yield ModelTensor("head_norm", "weight", (normed,), layer, letter)
    if of.norm_behind:
        yield from _norm(config, "attention_post_norm", layer)
    if of.norm_before:
        yield from _norm(config, "mlp_norm", layer)
    numbers = [""]
    if of.experts is not None:
        yield from linear("router", of.experts.count, width)
        numbers = list(map(str, range(of.experts.count)))
    for number in numbers:
        if family.gated:
            yield from linear("gate", inner, width, letter=number)
        yield from linear("up", inner, width, letter=number)
    for number in numbers:
        yield from linear("down", width, inner, letter=number)
    if of.experts is not None and of.experts.shared:
        yield from linear("shared_router", 1, width)
        yield from linear("shared_gate", inner, width)
        yield from linear("shared_up", inner, width)
        yield from linear("shared_down", width, inner)
    if of.norm_behind:
        yield from _norm(config, "mlp_post_norm", layer)


def weight_shapes(config: ModelConfig) -> Shapes:
    """The shape of every tensor of a model, by its name in a checkpoint, see :class:`glinfer.families.record.Names`.

    With width D, inner width I, vocabulary V, S positions, H heads and G key-value heads of d elements each:
    embeddings and head [V, D], learned positions [S, D], queries [H·d, D], keys and values [G·d, D], attention output
    [D, H·d], gate and up [I, D], down [D, I], norms [D], norms of heads [d], or of all heads together [H·d] and [G·d].
    A convolution over L positions has [3·D, D], [D, 1, L] and [D, D]. Biases have one number a row, and sinks are [H].
    In gated attention, queries are [2·H·d, D]: the queries of each head, then its gates. In a delta rule with H heads
    of v values and G heads of k keys, queries, keys and values are [2·G·k + H·v, D], gates [H·v, D], decays and shares
    [H, D], and the output [D, H·v].
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
    return [StoredTensor(name, tuple(tensors)) for name, tensors in found.items()]


def tensors_per_layer(config: ModelConfig) -> int:
    """The most tensors of a layer, without listing all layers: a file may name absurdly many."""
    return max(_counts(config))


def _counts(config: ModelConfig) -> list[int]:
    """The number of tensors in each layer of one period of the layer pattern."""
    period = min(config.num_hidden_layers, max(1, len(config.layer_types)))
    return [sum(1 for _ in _layer(config, layer)) for layer in range(period)]


def tensor_count(config: ModelConfig) -> int:
    """The number of tensors of a model, without listing them."""
    outside = sum(tensor.layer is None for tensor in tensors_of(replace(config, num_hidden_layers=1)))
    each = _counts(config)
    times, rest = divmod(config.num_hidden_layers, len(each))
    return outside + times * sum(each) + sum(each[:rest])


def head_weight(config: ModelConfig) -> str:
    """The name of the head's matrix: the token embedding if the two are tied."""
    return f"{config.family.names.vocabulary(tied=config.tie_word_embeddings)}.weight"
