"""Charts of a profile's page as SVG elements with tooltips; import this module late, matplotlib is an extra."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from glinfer.inspect.figures import GRID, OKABE_ITO, PAGE, SVG_STYLE, TEXT, Chart, plain_style
from glinfer.inspect.profile.compare import ProfileComparison
from glinfer.inspect.profile.result import DrawProfile, ProfileReport
from glinfer.inspect.tables import megabytes

_WIDTH, _NARROW = 10.0, 3.6  # inches of a figure, and of one for phones, at 72 SVG units each
_LABEL_DRAWS = 0.022  # of a chart's width: the space for a block's number
_SQUASHED = 4.0  # multiple of the 90th percentile that the scale shows; more would squash most draws
_NAMED = 3  # draws beyond the scale that are labelled with their time
_RATE_TEXT = 0.17  # of the largest rate: the space for the text next to a bar

FAMILIES = {
    "attention": OKABE_ITO[0],
    "MLP": OKABE_ITO[4],
    "embedding": OKABE_ITO[2],
    "head": OKABE_ITO[3],
    "norms and others": "#8c959f",
}
"""Colours of kinds of draws."""
TEXTURES = dict(zip(("weight", "cache", "activation", "input"), FAMILIES.values(), strict=False))
"""Colours of kinds of textures."""
BEFORE, AFTER = FAMILIES["norms and others"], FAMILIES["attention"]
_HEAD_KINDS = ("lm_head", "pick", "probs", "ln_f", "take")

Shown = TypeVar("Shown", ProfileReport, ProfileComparison)


@dataclass(frozen=True)
class Figure:
    """A chart for the page, and a narrow version for phones; its ids begin with ``name``."""

    name: str
    title: str
    svg: str
    caption: str
    narrow: str = ""


def profile_charts(report: ProfileReport) -> list[Figure]:
    """Draw all charts of a profile."""
    drawn = (_kinds, _draws, _rates, _memory, *([_growth] if len(report.growth) > 1 else []))
    return [_in_both_widths(each, report) for each in drawn]


def comparison_chart(comparison: ProfileComparison) -> Figure:
    """Draw the time by kind of draw, before and after."""
    return _in_both_widths(_changes, comparison)


def _in_both_widths(drawn: Callable[[Shown, float], Figure], shown: Shown) -> Figure:
    with plain_style(SVG_STYLE):
        return replace(drawn(shown, _WIDTH), narrow=drawn(shown, _NARROW).svg)


def _changes(comparison: ProfileComparison, width: float = _WIDTH) -> Figure:
    total, rows = comparison.total, comparison.rows
    caption = f"Draws took {total.before.ms:.2f} ms before and {total.after.ms:.2f} ms after."
    with _bars([row.kind for row in rows], 0.42, width) as (chart, axes):
        for place, row in enumerate(rows):
            before, after = row.before.ms, row.after.ms
            for shift, ms, colour, when in ((-0.19, before, BEFORE, "before"), (0.19, after, AFTER, "after")):
                (bar,) = axes.barh(place + shift, ms, color=colour, height=0.36)
                chart.tip(bar, f"{row.kind}, {when}: {ms:.3f} ms")
            change = f"{after / before - 1:+.0%}" if before else ""
            _beside(axes, max(before, after), place, f"{row.change_ms:+.2f} ms", change)
        _scale(axes, max(max(row.before.ms, row.after.ms) for row in rows) or 1, 1.25)
        chart.legend({"before": BEFORE, "after": AFTER}, {"before", "after"})
    return _figure("changes", "Time by kind of draw", caption, chart)


def _figure(name: str, title: str, caption: str, chart: Chart) -> Figure:
    ids = f"{name}-narrow" if _is_narrow(chart.axes[0]) else name
    return Figure(name, title, chart.svg(ids, title, caption), caption)


def _is_narrow(axes: Axes) -> bool:
    figure = axes.get_figure()
    return figure is not None and figure.bbox.width <= _NARROW * 72


def family_of(kind: str) -> str:
    """Return the key of :data:`FAMILIES` for a kind of draw."""
    for beginning, family in (("attn", "attention"), ("mlp", "MLP"), ("embed", "embedding")):
        if kind.startswith(beginning):
            return family
    return "head" if kind in _HEAD_KINDS else "norms and others"


@contextmanager
def _bars(labels: Sequence[str], each: float, width: float, unit: str = "milliseconds") -> Iterator[tuple[Chart, Axes]]:
    """Make a chart of horizontal bars, ``each`` inches high; on a phone text is above each bar."""
    narrow = width == _NARROW
    chart = Chart(width, (each + 0.18 * narrow) * len(labels) + (1.5 if narrow else 1.1))
    axes = chart.axes[0]
    yield chart, axes
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel(unit.replace("; ", "\n") if narrow else unit)
    axes.margins(y=0.01)


def _scale(axes: Axes, most: float, room: float) -> None:
    """End the scale of bars at ``room`` times the longest, if text is next to them."""
    axes.set_xlim(0, (1.03 if _is_narrow(axes) else room) * most)


def _beside(axes: Axes, x: float, y: float, *parts: str) -> None:
    """Write text at the right end of a bar, or above it on a phone."""
    text = " · ".join(filter(None, parts))
    if _is_narrow(axes):
        axes.annotate(text, (0, y - 0.37), xytext=(1, 1), textcoords="offset points", va="bottom", fontsize=8)
        return
    axes.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5)


def _kinds(report: ProfileReport, width: float = _WIDTH) -> Figure:
    kinds = report.kinds
    largest = max(kinds, key=lambda kind: kind.ms)
    caption = (
        f"The draws of one run by kind, in the order of the plan. Most time is spent in {largest.kind}: "
        f"{largest.ms:.2f} ms, {largest.share:.0%}. A draw's time is from the end of the previous draw to its own end."
    )
    with _bars([kind.kind for kind in kinds], 0.29, width) as (chart, axes):
        for place, kind in enumerate(kinds):
            (bar,) = axes.barh(place, kind.ms, color=FAMILIES[family_of(kind.kind)], height=0.72)
            draws = "1 draw" if kind.draws == 1 else f"{kind.draws} draws"
            chart.tip(bar, f"{kind.kind}: {kind.ms:.3f} ms, {kind.share:.1%}, {draws}, {', '.join(kind.shaders)}")
            _beside(axes, kind.ms, place, f"{kind.ms:.2f} ms", f"{kind.share:.1%}", draws)
        _scale(axes, largest.ms or 1, 1.3)
        chart.legend(FAMILIES, {family_of(kind.kind) for kind in kinds})
    return _figure("kinds", "Time by kind of draw", caption, chart)


def _draws(report: ProfileReport, width: float = _WIDTH) -> Figure:
    """Draw the time of every draw, with every other block shaded."""
    draws, chart = report.draws, Chart(width, 3.4)
    slowest = max(draws, key=lambda draw: draw.ms)
    caption = f"Every draw of one run. The slowest is {slowest.name} with {slowest.ms:.3f} ms."
    top = scale_top([each.ms for each in draws])
    longer = [each for each in draws if each.ms > top]
    if longer:
        which = "A draw is" if len(longer) == 1 else f"{len(longer)} draws are"
        caption += f" {which} longer than the scale and cut off, with the time above."
    axes = chart.axes[0]
    for each in draws:
        shown = min(each.ms, top)
        (bar,) = axes.bar(each.index, shown, color=FAMILIES[family_of(each.kind)], width=0.86, linewidth=0)
        chart.tip(bar, f"{each.index} {each.name}: {each.ms:.3f} ms, {each.op}, reads {each.bytes_read:,} bytes")
    for number, each in enumerate(sorted(longer, key=lambda each: -each.ms)):
        _cut_off(axes, each, len(draws), top, number)
    spans = [(name, [each.index for each in group]) for name, group in groupby(draws, _block) if name]
    each_block = sum(len(places) for _, places in spans) / max(1, len(spans))
    room = len(draws) * _WIDTH / width
    step = math.ceil(_LABEL_DRAWS * room / each_block) if spans else 1
    for turn, (name, places) in enumerate(spans):
        if turn % 2 == 0:
            axes.axvspan(places[0] - 0.5, places[-1] + 0.5, color=GRID, alpha=0.7, linewidth=0, zorder=0)
        if turn % step == 0:
            middle = (places[0] + places[-1]) / 2
            text = f"block {name}" if turn == 0 and len(places) > 0.08 * room else name
            axes.annotate(text, (middle, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)
    if spans:
        caption += " Shading and the numbers above mark blocks."
    axes.set_ylim(0, (1.06 + 0.09 * min(len(longer), _NAMED)) * top)
    axes.set_xlim(-0.8, len(draws) - 0.2)
    axes.set_xlabel("draw, in the order of the plan")
    axes.set_ylabel("milliseconds")
    axes.grid(axis="y")
    chart.legend(FAMILIES, {family_of(each.kind) for each in draws})
    return _figure("draws", "Time of every draw", caption, chart)


def scale_top(times: Sequence[float]) -> float:
    """Return the largest time that the scale shows in full: the longest draw, unless it would squash all others."""
    ordered = sorted(times)
    most = ordered[-1] or 1.0
    usual = ordered[int(0.9 * (len(ordered) - 1))]
    limit = max(_SQUASHED * usual, 0.0)
    below = [ms for ms in ordered if ms <= limit]
    return most if most <= 1.5 * limit or not below or not below[-1] else below[-1]


def _cut_off(axes: Axes, draw: DrawProfile, count: int, top: float, number: int) -> None:
    """Mark a bar as longer than the scale, and write its time above the bars; later ones a line lower."""
    axes.plot([draw.index - 0.9, draw.index + 0.9], [0.94 * top, 0.97 * top], color=PAGE, linewidth=3)
    if number >= _NAMED:
        return
    left = draw.index > count / 2
    axes.annotate(
        f"{draw.name} {draw.ms:.2f} ms",
        (draw.index, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, -3 - 11 * number),
        textcoords="offset points",
        ha="right" if left else "left",
        va="top",
        fontsize=8.5,
    )


def _block(draw: DrawProfile) -> str:
    found = re.match(r"h\.(\d+)\.", draw.name)
    return found[1] if found else ""


def _rates(report: ProfileReport, width: float = _WIDTH) -> Figure:
    """Draw bytes read a second by kind, with a mark at the renderer's ceiling."""
    kinds = report.kinds
    caption = "Bytes read per second; each texel in use counts once, even if it is fetched repeatedly."
    if report.ceilings:
        measured = ", ".join(f"{rate.format} {rate.bytes_per_second / 1e9:.1f} GB/s" for rate in report.ceilings)
        caption += (
            f" The mark next to a bar is the rate of a pass that only fetches ({measured}). Textures that fit into a "
            "cache may exceed it; draws that compute a lot per texel stay far below."
        )
    rates = [kind.bytes_per_second / 1e9 for kind in kinds]
    ceilings = [rate / kind.of_ceiling if kind.of_ceiling else 0.0 for kind, rate in zip(kinds, rates, strict=True)]
    most = max(*rates, *ceilings, 1e-3)
    unit = f"gigabytes read a second{'; the mark is the ceiling' if any(ceilings) else ''}"
    with _bars([kind.kind for kind in kinds], 0.29, width, unit) as (chart, axes):
        for place, (kind, rate, ceiling) in enumerate(zip(kinds, rates, ceilings, strict=True)):
            (bar,) = axes.barh(place, rate, color=FAMILIES[family_of(kind.kind)], height=0.72)
            text = f"{rate:.1f} GB/s" + (f" · {kind.of_ceiling:.0%}" if kind.of_ceiling is not None else "")
            if ceiling:
                axes.plot([ceiling, ceiling], [place - 0.42, place + 0.42], color=TEXT, linewidth=2)
            chart.tip(bar, f"{kind.kind}: reads {kind.bytes_read:,} bytes in {kind.ms:.3f} ms, {text}")
            # Next to the bar, or after the mark if both would overlap.
            end = ceiling if rate < ceiling < rate + _RATE_TEXT * most else rate
            _beside(axes, end, place, text)
        _scale(axes, most, 1.2)
    return _figure("rates", "Fetch rate by kind of draw", caption, chart)


