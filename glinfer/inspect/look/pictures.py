"""Pictures of ``glinfer look``: functions from arrays to figures, and the files of a figure for light and dark pages.

Panels have sizes in inches that follow from the numbers of tokens, heads and layers, so pictures of one kind match.
Colour-blind readers can tell the colours apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import (
    Colormap,
    LinearSegmentedColormap,
    ListedColormap,
    LogNorm,
    Normalize,
    PowerNorm,
)
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from glinfer.inspect import figures
from glinfer.inspect.figures import FONT, LINE, plain_style, short, thinned
from glinfer.inspect.look.statistics import WeightSummary
from glinfer.inspect.pages import OKABE_ITO, percent

Floats = npt.NDArray[np.floating]

MAGNITUDE, CERTAINTY = "viridis", "cividis"
POSITIONS = 32
"""Positions in one lens picture; longer texts need several."""

_PANEL = (1.5, 4.8, 3.4)  # edge of an attention map: minimum, maximum, and without labels
_WIDEST = 13.0
_IMAGE, _STRIP, _PLOT = 2.56, 0.3, 2.5  # a matrix, a vector, and a histogram
_PIXELS = 64  # pixels of the edge of a map in the overview
_CELL = 0.25  # height of a row of words
_MIN_SHOWN = 1e-6  # probability on a logarithmic axis
_ON_LIGHT = "#1d1d1a"
_SHARES = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0]


FAINT = "#808180"
"""Colour of grids and missing values in a figure, which no colour map contains."""
_SIGNED = ListedColormap([(level / 255, 0.0, 1.0) for level in range(256)], "signed")
"""Codes for signed values, whose colours depend on the page; no other colour map has them."""
_STYLE: Mapping[str, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "figure.dpi": figures.DPI,
    "font.size": 8,
    "axes.linewidth": 0.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "text.parse_math": False,
    "grid.color": FAINT,
}


_SIGNED_DARK = ["#92c5de", "#2a78b8", "#182028", "#c03a44", "#f4a582"]
THEMES: Mapping[str, tuple[str, str, str, Colormap]] = {
    "": ("#ffffff", "#1d1d1b", "#d8d6d0", colormaps["RdBu_r"]),
    "-dark": ("#182028", "#e6eaee", "#3a4652", LinearSegmentedColormap.from_list("signed-dark", _SIGNED_DARK)),
}
"""Colours of light and dark pages, by what the names of their pictures end with.

