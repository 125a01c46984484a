"""Compare every kernel of ``device.ops`` with float64 and time it; docs/kernels.md has the table."""

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
"""Modules with cases, in the order of the table; import a new one and name it here."""

Shape = tuple[int, int]
SHAPES: tuple[Shape, ...] = ((1, 1), (7, 13), (5, 33), (33, 255), (31, 257), (2, 5257), (1, 20011), (1021, 6))
"""Shapes to check: one element, primes, no multiples of 4, 32 or 256, wide and tall."""
SMALL_SHAPES: dict[int, tuple[Shape, ...]] = {64: ((1, 1), (5, 33), (3, 131), (31, 6)), 128: ((2, 521),)}
"""Shapes to check by the largest edge of a texture: rows end inside a line of texels, or are longer than a line."""

TABLE_BEGIN, TABLE_END = "<!-- table: begin -->", "<!-- table: end -->"
_WARM_UPS = 2
_MIN_SAMPLES, _MAX_SAMPLES, _SECONDS = 5, 25, 0.5
_BETWEEN = ", "

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class KernelTime:
    """Milliseconds from a call, whose inputs are in textures, until the renderer has finished."""

    median_ms: float
    fastest_ms: float
    slowest_ms: float
    samples: int


@dataclass(frozen=True)
class KernelRow:
    """One line of the table: a case, its errors and its time.

    Attributes:
        errors: the largest relative error by form, see :func:`glinfer.models.oracle.relative_error`.
        worst: the form, the shape and the textures with the largest error.
        problem: the message of the first check that was refused; empty if all checks ran.
        time: None without timing.
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
    """Errors and times of several kernels on one renderer."""

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
        """The table of docs/kernels.md and a line that names the renderer."""
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
    """The cases whose kernels match a pattern, in which ``*`` stands for any letters; all cases without patterns.

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
    """The largest relative error of one check, whose random contents are the same each time.

    Raises:
        GlinferError: the kernel refuses what the check gives it.
    """
    rng = np.random.default_rng([zlib.crc32(f"{case.kernel} {form}".encode()), *shape])
    worst = 0.0
    for found, expected in case.check(device, rng, *shape, form):
        worst = max(worst, relative_error(found, expected) if found.shape == expected.shape else np.inf)
    return worst


def time_case(case: KernelCase, device: Device) -> KernelTime:
    """Time one kernel: two calls compile it and warm it up, then 5 to 25 calls count, within about half a second."""
    run = case.timed(device, np.random.default_rng(0))
    for _ in range(_WARM_UPS):
        run()
        device.context.gl.finish()
    samples: list[float] = []
    while len(samples) < _MIN_SAMPLES or (len(samples) < _MAX_SAMPLES and sum(samples) < 1000 * _SECONDS):
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
    """Check every case in every form at all shapes, on large and on small textures, and time it.

    Args:
        cases: the kernels, see :func:`cases_named`.
        device: the renderer, as :class:`glinfer.tensors.device.Device` takes it.
        api: ``es`` or ``desktop``, as :class:`glinfer.tensors.device.Device` takes it.
        limits: the largest textures, as :class:`glinfer.tensors.device.Device` takes them.
        times: also time each case at the size that it names.
        on_step: called with the steps done and the number of steps.

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
    """Read a Markdown file that has a place for the table.

    Raises:
        FormatError: the file does not exist or cannot be read.
        InputError: a mark is missing or doubled, they are in the wrong order, or the file is not UTF-8.
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
    """Put a table between the two marks of a Markdown file; the rest of the file stays as it is.

    Raises:
        FormatError: the file cannot be read or written.
        InputError: see :func:`read_page`.
    """
    text = read_page(path)
    before, behind = text[: text.index(TABLE_BEGIN) + len(TABLE_BEGIN)], text[text.index(TABLE_END) :]
    with replacing(path) as temporary:
        temporary.write_text(f"{before}\n{table}\n{behind}", encoding="utf-8", newline="")
