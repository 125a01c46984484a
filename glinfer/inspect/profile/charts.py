"""The charts of a profile's page as SVG, drawn by matplotlib; import this module late, matplotlib is an extra.

Text stays text, in the page's font. Axes and words are drawn in a colour that becomes ``currentColor``, so that they
are dark on a light page and light on a dark one. Bars and tiles have a tooltip each, as SVG has them: a ``title``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from glinfer.inspect.profile.bytes import TextureUse
from glinfer.inspect.profile.report import DrawProfile, GrowthPoint, KindProfile

_TEXT, _GRID, _PAGE = "#010203", "#040506", "#070809"
_THEMED = {_TEXT: "currentColor", _GRID: "var(--grid)", _PAGE: "var(--card)"}
_WIDTH = 10.0  # inches of a whole figure, at 72 SVG units each

# Okabe and Ito's colours, which people see apart whatever their eyes; grey for the rest.
FAMILIES = {
    "attention": "#0072b2",
    "MLP": "#e69f00",
    "embedding": "#009e73",
    "head": "#cc79a7",
    "norms and others": "#8c959f",
}
# The same somewhat darker, so that white letters can be read on them.
TEXTURES = {"weight": "#005a8c", "cache": "#a97500", "activation": "#00754f", "input": "#9c4f78"}
BEFORE, AFTER = "#8c959f", "#0072b2"
_HEAD_KINDS = ("lm_head", "pick", "probs", "ln_f", "take", "judge")
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "glinfer",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": _TEXT,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _TEXT,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "grid.color": _GRID,
    "legend.frameon": False,
    "text.parse_math": False,  # names are shown as they are
}


def family_of(kind: str) -> str:
    """The key of :data:`FAMILIES` that a kind of draw has its colour from."""
    if kind.startswith("attn"):
        return "attention"
    if kind.startswith("mlp"):
        return "MLP"
    if kind.startswith("embed"):
        return "embedding"
    return "head" if kind in _HEAD_KINDS else "norms and others"


@dataclass
class _Chart:
    """A figure under construction, and the tooltips of its parts by the id of their group."""

    name: str
    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)

    def tip(self, artist: Any, text: str) -> None:
        """Give a bar or tile a tooltip."""
        identity = f"tip{len(self.tips)}"
        artist.set_gid(identity)
        self.tips[identity] = text

    def svg(self, title: str, about: str) -> str:
        """The picture as an ``svg`` element whose ids nothing else on the page has; ``about`` says what is to see."""
        file = io.StringIO()
        self.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        text = file.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
        for colour, theme in _THEMED.items():
            text = text.replace(colour, theme)
        for identity, tip in self.tips.items():
            opened = f'<g id="{identity}">'
            text = text.replace(opened, f"{opened}<title>{escape(tip)}</title>", 1)
        text = re.sub(r'\bid="([^"]*)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'(url\(#|href="#)', rf"\1{self.name}-", text)
        text = re.sub(r"font: ([^;\"]*?) ?'?(?:DejaVu )?[Ss]ans[- ][^;\"]*", r"font: \1 system-ui, sans-serif", text)
        box = re.search(r'viewBox="[^"]*"', text)
        words = f'<title id="{self.name}-t">{escape(title)}</title><desc id="{self.name}-d">{escape(about)}</desc>'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'{box[0] if box else ""} role="img" aria-labelledby="{self.name}-t {self.name}-d">{words}'
        )
        return head + text[text.index(">") + 1 :].strip()


def _drawn(name: str, width: float, height: float, title: str, about: str, draw: Callable[[_Chart], None]) -> str:
    with matplotlib.rc_context(_STYLE):
        chart = _Chart(name, Figure(figsize=(width, height), layout="constrained"))
        chart.figure.patch.set_alpha(0.0)
        draw(chart)
        for axes in chart.figure.axes:
            axes.patch.set_alpha(0.0)
        return chart.svg(title, about)


def _bars(axes: Axes, labels: Sequence[str], unit: str) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel(unit)
    axes.margins(y=0.01)


def kinds_chart(kinds: Sequence[KindProfile], about: str) -> str:
    """Milliseconds by kind of draw, a bar each."""

    def draw(chart: _Chart) -> None:
        axes = chart.figure.subplots()
        most = max(kind.ms for kind in kinds)
        for place, kind in enumerate(kinds):
            (bar,) = axes.barh(place, kind.ms, color=FAMILIES[family_of(kind.kind)], height=0.72)
            draws = "1 draw" if kind.draws == 1 else f"{kind.draws} draws"
            chart.tip(bar, f"{kind.kind}: {kind.ms:.3f} ms, {kind.share:.1%}, {draws}, {', '.join(kind.shaders)}")
            axes.annotate(
                f"{kind.ms:.2f} ms · {kind.share:.1%} · {draws}",
                (kind.ms, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
        _bars(axes, [kind.kind for kind in kinds], "milliseconds")
        axes.set_xlim(0, 1.3 * most or 1)
        _legend(axes, FAMILIES, {family_of(kind.kind) for kind in kinds})

    return _drawn("kinds", _WIDTH, 0.29 * len(kinds) + 1.1, "Time by kind of draw", about, draw)


def _legend(axes: Axes, colours: Mapping[str, str], shown: set[str]) -> None:
    handles = [Rectangle((0, 0), 1, 1, color=colour) for name, colour in colours.items() if name in shown]
    names = [name for name in colours if name in shown]
    axes.figure.legend(handles, names, loc="outside upper left", ncols=len(names), handlelength=1, handleheight=1)


def draws_chart(draws: Sequence[DrawProfile], about: str) -> str:
    """Milliseconds of every draw in the order of the plan, blocks of the model shaded by turns."""

    def draw(chart: _Chart) -> None:
        axes = chart.figure.subplots()
        for each in draws:
            (bar,) = axes.bar(each.index, each.ms, color=FAMILIES[family_of(each.kind)], width=0.86, linewidth=0)
            chart.tip(bar, f"{each.index} {each.name}: {each.ms:.3f} ms, {each.op}, reads {each.bytes_read:,} bytes")
        spans = [(name, [each.index for each in group]) for name, group in groupby(draws, lambda each: _block(each))]
        labelled = max((len(places) for name, places in spans if name), default=0) >= len(draws) / 60
        for turn, (name, places) in enumerate((name, places) for name, places in spans if name):
            if turn % 2 == 0:
                axes.axvspan(places[0] - 0.5, places[-1] + 0.5, color=_GRID, alpha=0.7, linewidth=0, zorder=0)
            if labelled:
                middle = (places[0] + places[-1]) / 2
                axes.annotate(
                    name, (middle, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8
                )
        axes.set_xlim(-0.8, len(draws) - 0.2)
        axes.set_xlabel("draw, in the order of the plan")
        axes.set_ylabel("milliseconds")
        axes.grid(axis="y")
        _legend(axes, FAMILIES, {family_of(each.kind) for each in draws})

    return _drawn("draws", _WIDTH, 3.4, "Time of every draw", about, draw)


def _block(draw: DrawProfile) -> str:
    found = re.match(r"h\.(\d+)\.", draw.name)
    return f"block {found[1]}" if found else ""


def rates_chart(kinds: Sequence[KindProfile], about: str) -> str:
    """Bytes read a second by kind, and beside each bar a mark where the renderer's ceiling for it is."""

    def draw(chart: _Chart) -> None:
        axes = chart.figure.subplots()
        rates = [kind.bytes_per_second / 1e9 for kind in kinds]
        ceilings = [rate / kind.of_ceiling if kind.of_ceiling else 0.0 for kind, rate in zip(kinds, rates, strict=True)]
        most = max(*rates, *ceilings, 1e-3)
        for place, (kind, rate, ceiling) in enumerate(zip(kinds, rates, ceilings, strict=True)):
            (bar,) = axes.barh(place, rate, color=FAMILIES[family_of(kind.kind)], height=0.72)
            text = f"{rate:.1f} GB/s" + (f" · {kind.of_ceiling:.0%}" if kind.of_ceiling is not None else "")
            if ceiling:
                axes.plot([ceiling, ceiling], [place - 0.42, place + 0.42], color=_TEXT, linewidth=2)
            chart.tip(bar, f"{kind.kind}: reads {kind.bytes_read:,} bytes in {kind.ms:.3f} ms, {text}")
            axes.text(1.03 * most, place, text, va="center", fontsize=8.5)
        marked = "; the mark is the ceiling" if any(ceilings) else ""
        _bars(axes, [kind.kind for kind in kinds], f"gigabytes read a second{marked}")
        axes.set_xlim(0, 1.2 * most)

    return _drawn("rates", _WIDTH, 0.29 * len(kinds) + 0.8, "Fetch rate by kind of draw", about, draw)


