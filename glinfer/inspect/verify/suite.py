"""Do textures hold exactly what was uploaded, and does every draw compute what it should? On one renderer, or on all.

The parts are in modules of their own: :mod:`glinfer.inspect.verify.textures`, :mod:`~glinfer.inspect.verify.draws` with
:mod:`~glinfer.inspect.verify.state`, :mod:`~glinfer.inspect.verify.greedy`, and :mod:`~glinfer.inspect.verify.report`
for what they found. Here they are put together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from glinfer.errors import ContextError, GLError, InputError, PlanError, ShaderError
from glinfer.formats import Checkpoint
from glinfer.gl import egl
from glinfer.gl.context import Device, Limits, open_device
from glinfer.inspect.verify.draws import DRAW_TOLERANCE, DrawCheck, verify_draws
from glinfer.inspect.verify.greedy import GreedyCheck, verify_greedy
from glinfer.inspect.verify.report import Unusable, VerifyReport, VerifyRun, schema
from glinfer.inspect.verify.state import Finding
from glinfer.inspect.verify.textures import (
    SPECIAL_BITS,
    SpecialCheck,
    TextureCheck,
    Weights,
    verify_special_values,
    verify_textures,
)
from glinfer.models.choice import WEIGHTS, check_choice, plan_for, weights_for, weights_named
from glinfer.models.fast.shortlist import with_shortlist
from glinfer.models.plan import Plan
from glinfer.models.tuning import kernels_for
from glinfer.quant.formats import DEFAULT_CACHE, FROM_FILE

__all__ = [
    "APIS",
    "DRAW_TOLERANCE",
    "SPECIAL_BITS",
    "Checks",
    "DrawCheck",
    "Finding",
    "GreedyCheck",
    "Renderer",
    "SpecialCheck",
    "TextureCheck",
    "Unusable",
    "VerifyReport",
    "VerifyRun",
    "every_format",
    "every_renderer",
    "schema",
    "verify_draws",
    "verify_everywhere",
    "verify_greedy",
    "verify_special_values",
    "verify_textures",
]

APIS = ("es", "desktop")
"""Both ways to a context, see :func:`glinfer.gl.context.open_device`."""
OnStep = Callable[[str, float, float], None]
"""Told what is being done, how much of it is done, and of how much."""


@dataclass(frozen=True)
class Renderer:
    """Which context to open: what :func:`glinfer.gl.context.open_device` takes."""

    device: str | int | None = None
    api: str | None = None

    @property
    def number(self) -> int | None:
        """The device's number, None where it is left to glinfer."""
        text = "" if self.device is None else str(self.device)
        return int(text) if text.isdecimal() else None


@dataclass(frozen=True)
class Checks:
    """What is checked beside textures and special values.

    Attributes:
        draws: every draw against float64.
        ids: the tokens that draws and greedy tokens follow.
        greedy: how many tokens are compared with those that float64 finds likeliest; None for none.
    """

    draws: bool = False
    ids: Sequence[int] = ()
    greedy: int | None = None


def every_renderer(api: str | None = None) -> list[Renderer]:
    """Every EGL device with each of :data:`APIS`, or with ``api`` alone; whether they open is not tried."""
    numbers: list[str | int]
    try:
        numbers = [device.index for device in egl.list_devices()]
    except ContextError:
        numbers = ["auto"]  # which says what is missing when it is opened
    several: list[str | int] = numbers if sys.platform.startswith("linux") else ["auto"]
    made = [Renderer(number, "es") for number in numbers] + [Renderer(number, "desktop") for number in several]
    return [renderer for renderer in made if api in (None, renderer.api)]


def every_format(checkpoint: Checkpoint, plan: str) -> list[str]:
    """The weight formats that a plan of a model can have, each once."""
    found: dict[str, None] = {}
    for weights in (FROM_FILE, *(name for name in WEIGHTS if name != FROM_FILE)):
        try:
            check_choice(plan, weights)
        except InputError:
            continue
        found[weights_named(weights, checkpoint.formats())] = None
    return list(found)


