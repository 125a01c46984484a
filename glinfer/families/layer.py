"""The record of one layer: its operations and their settings, derived in one place.

:meth:`glinfer.config.ModelConfig.layer` makes it from the configuration and the record of the family. Builders of
plans, formats and estimates read this record instead of the family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

FULL, SLIDING, CONV, DELTA = "full_attention", "sliding_attention", "conv", "linear_attention"
BOTH, MLP, MOE = "hybrid", "mlp", "moe"
"""The kinds of layers in ``layer_types`` of :class:`glinfer.config.ModelConfig`."""
XIELU = "xielu"
"""The ``hidden_act`` with two learned numbers in each layer (Huang and Schlag 2024), of families without a gate."""
LONGEST_PERIOD = 1024
"""Limit for the period of a pattern in a file, since patterns are kept as lists."""
LONGEST_CONVOLUTION = 64
"""Limit for the positions of a convolution, since every element of its results reads all of them."""
_Value = TypeVar("_Value")

Mixing = Literal["attention", "conv", "delta", "ssm", "none"]
"""How a layer mixes tokens: causal attention, over all earlier tokens or a window; a gated short convolution,
C · conv(B · x), depthwise over the last few tokens; the gated delta rule, a linear attention with a state that each
token updates; the state-space scan of Mamba-2, which is the same without corrections; or not at all."""
NormPlaces = Literal["before", "after", "both", "sum"]
"""Norms of a layer: before each of its two branches, after it but before the residual sum, both, or after the sum, so
that the stream itself is normalised."""
ALL_AHEAD = 1 << 20
"""A number of later tokens larger than any text, for tokens that see their whole text."""
QUERY_BETA = "llama_4_scaling_beta"
"""The setting of scaled angles by which queries grow with their position."""
HeadNorms = Literal["", "head", "width"]
"""Normalisation of queries and keys: none, each head separately, or all heads together."""


@dataclass(frozen=True)
class Rope:
    """The angles of rotary positions.

    Attributes:
        theta: the base.
        dim: number of rotated elements of a head, the first ones.
        scaling: settings for long contexts, see :mod:`glinfer.kernels.rotary`, as sorted pairs.
    """

    theta: float
    dim: int
    scaling: tuple[tuple[str, Any], ...] = ()

    @property
    def scales_queries(self) -> bool:
        """Whether queries at later positions are larger, see :func:`glinfer.kernels.rotary.query_scales`."""
        return any(name == QUERY_BETA for name, _ in self.scaling)


@dataclass(frozen=True)
class Experts:
    """The experts of a layer: MLPs of which each token uses a few.

    Attributes:
        count: number of experts.
        used: number of experts of a token: those with the largest router logits.
        normed: whether the weights of the chosen experts add up to ``scale``; otherwise a softmax is over all experts.
        limit: bound L of a gated MLP act(s · g) / s · (u + 1), whose gate g is at most L, and whose u is clamped to
            -L to L; 0 for the plain act(g) · u.
        slope: the factor s of that formula.
        shared: whether every token also uses one more expert, the last one, weighted by the sigmoid of one more router
            logit.
        apart: whether the shared expert has another width than the others, so that it has its own passes.
        sigmoid: whether weights are sigmoids of the logits; otherwise they are a softmax.
        share_eps: a number added to the sum of the chosen sigmoids that ``normed`` divides by.
        biased: whether experts are chosen by their sigmoid, or their part of a softmax over all, plus a learned number.
        scale: a factor of the weights.
        own_norms: whether router, experts and shared expert have their own norms, and each expert a factor.
        groups: the groups of consecutive experts, of which a token uses ``kept``; 0 for a choice among all experts.
        kept: these have the largest sum of their best two experts, or, unless ``biased``, the best expert.
    """

    count: int
    used: int
    normed: bool
    limit: float = 0.0
    slope: float = 1.0
    shared: bool = False
    apart: bool = False
    sigmoid: bool = False
    share_eps: float = 0.0
    biased: bool = False
    scale: float = 1.0
    own_norms: bool = False
    groups: int = 0
    kept: int = 0

    @property
    def stacked(self) -> Experts:
        """The same, with a shared expert of their width counted among the others, for passes after the choice."""
        if self.apart:
            return replace(self, shared=False)
        return replace(self, count=self.count + self.shared, used=self.used + self.shared, shared=False)


@dataclass(frozen=True)
class DeltaRule:
    """The heads of a layer with the gated delta rule, or with the scan of Mamba-2.

    Attributes:
        key_heads: heads of queries and of keys.
        heads: value heads; each key head serves the same number of them.
        key: elements of a head of queries or keys.
        value: elements of a value head.
        in_turn: whether value head h uses key head ``h mod key_heads``, as in GGUF files; otherwise value heads that
            share a key head are adjacent.
        scan: whether each token writes its value times its step (Mamba-2), instead of a correction. Queries, keys and
            values are C, B and x there, in the order x, B, C among the channels.
        norm_groups: the parts of a scan's results that are normalised separately, after their gates; 0 for no norm.
    """

    key_heads: int
    heads: int
    key: int
    value: int
    in_turn: bool = False
    scan: bool = False
    norm_groups: int = 0

    @property
    def keys(self) -> int:
        """Elements of all key heads."""
        return self.key_heads * self.key

    @property
    def values(self) -> int:
        """Elements of all value heads."""
        return self.heads * self.value

    @property
    def channels(self) -> int:
        """Elements of the convolution before the rule: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def starts(self) -> tuple[int, int, int]:
        """The first channels of queries, keys and values."""
        return (self.values + self.keys, self.values, 0) if self.scan else (0, self.keys, 2 * self.keys)


