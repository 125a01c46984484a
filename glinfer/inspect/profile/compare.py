"""Comparison of two profiles, before and after, from the output of ``glinfer profile --json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from glinfer.engine.report import Report
from glinfer.errors import FormatError
from glinfer.formats.files import AnyPath, read_whole, shown, words_of
from glinfer.inspect.profile.result import REPORT, VERSION
from glinfer.inspect.tables import Cell, Column, Table, change, megabytes
from glinfer.limits import MAX_PROFILE_BYTES

_ALIKE = ("renderer", "config", "plan", "weights", "what", "tokens", "timing")
"""Fields that should be equal in both reports; notes list the differences."""


@dataclass(frozen=True)
class KindTotals:
    """Totals over the draws of one kind in one report: number, milliseconds, bytes read, bytes written."""

    draws: int = 0
    ms: float = 0.0
    read: int = 0
    written: int = 0

    @classmethod
    def of(cls, several: Iterable[KindTotals]) -> KindTotals:
        """Add several."""
        return cls(*map(sum, zip(*map(astuple, several), strict=True)))


@dataclass(frozen=True)
class ProfileSummary:
    """The compared part of one report: a description, milliseconds of a plain run, totals by kind."""

    about: str
    wall_ms: float
    kinds: Mapping[str, KindTotals]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class CompareRow(Report):
    """One kind of draw before and after; zeros if a report has none."""

    derived = ("change_ms",)

    kind: str
    before: KindTotals
    after: KindTotals

    @property
    def change_ms(self) -> float:
        """Milliseconds added; negative if it became faster."""
        return self.after.ms - self.before.ms


@dataclass(frozen=True)
class ProfileComparison:
    """Two compared reports; ``notes`` list differences other than times."""

    before: ProfileSummary
    after: ProfileSummary
    rows: tuple[CompareRow, ...]
    total: CompareRow
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "report": "glinfer profile comparison",
            "before": {"about": self.before.about, "wall_ms": self.before.wall_ms},
            "after": {"about": self.after.about, "wall_ms": self.after.wall_ms},
            "kinds": [row.to_json() for row in self.rows],
            "total": self.total.to_json(),
        }

    def table(self) -> Table:
        """Tabulate the kinds of draws, before and after."""
        caption = "Before and after, in the order of the plan."
        return Table("Draws by kind", _COLUMNS, self.rows, self.total, caption)


def _both(name: str, form: Callable[[int], str] = str) -> Callable[[CompareRow], Cell]:
    """Show a number of both reports, joined by an arrow if its texts differ."""

    def cell(row: CompareRow) -> Cell:
        before, after = form(getattr(row.before, name)), form(getattr(row.after, name))
        return Cell(after if before == after else f"{before} → {after}", getattr(row.after, name))

    return cell


def _change(row: CompareRow) -> str:
    return change(row.before.ms, row.after.ms) if row.before.ms else "new"


_COLUMNS = (
    Column("pass", "kind"),
    Column("draws", _both("draws"), ""),
    Column("ms before", "before.ms", ".3f"),
    Column("ms after", "after.ms", ".3f"),
    Column("change", lambda row: Cell(_change(row), row.change_ms), ""),
    Column("read", _both("read", megabytes), ""),
    Column("written", _both("written", megabytes), ""),
)


def compare(before: AnyPath, after: AnyPath) -> ProfileComparison:
    """Compare two files; FormatError if a file cannot be read, or is not the report of a profile."""
    sides = read_summary(before), read_summary(after)
    kinds = dict.fromkeys(kind for side in reversed(sides) for kind in side.kinds)
    rows = tuple(CompareRow(kind, *(side.kinds.get(kind, KindTotals()) for side in sides)) for kind in kinds)
    notes = [
        f"the reports differ in {name}: {_short(sides[0].facts[name])} before, {_short(sides[1].facts[name])} after"
        for name in _ALIKE
        if sides[0].facts[name] != sides[1].facts[name]
    ]
    total = CompareRow("total", *(KindTotals.of(side.kinds.values()) for side in sides))
    return ProfileComparison(*sides, rows, total, tuple(notes))


def read_summary(path: AnyPath) -> ProfileSummary:
    """Read the compared part of one report.

    FormatError if the file cannot be read, or is not the report of a profile.
    """
    text = read_whole(path, MAX_PROFILE_BYTES, "a report")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _not_a_report(path, "no JSON") from None
    if not isinstance(found, dict) or found.get("report") != REPORT:
        raise _not_a_report(path, "JSON of another kind")
    if found.get("version") != VERSION:
        raise _not_a_report(path, f"a report of version {_short(found.get('version'))}, not {VERSION}")
    try:
        return _summary(found)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _not_a_report(path, f"a report that is damaged ({type(error).__name__}: {words_of(error)})") from None


def _not_a_report(path: AnyPath, found: str) -> FormatError:
    return FormatError(f"{shown(path)}: found {found}; expected the output of 'glinfer profile --json'")


def _summary(found: Mapping[str, Any]) -> ProfileSummary:
    facts = {name: found[name] for name in _ALIKE}
    kinds = {
        str(kind["kind"]): KindTotals(
            *(int(_number(kind["draws"])), float(_number(kind["ms"]))),
            *(int(_number(kind[name])) for name in ("bytes_read", "bytes_written")),
        )
        for kind in found["kinds"]
    }
    parts = (found["model"], found["plan"], found["weights"], f"{found['what']} {found['tokens']}", found["renderer"])
    return ProfileSummary(" · ".join(map(str, parts)), float(_number(found["wall"]["median"])), kinds, facts)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1e18:
        raise ValueError(f"{_short(value)} is not a time, number or size")
    return value


def _short(value: object) -> str:
    return words_of(value, 61)
