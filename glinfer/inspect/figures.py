"""Drawing with matplotlib: figures as PNG files, labels.

matplotlib's objects are used directly, without pyplot, so that no state is shared with a program that also plots. Equal
inputs give equal bytes, whatever the user's settings are. matplotlib is an extra: import this module late.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import MaxNLocator
from PIL import Image

from glinfer.text.labels import shortened

DPI = 100
FONT = "DejaVu Sans Mono"
"""Monospaced font of labels, bundled with matplotlib."""
FAINT = "#d8d6d0"
LINE, CHARACTER = 0.144, 0.0753
"""Inches of a label's height, and of a character's width."""
MAX_LABEL = 10
"""Characters of a label."""


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
    fit: dict[str, Any] = {}
    if margin is not None:  # with "tight", savefig would draw everything twice
        fit = {"bbox_inches": figure.get_tightbbox().padded(margin)}
    figure.savefig(io.BytesIO(), format="rgba", dpi="figure", facecolor="auto", edgecolor="none", **fit)
    return np.array(canvas.renderer.buffer_rgba())


def save_pixels(pixels: npt.NDArray[np.uint8], path: Path) -> None:
    """Write pixels [height, width, 3 or 4] as PNG."""
    Image.fromarray(pixels).save(path, format="png", dpi=(DPI, DPI))


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
        return [(index, short(label)) for index, label in enumerate(labels)]
    return [(index, f"{index} {short(labels[index])}") for index in range(0, len(labels), step)]
