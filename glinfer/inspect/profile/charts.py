"""Charts of a profile's page: bars with labels and tooltips, as data for ``charts.html.j2``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from glinfer.errors import counted
from glinfer.inspect.pages import OKABE_ITO
from glinfer.inspect.profile.compare import ProfileComparison
from glinfer.inspect.profile.result import ProfileReport
from glinfer.inspect.tables import change, megabytes

_SQUASHED = 4.0  # multiple of the 90th percentile that the scale shows; more would squash most draws
_NAMED = 3  # draws beyond the scale whose time the caption has
_TOP = 92.0  # percent of the height of the longest draw within the scale

FAMILIES: Mapping[str, str] = {
    "attention": OKABE_ITO[0],
    "MLP": OKABE_ITO[4],
    "embedding": OKABE_ITO[2],
    "head": OKABE_ITO[3],
    "norms and others": "#8c959f",
}
"""Colours of kinds of draws."""
TEXTURES: Mapping[str, str] = dict(zip(("weight", "cache", "activation", "input"), FAMILIES.values(), strict=False))
"""Colours of kinds of textures."""
MOMENTS: Mapping[str, str] = {"before": FAMILIES["norms and others"], "after": FAMILIES["attention"]}
"""Colours of two compared reports."""
_HEAD_KINDS = ("lm_head", "pick", "probs", "ln_f", "take")


@dataclass(frozen=True)
class Part:
    """A coloured part of a bar, or a draw of a block: its size in percent of the chart, and a tooltip.

    A ``cut`` draw takes longer than the scale shows.
    """

    size: float
    colour: str
    tip: str
    cut: bool = False


@dataclass(frozen=True)
class Bar:
    """A bar with its label and numbers, or a block of draws; ``mark`` is the position of a mark in percent."""

    label: str
    parts: Sequence[Part]
    text: str = ""
    mark: float | None = None


@dataclass(frozen=True)
class Chart:
    """Bars from left to right, or with ``upright`` blocks whose draws are upright bars.

    ``legend`` has the colours that are shown, by name.
    """

    name: str
    title: str
    caption: str
    legend: Mapping[str, str]
    bars: Sequence[Bar]
    upright: bool = False


def profile_charts(report: ProfileReport) -> list[Chart]:
    """All charts of a profile."""
    growth = [_growth(report)] if len(report.growth) > 1 else []
    return [_kinds(report), _draws(report), _rates(report), _memory(report), *growth]


def family_of(kind: str) -> str:
    """Return the key of :data:`FAMILIES` for a kind of draw."""
    for beginning, family in (("attn", "attention"), ("mlp", "MLP"), ("embed", "embedding")):
        if kind.startswith(beginning):
            return family
    return "head" if kind in _HEAD_KINDS else "norms and others"


def _shown(kinds: Iterable[str]) -> dict[str, str]:
    """The families of kinds of draws, with their colours."""
    found = {family_of(kind) for kind in kinds}
    return {name: colour for name, colour in FAMILIES.items() if name in found}


def _kinds(report: ProfileReport) -> Chart:
    kinds, bars = report.kinds, list[Bar]()
    largest = max(kinds, key=lambda kind: kind.ms)
    for kind in kinds:
        draws, share = counted(kind.draws, "draw"), f"{kind.share:.1%}"
        tip = f"{kind.kind}: {kind.ms:.3f} ms, {share}, {draws}, {', '.join(kind.shaders)}"
        part = Part(100 * kind.ms / (largest.ms or 1), FAMILIES[family_of(kind.kind)], tip)
        bars.append(Bar(kind.kind, [part], f"{kind.ms:.2f} ms · {share} · {draws}"))
    caption = (
        f"The draws of one run by kind, in the order of the plan. Most time is spent in {largest.kind}: "
        f"{largest.ms:.2f} ms, {largest.share:.0%}. A draw's time is from the end of the previous draw to its own end."
    )
    return Chart("kinds", "Time by kind of draw", caption, _shown(kind.kind for kind in kinds), bars)


def _draws(report: ProfileReport) -> Chart:
    draws, bars = report.draws, list[Bar]()
    top = scale_top([draw.ms for draw in draws])
    for block, group in groupby(draws, lambda draw: _block(draw.name)):
        parts = [
            Part(
                100.0 if draw.ms > top else _TOP * draw.ms / top,
                FAMILIES[family_of(draw.kind)],
                f"{draw.index + 1} {draw.name}: {draw.ms:.3f} ms, {draw.op}, reads {draw.bytes_read:,} bytes",
                cut=draw.ms > top,
            )
            for draw in group
        ]
        bars.append(Bar(block, parts))
    slowest, *others = sorted(draws, key=lambda draw: -draw.ms)[:_NAMED]
    longer = sum(draw.ms > top for draw in draws)
    caption = f"Every draw of one run. The slowest is {slowest.name} with {slowest.ms:.3f} ms."
    if longer:
        named = ", ".join(f"{draw.name} {draw.ms:.2f} ms" for draw in (slowest, *others) if draw.ms > top)
        caption += f" Cut off at the top edge: {counted(longer, 'draw')} beyond {top:.3f} ms ({named})."
    if any(bar.label for bar in bars):
        caption += " Shading and the numbers above mark blocks."
    return Chart("draws", "Time of every draw", caption, _shown(draw.kind for draw in draws), bars, upright=True)


def scale_top(times: Sequence[float]) -> float:
    """Return the largest time that the scale shows in full: the longest draw, unless it would squash all others."""
    ordered = sorted(times)
    most = ordered[-1] or 1.0
    usual = ordered[int(0.9 * (len(ordered) - 1))]
    limit = max(_SQUASHED * usual, 0.0)
    below = [ms for ms in ordered if ms <= limit]
    return most if most <= 1.5 * limit or not below or not below[-1] else below[-1]


def _block(name: str) -> str:
    found = re.match(r"h\.(\d+)\.", name)
    return found[1] if found else ""


def _rates(report: ProfileReport) -> Chart:
    """Bytes read a second by kind, with a mark at the renderer's ceiling."""
    caption = "Bytes read per second; each texel in use counts once, even if it is fetched repeatedly."
    if report.ceilings:
        measured = ", ".join(f"{rate.format} {rate.bytes_per_second / 1e9:.1f} GB/s" for rate in report.ceilings)
        caption += (
            f" The mark next to a bar is the rate of a pass that only fetches ({measured}). Textures that fit into a "
            "cache may exceed it; draws that compute a lot per texel stay far below."
        )
    kinds, bars = report.kinds, list[Bar]()
    ceilings = [kind.bytes_per_second / kind.of_ceiling if kind.of_ceiling else 0.0 for kind in kinds]
    most = max(*(kind.bytes_per_second for kind in kinds), *ceilings, 1.0)
    for kind, ceiling in zip(kinds, ceilings, strict=True):
        text = f"{kind.bytes_per_second / 1e9:.1f} GB/s"
        text += "" if kind.of_ceiling is None else f" · {kind.of_ceiling:.0%}"
        tip = f"{kind.kind}: reads {kind.bytes_read:,} bytes in {kind.ms:.3f} ms, {text}"
        part = Part(100 * kind.bytes_per_second / most, FAMILIES[family_of(kind.kind)], tip)
        bars.append(Bar(kind.kind, [part], text, 100 * ceiling / most if ceiling else None))
    return Chart("rates", "Fetch rate by kind of draw", caption, _shown(kind.kind for kind in kinds), bars)


