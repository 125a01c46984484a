"""Parts of reports: spreads of measurements, and tables that are shown on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.notebook import table


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and extremes of repeated measurements, in milliseconds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    fastest: float
    slowest: float
    samples: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """Summarise one measurement or more."""
        lower, median, upper = (float(value) for value in np.quantile(times, (0.25, 0.5, 0.75)))
        return cls(median, lower, upper, min(times), max(times), len(times))


@dataclass(frozen=True)
class Column:
    """Heading of a table's column; numbers are aligned right and sorted by value."""

    name: str
    right: bool = True


@dataclass(frozen=True)
class Cell:
    """Text of a table's cell, and the number that it is sorted by."""

    text: str
    value: float = 0.0


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns, shown on a terminal and on a page; ``total`` stays the last row when sorting."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    total: Sequence[Cell] = ()
    caption: str = ""
    folded: bool = False

    def to_html(self, title: str = "") -> str:
        """Render the table for a notebook, with ``title`` above it."""
        rows = [[cell.text for cell in row] for row in (*self.rows, *([self.total] if self.total else []))]
        return table([column.name for column in self.columns], rows, title or self.title)


def columns(*names: str, texts: Sequence[str] = ()) -> list[Column]:
    """Make columns of numbers, and of text for those in ``texts``."""
    return [Column(name, right=name not in texts) for name in names]


def megabytes(count: int) -> str:
    """Format bytes for people."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count:,} B"