They are those of the background, of text and lines, of missing values, and a map for both sides of 0.
"""


def write_themes(draw: Callable[[], Figure], path: Path) -> tuple[int, int]:
    """Draw a figure, and write it as PNG in the colours of each of :data:`THEMES`; returns its size in pixels.

    ``path`` has no suffix; the names of the files end as the themes say.
    """
    with plain_style(_STYLE):
        pixels = figures.pixels_of(draw(), margin=0.15)
    colours, opacity = pixels[..., :3], pixels[..., 3]
    codes = pixels.view("<u4")[..., 0] & 0xFFFFFF  # red in the lowest byte
    ink, faint, signed = codes == 0, codes == 0x808180, (codes & 0xFFFF00) == 0xFF0000
    levels, partly = codes[signed] & 0xFF, (opacity > 0) & (opacity < 255)
    share = opacity[partly, None] / np.float32(255)
    for ending, (paper, text, missing, signed_map) in THEMES.items():
        themed = colours.copy()
        themed[ink], themed[faint] = _rgb(text), _rgb(missing)
        themed[signed] = signed_map(np.arange(256), bytes=True)[levels, :3]
        themed[partly] = np.rint(themed[partly] * share + _rgb(paper) * (1 - share))
        themed[opacity == 0] = _rgb(paper)
        figures.save_pixels(themed, path.with_name(f"{path.name}{ending}.png"))
    return pixels.shape[1], pixels.shape[0]


def _rgb(colour: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex(colour[1:]), np.uint8)


def _panels(
    title: str,
    note: str,
    widths: Sequence[float],
    heights: Sequence[float],
    gap: tuple[float, float] = (0.12, 0.3),
    above: float = 0.2,
) -> tuple[Figure, list[list[Axes]]]:
    """Make a grid of axes with a title and a note ``above`` it; sizes are in inches. Labels widen the picture."""
    wide = sum(widths) + gap[0] * (len(widths) - 1)
    high = sum(heights) + gap[1] * (len(heights) - 1)
    figure = Figure(figsize=(wide, high))
    figure.text(0, 1 + (above + 0.32) / high, title, size=11, weight="bold")
    figure.text(0, 1 + (above + 0.08) / high, note, size=9)
    axes: list[list[Axes]] = []
    top = high
    for height in heights:
        left, row = 0.0, list[Axes]()
        for width in widths:
            row.append(figure.add_axes((left / wide, (top - height) / high, width / wide, height / high)))
            left += width + gap[0]
        axes.append(row)
        top -= height + gap[1]
    return figure, axes


def _image(
    axes: Axes, values: Floats, colours: str | Colormap, norm: Normalize, missing: str, *, bar: str = "", **how: Any
) -> None:
    """Draw a matrix in its rows and columns; ``bar`` adds a colour bar with that label, and ``how`` goes to it."""
    colour_map = colormaps[colours] if isinstance(colours, str) else colours
    shown = axes.imshow(
        values, cmap=colour_map.with_extremes(bad=missing), norm=norm, aspect="auto", interpolation_stage="data"
    )
    axes.set_xticks([])
    axes.set_yticks([])
    if bar:
        figure: Any = axes.figure
        box, (wide, high) = axes.get_position(), figure.get_size_inches()
        height = min(box.height, 2.2 / high)
        bar_axes = figure.add_axes((1 + 0.15 / wide, box.y1 - height, 0.12 / wide, height))
        figure.colorbar(shown, cax=bar_axes, label=bar, format="{x:.3g}", **how).minorticks_off()


def _words(axes: Axes, *, left: Sequence[tuple[int, str]] = (), below: Sequence[tuple[int, str]] = ()) -> None:
    """Write (row, label) to the left of a map, and (column, label) upright below it."""
    for axis, labels, turn in ((axes.yaxis, left, 0), (axes.xaxis, below, 90)):
        if labels:
            axis.set_ticks([at for at, _ in labels], [label for _, label in labels], family=FONT, rotation=turn)
            axis.set_tick_params(length=0)


def visible_keys(length: int, window: int) -> npt.NDArray[np.bool_]:
    """Mask [S, S] of the keys that each query attends to: causal, within ``window`` tokens (0: all)."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return (distance >= 0) & ((distance < window) if window else True)