def _growth(report: ProfileReport, width: float = _WIDTH) -> Figure:
    """Draw milliseconds by family of draws, and bytes read, over positions in the sequence."""
    points, shape = report.growth, (6.4, 2, 1) if width == _NARROW else (3.6, 1, 2)
    chart = Chart(width, *shape)
    first, last = points[0], points[-1]
    caption = (
        f"From {first.wall_ms:.2f} ms and {megabytes(first.bytes_read)} read at position {first.tokens} to "
        f"{last.wall_ms:.2f} ms and {megabytes(last.bytes_read)} at position {last.tokens}."
    )
    times, sizes = chart.axes
    places = [point.tokens for point in points]
    families = {family_of(kind) for point in points for kind in point.kinds}
    stacks = {
        name: [sum(ms for kind, ms in point.kinds.items() if family_of(kind) == name) for point in points]
        for name in FAMILIES
        if name in families
    }
    times.stackplot(places, list(stacks.values()), colors=[FAMILIES[name] for name in stacks], alpha=0.85)
    times.plot(places, [point.wall_ms for point in points], color=TEXT, marker="o", markersize=4, linewidth=1.5)
    times.set_ylabel("milliseconds (line: a plain run)")
    read = [point.bytes_read / 1e6 for point in points]
    sizes.plot(places, read, color=FAMILIES["attention"], marker="o", markersize=4, linewidth=2)
    sizes.set_ylabel("megabytes read")
    for axes in chart.axes:
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
        axes.set_xlabel("position in the sequence, tokens")
        axes.grid()
        axes.set_xscale("log", base=2)
        axes.set_xticks(places)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    chart.legend(FAMILIES, families)
    return _figure("growth", "Growth with the sequence", caption, chart)


