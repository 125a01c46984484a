"""Profiles as HTML files with charts and sortable tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glinfer import __version__
from glinfer.formats.files import AnyPath, replacing
from glinfer.inspect.pages import rendered
from glinfer.inspect.profile.charts import comparison_chart, profile_charts
from glinfer.inspect.profile.compare import ProfileComparison
from glinfer.inspect.profile.result import ProfileReport
from glinfer.inspect.tables import change

Fact = tuple[str, str, str, str]
"""A number in large type: name, number with unit, remark, and a sentence on its meaning."""

_PLAIN = "Median time of one run, from the first draw to the result, without profiling."
_ALL_DRAWS = "Sum of the times of all draws."
_READ = "Bytes of texels that draws fetch in a run; each texel counts once per draw."


def profile_page(report: ProfileReport) -> str:
    """Render a profile as HTML."""
    return _rendered(
        title=f"glinfer profile: {report.model or report.plan}",
        about=[
            f"{report.subject} · plan {report.plan} · weights {report.weights} · {len(report.draws)} draws",
            f"{report.renderer} · timed by {report.timing} in {report.runs} runs",
        ],
        facts=_facts(report),
        notes=report.notes,
        charts=profile_charts(report),
        tables=[report.kind_table(), report.draw_table(), report.texture_table()],
    )


def comparison_page(comparison: ProfileComparison) -> str:
    """Render two profiles, before and after, as HTML."""
    before, after, total = comparison.before, comparison.after, comparison.total
    return _rendered(
        title="glinfer profile: before and after",
        about=[f"before: {before.about}", f"after: {after.about}"],
        facts=[
            ("a plain run", f"{after.wall_ms:.2f} ms", f"{before.wall_ms:.2f} ms before", _PLAIN),
            ("all draws", f"{total.after.ms:.2f} ms", f"{total.before.ms:.2f} ms before", _ALL_DRAWS),
            ("draws", f"{total.after.draws}", f"{total.before.draws} before", "Number of draw calls in a run."),
            ("read", f"{total.after.read / 1e6:,.1f} MB", f"{total.before.read / 1e6:,.1f} MB before", _READ),
        ],
        notes=comparison.notes,
        charts=[comparison_chart(comparison)],
        tables=[comparison.table()],
    )


def write_page(path: AnyPath, page: str) -> None:
    """Write a page to a file, whole or not at all; FormatError if the file cannot be written."""
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _rendered(facts: Sequence[Fact], **parts: Any) -> str:
    footer = (
        f"Written by glinfer {__version__}. Times of runs are medians; times of draws are means over the middle third "
        "of the runs. A MB is 1,000,000 bytes."
    )
    return rendered(
        "profile.html.j2", styles=["profile.css"], scripts=["sortable.js"], footer=footer, facts=facts, **parts
    )


def _facts(report: ProfileReport) -> list[Fact]:
    total, wall = report.total, report.wall
    memory = sum(texture.bytes for texture in report.textures)
    of_ceiling = "ceiling not measured" if total.of_ceiling is None else f"{total.of_ceiling:.0%} of the ceiling"
    issued = "Time for Python to issue all draws; a software renderer computes meanwhile."
    costs = "How much longer a run takes if every draw is timed."
    rate = "Bytes read over the time of all draws; the ceiling is the rate of a pass that only fetches."
    textures = "Texture memory for weights, keys and values, and activations."
    return [
        ("a plain run", f"{wall.median:.2f} ms", f"{wall.fastest:.2f} to {wall.slowest:.2f} ms", _PLAIN),
        ("all issued after", f"{report.issue.median:.2f} ms", "of a plain run", issued),
        ("all draws", f"{total.ms:.2f} ms", f"{report.share_of_draws:.1%} of a plain run", _ALL_DRAWS),
        ("profiling costs", change(1.0, report.overhead), f"{report.profiled.median:.2f} ms a profiled run", costs),
        ("read", f"{total.bytes_read / 1e6:,.1f} MB", f"{total.bytes_written / 1e6:,.2f} MB written", _READ),
        ("fetch rate", f"{total.bytes_per_second / 1e9:.1f} GB/s", of_ceiling, rate),
        ("textures", f"{memory / 1e6:,.1f} MB", f"{len(report.textures)} of them", textures),
    ]
