"""Drawing with matplotlib: charts with axes, PNG and SVG files, labels.

matplotlib's objects are used directly, without pyplot, so that no state is shared with a program that also plots. Equal
inputs give equal bytes, whatever the user's settings are. matplotlib is an extra: import this module late.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.image import imsave
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from glinfer.text.labels import shortened

DPI = 100
FONT = "DejaVu Sans Mono"
"""Monospaced font of labels, bundled with matplotlib."""
FAINT = "#d8d6d0"
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
"""Colours that colour-blind readers can tell apart: blue, vermilion, green, pink, orange, sky, black, olive."""
LINE, CHARACTER = 0.144, 0.0753
"""Inches of a label's height, and of a character's width."""
MAX_LABEL = 10
"""Characters of a label."""
TEXT, GRID, PAGE = "#010203", "#040506", "#070809"
"""Colours in a chart that :meth:`Chart.svg` replaces with the page's colours: text, lines, background."""

_THEME = {TEXT: "currentColor", GRID: "var(--line)", PAGE: "var(--card)"}
SVG_STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "glinfer",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": TEXT,
    "axes.edgecolor": GRID,
    "axes.labelcolor": TEXT,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "grid.color": GRID,
    "legend.frameon": False,
    "text.parse_math": False,  # names are shown literally
}
"""Settings of charts for :meth:`Chart.svg`."""
_LEGEND = 1.2  # inches of a name in a legend


@contextmanager
def plain_style(settings: Any = None) -> Iterator[None]:
    """Draw with matplotlib's default settings, and ``settings``, within the block."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with matplotlib.rc_context(settings):
            yield


def pixels_of(figure: Figure, *, margin: float | None = None) -> npt.NDArray[np.uint8]:
    """Draw a figure into pixels [height, width, RGBA].

    ``margin`` is the space in inches around everything that is drawn; by default the figure keeps its size.
    """
    canvas = FigureCanvasAgg(figure)
    fit: dict[str, Any] = {} if margin is None else {"bbox_inches": "tight", "pad_inches": margin}
    figure.savefig(io.BytesIO(), format="rgba", dpi="figure", facecolor="auto", edgecolor="none", **fit)
    return np.array(canvas.renderer.buffer_rgba())


def save_pixels(pixels: npt.NDArray[np.uint8], path: Path) -> None:
    """Write pixels [height, width, 3 or 4] as PNG."""
    same_bytes: Any = {"Software": None}  # leaves out matplotlib's version
    imsave(path, pixels, format="png", dpi=DPI, metadata=same_bytes)


class Chart:
    """A figure with axes, drawn into an SVG element that follows the theme of its page, or into a PNG."""

    def __init__(self, width: float, height: float, rows: int = 1, cols: int = 1, *, dpi: float = 72) -> None:
        """Make axes in a figure of ``width`` by ``height`` inches."""
        self.figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
        self.axes: list[Axes] = list(self.figure.subplots(rows, cols, squeeze=False).flat)
        self._tips: dict[str, str] = {}

    def tip(self, artist: Any, text: str) -> None:
        """Give a bar or tile a tooltip."""
        identity = f"tip{len(self._tips)}"
        artist.set_gid(identity)
        self._tips[identity] = text

    def legend(self, colours: Mapping[str, str], shown: set[str]) -> None:
        """Explain the colours that are shown, above the axes."""
        names = [name for name in colours if name in shown]
        handles = [Rectangle((0, 0), 1, 1, color=colours[name]) for name in names]
        columns = min(len(names), int(self.figure.get_figwidth() / _LEGEND))
        self.figure.legend(handles, names, loc="outside upper left", ncols=columns, handlelength=1, handleheight=1)

    def svg(self, name: str, title: str, about: str) -> str:
        """Return an ``svg`` element whose ids begin with ``name``; ``about`` describes it to screen readers."""
        for patch in (self.figure.patch, *(axes.patch for axes in self.figure.axes)):
            patch.set_alpha(0.0)
        file = io.StringIO()
        self.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        text = file.getvalue()
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
        for colour, theme in _THEME.items():
            text = text.replace(colour, theme)
        for identity, tip in self._tips.items():
            opened = f'<g id="{identity}">'
            text = text.replace(opened, f"{opened}<title>{escape(tip)}</title>", 1)
        text = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', text)
        text = re.sub(r'(url\(#|href="#)', rf"\1{name}-", text)
        text = re.sub(r"font: ([^;\"]*?) ?'?(?:DejaVu )?[Ss]ans[- ][^;\"]*", r"font: \1 system-ui, sans-serif", text)
        box = re.search(r'viewBox="[^"]*"', text)
        words = f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(about)}</desc>'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'{box[0] if box else ""} role="img" aria-labelledby="{name}-t {name}-d">{words}'
        )
        return head + text[text.index(">") + 1 :].strip()


def round_numbers(most: int) -> MaxNLocator:
    """Place about ``most`` ticks at round numbers."""
    return MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])


@lru_cache(maxsize=1)
def _known_characters() -> frozenset[int]:
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"
    return frozenset(FT2Font(str(path)).get_charmap())


def drawable(text: str) -> str:
    """Replace characters that the font lacks with their code points: ``⟨4E2D⟩``."""
    known = _known_characters()
    return "".join(char if ord(char) in known else f"⟨{ord(char):X}⟩" for char in text)


def short(label: str, longest: int = MAX_LABEL) -> str:
    """Cut a label to ``longest`` characters of the font."""
    return shortened(drawable(label), longest)


def thinned(labels: Sequence[str], length: float) -> list[tuple[int, str]]:
    """Choose labels that fit into ``length`` inches; if some are omitted, each begins with its position."""
    step = math.ceil(len(labels) * LINE / length - 0.02)
    if step <= 1:
        return [(place, short(label)) for place, label in enumerate(labels)]
    return [(place, f"{place} {short(labels[place])}") for place in range(0, len(labels), step)]
