"""Draw docs/images/draws.svg: every draw of a token of Gab, by the reference plan and by the fast plan.

The cells are the draws of both plans as `glinfer draws --config gab` counts them. The figure has its own background, so
that it can be read on a light or a dark page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from glinfer import ModelConfig
from glinfer.lower.plans import PLANS, plan_for

PARTS = {
    "ends": (r"(?!h\.|ln_f$)", "embedding, vocabulary, choice", ("#aa3377", "#e07fb4")),
    "norm": (r"ln_f$|h\.\d+\.ln_", "LayerNorm", ("#6f6f6f", "#b4b4b4")),
    "projection": (r"h\.\d+\.attn\..*(_proj|qkv)$", "queries, keys, values, output", ("#3366bb", "#7fb0f0")),
    "head": (r"h\.\d+\.attn\.", "attention: 4 draws a head, or 2 for all", ("#d97a0b", "#f0a848")),
    "mlp": (r"h\.\d+\.mlp\.", "MLP", ("#1f7f3f", "#5fc27f")),
}
"""Parts of the model: what the names of their draws begin with, text of the legend, and colours, light and dark."""
CELL, LEFT, WIDTH = 9, 62, 440
STYLE = """text{{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1b1b1b}}
.title{{font-size:16px;font-weight:600}}.small{{font-size:12px;fill:#4a4a4a}}.page{{fill:#fff;stroke:#c9c9c9}}
{light}
@media (prefers-color-scheme:dark){{text{{fill:#f2f2f2}}.small{{fill:#c4c4c4}}.page{{fill:#14171c;stroke:#3c424b}}
{dark}}}"""


def part_of(name: str) -> str:
    """The part of the model that the draw of this name computes, a key of :data:`PARTS`."""
    return next(part for part, (pattern, *_) in PARTS.items() if re.match(pattern, name))


def rows_of(names: list[str]) -> dict[str, list[str]]:
    """The names of draws by the row of the figure that shows them: start, a row for each block, end."""
    rows: dict[str, list[str]] = {}
    for name in names:
        block = f"block {int(name.split('.')[1]) + 1}" if name.startswith("h.") else "end" if rows else "start"
        rows.setdefault(block, []).append(name)
    return rows


def grid(names: list[str], top: int) -> Iterator[str]:
    """A row of cells for the draws of each block, below ``top``."""
    for row, (label, draws) in enumerate(rows_of(names).items()):
        y = top + row * (CELL + 5)
        yield f'<text class="small" x="{LEFT - 8}" y="{y + CELL}" text-anchor="end">{label}</text>'
        for column, name in enumerate(draws):
            odd = int(name.split(".")[4]) % 2 if ".head." in name else 0
            shade = ' opacity=".62"' if odd else ""
            yield (
                f'<rect class="{part_of(name)}" x="{LEFT + column * CELL}" y="{y}" width="{CELL - 1}" '
                f'height="{CELL + 2}"{shade}><title>{name}</title></rect>'
            )


def legend(left: int, top: int) -> Iterator[str]:
    """The colours of all parts, below each other."""
    for row, (part, (_, text, *_)) in enumerate(PARTS.items()):
        y = top + row * 20
        yield f'<rect class="{part}" x="{left}" y="{y}" width="{CELL + 2}" height="{CELL + 2}"/>'
        yield f'<text x="{left + 20}" y="{y + CELL + 1}">{text}</text>'


def figure() -> str:
    """The whole figure as SVG."""
    config = ModelConfig.from_options("gab")
    body: list[str] = []
    top = 30
    for plan in reversed(PLANS):
        names = [draw.name for draw in plan_for(config, plan).draws]
        body.append(f'<text class="title" x="14" y="{top}">{plan} plan: {len(names)} draws a token</text>')
        body += grid(names, top + 12)
        if plan == "fast":
            body += legend(LEFT + 86, top + 14)
        top += 12 + 8 * (CELL + 5) + 26
    height = top - 20
    colours = [
        "".join(f".{part}{{fill:{shades[theme]}}}" for part, (*_, shades) in PARTS.items()) for theme in range(2)
    ]
    style = STYLE.format(light=colours[0], dark=colours[1])
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}">',
            f"<style>{style}</style>",
            f'<rect class="page" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
            *body,
            "</svg>\n",
        ]
    )
