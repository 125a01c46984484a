"""Names of the tensors inside plans, the same in every plan, and where each plan has them.

A :class:`glinfer.program.points.CapturePoint` finds each one; its array has the same shape in all plans.

========================== ======================== ==================================================================
name                       array                    contents
========================== ======================== ==================================================================
``embed``                  [S, D]                   embeddings of the tokens, with positions where they are learned
``blocks.N.BRANCH.norm``   [S, D]                   the stream, normalised for a branch: attn, conv, delta, ssm, mlp
``blocks.N.BRANCH.out``    [S, D]                   what such a branch adds to the stream, where a layer has it
``blocks.N.attn.q``        [heads, S, head_dim]     queries as the keys meet them, before they are scaled
``blocks.N.attn.k``, ``v`` [key heads, S, head_dim] keys and values as the queries meet them
``blocks.N.attn.scores``   [heads, S, S]            scaled scores of queries (rows) and keys; -1e30 where none is seen
``blocks.N.attn.probs``    [heads, S, S]            their softmax, which leaves a sink its part where heads have one
``blocks.N.attn.mixed``    [heads, S, head_dim]     values, weighted with the probabilities
``blocks.N.attn.joined``   [S, heads · head_dim]    ``mixed`` with the heads side by side, times gates if there are any
``blocks.N.conv.gated``    [S, D]                   B · x, which the convolution sees of this token and those before
``blocks.N.conv.mixed``    [S, D]                   C times what the convolution makes of it
``blocks.N.delta.mixed``   [S, values]              results of a delta rule, normalised and gated; heads side by side
``blocks.N.ssm.…``         as of ``delta``          the same of a scan (Mamba-2), where a layer has one
``blocks.N.resid_mid``     [S, D]                   the stream after the branch that mixes tokens
``blocks.N.mlp.gate``      [S, inner]               the gate before its activation; ``mlp.up`` is what it multiplies
``blocks.N.mlp.hidden``    [S, inner]               the input of the MLP's last product
``blocks.N.mlp.router``    [S, experts]             logits of the experts, in a block without ``gate`` and ``hidden``
``blocks.N.resid_mlp``     [S, D]                   the stream after the MLP, in a block with a third branch
``blocks.N.per_layer.out`` [S, D]                   what that branch adds; its last product reads ``hidden``
``blocks.N.resid_post``    [S, D]                   the stream after the block
``final_norm``             [S, D]                   the stream, normalised for the vocabulary
``logits``, ``probs``      [S, vocab]               of the next token
========================== ======================== ==================================================================

S is the number of tokens. No plan has every name, since the fast plans fuse passes; ``mlp.hidden`` is missing where
instances share the MLP's first product, as on GPUs. Where a plan computes only the last row of a tensor, the array is
[1, …]. The fast plan of a LayerNorm model whose weights are folded takes the mean away
from the stream (:mod:`glinfer.lower.weights.fold`); its streams are called ``embed.centred``,
``blocks.N.resid_mid.centred`` and ``blocks.N.resid_post.centred``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.graph.model import graph_of
from glinfer.graph.nodes import Attention
from glinfer.kernels.spec import Array
from glinfer.program.plan import Plan
from glinfer.program.points import CENTRED, CapturePoint, Matrices, Span
from glinfer.program.session import Session

Values = Mapping[str, int | float]


def span_of(plan: Plan, values: Values) -> Span:
    """The tokens of a run with these values."""
    if "position" in values:
        return Span(int(values["position"]), 1)
    return Span(0, int(values["rows"]))


class Textures(Matrices):
    """Access to the tensors of a bound plan, in its textures."""

    def __init__(self, session: Session) -> None:
        """Access the textures of ``session``."""
        self._session = session

    def read(self, tensor: str, first: int, rows: int) -> Array:
        """See :class:`Matrices`."""
        return self._session.read_rows(tensor, first, rows).astype(np.float32, copy=False)

    def write(self, tensor: str, rows: Array, cols: Array, elements: Array) -> None:
        """See :class:`Matrices`."""
        # Rows share lines of texels, and an upload writes whole lines.
        matrix = np.array(self._session.read(tensor), dtype=np.float32)
        matrix[rows, cols] = elements
        layout = self._session.texture(tensor).layout
        if isinstance(layout, BlockLayout) and layout.aside:  # what slots share is written with each of them
            for row in np.unique(rows):
                first = row // layout.every * layout.every
                matrix[first : first + layout.every, layout.kept_cols :] = matrix[row, layout.kept_cols :]
        self._session.write(tensor, matrix)


def sinks_tensor(plan: Plan, config: ModelConfig, block: int) -> str | None:
    """The weight of a plan with names that has the sinks of a block's heads, [1, heads]; None where it has none."""
    node = graph_of(config).layer(block).mixing.body
    if not isinstance(node, Attention) or node.sinks is None:
        return None
    return f"h.{block}.attn.sinks" if plan.name == "fast" else node.sinks.name(config.family.names)


