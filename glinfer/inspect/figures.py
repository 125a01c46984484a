"""Drawing with matplotlib: sheets measured in inches, charts with axes, PNG and SVG files.

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
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle
from matplotlib.text import Text

from glinfer.text.labels import shortened

DPI = 100
FONT = "DejaVu Sans Mono"
"""Monospaced font of labels, bundled with matplotlib."""
INK, QUIET, FAINT = "#1d1d1b", "#5b5a55", "#d8d6d0"
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
"""Colours that colour-blind readers can tell apart: blue, vermilion, green, pink, orange, sky, black, olive."""
ON_LIGHT = "#1d1d1a"
"""Text colour on light cells, which stay light in a dark picture."""
LABEL, SMALL, NORMAL = 9.0, 8.0, 9.0
"""Points of labels, of numbers at an axis, and of other text on a sheet; readable on a page 1200 pixels wide."""
LINE, CHARACTER = 0.144, 0.0753
"""Inches of a label's height, and of a character's width."""
MAX_LABEL = 10
"""Characters of a label."""
TEXT, GRID, PAGE = "#010203", "#040506", "#070809"
"""Colours in a chart that :meth:`Chart.svg` replaces with the page's colours: text, lines, background."""

SIGNED = "RdBu_r"
"""Colours on both sides of 0: blue, white and red; in dark pictures light blue, black and light red."""
_SIGNED_DARK = LinearSegmentedColormap.from_list("signed-dark", ["#92c5de", "#2a78b8", "#182028", "#c03a44", "#f4a582"])
_DARK_PAPER = "#182028"
_DARK = {
    **{INK: "#e6eaee", QUIET: "#aab5c0", FAINT: "#3a4652", "#000000": "#e6eaee"},
    **{to_hex(colormaps[SIGNED](end)): to_hex(_SIGNED_DARK(end)) for end in (0.0, 1.0)},
}
"""Colours of a dark picture, by those of the light one."""
_THEME = {TEXT: "currentColor", GRID: "var(--line)", PAGE: "var(--card)"}
_SVG_STYLE: Mapping[str, Any] = {
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
_LEGEND = 1.2  # inches of a name in a legend
_EDGE = 0.15  # margin of a sheet
_HEAD = 0.79  # height of the title, the line below it, and the margin above
_MIN_WIDTH = 7.6
_BAR = 2.2
_OFF = 0.05  # between a map and its labels
_MIDDLE = 0.27 * LABEL / 72  # from the baseline to half the height of a small letter


@contextmanager
def plain_style(settings: Any = None) -> Iterator[None]:
    """Draw with matplotlib's default settings, and ``settings``, within the block."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with matplotlib.rc_context(settings):
            yield


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure without metadata that changes from run to run."""
    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi="figure", metadata={"Software": None})


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


@contextmanager
def svg_style() -> Iterator[None]:
    """Draw charts for :meth:`Chart.svg` within the block."""
    with plain_style(_SVG_STYLE):
        yield


