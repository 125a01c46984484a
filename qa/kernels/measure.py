"""Compare every kernel of ``device.ops`` with float64 and time it; docs/kernels.md has the table."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

from glinfer.engine.report import Report
from glinfer.errors import GlinferError, InputError
from glinfer.formats.files import AnyPath, opened, replacing, shown
from glinfer.inspect.tables import Column, Table
from glinfer.inspect.timing import Spread, Work, interleaved
from glinfer.program.oracle import relative_error
from glinfer.tensors.device import Device
from qa.kernels import cases as families
from qa.kernels.cases.case import Found, KernelCase
from qa.steps import matching

FAMILIES = [
    import_module(f"{families.__name__}.{each.name}") for each in iter_modules(families.__path__) if each.name != "case"
]
"""Modules with cases, in the order of the table."""

Shape = tuple[int, int]
SHAPES: tuple[Shape, ...] = ((1, 1), (7, 13), (5, 33), (33, 255), (31, 257), (2, 5257), (1, 20011), (1021, 6))
"""Shapes to check: one element, primes, no multiples of 4, 32 or 256, wide and tall."""
SMALL_SHAPES: dict[int, tuple[Shape, ...]] = {64: ((1, 1), (5, 33), (3, 131), (31, 6)), 128: ((2, 521),)}
"""Shapes to check by the largest edge of a texture: rows end inside a line of texels, or are longer than a line."""

TWINS: tuple[tuple[Shape, Shape], ...] = (
    *(((7, 13), (5, 33)), ((33, 255), (31, 257))),
    *(((2, 5257), (1, 20011)), ((5, 33), (3, 131))),
)
"""Two shapes of one kind. The first form of a kernel is checked at both, others take turns where a list has both."""

TABLE_BEGIN, TABLE_END = "<!-- table: begin -->", "<!-- table: end -->"
_TABLE = re.compile(f"({TABLE_BEGIN}).*?({TABLE_END})", re.DOTALL)
_WARM_UPS = 2
_MIN_SAMPLES, _MAX_SAMPLES, _SECONDS = 5, 25, 0.5

Progress = Callable[[int, int], None]


def error_text(error: float) -> str:
    """A relative error in two digits."""
    return "0" if error == 0 else f"{error:.1e}"


@dataclass(frozen=True)
class KernelRow(Report):
    """One line of the table: a case, its errors and its time.

    Attributes:
        errors: the largest relative error by form, see :func:`glinfer.program.oracle.relative_error`.
        worst: the form, the shape and the textures with the largest error.
        problem: the message of the first check that was refused; empty if all checks ran.
        time: None without timing.
    """

    derived = ("error", "passed")

    kernel: str
    family: str
    shaders: tuple[str, ...]
    forms: tuple[str, ...]
    tolerance: float
    timed_at: str
    errors: dict[str, float]
    worst: str
    problem: str
    time: Spread | None

    @property
    def error(self) -> float:
        """The largest relative error of all forms."""
        return max(self.errors.values())

    @property
    def passed(self) -> bool:
        """Whether every error is within the tolerance."""
        return not self.problem and self.error <= self.tolerance


@dataclass(frozen=True)
class KernelReport(Report):
    """Errors and times of several kernels on one renderer."""

    renderer: str
    rows: tuple[KernelRow, ...]

    @property
    def failed(self) -> list[KernelRow]:
        """The kernels with an error above their tolerance."""
        return [row for row in self.rows if not row.passed]

    def table(self, *, page: bool = False) -> Table:
        """Tabulate the kernels, for a terminal or for a ``page``, which marks names as code."""
        code = "`" if page else ""
        columns = [
            *(Column("kernel", lambda row: f"{code}{row.kernel}{code}"), Column("family", "family")),
            Column("shaders", lambda row: ", ".join(f"{code}{shader}{code}" for shader in row.shaders)),
            Column("formats", lambda row: ", ".join(row.forms)),
            Column("largest error", "error", error_text),
            Column("allowed", "tolerance", error_text),
            Column("time", lambda row: "–" if row.time is None else f"{row.time.median:,.2f} ms", str),
            Column("at", "timed_at"),
        ]
        shown = [column for column in columns if not (page and column.name == "allowed")]
        return Table("Kernels", shown, self.rows, alarming=lambda row: not row.passed)

    def markdown(self) -> str:
        """The table of docs/kernels.md and a line that names the renderer."""
        return f"{self.table(page=True).markdown()}\n\nMeasured on {self.renderer}."


def all_cases() -> list[KernelCase]:
    """Every case, family by family."""
    return [case for family in FAMILIES for case in family.CASES]


def cases_named(patterns: Sequence[str]) -> list[KernelCase]:
    """The cases whose kernels match a pattern, see :func:`qa.steps.matching`, with its errors."""
    cases = all_cases()
    wanted = matching(patterns, [case.kernel for case in cases], "kernel")
    return [case for case in cases if case.kernel in wanted]


def shapes_for(form: int, shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes at which form number ``form`` of a kernel is checked: each of them has programs of its own."""
    left_out = {twins[(form + number) % 2] for number, twins in enumerate(TWINS) if form and {*twins} <= {*shapes}}
    return [shape for shape in shapes if shape not in left_out]


