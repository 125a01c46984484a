"""HTML pages of reports: one self-contained file each, rendered by Jinja with escaping."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glinfer import __version__

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
"""Colours that colour-blind readers can tell apart: blue, vermilion, green, pink, orange, sky, black, olive."""
_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
_DIGITS = 4


def rendered(template: str, *, styles: Sequence[str] = (), scripts: Sequence[str] = (), **values: Any) -> str:
    """Render a template of ``glinfer/templates`` with style sheets and scripts embedded.

    The template sees ``style`` (``page.css``, then ``styles``), ``script``, ``generator``, ``values``, and the filters
    ``number`` and ``percent``; an unknown name is an error.
    """
    import jinja2  # late, because few commands need templates
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(number=number, percent=percent)
    style, script = (
        Markup("".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in names))
        for names in (("page.css", *styles), scripts)
    )
    made = environment.get_template(template)
    return made.render(**values, style=style, script=script, generator=f"glinfer {__version__}")


def number(value: float | int | None) -> str:
    """Format a number for a table; a dash stands for None."""
    if value is None:
        return "–"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.{_DIGITS}g}"
    return text.replace("-", "−")


def percent(share: float | None) -> str:
    """Format a probability; a dash stands for None."""
    if share is None:
        return "–"
    return "<0.1%" if share < 0.0005 else f"{100 * share:.1f}%"