def growth_chart(points: Sequence[GrowthPoint], about: str) -> str:
    """Milliseconds by family of draws, and bytes read, at several places of the sequence."""

    def draw(chart: _Chart) -> None:
        times, sizes = chart.figure.subplots(1, 2)
        places = [point.tokens for point in points]
        families = {family_of(kind) for point in points for kind in point.kinds}
        stacks = {
            name: [sum(ms for kind, ms in point.kinds.items() if family_of(kind) == name) for point in points]
            for name in FAMILIES
            if name in families
        }
        times.stackplot(places, list(stacks.values()), colors=[FAMILIES[name] for name in stacks], alpha=0.85)
        times.plot(places, [point.wall_ms for point in points], color=_TEXT, marker="o", markersize=4, linewidth=1.5)
        times.set_ylabel("milliseconds (line: a plain run)")
        read = [point.bytes_read / 1e6 for point in points]
        sizes.plot(places, read, color=FAMILIES["attention"], marker="o", markersize=4, linewidth=2)
        sizes.set_ylabel("megabytes read")
        for axes in (times, sizes):
            axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
            axes.set_xlabel("place in the sequence, tokens")
            axes.grid()
            if len(points) > 1:
                axes.set_xscale("log", base=2)
                axes.set_xticks(places)
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
                axes.xaxis.set_minor_formatter(NullFormatter())
        _legend(times, FAMILIES, families)

    return _drawn("growth", _WIDTH, 3.6, "Growth with the place in the sequence", about, draw)


