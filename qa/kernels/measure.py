"""Every kernel of ``device.ops`` against float64, and how long it takes: the table of docs/kernels.md."""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from glinfer.errors import GlinferError, InputError
from glinfer.formats.files import AnyPath, opened, replacing, shown
from glinfer.gl.context import Limits
from glinfer.models.oracle import relative_error
from glinfer.tensors.device import Device
from qa.kernels.cases import (
    activation,
    attention,
    backward,
    elementwise,
    embedding,
    matmul,
    movement,
    normalization,
    position,
    reduction,
    sorting,
)
from qa.kernels.cases.case import KernelCase

FAMILIES = (
    activation,
    attention,
    backward,
    elementwise,
    embedding,
    matmul,
    movement,
    normalization,
    position,
    reduction,
    sorting,
)
"""The modules of qa.kernels.cases, in the order of the table: a new one is imported and named here."""

Shape = tuple[int, int]
SHAPES: tuple[Shape, ...] = ((1, 1), (7, 13), (5, 33), (33, 255), (31, 257), (2, 5257), (1, 20011), (1021, 6))
"""One element; primes; no multiples of 4, 32 or 256; wide and tall."""
SMALL_SHAPES: dict[int, tuple[Shape, ...]] = {64: ((1, 1), (5, 33), (3, 131), (31, 6)), 128: ((2, 521),)}
"""On textures of at most so many texels a side: rows that end inside a line of texels, and rows longer than one."""

TABLE_BEGIN, TABLE_END = "<!-- table: begin -->", "<!-- table: end -->"
_WARM_UPS = 2
_LEAST_SAMPLES, _MOST_SAMPLES, _SECONDS = 5, 25, 0.5
_BETWEEN = ", "

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class KernelTime:
    """Milliseconds of one call that finds its inputs in textures, until the renderer has finished."""

    median_ms: float
    fastest_ms: float
    slowest_ms: float
    samples: int


@dataclass(frozen=True)
class KernelRow:
    """One line of the table: a case, what was measured of it, and whether that is right.

    Attributes:
        errors: the largest relative error of each form, see :func:`glinfer.models.oracle.relative_error`.
        worst: the form, the shape and the textures of the largest of them.
        problem: what a check was refused with; empty where all of them ran.
        time: None where it was not asked for.
    """

    kernel: str
    family: str
    shaders: tuple[str, ...]
    forms: tuple[str, ...]
    tolerance: float
    errors: dict[str, float]
    worst: str
    problem: str
    time: KernelTime | None
    timed_at: str

    @property
    def error(self) -> float:
        """The largest relative error of all forms."""
        return max(self.errors.values())

    @property
    def passed(self) -> bool:
        """Whether every error is within the tolerance."""
        return not self.problem and self.error <= self.tolerance