def _memory(report: ProfileReport, width: float = _WIDTH) -> Figure:
    """Draw every texture, one after the other, in a bar for each part of the model."""
    sizes = report.memory
    kinds = ", ".join(f"{kind} {megabytes(size)}" for kind, size in sizes["kind"].items())
    caption = (
        f"Every texture of the run, to scale by bytes, grouped by part of the model: {kinds}. Hover over a segment to "
        "see its name and size."
    )
    parts = sorted(sizes["part"].items(), key=lambda part: -part[1])
    with _bars([name for name, _ in parts], 0.29, width, "megabytes") as (chart, axes):
        for place, (name, total) in enumerate(parts):
            left = 0.0
            group = [each for each in report.textures if each.part == name]
            for texture in sorted(group, key=lambda each: -each.bytes):
                size, colour = texture.bytes / 1e6, TEXTURES[texture.kind]
                (bar,) = axes.barh(place, size, left=left, color=colour, height=0.72, edgecolor=PAGE, linewidth=0.8)
                about = f"{texture.kind} of {texture.part}, {texture.width}×{texture.height} {texture.format}"
                chart.tip(bar, f"{texture.name}: {about}, {texture.bytes:,} bytes")
                left += size
            _beside(axes, left, place, megabytes(total))
        _scale(axes, parts[0][1] / 1e6 or 1, 1.15)
        chart.legend(TEXTURES, {texture.kind for texture in report.textures})
    return _figure("memory", "Texture memory", caption, chart)