def memory_chart(textures: Sequence[TextureUse], about: str) -> str:
    """A mosaic of all textures, to scale by bytes: those of one part of the model beside each other."""
    width, height = _WIDTH, 5.2

    def draw(chart: _Chart) -> None:
        axes = chart.figure.subplots()
        parts: dict[str, list[TextureUse]] = {}
        for texture in textures:
            parts.setdefault(texture.part, []).append(texture)
        totals = {name: float(sum(each.bytes for each in group)) for name, group in parts.items()}
        order = sorted(parts, key=lambda name: -totals[name])
        for name, place in zip(order, mosaic([totals[name] for name in order], (0, 0, width, height)), strict=True):
            group = sorted(parts[name], key=lambda each: -each.bytes)
            for texture, tile in zip(group, mosaic([float(each.bytes) for each in group], place), strict=True):
                _tile(chart, axes, texture, tile)
            x, y, wide, high = place
            axes.add_patch(Rectangle((x, y), wide, high, fill=False, edgecolor=_PAGE, linewidth=4))
            if wide > 0.085 * len(name) + 0.2 and high > 0.3:
                label = f"{name} · {totals[name] / 1e6:,.1f} MB" if wide > 2.0 else name
                axes.text(x + 0.09, y + 0.08, label, ha="left", va="top", color="#ffffff", weight="bold", fontsize=9)
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.set_axis_off()
        _legend(axes, TEXTURES, {texture.kind for texture in textures})

    return _drawn("memory", width, height + 0.35, "Texture memory", about, draw)


Place = tuple[float, float, float, float]


def _tile(chart: _Chart, axes: Axes, texture: TextureUse, place: Place) -> None:
    x, y, wide, high = place
    tile = Rectangle((x, y), wide, high, facecolor=TEXTURES[texture.kind], edgecolor=_PAGE, linewidth=0.8)
    axes.add_patch(tile)
    chart.tip(
        tile,
        f"{texture.name}: {texture.kind} of {texture.part}, {texture.width}×{texture.height} {texture.format}, "
        f"{texture.bytes:,} bytes",
    )
    label = re.sub(r"^.*?\bh\.\d+\.|^.*?layers\.\d+\.", "", texture.name)
    if wide > 0.075 * len(label) + 0.15 and high > 0.62:
        axes.text(x + 0.09, y + high - 0.08, label, ha="left", va="bottom", color="#ffffff", fontsize=7.5)


def mosaic(sizes: Sequence[float], place: Place) -> list[Place]:
    """Rectangles (x, y, width, height) with these areas' proportions that fill one, none of them very long.

    The sizes are in falling order. Squarified treemaps: Bruls, Huizing and van Wijk 2000.
    """
    x, y, wide, high = place
    scale = wide * high / sum(sizes) if sum(sizes) else 0.0
    areas, found = [size * scale for size in sizes], list[Place]()
    while areas:
        short = min(wide, high)
        count = 1
        while count < len(areas) and _longest(areas[: count + 1], short) <= _longest(areas[:count], short):
            count += 1
        row, areas = areas[:count], areas[count:]
        thick = sum(row) / short if short else 0.0
        along = 0.0
        for area in row:
            length = area / thick if thick else 0.0
            found.append((x, y + along, thick, length) if high <= wide else (x + along, y, length, thick))
            along += length
        if high <= wide:
            x, wide = x + thick, max(0.0, wide - thick)
        else:
            y, high = y + thick, max(0.0, high - thick)
    return found


def _longest(row: Sequence[float], short: float) -> float:
    """How long the longest rectangle of a row is for its width, or wide for its length."""
    total = sum(row)
    if not total or not min(row):
        return float("inf")
    return max(short**2 * max(row) / total**2, total**2 / (short**2 * min(row)))


def changes_chart(rows: Sequence[tuple[str, float, float]], about: str) -> str:
    """Milliseconds before and after by kind of draw: (kind, before, after)."""

    def draw(chart: _Chart) -> None:
        axes = chart.figure.subplots()
        for place, (kind, before, after) in enumerate(rows):
            for shift, ms, colour, when in ((-0.19, before, BEFORE, "before"), (0.19, after, AFTER, "after")):
                (bar,) = axes.barh(place + shift, ms, color=colour, height=0.36)
                chart.tip(bar, f"{kind}, {when}: {ms:.3f} ms")
            change = f"{after - before:+.2f} ms" + (f" · {after / before - 1:+.0%}" if before else "")
            axes.annotate(
                change,
                (max(before, after), place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
        _bars(axes, [kind for kind, _, _ in rows], "milliseconds")
        axes.set_xlim(0, 1.25 * max(max(before, after) for _, before, after in rows) or 1)
        _legend(axes, {"before": BEFORE, "after": AFTER}, {"before", "after"})

    return _drawn("changes", _WIDTH, 0.42 * len(rows) + 1.1, "Time by kind of draw, before and after", about, draw)
