"""The record of one layer: what it computes, derived in one place.

:meth:`glinfer.config.ModelConfig.layer` makes it from the configuration and the record of the family. Builders of
plans, formats and estimates read here what a layer computes, and ask no family.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Mixing = Literal["attention", "conv", "delta"]
"""How a layer mixes tokens: causal attention, over all tokens before or a window of them; a gated short convolution,
C · conv(B · x), over a few tokens up to its own and each element by itself; or the gated delta rule, a linear attention
whose state goes from token to token."""
NormPlaces = Literal["before", "after", "both", "sum"]
"""Where a layer has norms: before each of its two branches, behind it before it is added to the stream, both, or over
the sum, so that the stream itself is normalised."""
ALL_AHEAD = 1 << 20
"""More tokens after its own than any token can see: all of its text."""
HeadNorms = Literal["", "head", "width"]
"""What of queries and keys is normalised: nothing, each head by itself, or all heads together."""


@dataclass(frozen=True)
class Rope:
    """The angles of rotary positions.

    Attributes:
        theta: their base.
        dim: how many elements of a head turn, the first ones; the others stay.
        scaling: settings for long contexts, see :mod:`glinfer.ops.rotary`, as sorted pairs.
    """

    theta: float
    dim: int
    scaling: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Experts:
    """The MLPs of a layer of which each token uses a few.

    Attributes:
        count: how many there are.
        used: how many a token uses: those with the largest outputs of the router.
        normed: whether the softmax that weighs them is over those alone, so that their weights add up to 1, or over
            all experts.
        limit: the bound L of a gated MLP act(s · g) / s · (u + 1), where the gate g is at most L and u, which it
            multiplies, lies within -L and L; 0 for the plain act(g) · u.
        slope: the factor s there.
        shared: whether there is one more expert, the last one, that every token uses too, weighed by the sigmoid of
            one more output of the router.
    """

    count: int
    used: int
    normed: bool
    limit: float = 0.0
    slope: float = 1.0
    shared: bool = False

    @property
    def stacked(self) -> Experts:
        """The same, with the shared expert as one among the others, once the choice is made."""
        return replace(self, count=self.count + self.shared, used=self.used + self.shared, shared=False)


@dataclass(frozen=True)
class DeltaRule:
    """The heads of a layer with the gated delta rule.

    Attributes:
        key_heads: heads of queries and of keys.
        heads: heads of values, of which equally many share each head of keys.
        key: elements of a head of queries or keys.
        value: elements of a head of values.
        in_turn: whether heads of values take turns in the heads of keys, as in GGUF files; otherwise those that share
            one follow each other.
    """

    key_heads: int
    heads: int
    key: int
    value: int
    in_turn: bool = False

    @property
    def keys(self) -> int:
        """Elements of all heads of keys."""
        return self.key_heads * self.key

    @property
    def values(self) -> int:
        """Elements of all heads of values."""
        return self.heads * self.value

    @property
    def channels(self) -> int:
        """Elements that the convolution before the rule has: queries, keys and values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True)
class LayerConfig:
    """What one layer computes.

    Attributes:
        mixing: how tokens are mixed.
        taps: the number of positions that a convolution sees up to its own, which is included.
        window: the number of positions that a token sees up to its own, which is included; 0 for all.
        ahead: positions after its own that a token sees.
        rope: the angles by which queries and keys turn; None where they do not.
        norms: where norms stand.
        head_norms: what of queries and keys is normalised.
        score_scale: the factor of attention scores.
        score_cap: the bound c of scores, c · tanh(score / c); 0 for none.
        branch_scale: the factor of what a branch adds to the stream.
        sinks: whether the softmax of each head has a learned logit more, to which no value belongs.
        experts: the MLPs that a token chooses from; None where there is one MLP.
        gated: whether the results of attention are multiplied by the sigmoid of gates, which queries have beside them.
        delta: the heads of the delta rule; None in layers without it.
    """

    mixing: Mixing = "attention"
    taps: int = 0
    window: int = 0
    ahead: int = 0
    rope: Rope | None = None
    norms: NormPlaces = "before"
    head_norms: HeadNorms = ""
    score_scale: float = 1.0
    score_cap: float = 0.0
    branch_scale: float = 1.0
    sinks: bool = False
    experts: Experts | None = None
    gated: bool = False
    delta: DeltaRule | None = None

    @property
    def attends(self) -> bool:
        """Whether tokens are mixed by attention."""
        return self.mixing == "attention"

    @property
    def convolves(self) -> bool:
        """Whether tokens are mixed by a convolution alone."""
        return self.mixing == "conv"

    @property
    def branch(self) -> str:
        """The name of the first branch in the names of its passes."""
        return "attn" if self.attends else self.mixing

    @property
    def norm_before(self) -> bool:
        """Whether a norm stands before each branch."""
        return self.norms in ("before", "both")

    @property
    def norm_behind(self) -> bool:
        """Whether a norm stands behind each branch, over what it adds or over the sum."""
        return self.norms != "before"

    @property
    def norm_after(self) -> bool:
        """Whether a norm stands behind each branch, before it is added to the stream."""
        return self.norms in ("after", "both")
