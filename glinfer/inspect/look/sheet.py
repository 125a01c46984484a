"""A sheet that a picture is drawn on, measured in inches of :data:`DPI` pixels: images, labels, lines, and a PNG.

matplotlib draws, through its objects and never through pyplot, so nothing is shared with a program that draws itself. A
sheet is a single axes whose numbers are inches: axes and ticks of matplotlib's own for every small map would take most
of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle

DPI = 100
FONT = "DejaVu Sans Mono"
"""Of labels: comes with matplotlib, and each character is as wide as any other."""
INK, QUIET, FAINT = "#1d1d1b", "#5b5a55", "#d8d6d0"
LABEL, SMALL, NORMAL = 7.5, 7.0, 8.0
"""Points of a label, of the numbers at an axis, and of other text."""
LINE, CHARACTER = 0.12, 0.0628
"""Inches that a label is high, and that each of its characters is wide."""
LONGEST = 10
"""Characters of a label."""

_EDGE = 0.15  # around everything
_HEAD = 0.79  # for the title, the line below it, and the edge above
_LEAST_WIDTH = 7.6
_BAR = 2.2
_OFF = 0.05  # between a map and its labels
_MIDDLE = 0.27 * LABEL / 72  # from the baseline to half the height of a small letter


class Sheet:
    """A picture under construction; places are inches from the left edge, and down from the title."""

    def __init__(self, width: float, height: float, title: str, note: str) -> None:
        """A white sheet with room for so many inches, below a title and a line about it."""
        self.width = _whole(max(width, _LEAST_WIDTH) + 2 * _EDGE)
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
        """A matrix in its rows and columns, from the top left corner on; what is masked or not finite in one colour."""
        left, top, width, height = map(_whole, (left, top, width, height))
        colour_map = colormaps[colours].with_extremes(bad=masked)
        # Pixels as they are where there is room for each, averages where there is not.
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
        """An empty rectangle with a line of so many points."""
        self._axes.add_artist(Rectangle((left, top), width, height, fill=False, edgecolor=colour, linewidth=line))

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, width: float = 0.7, **options: Any) -> None:
        """A line through points."""
        self._axes.add_artist(Line2D(xs, ys, color=colour, linewidth=width, **options))

    def area(self, xs: Sequence[float], ys: Sequence[float], colour: str) -> None:
        """A filled polygon."""
        self._axes.add_artist(Polygon(np.column_stack([xs, ys]), closed=True, color=colour, linewidth=0))

    def text(self, x: float, y: float, text: str, *, size: float = NORMAL, **options: Any) -> None:
        """A line of text below ``y``."""
        options = {"color": QUIET, "va": "top", "fontsize": size, "family": "DejaVu Sans", **options}
        self._write(x, y, drawable(text), options)

    def label(self, x: float, y: float, text: str, **options: Any) -> None:
        """A label with its middle at a place, whatever its letters reach up and down to."""
        options = {"color": INK, "ha": "center", "fontsize": LABEL, "family": FONT, **options}
        self._write(x, y + _MIDDLE, text, {"va": "baseline", **options})

    def _write(self, x: float, y: float, text: str, options: Mapping[str, Any]) -> None:
        # Text of the figure is not clipped, which takes a quarter of the time of drawing text of axes.
        self.figure.text(x, y, text, transform=self._axes.transData, parse_math=False, **options)

    def labels_left(
        self, left: float, top: float, height: float, count: int, labels: Sequence[tuple[int, str]]
    ) -> None:
        """Labels at the left of a map of ``count`` rows, beside rows."""
        for place, label in labels:
            self.label(left - _OFF, top + (place + 0.5) * height / count, label, ha="right")

    def labels_below(
        self, left: float, top: float, width: float, count: int, labels: Sequence[tuple[int, str]]
    ) -> None:
        """Labels below a map of ``count`` columns that ends at ``top``, upright below columns."""
        for place, label in labels:
            x = left + (place + 0.5) * width / count + _MIDDLE
            self.label(x, top + _OFF - _MIDDLE, label, ha="right", rotation=90, rotation_mode="anchor")

    def bar(
        self, norm: Normalize, colours: str, label: str, ticks: Mapping[float, str], *, beyond: bool = False
    ) -> None:
        """A colour bar at the right of the title; with ``beyond`` its ends are arrows: values go on there."""
        left, top = self.width - 2 * _EDGE - _BAR - 0.15, _EDGE - _HEAD + 0.06
        shown = np.asarray(norm.inverse(np.linspace(0.0, 1.0, 256)))[None, :]
        self.image(shown, left, top, _BAR, 0.1, colours, norm)
        if beyond:
            for x, tip, value in ((left, -0.08, 0.0), (left + _BAR, 0.08, 1.0)):
                colour = matplotlib.colors.to_hex(colormaps[colours](value))
                self.area([x, x + tip, x], [top, top + 0.05, top + 0.1], colour)
        for value, text in ticks.items():
            x = left + float(norm(value)) * _BAR
            self.line([x, x], [top + 0.1, top + 0.13], QUIET, 0.5)
            self.text(x, top + 0.14, text, size=SMALL, ha="center")
        self.text(left - 0.2, top - 0.01, label, ha="right")

    def save(self, path: Path) -> tuple[int, int]:
        """Write a PNG with nothing in it that differs from run to run; returns its width and height in pixels."""
        canvas = FigureCanvasAgg(self.figure)
        canvas.print_figure(str(path), dpi=DPI, facecolor="white", format="png", metadata={"Software": None})
        return round(self.width * DPI), round(self.height * DPI)


@contextmanager
def plain_style() -> Iterator[None]:
    """Draw as matplotlib does by itself within the block, whatever the user's own settings for it are."""
    with matplotlib.style.context("default"):
        yield


def _whole(inches: float) -> float:
    """Inches that are a whole number of pixels, so that maps are as sharp as can be."""
    return round(inches * DPI) / DPI


@lru_cache(maxsize=1)
def _known_characters() -> frozenset[int]:
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"
    return frozenset(FT2Font(str(path)).get_charmap())


def drawable(text: str) -> str:
    """``text``, with characters that the font lacks as numbers: ``⟨4E2D⟩``."""
    known = _known_characters()
    return "".join(char if ord(char) in known else f"⟨{ord(char):X}⟩" for char in text)


def short(label: str, longest: int = LONGEST) -> str:
    """A label that can be drawn and has no more characters than that."""
    label = drawable(label)
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def room(labels: Sequence[tuple[int, str]]) -> float:
    """Inches that the longest of some labels takes, with the distance to the map."""
    return max((len(label) for _, label in labels), default=0) * CHARACTER + 2 * _OFF


def thinned(labels: Sequence[str], length: float) -> list[tuple[int, str]]:
    """The labels that have room along so many inches; where some are left out, each tells its place too."""
    step = math.ceil(len(labels) * LINE / length - 0.02)
    if step <= 1:
        return [(place, short(label)) for place, label in enumerate(labels)]
    return [(place, f"{place} {short(labels[place])}") for place in range(0, len(labels), step)]
