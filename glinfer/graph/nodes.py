"""The nodes of a graph: operations with their weights.

A node's fields are in order of computation, and so are the weights that :meth:`Node.tensors` lists. Formats read from
nodes which tensors a file has; plans are lowered from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

from glinfer.families.layer import DeltaRule, Experts, Latent, LayerConfig
from glinfer.families.names import Names


@dataclass(frozen=True)
class ModelTensor:
    """One tensor of a model.

    Attributes:
        role: the attribute of :class:`glinfer.families.names.Names` that names it.
        part: ``weight`` or ``bias``; empty if the role is the whole name.
        shape: vectors [n], matrices [out, in], the weights of a convolution [elements, 1, positions].
        layer: the number of the layer; None outside of all layers.
        letter: ``q``, ``k``, ``v`` or ``o`` of projections and norms of heads; with a latent ``q_a``, ``q_b``, ``kv_a``
            and ``kv_b``; ``qkv``, ``z``, ``b`` or ``a`` of a
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


class Node:
    """An operation, or several that belong together."""

    def parts(self) -> Iterator[object]:
        """Nodes, tensors and settings, in order of computation."""
        return (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    def tensors(self) -> Iterator[ModelTensor]:
        """Every weight in order of computation."""
        for part in self.parts():
            for each in part if isinstance(part, tuple) else (part,):
                if isinstance(each, ModelTensor):
                    yield each
                elif isinstance(each, Node):
                    yield from each.tensors()


@dataclass(frozen=True)
class Linear(Node):
    """``x · weightᵀ + bias`` of a weight [outputs, inputs], rows of a table, or taps [elements, 1, positions].

    ``name`` is that of its tensors in a checkpoint, without ``.weight``.
    """

    name: str
    weight: ModelTensor
    bias: ModelTensor | None = None

    def parts(self) -> Iterator[object]:
        """The weight, and the bias, of the many that a model has."""
        return iter((self.weight, self.bias))

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.weight.shape[1]


@dataclass(frozen=True)
class Norm(Node):
    """RMSNorm (``rms``) or LayerNorm (``layer``) with ``weight + offset`` as gains; its results may be ``rounded``."""

    name: str
    weight: ModelTensor
    bias: ModelTensor | None
    kind: Literal["rms", "layer"]
    offset: float
    rounded: bool = False


@dataclass(frozen=True)
class Attention(Node):
    """Attention of heads over the keys that each token sees.

    Attributes:
        q, k, v, gate, out: the products. With ``of.gated``, the rows of q are those of a head's queries, then of its
            gates; a ``gate`` has one output for each head instead. Without v, values are the keys before their norm;
            without k, keys and values are those of layer ``of.source``.
        sinks: [heads], a logit of each head's softmax without a value, where there is one.
        q_norm, k_norm: the norms of heads, of ``whole`` rows or of each head.
        of: angles, scale, window and the other settings of the layer.
        out_norm: the norm before ``out``, where there is one.
        low: the product by whose root mean square queries are divided, where there is one.
    """

    q: Linear
    k: Linear | None
    v: Linear | None
    gate: Linear | None
    out: Linear
    sinks: ModelTensor | None
    q_norm: Norm | None
    k_norm: Norm | None
    of: LayerConfig
    out_norm: Norm | None = None
    low: Linear | None = None

    @property
    def whole(self) -> bool:
        """Whether norms are of all heads together."""
        return self.of.head_norms == "width"


@dataclass(frozen=True)
class LatentAttention(Node):
    """Attention whose keys and values are products of a latent, see :class:`glinfer.families.layer.Latent`.

    Attributes:
        low, low_norm: the vector of queries and its norm, where there is one.
        q: the queries; each head has the elements that stay, then the rotary ones.
        latent: the latent, then the rotary elements of a key.
        latent_norm: the norm of the latent.
        kv: of each head its key, then its values.
        out: the product of the results.
        of: angles, scale and the other settings of the layer.
    """

    low: Linear | None
    low_norm: Norm | None
    q: Linear
    latent: Linear
    latent_norm: Norm
    kv: Linear
    out: Linear
    of: LayerConfig

    @property
    def widths(self) -> Latent:
        """The widths of the latent and of heads."""
        assert self.of.latent is not None
        return self.of.latent

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.kv.outputs // (self.widths.key + self.widths.value)

    @property
    def absorbed(self) -> Attention:
        """The same as attention over the latent itself: keys are one head, and values are its normalised elements.

        The products of the latent are in those of queries and results, see :mod:`glinfer.lower.weights.fold`.
        """
        q = _absorbed(self.q, self.heads * self.of.head_dim, self.latent.inputs)
        out = _absorbed(self.out, self.out.outputs, self.heads * self.widths.rank)
        return Attention(q, self.latent, None, None, out, None, None, None, self.of, low=self.low)


def _absorbed(node: Linear, *shape: int) -> Linear:
    """A product that has absorbed others."""
    return Linear(f"{node.name}.absorbed", replace(node.weight, shape=shape))


@dataclass(frozen=True)
class Convolution(Node):
    """``C · conv(B · x)``, whose first product has the rows of B, C and x."""

    into: tuple[Linear]
    conv: Linear
    out: Linear


@dataclass(frozen=True)
class DeltaMixing(Node):
    """The gated delta rule, or the scan of Mamba-2, after a convolution.

    Attributes:
        qkv, z, b, a: the products of channels, gates, shares and decays; a scan has no shares.
        conv: the taps over the channels.
        shift, rate: [heads], of the decays.
        skip: [heads], the factors by which a scan adds its values to its results.
        norm: the gains of a head's results, or of all results of a scan, where it has a norm.
    """

    qkv: Linear
    z: Linear
    b: Linear | None
    a: Linear
    conv: Linear
    shift: ModelTensor
    rate: ModelTensor
    skip: ModelTensor | None
    norm: Norm | None
    out: Linear
    rule: DeltaRule

    @property
    def into(self) -> tuple[Linear, ...]:
        """The first products in the order of the rows of a file."""
        return (self.qkv, self.z, self.b, self.a) if self.b is not None else (self.z, self.qkv, self.a)

    def parts(self) -> Iterator[object]:
        """The tensors as a file has them."""
        return iter((*self.into, self.conv, self.shift, self.rate, self.skip, self.norm, self.out))


@dataclass(frozen=True)
class Nothing(Node):
    """The body of a branch that a layer does not have."""


Mixing = Attention | LatentAttention | Convolution | DeltaMixing | Nothing


@dataclass(frozen=True)
class Mlp(Node):
    """``down(activation(gate) · up)``, or ``down(activation(up))`` without a gate.

    ``alphas`` are the learned numbers [1] of xIELU, for positive and for negative inputs; other activations have none.
    ``down_norm`` is the norm before ``down``, where there is one.
    """

    gate: Linear | None
    up: Linear
    alphas: tuple[ModelTensor, ...]
    down: Linear
    down_norm: Norm | None = None

    @property
    def first(self) -> tuple[Linear, ...]:
        """The products that read the MLP's input."""
        return (self.up,) if self.gate is None else (self.gate, self.up)


@dataclass(frozen=True)
class ExpertNorms(Node):
    """Norms of experts next to those of their branch.

    Attributes:
        router, experts: the norms before them, in place of the branch's; the router's input is divided by the root of
            the width too.
        shared, chosen: the norms after the shared MLP and after the sum of the others, before these two are added.
        scale: [experts], factors of the weights.
    """

    router: Norm
    experts: Norm
    shared: Norm
    chosen: Norm
    scale: ModelTensor


@dataclass(frozen=True)
class ExpertMlps(Node):
    """MLPs of which each token uses a few, and perhaps one more that all tokens use.

    Attributes:
        router: the product whose outputs choose the experts.
        choice_bias: [experts], numbers that are added for the choice, where there are any.
        shared_router: the product that weights the shared one; None where it has no weight, and perhaps another width.
        norms: the norms of router and MLPs, where they have their own.
        sum_bias: [D], which is added to their sum, where there is one.
    """

    router: Linear
    choice_bias: ModelTensor | None
    experts: tuple[Mlp, ...]
    shared_router: Linear | None
    shared: Mlp | None
    choice: Experts
    norms: ExpertNorms | None = None
    sum_bias: ModelTensor | None = None

    def parts(self) -> Iterator[object]:
        """As a file has them: the first products of all experts, then their last ones."""
        yield from (self.router, self.choice_bias)
        yield from (each.first for each in self.experts)
        yield from (each.down for each in self.experts)
        yield from (self.shared_router, self.shared, self.norms, self.sum_bias)

    @property
    def stacked(self) -> tuple[Mlp, ...]:
        """All MLPs of one width with weights, the shared one last if it is one of them."""
        return self.experts if self.shared is None or self.apart is not None else (*self.experts, self.shared)

    @property
    def apart(self) -> Mlp | None:
        """The MLP of all tokens if it has its own passes: it has no weight, or another width than the others."""
        return self.shared if self.shared_router is None or self.choice.apart else None


@dataclass(frozen=True)
class PerLayer(Node):
    """``out(activation(gate(x)) · inputs)``, where inputs are a layer's own embedding of the token.

    They are ``(norm(projection) + √P · table[token]) / √2``, of the layer's P elements of a projection of the first
    values of the stream.
    """

    gate: Linear
    table: Linear
    out: Linear


@dataclass(frozen=True)
class Branch(Node):
    """A part of a layer that adds to the residual stream: ``sum_norm(x + scale · post_norm(body(norm(x))))``.

    It is called ``attn``, ``conv``, ``delta``, ``ssm``, ``mlp`` or ``per_layer``.
    """

    name: str
    norm: Norm | None
    body: Mixing | Mlp | ExpertMlps | PerLayer
    post_norm: Norm | None
    sum_norm: Norm | None
    scale: float


@dataclass(frozen=True)
class Layer(Node):
    """A layer: the branch that mixes tokens, then those that take each by itself; one of the two may have no body.

    Attributes:
        beside: a scan that reads the same stream as the attention, where there is one.
        per_layer: the branch of the layer's own embedding, where there is one.
        scale: [1], the factor of the stream after all branches, where there is one.
        parallel: whether the first two branches read the stream before the layer.
    """

    number: int
    mixing: Branch
    beside: Branch | None
    mlp: Branch
    per_layer: Branch | None = None
    scale: ModelTensor | None = None
    parallel: bool = False

    @property
    def mixings(self) -> tuple[Branch, ...]:
        """The branches that mix tokens; the layer may have none."""
        return _present(self.mixing, self.beside)

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that the layer has."""
        return _present(self.mixing, self.beside, self.mlp, self.per_layer)

    def tensors(self) -> Iterator[ModelTensor]:
        """Every weight once, in order of computation."""
        return iter(dict.fromkeys(super().tensors()))


def _present(*branches: Branch | None) -> tuple[Branch, ...]:
    return tuple(each for each in branches if each is not None and not isinstance(each.body, Nothing))