@dataclass(frozen=True)
class KernelReport:
    """All kernels that were looked at, on one renderer."""

    renderer: str
    rows: tuple[KernelRow, ...]

    @property
    def failed(self) -> list[KernelRow]:
        """The kernels with an error above their tolerance."""
        return [row for row in self.rows if not row.passed]

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        rows = [{**asdict(row), "error": row.error, "passed": row.passed} for row in self.rows]
        return {"renderer": self.renderer, "rows": rows}

    def markdown(self) -> str:
        """The table of docs/kernels.md, with a line on where it was measured."""
        lines = [
            "| kernel | family | shaders | formats | largest error | time | at |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            shaders = _BETWEEN.join(f"`{shader}`" for shader in row.shaders)
            took = "–" if row.time is None else f"{row.time.median_ms:.2f} ms"
            cells = (f"`{row.kernel}`", row.family, shaders, _BETWEEN.join(row.forms), error_text(row.error), took)
            lines.append(f"| {' | '.join(cells)} | {row.timed_at} |")
        return "\n".join([*lines, "", f"Measured on {self.renderer}."])


def all_cases() -> list[KernelCase]:
    """Every case, family by family."""
    return [case for family in FAMILIES for case in family.CASES]


def cases_named(patterns: Sequence[str]) -> list[KernelCase]:
    """The cases of kernels of these names, in which ``*`` stands for any letters; all where there are none.

    Raises:
        InputError: a pattern names no kernel.
    """
    cases = all_cases()
    for pattern in patterns:
        if not any(fnmatchcase(case.kernel, pattern) for case in cases):
            known = ", ".join(dict.fromkeys(case.kernel for case in cases))
            raise InputError(f"there is no kernel {pattern!r}; known: {known}")
    return [case for case in cases if not patterns or any(fnmatchcase(case.kernel, each) for each in patterns)]


def error_text(error: float) -> str:
    """A relative error in two digits."""
    return "0" if error == 0 else f"{error:.1e}"


def case_error(case: KernelCase, device: Device, form: str, shape: Shape) -> float:
    """The largest relative error of one check; the same contents each time.

    Raises:
        GlinferError: the kernel refuses what the check gives it.
    """
    rng = np.random.default_rng([zlib.crc32(f"{case.kernel} {form}".encode()), *shape])
    worst = 0.0
    for found, expected in case.check(device, rng, *shape, form):
        worst = max(worst, relative_error(found, expected) if found.shape == expected.shape else np.inf)
    return worst


def time_case(case: KernelCase, device: Device) -> KernelTime:
    """Time one kernel: compiled and warmed up by two calls, then the median of 5 to 25 within about half a second."""
    run = case.timed(device, np.random.default_rng(0))
    for _ in range(_WARM_UPS):
        run()
        device.context.gl.finish()
    samples: list[float] = []
    while len(samples) < _LEAST_SAMPLES or (len(samples) < _MOST_SAMPLES and sum(samples) < 1000 * _SECONDS):
        started = time.perf_counter()
        run()
        device.context.gl.finish()
        samples.append(1000 * (time.perf_counter() - started))
    return KernelTime(statistics.median(samples), min(samples), max(samples), len(samples))


def measure_kernels(
    cases: Sequence[KernelCase],
    *,
    device: str | int | None = None,
    api: str | None = None,
    limits: Limits | None = None,
    times: bool = True,
    on_step: Progress = lambda done, total: None,
) -> KernelReport:
    """Check every case in every form at all shapes, on textures as large as they may be and on small ones, and time it.

    Args:
        cases: which; see :func:`cases_named`.
        device: with ``api`` and ``limits`` as :class:`glinfer.tensors.device.Device` takes them.
        api: likewise.
        limits: likewise.
        times: whether to time them too, at the size that each case names.
        on_step: told how many steps are done, and of how many.

    Raises:
        ContextError: nothing usable opens.
    """
    sweep = _Sweep(cases, on_step, times)
    with Device(device, api=api, limits=limits) as large:
        sweep.check(large, SHAPES, "")
        taken = sweep.times(large) if times else [None] * len(cases)
        renderer, least = large.description, large.context.limits
    for edge, shapes in SMALL_SHAPES.items():
        small = replace(least, max_texture_size=min(least.max_texture_size, edge))
        with Device(device, api=api, limits=small) as wrapped:
            sweep.check(wrapped, shapes, f", textures of {edge} texels a side")
    return KernelReport(renderer, tuple(sweep.row(*each) for each in enumerate(taken)))


class _Sweep:
    """The checks of several cases on several devices."""

    def __init__(self, cases: Sequence[KernelCase], on_step: Progress, times: bool) -> None:
        self.cases, self._on_step = cases, on_step
        self._done, self._total = 0, (1 + len(SMALL_SHAPES) + times) * len(cases)
        self._errors: list[dict[str, float]] = [dict.fromkeys(case.forms, 0.0) for case in cases]
        self._worst = ["" for _ in cases]
        self._problems = ["" for _ in cases]

    def check(self, device: Device, shapes: Sequence[Shape], where: str) -> None:
        for place, case in enumerate(self.cases):
            for form in case.forms:
                for shape in shapes:
                    self._check_one(place, device, form, shape, where)
            self._step()

    def _check_one(self, place: int, device: Device, form: str, shape: Shape, where: str) -> None:
        at = f"{form} at {shape[0]}×{shape[1]}{where}"
        try:
            error = case_error(self.cases[place], device, form, shape)
        except GlinferError as refusal:  # one kernel that does not run must not hide what the others do
            error = np.inf
            self._problems[place] = self._problems[place] or f"{at}: {refusal}"
        if not self._worst[place] or error > max(self._errors[place].values()):
            self._worst[place] = at
        self._errors[place][form] = max(self._errors[place][form], error)

    def times(self, device: Device) -> list[KernelTime]:
        found = []
        for case in self.cases:
            found.append(time_case(case, device))
            self._step()
        return found

    def _step(self) -> None:
        self._done += 1
        self._on_step(self._done, self._total)

    def row(self, place: int, taken: KernelTime | None) -> KernelRow:
        case = self.cases[place]
        return KernelRow(
            kernel=case.kernel,
            family=case.family,
            shaders=case.shaders,
            forms=case.forms,
            tolerance=case.tolerance,
            errors=self._errors[place],
            worst=self._worst[place],
            problem=self._problems[place],
            time=taken,
            timed_at=case.timed_at,
        )


def read_page(path: AnyPath) -> str:
    """A Markdown file with a place for the table.

    Raises:
        FormatError: there is no such file, or it cannot be read.
        InputError: it has not both marks in their order, or is not UTF-8.
    """
    with opened(path) as (file, _):
        content = file.read()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{shown(path)} is not UTF-8 (byte {error.start}); expected a Markdown file") from None
    counts = [text.count(mark) for mark in (TABLE_BEGIN, TABLE_END)]
    if counts != [1, 1] or text.index(TABLE_BEGIN) > text.index(TABLE_END):
        raise InputError(
            f"{shown(path)} has no place for the table; expected a line {TABLE_BEGIN} and behind it a line {TABLE_END}"
        )
    return text


def write_table(path: AnyPath, table: str) -> None:
    """Put a table between the two marks of a Markdown file, and leave all else as it is.

    Raises:
        FormatError: the file cannot be read or written.
        InputError: see :func:`read_page`.
    """
    text = read_page(path)
    before, behind = text[: text.index(TABLE_BEGIN) + len(TABLE_BEGIN)], text[text.index(TABLE_END) :]
    with replacing(path) as temporary:
        temporary.write_text(f"{before}\n{table}\n{behind}", encoding="utf-8", newline="")