_NEAREST = {
    "embed": (f"embed{CENTRED}",),
    "attn.norm": ("attn.q", "attn.k"),
    "attn.probs": ("attn.scores", "attn.q", "attn.k"),
    "attn.scores": ("attn.q", "attn.k"),
    "attn.joined": ("attn.mixed",),
    "attn.out": (f"resid_mid{CENTRED}", "resid_mid"),
    "conv.norm": ("conv.gated",),
    "delta.norm": ("delta.mixed",),
    "ssm.norm": ("ssm.mixed",),
    **dict.fromkeys(("conv.out", "delta.out", "ssm.out"), ("resid_mid",)),
    "resid_mid": (f"resid_mid{CENTRED}",),
    "mlp.norm": ("mlp.hidden", "mlp.router"),
    **dict.fromkeys(("mlp.gate", "mlp.up"), ("mlp.hidden",)),
    "per_layer.out": ("resid_post",),
    "mlp.out": (f"resid_post{CENTRED}", "resid_post"),
    "resid_post": (f"resid_post{CENTRED}",),
    **{f"{each}{CENTRED}": (each,) for each in ("embed", "resid_mid", "resid_post")},
    "final_norm": (f"resid_post{CENTRED}", "logits"),
    "probs": ("logits",),
}
"""The nearest names, best first, for a name that a plan lacks; names of blocks without ``blocks.N.``."""
_BLOCK = re.compile(r"blocks\.([^.]+)\.(.+)")


def chosen(points: Mapping[str, CapturePoint], patterns: str | Sequence[str], plan: str) -> dict[str, CapturePoint]:
    """The points that patterns such as ``blocks.*.attn.q`` match, in the order of computation.

    ``*`` stands for any letters, ``?`` for one, ``[135]`` for one of these. Raises InputError with the nearest names if
    a pattern matches none.
    """
    wanted = list(patterns) if isinstance(patterns, Iterable) and not isinstance(patterns, str) else [patterns]
    if not wanted or not all(isinstance(pattern, str) and pattern for pattern in wanted):
        raise InputError(f"found {patterns!r}; expected names such as blocks.*.attn.q, one or a list of them")
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in points):
            raise InputError(f"plan {plan} has no {pattern}; {_advice(points, pattern, plan)}")
    return {name: point for name, point in points.items() if any(fnmatchcase(name, each) for each in wanted)}


def _advice(points: Mapping[str, CapturePoint], pattern: str, plan: str) -> str:
    if not points:
        return "models that embed texts have no named tensors"
    match = _BLOCK.fullmatch(pattern)
    block, part = (f"blocks.{match[1]}.", match[2]) if match else ("", pattern)
    near = [f"{block}{each}" for each in _NEAREST.get(part, ())]
    near = [each for each in near if any(fnmatchcase(name, each) for name in points)]
    if near:
        other = "" if plan == "reference" else "; plan='reference' keeps the most"
        return f"its passes are fused, and the nearest they keep is {' or '.join(near[:2])}{other}"
    names = list(points)
    close = difflib.get_close_matches(pattern, names, n=2, cutoff=0.5) or [names[0], names[-1]]
    return f"the nearest names are {' and '.join(close)}; model.names() lists all"
