"""A profile as one HTML file that needs nothing else: charts, and tables that can be sorted."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from glinfer import __version__
from glinfer.errors import InputError
from glinfer.formats.files import AnyPath, replacing
from glinfer.inspect.profile.report import GrowthPoint, KindProfile, ProfileReport

if TYPE_CHECKING:
    from types import ModuleType

    from glinfer.inspect.profile.compare import Comparison

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


@dataclass(frozen=True)
class Fact:
    """A number in large letters: what it is, the number with its unit, and what there is to say of it."""

    name: str
    number: str
    about: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart with its heading and what it shows."""

    id: str
    title: str
    svg: str
    caption: str


@dataclass(frozen=True)
class Column:
    """Of a table; numbers stand on the right and are sorted as such."""

    name: str
    right: bool = True


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and what it is sorted by where that is a number."""

    text: str
    value: float = 0.0


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns, and a last row that stays where it is; long ones are folded away at first."""

    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    total: Sequence[Cell] = ()
    folded: bool = False


def charts() -> ModuleType:
    """:mod:`glinfer.inspect.profile.charts`, which needs matplotlib.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        return importlib.import_module("glinfer.inspect.profile.charts")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise InputError(
            "a page with charts needs matplotlib, which is not installed; pip install 'glinfer[plots]'"
        ) from None


def profile_page(report: ProfileReport) -> str:
    """The page of a profile, as HTML.

    Raises:
        InputError: matplotlib is not installed.
    """
    return _page(
        title=f"glinfer profile: {report.model or report.plan}",
        about=[
            f"{subject_of(report)} · plan {report.plan} · weights {report.weights} · {len(report.draws)} draws",
            f"{report.renderer} · timed by {report.timing} in {report.runs} runs",
        ],
        facts=_facts(report),
        notes=report.notes,
        figures=_figures(report),
        tables=[_kind_table(report), _draw_table(report), _texture_table(report)],
    )


def comparison_page(comparison: Comparison) -> str:
    """The page of two profiles, before and after, as HTML; errors as in :func:`profile_page`."""
    before, after = comparison.before, comparison.after
    rows = [(row.kind, row.before.ms, row.after.ms) for row in comparison.rows]
    total = comparison.total
    about = f"Draws took {total.before.ms:.2f} ms before and {total.after.ms:.2f} ms after."
    figure = Figure("changes", "Time by kind of draw", charts().changes_chart(rows, about), about)
    columns = [Column("pass", right=False)]
    for name in ("draws", "ms", "MB read", "MB written"):
        columns += [Column(f"{name} before"), Column(f"{name} after")]
    cells = [
        [
            Cell(row.kind),
            *(
                _number(getattr(side, name) / unit, digits)
                for name, unit, digits in (("draws", 1, 0), ("ms", 1, 3), ("read", 1e6, 3), ("written", 1e6, 3))
                for side in (row.before, row.after)
            ),
        ]
        for row in (*comparison.rows, total)
    ]
    wall = Fact("a plain run", f"{after.wall_ms:.2f} ms", f"{before.wall_ms:.2f} ms before")
    return _page(
        title="glinfer profile: before and after",
        about=[f"before: {before.about}", f"after: {after.about}"],
        facts=[
            wall,
            Fact("all draws", f"{total.after.ms:.2f} ms", f"{total.before.ms:.2f} ms before"),
            Fact("draws", f"{total.after.draws}", f"{total.before.draws} before"),
            Fact("read", f"{total.after.read / 1e6:,.1f} MB", f"{total.before.read / 1e6:,.1f} MB before"),
        ],
        notes=comparison.notes,
        figures=[figure],
        tables=[Table("Draws by kind", "Before and after, in the order of the plan.", columns, cells[:-1], cells[-1])],
    )


def write_page(path: AnyPath, page: str) -> None:
    """Write a page to a file, whole or not at all.

    Raises:
        FormatError: the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def subject_of(report: ProfileReport) -> str:
    """What a run of a report is, in words."""
    if report.what == "token":
        return f"token {report.tokens} of a sequence"
    return f"{report.tokens} tokens of a prompt" if report.what == "prompt" else f"a sequence of {report.tokens} tokens"