class Sheet:
    """A picture whose coordinates are inches from the left edge, and down from the title.

    It is a single axes: matplotlib's axes and ticks for each small map would take most of the time.
    """

    def __init__(self, width: float, height: float, title: str, note: str) -> None:
        """Make a white sheet with room for ``width`` by ``height`` inches below a title and a note."""
        self.width = _whole(max(width, _MIN_WIDTH) + 2 * _EDGE)
        self.height = _whole(height + _HEAD + _EDGE)
        self.figure = Figure(figsize=(self.width, self.height), dpi=DPI, facecolor="white")
        self._axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._axes.set_xlim(-_EDGE, self.width - _EDGE)
        self._axes.set_ylim(self.height - _HEAD, -_HEAD)
        self.text(0.0, _EDGE - _HEAD, title, size=11, weight="bold", color=INK)
        self.text(0.0, _EDGE - _HEAD + 0.37, note)

    def image(
        self,
        values: npt.NDArray[np.floating],
        left: float,
        top: float,
        width: float,
        height: float,
        colours: str,
        norm: Normalize,
        *,
        masked: str = FAINT,
        frame: bool = True,
    ) -> None:
        """Draw a matrix in its rows and columns; masked and non-finite elements have the colour ``masked``."""
        left, top, width, height = map(_whole, (left, top, width, height))
        colour_map = colormaps[colours].with_extremes(bad=masked)
        # Pixels are copied if there is space for each, and averaged otherwise.
        shrinks = values.shape[1] > width * DPI or values.shape[0] > height * DPI
        made = AxesImage(
            self._axes,
            cmap=colour_map,
            norm=norm,
            interpolation="antialiased" if shrinks else "nearest",
            extent=(left, left + width, top + height, top),
        )
        made.set_data(np.ma.masked_invalid(values))
        self._axes.add_image(made)
        if frame:
            self.frame(left, top, width, height, QUIET, 0.5)

    def frame(self, left: float, top: float, width: float, height: float, colour: str, line: float) -> None:
        """Draw an empty rectangle with a line of ``line`` points."""
        self._axes.add_artist(Rectangle((left, top), width, height, fill=False, edgecolor=colour, linewidth=line))

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, width: float = 0.7, **options: Any) -> None:
        """Draw a line through points."""
        self._axes.add_artist(Line2D(xs, ys, color=colour, linewidth=width, **options))

    def area(self, xs: Sequence[float], ys: Sequence[float], colour: str) -> None:
        """Draw a filled polygon."""
        self._axes.add_artist(Polygon(np.column_stack([xs, ys]), closed=True, color=colour, linewidth=0))

    def text(self, x: float, y: float, text: str, *, size: float = NORMAL, **options: Any) -> None:
        """Write a line of text below ``y``."""
        options = {"color": QUIET, "va": "top", "fontsize": size, "family": "DejaVu Sans", **options}
        self._write(x, y, drawable(text), options)

    def label(self, x: float, y: float, text: str, **options: Any) -> None:
        """Write a label centred on the height of a small letter."""
        options = {"color": INK, "ha": "center", "fontsize": LABEL, "family": FONT, **options}
        self._write(x, y + _MIDDLE, text, {"va": "baseline", **options})

    def _write(self, x: float, y: float, text: str, options: Mapping[str, Any]) -> None:
        # Figure text is not clipped, and needs a quarter of the time of axes text.
        self.figure.text(x, y, text, transform=self._axes.transData, parse_math=False, **options)

    def labels_left(
        self, left: float, top: float, height: float, count: int, labels: Sequence[tuple[int, str]]
    ) -> None:
        """Write (row, label) to the left of a map of ``count`` rows."""
        for place, label in labels:
            self.label(left - _OFF, top + (place + 0.5) * height / count, label, ha="right")

    def labels_below(
        self, left: float, top: float, width: float, count: int, labels: Sequence[tuple[int, str]]
    ) -> None:
        """Write (column, label) upright below a map of ``count`` columns that ends at ``top``."""
        for place, label in labels:
            x = left + (place + 0.5) * width / count + _MIDDLE
            self.label(x, top + _OFF - _MIDDLE, label, ha="right", rotation=90, rotation_mode="anchor")

    def bar(
        self, norm: Normalize, colours: str, label: str, ticks: Mapping[float, str], *, beyond: bool = False
    ) -> None:
        """Draw a colour bar right of the title; ``beyond`` adds arrows for values outside its range."""
        left, top = self.width - 2 * _EDGE - _BAR - 0.15, _EDGE - _HEAD + 0.06
        shown = np.asarray(norm.inverse(np.linspace(0.0, 1.0, 256)))[None, :]
        self.image(shown, left, top, _BAR, 0.1, colours, norm)
        if beyond:
            for x, tip, value in ((left, -0.08, 0.0), (left + _BAR, 0.08, 1.0)):
                colour = to_hex(colormaps[colours](value))
                self.area([x, x + tip, x], [top, top + 0.05, top + 0.1], colour)
        for value, text in ticks.items():
            x = left + float(norm(value)) * _BAR
            self.line([x, x], [top + 0.1, top + 0.13], QUIET, 0.5)
            self.text(x, top + 0.14, text, size=SMALL, ha="center")
        self.text(left - 0.2, top - 0.01, label, ha="right")

    def save(self, path: Path, dark: Path | None = None) -> tuple[int, int]:
        """Write a PNG, and one for dark pages to ``dark``; returns width and height in pixels."""
        write_png(self.figure, path)
        if dark is not None:
            self._darken()
            write_png(self.figure, dark)
        return round(self.width * DPI), round(self.height * DPI)

    def _darken(self) -> None:
        """Give paper, text, lines and missing values the colours of a dark page; maps of magnitudes keep theirs."""
        self.figure.set_facecolor(_DARK_PAPER)
        for artist in (*self.figure.texts, *self._axes.get_children()):
            if isinstance(artist, AxesImage):
                bad = to_hex(tuple(artist.cmap.get_bad()))
                colours = _SIGNED_DARK if artist.cmap.name == SIGNED else artist.cmap
                artist.set_cmap(colours.with_extremes(bad=_DARK_PAPER if bad == "#ffffff" else _DARK.get(bad, bad)))
            elif isinstance(artist, Rectangle):
                edge = to_hex(artist.get_edgecolor())
                artist.set_edgecolor(_DARK.get(edge, edge))
            elif isinstance(artist, Text | Line2D):
                colour = to_hex(artist.get_color())
                artist.set_color(_DARK.get(colour, colour))
            elif isinstance(artist, Polygon):
                colour = to_hex(artist.get_facecolor())
                artist.set_color(_DARK.get(colour, colour))


def _whole(inches: float) -> float:
    """Round to whole pixels, which keeps maps sharp."""
    return round(inches * DPI) / DPI


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


def room(labels: Sequence[tuple[int, str]]) -> float:
    """Return the width of the longest label and its margin, in inches."""
    return max((len(label) for _, label in labels), default=0) * CHARACTER + 2 * _OFF


def thinned(labels: Sequence[str], length: float) -> list[tuple[int, str]]:
    """Choose labels that fit into ``length`` inches; if some are omitted, each begins with its position."""
    step = math.ceil(len(labels) * LINE / length - 0.02)
    if step <= 1:
        return [(place, short(label)) for place, label in enumerate(labels)]
    return [(place, f"{place} {short(labels[place])}") for place in range(0, len(labels), step)]
