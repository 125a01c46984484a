"""Two profiles beside each other, before and after, from the JSON that ``glinfer profile --json`` printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glinfer.errors import FormatError
from glinfer.formats.files import AnyPath, opened, shown
from glinfer.inspect.profile.report import REPORT, VERSION

_MOST_BYTES = 256 << 20
_ALIKE = ("renderer", "config", "plan", "weights", "what", "tokens", "timing")
"""What two reports should have in common, or it is said that they have not."""


@dataclass(frozen=True)
class KindSide:
    """The draws of one kind in one of the reports: how many, milliseconds, bytes read and written."""

    draws: int = 0
    ms: float = 0.0
    read: int = 0
    written: int = 0


@dataclass(frozen=True)
class Side:
    """What is compared of one report: ``about`` for people, milliseconds of a plain run, draws by kind."""

    about: str
    wall_ms: float
    kinds: Mapping[str, KindSide]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class CompareRow:
    """One kind of draw before and after; where one of the two has none, zeros."""

    kind: str
    before: KindSide
    after: KindSide

    @property
    def change_ms(self) -> float:
        """Milliseconds that came on top; below 0 where it is faster now."""
        return self.after.ms - self.before.ms


@dataclass(frozen=True)
class Comparison:
    """Two reports; ``notes`` say in what they differ that they should not."""

    before: Side
    after: Side
    rows: tuple[CompareRow, ...]
    total: CompareRow
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain JSON values."""
        sides = {
            name: {"about": side.about, "wall_ms": side.wall_ms}
            for name, side in (("before", self.before), ("after", self.after))
        }
        rows = [{**asdict(row), "change_ms": row.change_ms} for row in (*self.rows, self.total)]
        return {"report": "glinfer profile comparison", **sides, "kinds": rows[:-1], "total": rows[-1]}


def compare(before: AnyPath, after: AnyPath) -> Comparison:
    """Compare two files.

    Raises:
        FormatError: a file cannot be read, or is no report of a profile.
    """
    sides = read_side(before), read_side(after)
    kinds = dict.fromkeys(kind for side in reversed(sides) for kind in side.kinds)
    rows = tuple(CompareRow(kind, *(side.kinds.get(kind, KindSide()) for side in sides)) for kind in kinds)
    notes = [
        f"the two differ in {name}: {_short(sides[0].facts[name])} before, {_short(sides[1].facts[name])} after"
        for name in _ALIKE
        if sides[0].facts[name] != sides[1].facts[name]
    ]
    total = CompareRow("total", *(_sum(side.kinds) for side in sides))
    return Comparison(*sides, rows, total, tuple(notes))


def read_side(path: AnyPath) -> Side:
    """Read what is compared of one report.

    Raises:
        FormatError: the file cannot be read, or is no report of a profile.
    """
    with opened(path) as (file, size):
        if size > _MOST_BYTES:
            raise _no_report(path, f"{size} bytes")
        text = file.read()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _no_report(path, "no JSON") from None
    if not isinstance(found, dict) or found.get("report") != REPORT:
        raise _no_report(path, "other JSON")
    if found.get("version") != VERSION:
        raise _no_report(path, f"a report of version {_short(found.get('version'))}, not {VERSION}")
    try:
        return _side(found)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _no_report(path, f"a report that is damaged ({type(error).__name__}: {error})") from None


def _no_report(path: AnyPath, found: str) -> FormatError:
    return FormatError(f"{shown(path)}: found {found}; expected what 'glinfer profile --json' has printed")


def _side(found: Mapping[str, Any]) -> Side:
    facts = {name: found[name] for name in _ALIKE}
    kinds = {
        str(kind["kind"]): KindSide(
            int(kind["draws"]), _time(kind["ms"]), int(kind["bytes_read"]), int(kind["bytes_written"])
        )
        for kind in found["kinds"]
    }
    about = " · ".join(
        str(part) for part in (found["model"], found["plan"], found["weights"], f"{found['what']} {found['tokens']}")
    )
    return Side(f"{about} · {found['renderer']}", _time(found["wall"]["median"]), kinds, facts)


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1e12:
        raise ValueError(f"{_short(value)} is no time")
    return float(value)


def _sum(kinds: Mapping[str, KindSide]) -> KindSide:
    sides = list(kinds.values())
    return KindSide(
        sum(side.draws for side in sides),
        sum(side.ms for side in sides),
        sum(side.read for side in sides),
        sum(side.written for side in sides),
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
