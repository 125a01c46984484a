"""Named values of a plan: behind which draw each lies, in which texels, and how to read it and write it back.

A plan's tensors say how it computes (``hidden.a``, ``attn.cache``), and one texture holds many values in turn. A
:class:`CapturePoint` has the field's name of a value, such as ``blocks.3.attn.probs``, and an array of it has one shape
in all plans. :mod:`glinfer.program.capture` lists the names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glinfer.kernels.fused.cached import SLOT_TOKENS
from glinfer.kernels.spec import Array

Index = tuple[Array, Array]
CENTRED = ".centred"
"""The end of names of streams whose mean over the features was taken away."""


@dataclass(frozen=True)
class Span:
    """The tokens of one run: ``count`` of them, from position ``first`` on."""

    first: int
    count: int

    @property
    def tokens(self) -> int:
        """Tokens up to the end of the run."""
        return self.first + self.count


class Matrices(ABC):
    """Access to the tensors of a plan as matrices, in a session's textures or in an oracle's arrays."""

    @abstractmethod
    def read(self, tensor: str, first: int, rows: int) -> Array:
        """Rows [first, first + rows) of a tensor."""

    @abstractmethod
    def write(self, tensor: str, rows: Array, cols: Array, elements: Array) -> None:
        """Overwrite the elements of a tensor at index arrays ``rows`` and ``cols``, of the shape of ``elements``."""


@dataclass(frozen=True)
class View:
    """Where an array [tokens, n], or [heads, tokens, n], is in a tensor.

    Element n of a token is in column ``start + head · cols_apart + order[n]`` of row ``head · rows_apart + token``.

    Attributes:
        cols: n, or ``keys``: as many as there are tokens. ``slots`` are keys as well, 64 in each row of the tensor.
        heads: number of heads; 0 for an array without them.
        rows_apart, cols_apart: rows and columns between heads.
        start: the first column.
        order: the columns of the elements of a head; all in order where it is empty.
        rows: whether a token's row is its number in the run, its position, or the only row; or the slots of a ring, in
            which it follows from its position.
        joined: whether the heads lie side by side in the array, [tokens, heads · n].
    """

    cols: int | Literal["keys", "slots"]
    heads: int = 0
    rows_apart: int = 0
    cols_apart: int = 0
    start: int = 0
    order: tuple[int, ...] = ()
    rows: Literal["run", "position", "only"] | int = "run"
    joined: bool = False

    def index(self, span: Span) -> Index:
        """Rows and columns of the elements for a span of tokens, which broadcast to the shape of the array."""
        tokens = np.zeros(1, np.intp) if self.rows == "only" else np.arange(span.count)
        rows = tokens[:, None] + (0 if self.rows in ("run", "only") else span.first)
        if isinstance(self.rows, int):
            rows %= self.rows
        heads = np.arange(self.heads)[:, None, None]
        if self.cols == "slots":
            slot, lane = np.divmod(np.arange(span.tokens), SLOT_TOKENS)
            return slot[None, None, :], heads * SLOT_TOKENS + lane
        cols = (
            np.array(self.order) if self.order else np.arange(self.cols if isinstance(self.cols, int) else span.count)
        )
        if self.joined:
            return rows, (heads[:, 0] * self.cols_apart + cols).reshape(1, -1)
        if not self.heads:
            return rows, self.start + cols[None, :]
        return heads * self.rows_apart + rows, self.start + heads * self.cols_apart + cols


@dataclass(frozen=True)
class CapturePoint:
    """One named value of one plan.

    Attributes:
        name: its name in every plan.
        sites: (draw, tensor) pairs: after the draw, the tensor holds the array. A plan that computes one head after the
            other has several sites, whose arrays follow each other along the first axis.
        view: where it is in the tensor.
        last_only: whether a run over many tokens has the value only for the last one.
    """

    name: str
    sites: tuple[tuple[str, str], ...]
    view: View
    last_only: bool = False

    @property
    def axis(self) -> int:
        """Axis of the array along which the tokens lie."""
        return int(self.view.heads > 0 and not self.view.joined)

    @property
    def keys(self) -> bool:
        """Whether the last axis of the array is the keys, which are the tokens so far."""
        return isinstance(self.view.cols, str)

    def span(self, span: Span) -> Span:
        """The tokens of a run for which the plan has the value."""
        return Span(span.tokens - 1, 1) if self.last_only else span

    def index(self, span: Span) -> Index:
        """See :meth:`View.index`."""
        return self.view.index(span)

    def shape(self, span: Span) -> tuple[int, ...]:
        """The shape of the array of one run, all sites together."""
        rows, cols = self.index(span)
        first, *others = np.broadcast_shapes(rows.shape, cols.shape)
        return (len(self.sites) * first, *others)

    def read(self, matrices: Matrices, site: int, span: Span) -> Array:
        """The array of one site after its draw, float32 from textures."""
        rows, cols = self.index(span)
        used = np.unique(rows)
        table = np.full(int(used[-1]) + 1, -1, dtype=np.intp)
        parts, count = [], 0
        for run in _runs(used):
            parts.append(matrices.read(self.sites[site][1], int(run[0]), len(run)))
            table[run] = np.arange(count, count + len(run))
            count += len(run)
        return np.asarray(np.concatenate(parts)[table[rows], cols])

    def write(self, matrices: Matrices, site: int, span: Span, array: Array) -> None:
        """Put an array back where :meth:`read` finds it."""
        matrices.write(self.sites[site][1], *self.index(span), array)


def _runs(rows: Array) -> list[Array]:
    """Rising numbers cut into pieces without gaps, or kept in one piece where gaps are few."""
    whole = np.arange(rows[0], rows[-1] + 1)
    if len(rows) * 2 >= len(whole):
        return [whole]
    return np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