def attention(probs: Floats, labels: Sequence[str], seen: npt.NDArray[np.bool_], title: str) -> Figure:
    """Draw the attention of all heads of a block: probs [heads, S, S], and their mask ``seen`` [S, S]."""
    heads, length = probs.shape[:2]
    edge = max(_PANEL[0], length * LINE)
    edge = edge if edge <= _PANEL[1] else _PANEL[2]
    ticks = thinned(labels, edge)
    rows = -(-heads // max(1, int(_WIDEST / edge)))
    columns = -(-heads // rows)
    note = "Rows: tokens that look (queries). Columns: tokens looked at (keys). Grey: hidden from the query."
    figure, grid = _panels(title, note, [edge] * columns, [edge] * rows)
    # Square roots make shares of a few percent visible, because most heads look at many tokens.
    norm = PowerNorm(0.5, 0.0, 1.0)
    for head, axes in enumerate(axes for row in grid for axes in row):
        if head >= heads:
            axes.set_axis_off()
            continue
        bar: dict[str, Any] = {"bar": "share of attention", "ticks": _SHARES} if head == 0 else {}
        _image(axes, np.ma.array(probs[head], mask=~seen), MAGNITUDE, norm, FAINT, **bar)
        axes.set_title(f"head {head}")
        _words(axes, left=[] if head % columns else ticks, below=ticks if head + columns >= heads else [])
    return figure


def shrunk(probs: Floats, seen: npt.NDArray[np.bool_]) -> np.ma.MaskedArray:
    """Shrink maps [heads, S, S] for the overview; a pixel is the largest share that it covers."""
    per = -(-probs.shape[1] // _PIXELS)
    visible = np.where(seen, probs, -1.0).astype(np.float32)
    missing = -probs.shape[1] % per
    padded = np.pad(visible, ((0, 0), (0, missing), (0, missing)), constant_values=-1.0)
    size = padded.shape[1] // per
    most = padded.reshape(len(probs), size, per, size, per).max(axis=(2, 4))
    return np.ma.masked_less(most, 0.0)


def attention_overview(maps: Sequence[np.ma.MaskedArray], layers: Sequence[int], length: int, title: str) -> Figure:
    """Draw the maps of :func:`shrunk` for all blocks, a row each, over ``length`` tokens."""
    heads, size = maps[0].shape[:2]
    edge = min(1.25, max(0.3, 14.0 / heads))
    step = size + max(1, round(size / edge * 0.04))
    framed = [np.ma.filled(each, -1.0) for each in maps]
    padding = ((0, 0), (0, step - size), (0, step - size))
    rows = [np.concatenate(list(np.pad(each, padding, constant_values=-1.0)), axis=1) for each in framed]
    per = -(-length // size)
    many = f" A pixel is the largest of {per}×{per} shares." if per > 1 else ""
    note = f"Every head of every block over the same text. Rows of a map look, columns are looked at.{many}"
    figure, ((axes,),) = _panels(title, note, [heads * edge], [len(maps) * edge])
    norm = PowerNorm(0.5, 0.0, 1.0)
    whole = np.ma.masked_less(np.concatenate(rows), 0.0)
    _image(axes, whole, MAGNITUDE, norm, "none", bar="share of attention", ticks=_SHARES)
    middles = [number * step + size / 2 for number in range(max(heads, len(maps)))]
    every = math.ceil(0.5 / edge)
    axes.set_yticks(middles[: len(maps)], [f"block {layer}" for layer in layers], family=FONT)
    axes.set_xticks(middles[:heads:every], [f"head {head}" for head in range(0, heads, every)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def hidden(stream: Floats, labels: Sequence[str], title: str) -> Figure:
    """Draw the stream [S, D] after one layer: a row for each token, a column for each feature."""
    length, width = stream.shape
    wide, high = 10.5, min(max(1.0, length * LINE), 7.0)
    finite = stream[np.isfinite(stream)]
    reach = _reach(finite)
    per = -(-width // round(wide * 100))
    ends = " to ".join(f"{end:.3g}".replace("-", "−") for end in (finite.min(), finite.max())) if finite.size else ""
    beyond = f"values range from {ends}" if ends else "no value is finite"
    many = f", {per} a column, the farthest from 0" if per > 1 else ""
    note = f"Rows: tokens. Columns: the {width} features{many}. 99% of values lie within the scale; {beyond}."
    figure, ((axes,),) = _panels(title, note, [wide], [high])
    shown = np.ma.masked_invalid(_farthest(stream, per))
    _image(axes, shown, _SIGNED, Normalize(-reach, reach), FAINT, bar="value", extend="both")
    axes.images[0].set_extent((0, width, length - 0.5, -0.5))
    axes.xaxis.set_major_locator(figures.round_numbers(10))
    _words(axes, left=thinned(labels, high))
    return figure


def _reach(finite: Floats) -> float:
    """The magnitude that 99% of the values do not exceed; 1 if it is 0."""
    return (float(np.quantile(np.abs(finite), 0.99)) if finite.size else 0.0) or 1.0


def _farthest(stream: Floats, per: int) -> Floats:
    """Keep the value farthest from 0 of each ``per`` columns, so that single large features are visible."""
    if per <= 1:
        return stream
    padded = np.pad(stream, ((0, 0), (0, -stream.shape[1] % per))).reshape(len(stream), -1, per)
    chosen = np.abs(padded).argmax(axis=2)
    return np.asarray(np.take_along_axis(padded, chosen[:, :, None], axis=2)[:, :, 0])


def norms(values: Floats, layers: Sequence[str], labels: Sequence[str], title: str) -> Figure:
    """Draw the norms [L, S] of the streams after L layers."""
    wide = min(max(6.0, len(labels) * 0.3), 14.0)
    known = values[np.isfinite(values) & (values > 0)]
    low, top = (float(known.min()), float(known.max())) if known.size else (1.0, 2.0)
    norm: Normalize = LogNorm(low, top) if top / low > 30 else Normalize(0.0, top)
    note = "The Euclidean norm of the stream after each layer, at each position"
    note += " (logarithmic)." if isinstance(norm, LogNorm) else "."
    figure, ((axes,),) = _panels(title, note, [wide], [len(layers) * 0.24])
    ticks = np.geomspace(low, top, 4) if isinstance(norm, LogNorm) else None
    _image(axes, values[::-1], MAGNITUDE, norm, FAINT, bar="norm", ticks=ticks)
    _words(axes, left=_rows(layers), below=thinned(labels, wide))
    return figure


def _rows(layers: Sequence[str]) -> list[tuple[int, str]]:
    """Label rows with layers, the last one on top."""
    return list(enumerate(map(short, reversed(layers))))


def _cells(axes: Axes, words: Sequence[Sequence[str]], probs: Floats) -> None:
    """Draw words [L][n] on their probabilities [L, n], the last row on top."""
    norm = Normalize(0.0, 1.0)
    _image(axes, np.ma.masked_invalid(probs[::-1]), CERTAINTY, norm, FAINT, bar="probability")
    for row, found in enumerate(reversed(words)):
        for column, word in enumerate(found):
            on = "white" if probs[-1 - row, column] < 0.55 else _ON_LIGHT  # cividis is dark below the middle
            axes.text(column, row, word, ha="center", va="center", color=on, family=FONT, size=9)


def lens(
    guesses: Sequence[Sequence[str]],
    probs: Floats,
    hits: npt.NDArray[np.bool_],
    layers: Sequence[str],
    labels: Sequence[str],
    title: str,
) -> Figure:
    """Draw the likeliest token [L, S] of each layer at each position, and its probability [L, S].

    ``hits`` [L, S] marks tokens that follow in the text; ``labels`` are the tokens at the positions.
    """
    words = [[short(guess, 7) for guess in row] for row in guesses]
    cell = max(0.34, max(len(word) for row in words for word in row) * figures.CHARACTER + 0.1)
    note = "Next token predicted by each layer. Below: the token at the position. Orange frame: the token that follows."
    figure, ((axes,),) = _panels(title, note, [len(labels) * cell], [len(layers) * _CELL])
    _cells(axes, words, probs)
    for row, column in np.argwhere(hits[::-1]).tolist():
        corner = (column - 0.45, row - 0.4)
        axes.add_patch(Rectangle(corner, 0.9, 0.8, fill=False, edgecolor=OKABE_ITO[1], linewidth=1.8))
    _words(axes, left=_rows(layers), below=list(enumerate(map(short, labels))))
    return figure


def lens_last(
    top: Sequence[Sequence[tuple[str, float]]],
    layers: Sequence[str],
    follow: Sequence[tuple[str, Floats]],
    title: str,
) -> Figure:
    """Draw each layer's likeliest tokens at the last position, and the probability of some tokens over the layers.

    ``top`` has (token, probability) by layer, the likeliest first; ``follow`` has (token, probabilities [L]).
    """
    count = max(map(len, top), default=1) or 1
    note = (
        "Above: each layer's likeliest tokens. Below: how likely the last layer's likeliest tokens are in each layer."
    )
    high = len(layers) * _CELL
    figure, ((cells,), (chart,)) = _panels(title, note, [max(count * 1.28, 5.5)], [high, 2.2], gap=(0.0, 0.4))
    probs = np.full((len(layers), count), np.nan)
    for row, found in enumerate(top):
        probs[row, : len(found)] = [prob for _, prob in found]
    _cells(cells, [[f"{short(label)} {percent(prob)}" for label, prob in found] for found in top], probs)
    _words(cells, left=_rows(layers))
    cells.set_xticks(range(count), [f"{rank + 1}." for rank in range(count)])
    for number, (label, values) in enumerate(follow):
        colour, marker = OKABE_ITO[number % len(OKABE_ITO)], "osD^vPX*"[number % 8]
        chart.plot(layers, np.maximum(values, _MIN_SHOWN), label=short(label), color=colour, marker=marker)
    chart.set_ylim(_MIN_SHOWN / 1.5, 1.5)
    chart.set_yscale("log")
    chart.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.6g}%")
    chart.minorticks_off()
    chart.xaxis.set_major_locator(figures.round_numbers(12))
    chart.grid(axis="y")
    if follow:
        chart.legend(loc="upper left", bbox_to_anchor=(1.0, 0.9), prop={"family": FONT, "size": 9})
    return figure


def weights(looks: Sequence[WeightSummary], title: str) -> Figure:
    """Draw thumbnails and histograms of weights, matrices before vectors."""
    note = (
        "Left: the weight in its rows and columns; 99% of the pixels lie within the scale. "
        "Right: histogram of the weights (logarithmic); the line is 0."
    )
    looks = sorted(looks, key=lambda each: each.shape[0] == 1)
    pairs = [looks[first : first + 2] for first in range(0, len(looks), 2)]
    heights = [_STRIP + 0.3 if pair[0].shape[0] == 1 else _IMAGE for pair in pairs]
    figure, grid = _panels(title, note, [_IMAGE, _PLOT] * 2, heights, gap=(0.6, 0.85), above=0.45)
    for pair, row in zip(pairs, grid, strict=True):
        for index in range(2):
            left, right = row[2 * index : 2 * index + 2]
            if index < len(pair):
                _thumbnail(left, pair[index])
                _histogram(right, pair[index])
            else:
                left.set_axis_off()
                right.set_axis_off()
    return figure


def describe(look: WeightSummary) -> str:
    """Describe a weight's size and format, and those of its texture, in one line."""
    (rows, cols), (width, height, texels) = look.shape, look.texture
    odd = "".join(f" · {look.stats[name]} {name}" for name in ("nan", "infinite") if look.stats[name])
    return f"{rows}×{cols} {look.format} · texture {width}×{height} {texels} · {look.stats['zeros']} zeros{odd}"


def _thumbnail(axes: Axes, look: WeightSummary) -> None:
    matrix = look.shape[0] > 1
    reach = _reach(look.image[np.isfinite(look.image)])
    colours, norm = (MAGNITUDE, Normalize(0.0, reach)) if matrix else (_SIGNED, Normalize(-reach, reach))
    _image(axes, look.image, colours, norm, FAINT)
    axes.set_aspect("equal" if matrix else "auto", anchor="NW")
    axes.set_title(look.name, weight="bold", y=1.0, pad=18)
    axes.annotate(describe(look), (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points")
    block = "×".join(map(str, look.block if matrix else look.block[1:]))
    of = "" if max(look.block) == 1 else f"mean of {block}: "
    what = f"{of}|w| from 0 to {reach:.2g}" if matrix else f"{of}w from −{reach:.2g} to {reach:.2g}"
    axes.annotate(what, (0, 0), (0, -4), xycoords="axes fraction", textcoords="offset points", va="top")


def _histogram(axes: Axes, look: WeightSummary) -> None:
    axes.stairs(look.counts, look.edges, fill=True, color=OKABE_ITO[0])
    axes.set_ylim(0.5, max(2.0, 2.0 * float(look.counts.max())))  # so that a single weight is visible
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(look.edges[0], look.edges[-1])
    axes.xaxis.set_major_locator(figures.round_numbers(5))
    if look.edges[0] < 0 < look.edges[-1]:
        axes.axvline(0.0, color=OKABE_ITO[1], linewidth=0.7)
    axes.minorticks_off()
    if look.stats["mean"] is not None:
        numbers = " · ".join(f"{name} {look.stats[name] or 0:.3g}" for name in ("min", "max", "mean", "std"))
        axes.set_xlabel(numbers.replace("-", "−"), loc="right")
