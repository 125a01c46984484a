"""Pictures of ``glinfer look``: functions from arrays to sheets, see :class:`glinfer.inspect.figures.Sheet`.

Sizes follow from the numbers of tokens, heads and layers, so that pictures of one kind match and labels fit.
Colour-blind readers can tell the colours apart: viridis and cividis for magnitudes, red and blue on both sides of a
white zero for signed values, Okabe and Ito's for categories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.ticker import MaxNLocator

from glinfer.inspect.figures import (
    CHARACTER,
    FAINT,
    INK,
    LINE,
    OKABE_ITO,
    ON_LIGHT,
    QUIET,
    SIGNED,
    SMALL,
    Sheet,
    room,
    short,
    thinned,
)  # fmt: skip
from glinfer.inspect.look.statistics import WeightSummary
from glinfer.inspect.pages import percent

Floats = npt.NDArray[np.floating]

MARKERS = "osD^vPX*"
MAGNITUDE, CERTAINTY = "viridis", "cividis"
POSITIONS = 32
"""Positions in one lens picture; longer texts need several."""

_GAP = 0.12  # inches between things
_PANEL = (1.5, 4.8, 3.4)  # edge of an attention map: minimum, maximum, and without labels
_WIDEST = 13.0
_LEGEND = 1.5
_IMAGE, _STRIP, _PLOT = 2.56, 0.9, 2.5  # a matrix, the space for a vector, and a histogram
_PIXELS = 64  # pixels of the edge of a map in the overview
_FLOOR = 0.5  # bottom of a histogram's logarithmic scale, so that a single weight is visible
_MIN_SHOWN = 1e-6  # probability on a logarithmic axis
_PARTS = {0.0: "0", 0.25: ".25", 0.5: ".5", 0.75: ".75", 1.0: "1"}
_SHARES = {0.0: "0", 0.01: ".01", 0.05: ".05", 0.1: ".1", 0.25: ".25", 0.5: ".5", 1.0: "1"}


def _probability() -> Normalize:
    # Square roots make shares of a few percent visible, because most heads look at many tokens.
    return PowerNorm(0.5, 0.0, 1.0)


def seen_keys(length: int, window: int) -> npt.NDArray[np.bool_]:
    """Mask [S, S] of the keys that each query attends to: causal, within ``window`` tokens (0: all)."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return (distance >= 0) & ((distance < window) if window else True)


