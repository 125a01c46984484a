"""A named tensor in a plan: the draw behind which it lies, its texels, and how to read it and write it back.

:mod:`glinfer.models.capture.names` lists the names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.ops.spec import Array

Values = Mapping[str, int | float]
Index = tuple[Array, Array]


@dataclass(frozen=True)
class Span:
    """The tokens of one run: ``count`` of them, from position ``first`` on."""

    first: int
    count: int

    @property
    def tokens(self) -> int:
        """Tokens up to the end of the run."""
        return self.first + self.count


def span_of(plan: Plan, values: Values) -> Span:
    """The tokens of a run with these values."""
    if "position" in values:
        return Span(int(values["position"]), 1)
    return Span(0, int(values["rows"]))


class Matrices(ABC):
    """Access to the tensors of a plan as matrices, in a session's textures or in an oracle's arrays."""

    @abstractmethod
    def read(self, tensor: str, first: int, rows: int) -> Array:
        """Rows [first, first + rows) of a tensor."""

    @abstractmethod
    def write(self, tensor: str, rows: Array, cols: Array, elements: Array) -> None:
        """Overwrite the elements of a tensor at index arrays ``rows`` and ``cols``, of the shape of ``elements``."""


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


@dataclass(frozen=True)
class CapturePoint:
    """One named tensor in one plan.

    Attributes:
        name: the tensor's name in every plan.
        sites: (draw, tensor) pairs: after the draw, the tensor holds the array. A plan that computes one head after the
            other has several sites, whose arrays follow each other along the first axis.
        index: rows and columns of the elements in the tensor for a span of tokens, which broadcast to the shape of a
            site's array.
        axis: axis of the array along which the tokens lie.

        keys: whether the last axis of the array is the keys, which are the tokens so far.
        last_only: whether a run over many tokens has the tensor only for the last one.
    """

    name: str
    sites: tuple[tuple[str, str], ...]
    index: Callable[[Span], Index]
    axis: int = 0

    keys: bool = False
    last_only: bool = False

    def span(self, span: Span) -> Span:
        """The tokens of a run for which the plan has the tensor."""
        return Span(span.tokens - 1, 1) if self.last_only else span

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