def verify_everywhere(
    checkpoint: Checkpoint,
    renderers: Sequence[Renderer],
    formats: Sequence[str],
    checks: Checks,
    *,
    plan: str,
    cache: str = DEFAULT_CACHE,
    limits: Limits | None = None,
    on_step: OnStep = lambda what, done, total: None,
) -> VerifyReport:
    """Check each weight format on each renderer.

    A renderer that does not open, and a format that does not fit one, are told as unusable and are no failure. An
    error of OpenGL or of a shader ends a run, which then has failed.

    Args:
        checkpoint: the model.
        renderers: where; see :func:`every_renderer`.
        formats: of the weights; see :func:`every_format`.
        checks: what.
        plan: one of :data:`glinfer.models.choice.PLANS`.
        cache: one of :data:`glinfer.models.choice.CACHES`.
        limits: pretend that each renderer allows no more than this.
        on_step: told how far it is.

    Raises:
        InputError: there is no such plan or format, or the ids are none that the model can run.
    """
    runs: list[VerifyRun] = []
    unusable: list[Unusable] = []
    for renderer in renderers:
        try:
            device = open_device(renderer.device, api=renderer.api, limits=limits)
        except (ContextError, GLError) as error:
            unusable.append(Unusable(renderer.number, renderer.api, None, str(error)))
            continue
        with device:
            for weights in formats:
                made = _Run(checkpoint, device, renderer, plan, weights, cache, checks, on_step)
                try:
                    runs.append(made.run())
                except PlanError as error:
                    unusable.append(Unusable(renderer.number, device.api, made.weights, str(error)))
    return VerifyReport(checkpoint.source, tuple(runs), tuple(unusable))


class _Run:
    """All checks of one weight format on one open device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: Device,
        renderer: Renderer,
        plan: str,
        weights: str,
        cache: str,
        checks: Checks,
        on_step: OnStep,
    ) -> None:
        self.checkpoint, self.device, self.renderer = checkpoint, device, renderer
        self.plan, self.cache, self.checks, self.on_step = plan, cache, checks, on_step
        self.weights = weights_named(weights, checkpoint.formats())

    def run(self) -> VerifyRun:
        device, edge = self.device, self.device.limits.max_texture_size
        made = VerifyRun(
            device.description,
            (),
            (),
            device=self.renderer.number,
            api=device.api,
            max_texture_size=edge,
            plan=self.plan,
            weights=self.weights,
            cache=self.cache,
        )
        try:
            for found in self.found(edge):
                made = replace(made, **found)
        except (GLError, ShaderError) as error:
            made = replace(made, problem=str(error))
        return made

    def found(self, edge: int) -> Iterator[dict[str, Any]]:
        """What is found, as attributes of a run, one after the other."""
        config, formats, weights = self.checkpoint.config, self.checkpoint.formats(), self.weights
        kernels = kernels_for(self.device, config, weights)
        how = {"weights": weights, "cache": self.cache}
        plan = plan_for(config, self.plan, formats=formats, kernels=kernels, max_texture_size=edge, **how)
        arrays = weights_for(self.checkpoint, self.plan, weights)
        yield {"textures": self.textures(plan, arrays)}
        yield {"special": tuple(verify_special_values(self.device))}
        if self.checks.draws:
            listed = with_shortlist(plan, kernels=kernels, max_texture_size=edge) if self.plan == "fast" else plan
            yield {"draws": self.draws(listed, arrays)}
        del plan, arrays  # folded weights are a copy, and what follows makes its own
        if self.checks.greedy is not None:
            self.on_step("choosing tokens", 0, 1)
            found = verify_greedy(
                self.checkpoint, self.device, self.checks.ids, self.checks.greedy, plan=self.plan, **how
            )
            yield {"greedy": found}

    def textures(self, plan: Plan, arrays: Weights) -> tuple[TextureCheck, ...]:
        total, done = len(plan.of_kind("weight")), count(1)

        def told(_: TextureCheck) -> None:
            self.on_step("checking textures", next(done), total)

        return tuple(verify_textures(self.checkpoint, plan, self.device, told, weights=arrays))

    def draws(self, plan: Plan, arrays: Weights) -> tuple[DrawCheck, ...]:
        def told(check: DrawCheck) -> None:
            self.on_step("checking draws", check.index + 1, len(plan.draws))

        found = verify_draws(self.checkpoint, plan, self.device, self.checks.ids, weights=arrays, on_check=told)
        return tuple(found)