def attention(probs: Floats, labels: Sequence[str], seen: npt.NDArray[np.bool_], title: str) -> Sheet:
    """Draw the attention of all heads of a block: probs [heads, S, S], and their mask ``seen`` [S, S]."""
    heads, length = probs.shape[:2]
    edge = max(_PANEL[0], length * LINE)
    edge = edge if edge <= _PANEL[1] else _PANEL[2]
    ticks = thinned(labels, edge)
    named = room(ticks)
    columns = _columns(heads, max(1, int((_WIDEST - named) / (edge + _GAP))))
    rows = -(-heads // columns)
    high = 0.2 + edge + named + _GAP
    note = "Rows: tokens that look (queries). Columns: tokens looked at (keys). Grey: hidden from the query."
    sheet = Sheet(named + columns * (edge + _GAP), rows * high, title, note)
    sheet.bar(_probability(), MAGNITUDE, "share of attention", _SHARES)
    for head in range(heads):
        row, column = divmod(head, columns)
        left, top = named + column * (edge + _GAP), row * high
        sheet.text(left, top + 0.03, f"head {head}", color=INK)
        shown = np.ma.array(probs[head], mask=~seen)
        sheet.image(shown, left, top + 0.2, edge, edge, MAGNITUDE, _probability())
        sheet.labels_below(left, top + 0.2 + edge, edge, length, ticks)
        if column == 0:
            sheet.labels_left(left, top + 0.2, edge, length, ticks)
    return sheet


def _columns(count: int, most: int) -> int:
    """Choose the columns of a grid: the most that fill its last row, or nearly ``most``."""
    for columns in range(min(count, most), math.ceil(0.7 * most) - 1, -1):
        if count % columns == 0:
            return columns
    return -(-count // -(-count // min(count, most)))


def shrunk(probs: Floats, seen: npt.NDArray[np.bool_]) -> np.ma.MaskedArray:
    """Shrink maps [heads, S, S] for the overview; a pixel is the largest share that it covers."""
    per = -(-probs.shape[1] // _PIXELS)
    visible = np.where(seen, probs, -1.0).astype(np.float32)
    missing = -probs.shape[1] % per
    padded = np.pad(visible, ((0, 0), (0, missing), (0, missing)), constant_values=-1.0)
    size = padded.shape[1] // per
    most = padded.reshape(len(probs), size, per, size, per).max(axis=(2, 4))
    return np.ma.masked_less(most, 0.0)


def attention_overview(maps: Sequence[np.ma.MaskedArray], layers: Sequence[int], length: int) -> Sheet:
    """Draw the maps of :func:`shrunk` for all blocks, a row each, over ``length`` tokens."""
    heads, size = maps[0].shape[:2]
    edge = min(1.25, max(0.3, 14.0 / heads))
    gap = max(1, round(size / edge * 0.04))
    step = size + gap
    whole = np.ma.masked_less(np.full((len(maps) * step - gap, heads * step - gap), -1.0), 0.0)
    for row, block in enumerate(maps):
        for head in range(heads):
            whole[row * step : row * step + size, head * step : head * step + size] = block[head]
    inch = edge / size
    named = room([(0, f"block {layers[-1]}")])
    per = -(-length // size)
    many = f" A pixel is the largest of {per}×{per} shares." if per > 1 else ""
    note = f"Every head of every block over the same text. Rows of a map look, columns are looked at.{many}"
    wide, high = whole.shape[1] * inch, whole.shape[0] * inch
    sheet = Sheet(named + wide, high + 0.25, "Attention, all blocks and heads", note)
    sheet.bar(_probability(), MAGNITUDE, "share of attention", _SHARES)
    sheet.image(whole, named, 0.0, wide, high, MAGNITUDE, _probability(), masked="white", frame=False)
    for row, layer in enumerate(layers):
        sheet.label(named - 0.05, (row * step + size / 2) * inch, f"block {layer}", ha="right")
    for head in range(0, heads, math.ceil(0.5 / edge)):
        sheet.text(named + (head * step + size / 2) * inch, high + 0.06, f"head {head}", size=SMALL, ha="center")
    return sheet


def hidden(stream: Floats, labels: Sequence[str], title: str) -> Sheet:
    """Draw the stream [S, D] after one layer: a row for each token, a column for each feature."""
    length, width = stream.shape
    high = min(max(1.0, length * LINE), 7.0)
    ticks = thinned(labels, high)
    named, wide = room(ticks), 10.5
    finite = stream[np.isfinite(stream)]
    reach = float(np.quantile(np.abs(finite), 0.99)) if finite.size else 0.0
    reach = reach or 1.0
    per = -(-width // round(wide * 100))
    shown = np.ma.masked_invalid(_farthest(stream, per))
    beyond = (
        f"values range from {_text(float(finite.min()))} to {_text(float(finite.max()))}"
        if finite.size
        else "no value is finite"
    )
    note = f"Rows: tokens. Columns: the {width} features" + (
        f", {per} a column, the farthest from 0. " if per > 1 else ". "
    )
    sheet = Sheet(named + wide, high + 0.22, title, f"{note}99% of values lie within the scale; {beyond}.")
    norm = Normalize(-reach, reach)
    ends = {-reach: _text(-reach), 0.0: "0", reach: _text(reach)}
    sheet.bar(norm, SIGNED, "value", ends, beyond=True)
    sheet.image(shown, named, 0.0, wide, high, SIGNED, norm)
    sheet.labels_left(named, 0.0, high, length, ticks)
    _numbers_below(sheet, named, high, wide, 0.0, float(width))
    return sheet


def _text(value: float) -> str:
    """Format a number with a typographic minus sign."""
    return f"{value:.3g}".replace("-", "−")


def _numbers_below(sheet: Sheet, left: float, top: float, width: float, low: float, high: float) -> None:
    """Write round numbers below a map or histogram that spans ``low`` to ``high``."""
    for value in MaxNLocator(max(4, round(width)), steps=[1, 2, 2.5, 5, 10]).tick_values(low, high):
        if low <= value <= high:
            x = left + (value - low) / (high - low) * width
            sheet.line([x, x], [top, top + 0.03], QUIET, 0.5)
            sheet.text(x, top + 0.05, f"{value:.6g}".replace("-", "−"), size=SMALL, ha="center")


def _farthest(stream: Floats, per: int) -> Floats:
    """Keep the value farthest from 0 of each ``per`` columns, so that single large features are visible."""
    if per <= 1:
        return stream
    padded = np.pad(stream, ((0, 0), (0, -stream.shape[1] % per))).reshape(len(stream), -1, per)
    chosen = np.abs(padded).argmax(axis=2)
    return np.asarray(np.take_along_axis(padded, chosen[:, :, None], axis=2)[:, :, 0])


def norms(values: Floats, layers: Sequence[str], labels: Sequence[str]) -> Sheet:
    """Draw the norms [L, S] of the streams after L layers."""
    wide = min(max(6.0, len(labels) * 0.3), 14.0)
    high = len(layers) * 0.24
    ticks = thinned(labels, wide)
    rows = list(enumerate(map(short, reversed(layers))))
    named, below = room(rows), room(ticks)
    known = values[np.isfinite(values) & (values > 0)]
    low, top = (float(known.min()), float(known.max())) if known.size else (1.0, 2.0)
    many = top / low > 30
    norm: Normalize = LogNorm(low, top) if many and top > low else Normalize(0.0, top)
    note = "The Euclidean norm of the stream after each layer, at each position" + (" (logarithmic)." if many else ".")
    sheet = Sheet(named + wide, high + below, "Norm of the stream", note)
    ends = {low: f"{low:.3g}", top: f"{top:.3g}"} if many else {0.0: "0", top / 2: f"{top / 2:.3g}", top: f"{top:.3g}"}
    sheet.bar(norm, MAGNITUDE, "norm", ends)
    sheet.image(values[::-1], named, 0.0, wide, high, MAGNITUDE, norm)
    sheet.labels_below(named, high, wide, len(labels), ticks)
    sheet.labels_left(named, 0.0, high, len(layers), rows)
    return sheet


def lens(
    guesses: Sequence[Sequence[str]], probs: Floats, hits: npt.NDArray[np.bool_], layers: Sequence[str],
    labels: Sequence[str], first: int,
) -> Sheet:  # fmt: skip
    """Draw the likeliest token [L, S] of each layer at each position, and its probability [L, S].

    ``hits`` [L, S] marks tokens that follow in the text; ``labels`` are the tokens at the positions from ``first`` on.
    """
    words = [[short(guess, 7) for guess in row] for row in guesses]
    longest = max(len(word) for row in words for word in row)
    cell, line = max(0.34, longest * CHARACTER + 0.1), 0.25
    rows = list(enumerate(map(short, reversed(layers))))
    under = [(place, short(label)) for place, label in enumerate(labels)]
    named, below = room(rows), room(under)
    wide, high = len(labels) * cell, len(layers) * line
    which = f", positions {first} to {first + len(labels) - 1}"
    note = "Next token predicted by each layer. Below: the token at the position. Orange frame: the token that follows."
    sheet = Sheet(named + wide, high + below, f"Logit lens{which}", note)
    norm = Normalize(0.0, 1.0)
    sheet.bar(norm, CERTAINTY, "probability", _PARTS)
    sheet.image(probs[::-1], named, 0.0, wide, high, CERTAINTY, norm)
    for (row, column), prob in np.ndenumerate(probs):
        left, top = named + column * cell, high - (row + 1) * line
        sheet.label(left + cell / 2, top + line / 2, words[row][column], color=_on(float(prob)))
        if hits[row, column]:
            sheet.frame(left + 0.025, top + 0.025, cell - 0.05, line - 0.05, OKABE_ITO[1], 1.8)
    sheet.labels_below(named, high, wide, len(labels), under)
    sheet.labels_left(named, 0.0, high, len(layers), rows)
    return sheet


def _on(prob: float) -> str:
    """Choose a readable text colour: cividis is dark below the middle."""
    return "white" if prob < 0.55 else ON_LIGHT


def lens_last(
    top: Sequence[Sequence[tuple[str, float]]], layers: Sequence[str], follow: Sequence[tuple[str, Floats]]
) -> Sheet:
    """Draw each layer's likeliest tokens at the last position, and the probability of some tokens over the layers.

    ``top`` has (token, probability) by layer, the likeliest first; ``follow`` has (token, probabilities [L]).
    """
    count = max(map(len, top), default=1) or 1
    cell, line = 1.28, 0.25
    rows = list(enumerate(map(short, reversed(layers))))
    named = room(rows)
    wide, high = count * cell, len(layers) * line
    across, chart = max(wide, 7.0), 2.2
    note = (
        "Above: each layer's likeliest tokens. Below: how likely the last layer's likeliest tokens are in each layer."
    )
    sheet = Sheet(named + across, high + 0.4 + chart + 0.3, "Logit lens at the last position", note)
    norm = Normalize(0.0, 1.0)
    sheet.bar(norm, CERTAINTY, "probability", _PARTS)
    probs = np.full((len(layers), count), np.nan)
    for row, found in enumerate(top):
        probs[row, : len(found)] = [prob for _, prob in found]
    sheet.image(probs[::-1], named, 0.0, wide, high, CERTAINTY, norm)
    for row, found in enumerate(top):
        for rank, (label, prob) in enumerate(found):
            x, y = named + (rank + 0.5) * cell, high - (row + 0.5) * line
            sheet.label(x, y, f"{short(label)} {percent(prob)}", color=_on(prob))
    sheet.labels_left(named, 0.0, high, len(layers), rows)
    for rank in range(count):
        sheet.text(named + (rank + 0.5) * cell, high + 0.05, f"{rank + 1}.", size=SMALL, ha="center")
    _lines(sheet, named, high + 0.4, across - _LEGEND, chart, layers, follow)
    return sheet


def _lines(
    sheet: Sheet,
    left: float,
    top: float,
    width: float,
    height: float,
    layers: Sequence[str],
    follow: Sequence[tuple[str, Floats]],
) -> None:
    """Draw a line for each token over the layers, on a logarithmic scale, with a legend at the right."""
    least = min((float(values[values > 0].min(initial=1.0)) for _, values in follow), default=1.0)
    floor = max(_MIN_SHOWN, min(least, 1e-3)) / 1.5
    reach = -math.log10(floor)

    def height_of(share: float) -> float:
        return top + 0.08 - math.log10(max(share, floor)) / reach * (height - 0.08)

    for share in (10.0**power for power in range(0, -7, -1)):
        if share >= floor:
            sheet.line([left, left + width], [height_of(share)] * 2, FAINT, 0.5)
            sheet.text(left - 0.05, height_of(share) - 0.06, f"{100 * share:.6g}%", size=SMALL, ha="right")
    step = width / len(layers)
    for place in range(0, len(layers), math.ceil(0.6 / step)):
        sheet.text(left + (place + 0.5) * step, top + height + 0.05, layers[place], size=SMALL, ha="center")
    sheet.frame(left, top, width, height, QUIET, 0.5)
    xs = [left + (place + 0.5) * step for place in range(len(layers))]
    for number, (label, values) in enumerate(follow):
        style = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4.0}
        colour = OKABE_ITO[number % len(OKABE_ITO)]
        sheet.line(xs, [height_of(float(value)) for value in values], colour, 1.4, **style)
        key, y = left + width + 0.12, top + 0.1 + number * 0.2
        sheet.line([key, key + 0.14, key + 0.28], [y] * 3, colour, 1.4, markevery=[1], **style)
        sheet.label(key + 0.36, y, short(label), ha="left")


def weights(looks: Sequence[WeightSummary], title: str) -> Sheet:
    """Draw thumbnails and histograms of weights in two columns, matrices before vectors."""
    step = _IMAGE + _PLOT + 0.95
    note = (
        "Left: the weight in its rows and columns; 99% of the pixels lie within the scale. "
        "Right: histogram of the weights (logarithmic); the line is 0."
    )
    placed: list[tuple[WeightSummary, float, float, float]] = []
    top = 0.0
    for high, group in (
        (_IMAGE, [look for look in looks if look.shape[0] > 1]),
        (_STRIP, [look for look in looks if look.shape[0] == 1]),
    ):
        for number, look in enumerate(group):
            row, column = divmod(number, 2)
            placed.append((look, column * step, top + row * (high + 0.75), high))
        top += math.ceil(len(group) / 2) * (high + 0.75)
    sheet = Sheet(2 * step - 0.35, top, title, note)
    for look, left, above, high in placed:
        sheet.text(left, above, look.name, color=INK, weight="bold")
        sheet.text(left, above + 0.16, describe(look), size=SMALL)
        _thumbnail(sheet, look, left, above + 0.36, high)
        _histogram(sheet, look, left + _IMAGE + 0.6, above + 0.36, high - 0.15)
    return sheet


def describe(look: WeightSummary) -> str:
    """Describe a weight's size and format, and those of its texture, in one line."""
    (rows, cols), (width, height, texels) = look.shape, look.texture
    odd = "".join(f" · {look.stats[name]} {name}" for name in ("nan", "infinite") if look.stats[name])
    return f"{rows}×{cols} {look.format} · texture {width}×{height} {texels} · {look.stats['zeros']} zeros{odd}"


def _thumbnail(sheet: Sheet, look: WeightSummary, left: float, top: float, high: float) -> None:
    matrix = look.shape[0] > 1
    pixel = min(_IMAGE / max(look.image.shape), 0.16)
    size = (look.image.shape[1] * pixel, look.image.shape[0] * pixel) if matrix else (_IMAGE, 0.3)
    finite = look.image[np.isfinite(look.image)]
    reach = float(np.quantile(np.abs(finite), 0.99)) if finite.size else 0.0
    reach = reach or 1.0
    colours, norm = (MAGNITUDE, Normalize(0.0, reach)) if matrix else (SIGNED, Normalize(-reach, reach))
    sheet.image(look.image, left, top, size[0], size[1], colours, norm)
    block = "×".join(map(str, look.block if matrix else look.block[1:]))
    of = "" if max(look.block) == 1 else f"mean of {block}: "
    what = f"{of}|w| from 0 to {reach:.2g}" if matrix else f"{of}w from −{reach:.2g} to {reach:.2g}"
    sheet.text(left, top + size[1] + 0.04, what, size=SMALL)


def _histogram(sheet: Sheet, look: WeightSummary, left: float, top: float, high: float) -> None:
    low, end, most = float(look.edges[0]), float(look.edges[-1]), max(2.0, 2.0 * float(look.counts.max()))
    scale = high / math.log10(most / _FLOOR)
    tops = top + high - np.log10(np.maximum(look.counts, _FLOOR) / _FLOOR) * scale
    xs = np.repeat(left + (look.edges - low) / (end - low) * _PLOT, 2)
    sheet.area(xs.tolist(), [top + high, *np.repeat(tops, 2).tolist(), top + high], OKABE_ITO[0])
    if low < 0 < end:
        zero = left - low / (end - low) * _PLOT
        sheet.line([zero, zero], [top, top + high], OKABE_ITO[1])
    sheet.frame(left, top, _PLOT, high, QUIET, 0.5)
    _numbers_below(sheet, left, top + high, _PLOT, low, end)
    powers = range(math.floor(math.log10(most)) + 1)
    for power in powers[:: 1 if high > 0.2 * len(powers) else 2]:
        y = top + high - math.log10(10**power / _FLOOR) * scale
        sheet.line([left - 0.03, left], [y, y], QUIET, 0.5)
        sheet.text(left - 0.05, y - 0.06, f"{10**power:,}", size=SMALL, ha="right")
    numbers = look.stats
    if numbers["mean"] is not None:
        told = " · ".join(f"{name} {_text(float(numbers[name] or 0))}" for name in ("min", "max", "mean", "std"))
        sheet.text(left + _PLOT, top + high + 0.2, told, size=SMALL, ha="right")
