"""HTML tables that ``_repr_html_`` returns to notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from glinfer.terminal import printable

MAX_ROWS = 60
"""Rows that a table shows."""


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Make a table: numbers right-aligned, all text escaped, rows beyond MAX_ROWS only counted."""
    listed = list(rows)
    lines = ["<table>"]
    if caption:
        lines.append(f"<caption>{escape(caption)}</caption>")
    lines.append(f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in headings)}</tr></thead><tbody>")
    for row in listed[:MAX_ROWS]:
        lines.append(f"<tr>{''.join(map(_cell, row))}</tr>")
    if len(listed) > MAX_ROWS:
        lines.append(f'<tr><td colspan="{len(headings)}">and {len(listed) - MAX_ROWS} more</td></tr>')
    return "\n".join([*lines, "</tbody></table>"])


def _cell(value: object) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = f"{value:{',' if isinstance(value, int) else '.4g'}}" if number else str(value)
    return f'<td style="text-align: {"right" if number else "left"}">{escape(printable(text))}</td>'