def _memory(report: ProfileReport) -> Chart:
    """Every texture, one after the other, in a bar for each part of the model."""
    sizes, bars = report.memory, list[Bar]()
    for name, total in sorted(sizes["part"].items(), key=lambda part: -part[1]):
        group = sorted((each for each in report.textures if each.part == name), key=lambda each: -each.bytes)
        parts = []
        for each in group:
            about = f"{each.kind} of {each.part}, {each.width}×{each.height} {each.format}"
            tip = f"{each.name}: {about}, {each.bytes:,} bytes"
            parts.append(Part(100 * each.bytes / max(sizes["part"].values()), TEXTURES[each.kind], tip))
        bars.append(Bar(name, parts, megabytes(total)))
    kinds = ", ".join(f"{kind} {megabytes(size)}" for kind, size in sizes["kind"].items())
    caption = (
        f"Every texture of the run, to scale by bytes, grouped by part of the model: {kinds}. Hover over a segment, or "
        "open “Every texture” below, for names and sizes."
    )
    legend = {kind: colour for kind, colour in TEXTURES.items() if kind in sizes["kind"]}
    return Chart("memory", "Texture memory", caption, legend, bars)


def _growth(report: ProfileReport) -> Chart:
    """Time by family of draws at positions in the sequence, with a mark at the time of a plain run."""
    points, bars = report.growth, list[Bar]()
    most = max(max(point.wall_ms, sum(point.kinds.values())) for point in points)
    for point in points:
        families: dict[str, float] = {}
        for kind, ms in point.kinds.items():
            families[family_of(kind)] = families.get(family_of(kind), 0.0) + ms
        parts = [
            Part(100 * families[name] / most, colour, f"{name} at {point.tokens}: {families[name]:.3f} ms")
            for name, colour in FAMILIES.items()
            if name in families
        ]
        text = f"{point.wall_ms:.2f} ms · {megabytes(point.bytes_read)} read"
        bars.append(Bar(str(point.tokens), parts, text, 100 * point.wall_ms / most))
    first, last = points[0], points[-1]
    caption = (
        f"From {first.wall_ms:.2f} ms and {megabytes(first.bytes_read)} read at position {first.tokens} to "
        f"{last.wall_ms:.2f} ms and {megabytes(last.bytes_read)} at position {last.tokens}. Bars are the times of "
        "draws; the mark is a plain run."
    )
    return Chart("growth", "Growth with the sequence", caption, _shown(k for each in points for k in each.kinds), bars)


def comparison_chart(comparison: ProfileComparison) -> Chart:
    """The time by kind of draw, before and after."""
    total, bars = comparison.total, list[Bar]()
    most = max(max(row.before.ms, row.after.ms) for row in comparison.rows) or 1
    for row in comparison.rows:
        before, after = row.before.ms, row.after.ms
        more = f" · {change(before, after)}" if before else ""
        for label, moment, ms, text in ((row.kind, "before", before, ""), ("", "after", after, more)):
            part = Part(100 * ms / most, MOMENTS[moment], f"{row.kind}, {moment}: {ms:.3f} ms")
            bars.append(Bar(label, [part], f"{ms:.2f} ms{text}"))
    caption = f"Draws took {total.before.ms:.2f} ms before and {total.after.ms:.2f} ms after."
    return Chart("changes", "Time by kind of draw", caption, MOMENTS, bars)
