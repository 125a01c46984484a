"""The page of ``glinfer look``: one HTML file beside its pictures, for a browser that opens it without a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
_PAGE, _STYLE, _SCRIPT = "look.html.j2", "look.css", "look.js"
_SIGNIFICANT = 4


def page(document: Mapping[str, Any]) -> str:
    """The page of a document, which is what ``look.json`` holds; style and script are in it, pictures beside it."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, percent=percent)
    style, script = (Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in (_STYLE, _SCRIPT))
    return made.get_template(_PAGE).render(**document, style=style, script=script)


def number(value: float | int | None) -> str:
    """A number for a table; nothing where there is none."""
    if value is None:
        return "–"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.{_SIGNIFICANT}g}"
    return text.replace("-", "−")


def percent(share: float | None) -> str:
    """A probability for a table."""
    if share is None:
        return "–"
    return "<0.1%" if share < 0.0005 else f"{100 * share:.1f}%"