def case_results(case: KernelCase, device: Device, form: str, shape: Shape) -> Sequence[Found]:
    """The results of one check, whose random contents are the same each time.

    Raises:
        GlinferError: the kernel refuses what the check gives it.
    """
    rng = np.random.default_rng([zlib.crc32(f"{case.kernel} {form}".encode()), *shape])
    return case.check(device, rng, *shape, form)


def error_of(results: Sequence[Found]) -> float:
    """The largest relative error of some results."""
    return max((relative_error(*pair) if pair[0].shape == pair[1].shape else np.inf for pair in results), default=0.0)


def case_error(case: KernelCase, device: Device, form: str, shape: Shape) -> float:
    """The largest relative error of one check; errors are those of :func:`case_results`."""
    return error_of(case_results(case, device, form, shape))


def time_case(case: KernelCase, device: Device) -> Spread:
    """Time one kernel from a call, whose inputs are in textures, until the renderer has finished.

    Two calls compile it and warm it up, then 5 to 25 calls count, within about half a second.
    """
    run = case.timed(device, np.random.default_rng(0))

    def finished() -> None:
        run()
        device.context.gl.finish()

    work = Work(finished, seconds=_SECONDS, least=_MIN_SAMPLES)
    return Spread.of(interleaved([work], _MAX_SAMPLES, warm_ups=_WARM_UPS)[0])


def measure_kernels(
    cases: Sequence[KernelCase],
    where: Mapping[str, Any] | None = None,
    *,
    times: bool = True,
    on_step: Progress = lambda done, total: None,
) -> KernelReport:
    """Check every case in every form at all shapes, on large and on small textures, and time it.

    Args:
        cases: the kernels, see :func:`cases_named`.
        where: arguments of :class:`glinfer.tensors.device.Device`.
        times: also time each case at the size that it names.
        on_step: called with the cases done and the number of cases, on each size of textures.

    Raises:
        ContextError: nothing usable opens.
    """
    where = dict(where or {})
    with Device(**where) as device:
        renderer, limits = device.description, device.context.limits
    rounds = [(SHAPES, "", where)]
    for edge, shapes in SMALL_SHAPES.items():
        small = replace(limits, max_texture_size=min(limits.max_texture_size, edge))
        rounds.append((shapes, f", textures of {edge} texels a side", {**where, "limits": small}))
    checks: dict[KernelCase, list[_Check]] = {case: [] for case in cases}
    taken: dict[KernelCase, Spread] = {}
    for number, (shapes, textures, given) in enumerate(rounds):
        with Device(**given) as device:
            for place, case in enumerate(cases, start=1):
                checks[case] += _checked(case, device, shapes, textures)
                if times and not number:
                    taken[case] = time_case(case, device)
                on_step(number * len(cases) + place, len(rounds) * len(cases))
    return KernelReport(renderer, tuple(_row(case, checks[case], taken.get(case)) for case in cases))


@dataclass(frozen=True)
class _Check:
    """The error of one form at one shape, in words too, and why the kernel refused it."""

    form: str
    at: str
    error: float
    problem: str = ""


def _checked(case: KernelCase, device: Device, shapes: Sequence[Shape], textures: str) -> Iterator[_Check]:
    for place, form in enumerate(case.forms):
        for rows, cols in shapes_for(place, shapes):
            at = f"{form} at {rows}×{cols}{textures}"
            try:
                yield _Check(form, at, case_error(case, device, form, (rows, cols)))
            except GlinferError as refusal:  # one kernel that does not run must not hide what the others do
                yield _Check(form, at, np.inf, f"{at}: {refusal}")


def _row(case: KernelCase, checks: Sequence[_Check], taken: Spread | None) -> KernelRow:
    errors = {form: max(each.error for each in checks if each.form == form) for form in case.forms}
    worst = max(checks, key=lambda each: each.error).at
    problem = next((each.problem for each in checks if each.problem), "")
    about = (case.kernel, case.family, case.shaders, case.forms, case.tolerance, case.timed_at)
    return KernelRow(*about, errors, worst, problem, taken)


def page_with(path: AnyPath, table: str) -> str:
    """A Markdown file with this table between its two marks.

    Raises:
        FormatError: the file does not exist or cannot be read.
        InputError: it has no place for the table.
    """
    with opened(path) as (file, _):
        text = file.read().decode("utf-8", "surrogateescape")
    page, count = _TABLE.subn(lambda found: f"{found[1]}\n{table}\n{found[2]}", text)
    if count != 1:
        marks = f"a line {TABLE_BEGIN} and after it a line {TABLE_END}"
        raise InputError(f"{shown(path)} has {count} places for the table; expected one, {marks}")
    return page


def write_page(path: AnyPath, page: str) -> None:
    """Write a file that :func:`page_with` read; raises FormatError where it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_bytes(page.encode("utf-8", "surrogateescape"))
