"""The tables of reports: columns that name a value and its format, shown as HTML, Markdown or text.

:func:`glinfer.cli.common.show_table` prints a table on a terminal, and ``table.html.j2`` makes it sortable on a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any


@dataclass(frozen=True)
class Cell:
    """Text of a table's cell, and the value that it is sorted by."""

    text: str
    value: Any = None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: the heading.
        value: attribute of the row's item, or a function of the item; a :class:`Cell` has its own text.
        form: format of numbers, which are aligned right: a format specification or a function; None for text.
    """

    name: str
    value: str | Callable[[Any], Any]
    form: str | Callable[[Any], str] | None = None

    @property
    def right(self) -> bool:
        """Whether the column is aligned right."""
        return self.form is not None

    def cell(self, item: Any) -> Cell:
        """Return the cell of an item; None leaves it empty."""
        value = attrgetter(self.value)(item) if isinstance(self.value, str) else self.value(item)
        if isinstance(value, Cell):
            return value
        if value is None:
            return Cell("", -1.0)
        form = self.form or ""
        return Cell(form(value) if callable(form) else format(value, form), value)


@dataclass(frozen=True)
class Table:
    """One row for each item, and ``total`` as a last row that stays last when a page sorts the others.

    ``alarming`` chooses items that a terminal shows in red; ``folded`` tables are closed when a page opens.
    """

    title: str
    columns: Sequence[Column]
    items: Sequence[Any]
    total: Any = None
    caption: str = ""
    folded: bool = False
    alarming: Callable[[Any], bool] = lambda _: False

    @property
    def names(self) -> list[str]:
        """Headings of the columns."""
        return [column.name for column in self.columns]

    @property
    def rows(self) -> list[list[Cell]]:
        """Cells of all items, without the total."""
        return [self.row(item) for item in self.items]

    @property
    def total_row(self) -> list[Cell]:
        """Cells of the total; empty if there is none."""
        return [] if self.total is None else self.row(self.total)

    def row(self, item: Any) -> list[Cell]:
        """Return the cells of an item."""
        return [column.cell(item) for column in self.columns]

    def texts(self) -> list[list[str]]:
        """Return the texts of all rows, the total last."""
        return [[cell.text for cell in row] for row in (*self.rows, self.total_row) if row]

    def markdown(self) -> str:
        """Render the table as Markdown."""
        rows = [self.names, *self.texts()]
        lines = [f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in rows]
        return "\n".join([lines[0], f"|{'---|' * len(self.columns)}", *lines[1:]])


def change(before: float, after: float) -> str:
    """Format how much more ``after`` is than ``before``, such as ``+12.5%``."""
    return f"{round(after / before - 1, 3) + 0.0:+.1%}"  # 0.0 is added for the sign of -0.0


def megabytes(count: int) -> str:
    """Format bytes for people."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count:,} B"
