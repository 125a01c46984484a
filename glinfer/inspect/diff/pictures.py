"""The picture of a comparison: errors of captured tensors, and divergence along the text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glinfer.formats.files import AnyPath, replacing
from glinfer.inspect.diff.compare import DiffReport
from glinfer.inspect.figures import FAINT, FONT, pixels_of, plain_style, save_pixels, short
from glinfer.inspect.pages import OKABE_ITO
from glinfer.text.labels import visible

KINDS = (
    ("attention", OKABE_ITO[0], "o"),
    ("MLP", OKABE_ITO[4], "s"),
    ("stream", OKABE_ITO[2], "^"),
    ("begin and end", OKABE_ITO[3], "D"),
)
"""Parts of a model that tensors belong to, with colour and marker."""
_LINE, _LIMIT = OKABE_ITO[:2]
_MAX_WORDS = 48  # tokens along the text that get labels
_MAX_BLOCKS, _MAX_DECADES = 16, 8  # labels on the axes of the upper chart
_BELOW = 4.0  # factor by which zero is drawn below the lowest decade


def save_picture(report: DiffReport, path: AnyPath) -> None:
    """Write the picture of a comparison as PNG: equal reports give equal bytes; FormatError if it cannot."""
    with plain_style(), replacing(path) as temporary:
        wide = min(max(8.0, 0.16 * len(report.passes), 0.24 * len(report.along.positions)), 18.0)
        figure = Figure(figsize=(wide, 8.0), dpi=120, layout="constrained")
        above, below = figure.subplots(2)
        _passes(above, report)
        _along(below, report)
        save_pixels(pixels_of(figure), temporary)


def kind_of(name: str) -> str:
    """Return the one of :data:`KINDS` that a tensor belongs to."""
    parts = name.split(".")
    if parts[0] != "blocks":
        return "begin and end"
    return {"attn": "attention", "mlp": "MLP"}.get(parts[2], "stream")


def _passes(axes: Axes, report: DiffReport) -> None:
    """Plot the relative error of each tensor, in the order of computation."""
    errors = [math.inf if each.error is None else each.error for each in report.passes]
    floor = _log_axis(axes, [*errors, report.tolerance])
    for kind, colour, marker in KINDS:
        of_kind = [index for index, each in enumerate(report.passes) if kind_of(each.name) == kind]
        known = [index for index in of_kind if math.isfinite(errors[index])]
        heights = [errors[index] or floor for index in known]
        axes.plot(
            known, heights, linestyle="none", color=colour, marker=marker, markersize=5, label=kind, clip_on=False
        )
        for index in sorted(set(of_kind) - set(known)):  # other shapes, or no number
            axes.annotate("×", (index, 1.0), xycoords=("data", "axes fraction"), color=colour, ha="center", va="top")
    axes.axhline(report.tolerance, color=_LIMIT, linestyle="--", linewidth=1.2, label=f"tolerance {report.tolerance:g}")
    first = report.first_beyond
    found = "all are within the tolerance" if first is None else f"the first beyond the tolerance is {first.name}"
    axes.set_title(f"Tensors of both plans in order of computation; {found}", fontsize=10, loc="left")
    axes.set_ylabel("largest difference,\nrelative to A's largest value", fontsize=9)
    begins = _begins([each.name for each in report.passes])
    every = -(-len(begins) // _MAX_BLOCKS)
    ticks = [((first + end - 1) / 2, f"block {block}") for block, first, end in begins[::every]]
    axes.set_xticks([x for x, _ in ticks], [label for _, label in ticks], fontsize=8)
    for _, begin, end in begins:
        for edge in (begin, end):
            axes.axvline(edge - 0.5, color=FAINT, linewidth=0.8, zorder=0)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-1, len(report.passes))
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _begins(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Find (number, first index, end) of each block."""
    indices: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        if name.startswith("blocks."):
            indices.setdefault(name.split(".")[1], []).append(index)
    return [(block, found[0], found[-1] + 1) for block, found in indices.items()]


def _along(axes: Axes, report: DiffReport) -> None:
    """Plot the divergence after each token."""
    positions = report.along.positions
    kl = [at.kl for at in positions]
    floor = _log_axis(axes, kl)
    across = [at.position for at in positions]
    heights = [value or floor for value in kl]
    axes.plot(across, heights, color=_LINE, marker="o", markersize=3.5, linewidth=1.2, clip_on=False, label="KL(A‖B)")
    other = [number for number, at in enumerate(positions) if at.top_a != at.top_b and math.isfinite(heights[number])]
    if other:
        where = [across[number] for number in other], [heights[number] for number in other]
        axes.plot(*where, linestyle="none", color=_LIMIT, marker="X", markersize=8, label="different likeliest token")
    known = [value for value in kl if math.isfinite(value)]
    mean = f"mean {sum(known) / len(known):.2g} nats" if known else "no number"
    same = f"the same token is likeliest at {report.along.agreement:.1%}"
    axes.set_title(f"The next token along the text: {mean}; {same}", fontsize=10, loc="left")
    axes.set_ylabel("KL divergence in nats", fontsize=9)
    if len(positions) <= _MAX_WORDS and report.words:
        labels = [short(visible(report.words.get(at.token, "").encode())) for at in positions]
        axes.set_xticks(across, labels, fontsize=8, rotation=90, family=FONT)
        for label in axes.get_xticklabels():
            label.set_parse_math(False)
        axes.set_xlabel("after this token", fontsize=9)
    else:
        axes.set_xlabel("after the token at this position", fontsize=9)
    axes.set_xlim(across[0] - 0.5, across[-1] + 0.5)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _log_axis(axes: Axes, values: Sequence[float]) -> float:
    """Set a logarithmic axis; returns the position of zero, on a separate line below the values."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    low, high = (min(known), max(known)) if known else (1e-7, 1e-6)
    bottom, top = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    every = max(1, -(-(top - bottom) // _MAX_DECADES))
    ticks = [(10.0**power, f"$10^{{{power}}}$") for power in range(top, bottom - 1, -every)]
    floor = 10.0**bottom / _BELOW
    has_zero = any(value == 0 for value in values)
    axes.set_yscale("log")
    if has_zero:
        ticks.append((floor, "same"))
        axes.axhline(floor, color=FAINT, linewidth=1.0, zorder=0)
    axes.set_yticks([height for height, _ in ticks], [label for _, label in ticks])
    axes.minorticks_off()
    axes.set_ylim(floor / 1.5 if has_zero else 10.0**bottom / 1.2, 10.0**top)
    axes.grid(axis="y", linewidth=0.5, color=FAINT)
    axes.tick_params(labelsize=8)
    return floor