def _page(**parts: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    files = {
        name: (TEMPLATES / file).read_text(encoding="utf-8")
        for name, file in (("css", "report.css"), ("script", "sortable.js"))
    }
    footer = (
        f"Written by glinfer {__version__}. Times of runs are medians, those of draws means over the middle third of "
        "the runs; kB and MB are 1,000 and 1,000,000 bytes."
    )
    return environment.get_template("profile.html.j2").render(version=__version__, footer=footer, **files, **parts)


def _facts(report: ProfileReport) -> list[Fact]:
    ceiling = report.of_ceiling(report.draws)
    rate = 1000.0 * report.bytes_read / report.draws_ms if report.draws_ms else 0.0
    memory = sum(texture.bytes for texture in report.textures)
    spread = f"{report.wall.fastest:.2f} to {report.wall.slowest:.2f} ms"
    of_ceiling = "ceiling not measured" if ceiling is None else f"{ceiling:.0%} of the ceiling"
    return [
        Fact("a plain run", f"{report.wall.median:.2f} ms", spread),
        Fact("all issued after", f"{report.issue.median:.2f} ms", "of a plain run"),
        Fact("all draws", f"{report.draws_ms:.2f} ms", f"{report.share_of_draws:.1%} of a plain run"),
        Fact("profiling costs", f"{report.overhead - 1:+.1%}", f"{report.profiled.median:.2f} ms a profiled run"),
        Fact("read", f"{report.bytes_read / 1e6:,.1f} MB", f"{report.bytes_written / 1e6:,.2f} MB written"),
        Fact("fetch rate", f"{rate / 1e9:.1f} GB/s", of_ceiling),
        Fact("textures", f"{memory / 1e6:,.1f} MB", f"{len(report.textures)} of them"),
    ]


def _figures(report: ProfileReport) -> list[Figure]:
    drawn, kinds = charts(), report.kinds()
    largest = max(kinds, key=lambda kind: kind.ms)
    slowest = max(report.draws, key=lambda draw: draw.ms)
    about = (
        f"The draws of one run by kind, in the order of the plan. Most time goes to {largest.kind}: "
        f"{largest.ms:.2f} ms, {largest.share:.0%}. A draw's time goes from the end of the one before to its own end."
    )
    each = f"Every draw of one run. The slowest is {slowest.name} with {slowest.ms:.3f} ms."
    found = [
        Figure("kinds", "Time by kind of draw", drawn.kinds_chart(kinds, about), about),
        Figure("draws", "Time of every draw", drawn.draws_chart(report.draws, each), each),
        _rates(report, kinds),
        _memory(report),
    ]
    if report.growth:
        found.append(_growth(report.growth))
    return found


def _rates(report: ProfileReport, kinds: Sequence[KindProfile]) -> Figure:
    about = "Bytes read a second, each texel in use counted once, however often it is fetched."
    if report.ceilings:
        rates = ", ".join(f"{rate.format} {rate.bytes_per_second / 1e9:.1f} GB/s" for rate in report.ceilings)
        about += (
            f" The mark beside a bar is what a pass that only fetches reaches here ({rates}). Textures small enough "
            "for a cache may go beyond it; draws that compute much for each texel stay far below."
        )
    return Figure("rates", "Fetch rate by kind of draw", charts().rates_chart(kinds, about), about)


def _memory(report: ProfileReport) -> Figure:
    kinds = ", ".join(f"{kind} {_megabytes(size)}" for kind, size in report.memory("kind").items())
    about = (
        f"Every texture that the run needs, to scale by bytes, those of one part of the model together: {kinds}. "
        "A pointer held over a tile shows its name and size."
    )
    return Figure("memory", "Texture memory", charts().memory_chart(report.textures, about), about)


def _growth(points: Sequence[GrowthPoint]) -> Figure:
    first, last = points[0], points[-1]
    about = (
        f"From {first.wall_ms:.2f} ms and {_megabytes(first.bytes_read)} read at place {first.tokens} to "
        f"{last.wall_ms:.2f} ms and {_megabytes(last.bytes_read)} at place {last.tokens}."
    )
    return Figure("growth", "Growth with the sequence", charts().growth_chart(points, about), about)


def _kind_table(report: ProfileReport) -> Table:
    columns = [
        Column("pass", right=False),
        Column("shader", right=False),
        *(Column(name) for name in ("draws", "ms", "share", "MB read", "MB written", "GB/s", "of ceiling")),
    ]
    rows = [
        [
            Cell(kind.kind),
            Cell(", ".join(kind.shaders)),
            _number(kind.draws, 0),
            _number(kind.ms, 3),
            Cell(f"{kind.share:.1%}", kind.share),
            _number(kind.bytes_read / 1e6, 3),
            _number(kind.bytes_written / 1e6, 3),
            _number(kind.bytes_per_second / 1e9, 1),
            _share(kind.of_ceiling),
        ]
        for kind in report.kinds()
    ]
    rate = 1000.0 * report.bytes_read / report.draws_ms / 1e9 if report.draws_ms else 0.0
    total = [
        Cell("total"),
        Cell(""),
        _number(len(report.draws), 0),
        _number(report.draws_ms, 3),
        Cell("100.0%"),
        _number(report.bytes_read / 1e6, 3),
        _number(report.bytes_written / 1e6, 3),
        _number(rate, 1),
        _share(report.of_ceiling(report.draws)),
    ]
    return Table("Draws by kind", "Of one run, in the order of the plan.", columns, rows, total)


def _draw_table(report: ProfileReport) -> Table:
    columns = [
        Column("draw"),
        Column("name", right=False),
        Column("pass", right=False),
        Column("shader", right=False),
        *(Column(name) for name in ("output", "ms", "issue µs", "kB read", "kB written")),
    ]
    rows = [
        [
            _number(draw.index, 0),
            Cell(draw.name),
            Cell(draw.kind),
            Cell(draw.shader),
            Cell(f"{draw.cols:,}×{draw.rows:,}", draw.cols * draw.rows),
            _number(draw.ms, 3),
            _number(1000.0 * draw.issue_ms, 1),
            _number(draw.bytes_read / 1e3, 1),
            _number(draw.bytes_written / 1e3, 1),
        ]
        for draw in report.draws
    ]
    caption = (
        "Outputs are columns×rows of a matrix. Issue is Python's time for the draw; a software renderer draws what was "
        "issued before in that time."
    )
    return Table(f"Every draw ({len(rows)})", caption, columns, rows, folded=True)


def _texture_table(report: ProfileReport) -> Table:
    columns = [
        *(Column(name, right=False) for name in ("texture", "kind", "part", "format")),
        Column("texels"),
        Column("kB"),
    ]
    rows = [
        [
            Cell(texture.name),
            Cell(texture.kind),
            Cell(texture.part),
            Cell(texture.format),
            Cell(f"{texture.width:,}×{texture.height:,}", texture.width * texture.height),
            _number(texture.bytes / 1e3, 1),
        ]
        for texture in report.textures
    ]
    return Table(f"Every texture ({len(rows)})", "Texels are width×height.", columns, rows, folded=True)


def _number(value: float, digits: int) -> Cell:
    return Cell(f"{value:,.{digits}f}", value)


def _share(value: float | None) -> Cell:
    return Cell("—", -1.0) if value is None else Cell(f"{value:.0%}", value)


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"
