"""How to run a model: its plan and formats, and the renderer; and one loop over several such settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from glinfer.errors import ContextError, GLError, PlanError
from glinfer.gl import egl
from glinfer.gl.context import Device, Limits, open_device
from glinfer.lower.plans import DEFAULT_PLAN, DEFAULT_WEIGHTS
from glinfer.quant.formats import DEFAULT_CACHE

Run = TypeVar("Run")
APIS = ("es", "desktop")
"""Values of ``api``, see :func:`glinfer.gl.context.open_device`."""


@dataclass(frozen=True, kw_only=True)
class RunSetting:
    """Options of :func:`glinfer.engine.loading.load_model` for one run of a comparison."""

    plan: str = DEFAULT_PLAN
    weights: str = DEFAULT_WEIGHTS
    cache: str = DEFAULT_CACHE
    device: str | int | None = None
    api: str | None = None
    limits: Limits | None = None

    def opened(self) -> Device:
        """Open the renderer, see :func:`glinfer.gl.context.open_device`."""
        return open_device(self.device, api=self.api, limits=self.limits)

    @property
    def number(self) -> int | None:
        """Number of the device; None if glinfer chooses it."""
        text = "" if self.device is None else str(self.device)
        return int(text) if text.isdecimal() else None


@dataclass(frozen=True)
class UnusableRun:
    """A requested renderer that does not open (``weights`` is None), or a weight format that does not fit it."""

    device: int | None
    api: str | None
    weights: str | None
    problem: str

    @property
    def where(self) -> str:
        """Description of the renderer and format."""
        return named(self.device, self.api) + (f", weights {self.weights}" if self.weights else "")


def named(device: int | None, api: str | None) -> str:
    """Describe a requested renderer."""
    return f"device {'auto' if device is None else device}{f', {api}' if api else ''}"


def every_renderer(api: str | None = None) -> list[tuple[str | int, str]]:
    """List every EGL device with each of :data:`APIS`, or with ``api`` alone; opens none of them."""
    try:
        numbers: list[str | int] = [device.index for device in egl.list_devices()]
    except ContextError:
        numbers = ["auto"]  # opening it reports what is missing
    desktop = numbers if sys.platform.startswith("linux") else ["auto"]
    made = [*((number, "es") for number in numbers), *((number, "desktop") for number in desktop)]
    return [each for each in made if api in (None, each[1])]


def run_each(
    settings: Iterable[RunSetting], run: Callable[[RunSetting, Device], Run]
) -> tuple[tuple[Run, ...], tuple[UnusableRun, ...]]:
    """Run each setting; neighbours with one renderer share an open device.

    A renderer that does not open, and a format that does not fit one, are returned as unusable.
    """
    done: list[Run] = []
    unusable: list[UnusableRun] = []
    for _, group in groupby(settings, lambda each: (each.device, each.api, each.limits)):
        first, *others = group
        try:
            device = first.opened()
        except (ContextError, GLError) as error:
            unusable.append(UnusableRun(first.number, first.api, None, str(error)))
            continue
        with device:
            for setting in (first, *others):
                try:
                    done.append(run(setting, device))
                except PlanError as error:
                    unusable.append(UnusableRun(setting.number, device.api, setting.weights, str(error)))
    return tuple(done), tuple(unusable)