@dataclass(frozen=True)
class Latent:
    """The vector of which the keys and values of all heads are products (DeepSeek-AI 2024).

    Attributes:
        rank: its elements, which are normalised. Keys have further, rotary elements, the same in all heads.
        query_rank: elements of the normalised vector of which queries are products; 0 if they are those of the stream.
        key: elements of a head's key, and of its query, that are not rotary.
        value: elements of a head's values.
        eps: the epsilon of both norms, whatever that of others is.
    """

    rank: int
    query_rank: int
    key: int
    value: int
    eps: float = 1e-6


@dataclass(frozen=True)
class LayerConfig:
    """The operations of one layer and their settings.

    Attributes:
        mixing: see :data:`Mixing`.
        taps: number of positions that a convolution sees, its own included.
        window: number of positions that a token sees, its own included; 0 for all.
        ahead: number of later positions that a token sees.
        rope: rotary angles of queries and keys; None for no rotation.
        norms: see :data:`NormPlaces`.
        parallel: whether both branches read the stream before the layer, after one norm or each after its own.
        head_norms: see :data:`HeadNorms`.
        rotated_first: whether queries and keys are normalised after their rotation.
        score_scale: factor of attention scores.
        score_cap: bound c of scores, c · tanh(score / c); 0 for none.
        branch_scale: factor of a branch's result before it is added to the stream.
        sinks: whether the softmax of each head has an additional learned logit without a value.
        experts: the experts of the MLP; None for a single MLP.
        gated: whether attention's results are multiplied by the sigmoid of gates, which are projected with the queries.
        head_gates: whether each head has one gate instead, which its own matrix projects.
        mlp: whether an MLP, or experts, follow the mixing of tokens.
        delta: the heads of the delta rule or of the scan; None in layers without either. In layers with attention it
            reads the same stream next to it.
        head_dim, kv_heads: elements of a head, and heads of keys and values.
        inner: the width of the MLP, or of each expert.
        source: the earlier layer whose keys and values the attention uses; None if it has its own.
        value_norms: whether the heads of values are normalised, without gains.
        one_projection: whether values are the keys before their norm.
        per_layer: elements of the layer's own token embedding, which a third branch uses; 0 without that branch.
        scaled: whether a learned factor multiplies the stream after the layer.
        rounded: whether the norms before matrices round their results to 8 bits.
        latent: the vector of which keys and values are products; None where they are products of the stream. Its
            elements after the rotary ones of a key are then the one head of ``head_dim`` elements that a cache keeps.
    """

    mixing: Mixing = "attention"
    taps: int = 0
    window: int = 0
    ahead: int = 0
    rope: Rope | None = None
    norms: NormPlaces = "before"
    parallel: bool = False
    head_norms: HeadNorms = ""
    rotated_first: bool = False
    score_scale: float = 1.0
    score_cap: float = 0.0
    branch_scale: float = 1.0
    sinks: bool = False
    experts: Experts | None = None
    gated: bool = False
    head_gates: bool = False
    mlp: bool = True
    delta: DeltaRule | None = None
    head_dim: int = 0
    kv_heads: int = 0
    inner: int = 0
    source: int | None = None
    value_norms: bool = False
    one_projection: bool = False
    per_layer: int = 0
    scaled: bool = False
    rounded: bool = False
    latent: Latent | None = None

    @property
    def attends(self) -> bool:
        """Whether tokens are mixed by attention."""
        return self.mixing == "attention"

    @property
    def convolves(self) -> bool:
        """Whether tokens are mixed only by a convolution."""
        return self.mixing == "conv"

    @property
    def branch(self) -> str:
        """The first branch's part in the names of its passes."""
        return "attn" if self.attends else self.mixing

    @property
    def norm_before(self) -> bool:
        """Whether a norm precedes each branch."""
        return self.norms in ("before", "both")

    @property
    def norm_behind(self) -> bool:
        """Whether a norm follows each branch, before or after the residual sum."""
        return self.norms != "before"

    @property
    def norm_after(self) -> bool:
        """Whether a norm follows each branch, before the residual sum."""
        return self.norms in ("after", "both")


def shortest_pattern(values: Sequence[_Value]) -> tuple[_Value, ...]:
    """The shortest pattern that repeats to these values, by the borders of Knuth, Morris and Pratt (1977)."""
    borders = [0] * len(values)
    for index in range(1, len(values)):
        length = borders[index - 1]
        while length and values[index] != values[length]:
            length = borders[length - 1]
        borders[index] = length + (values[index] == values[length])
    return tuple(values[: len(values) - borders[-1]]) if values else ()


def every(period: int, layers: int, usual: _Value, each: _Value) -> tuple[_Value, ...]:
    """The pattern of layers where each ``period``-th is ``each`` and the others are ``usual``."""
    return (usual,) if period > layers else (usual,) * (period - 1) + (each,)


def yarn_attention(factor: float, by: float = 1.0) -> float:
    """YaRN's attention factor, which multiplies cosines and sines."""
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


def latent_scale(head_dim: int, scaling: Mapping[str, Any], kind: Any) -> float:
    """The factor of scores of heads over a latent, which YaRN's settings for all elements of a head enlarge."""
    factor, by = scaling.get("factor"), scaling.get("mscale_all_dim")
    if kind == "yarn" and isinstance(by, (int, float)) and isinstance(factor, (int, float)):
        return float(head_dim**-0.5 * yarn_attention(factor, by) ** 2)
    return float(head_dim**-0.5)


def one_side(window: int) -> int:
    """The ``sliding_window`` of layers that look both ways, half of the ``window`` tokens on each side."""
    return window // 2 + 1
