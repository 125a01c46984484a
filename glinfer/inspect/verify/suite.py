"""Runs all checks of ``glinfer verify`` for each weight format on each renderer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.errors import ContextError, GLError, InputError, PlanError, ShaderError
from glinfer.formats import Checkpoint
from glinfer.gl import egl
from glinfer.gl.context import Device, Limits, open_device
from glinfer.inspect.verify.draws import DrawCheck, verify_draws
from glinfer.inspect.verify.greedy import verify_greedy
from glinfer.inspect.verify.report import UnusableRun, VerifyReport, VerifyRun
from glinfer.inspect.verify.textures import verify_special_values, verify_textures
from glinfer.models.choice import WEIGHTS, check_choice, plan_for, weights_for, weights_named
from glinfer.models.fast.shortlist import with_shortlist
from glinfer.models.tuning import kernels_for
from glinfer.quant.formats import DEFAULT_CACHE, FROM_FILE

APIS = ("es", "desktop")
"""Values of ``api``, see :func:`glinfer.gl.context.open_device`."""


@dataclass(frozen=True)
class RendererChoice:
    """Arguments of :func:`glinfer.gl.context.open_device`."""

    device: str | int | None = None
    api: str | None = None

    @property
    def number(self) -> int | None:
        """Number of the device; None where glinfer chooses it."""
        text = "" if self.device is None else str(self.device)
        return int(text) if text.isdecimal() else None


@dataclass(frozen=True)
class CheckOptions:
    """Selection of checks beside textures and special values.

    Attributes:
        draws: compare every draw with float64.
        ids: tokens before the checked draws and greedy tokens.
        greedy: number of tokens compared with those that float64 finds likeliest; None for none.
    """

    draws: bool = False
    ids: Sequence[int] = ()
    greedy: int | None = None


def every_renderer(api: str | None = None) -> list[RendererChoice]:
    """List every EGL device with each of :data:`APIS`, or with ``api`` alone; opens none of them."""
    numbers: list[str | int]
    try:
        numbers = [device.index for device in egl.list_devices()]
    except ContextError:
        numbers = ["auto"]  # opening it reports what is missing
    several: list[str | int] = numbers if sys.platform.startswith("linux") else ["auto"]
    made = [RendererChoice(number, "es") for number in numbers] + [
        RendererChoice(number, "desktop") for number in several
    ]
    return [renderer for renderer in made if api in (None, renderer.api)]


def every_format(checkpoint: Checkpoint, plan: str) -> list[str]:
    """List the weight formats that a plan of a model can have."""
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
    renderers: Sequence[RendererChoice],
    formats: Sequence[str],
    options: CheckOptions,
    *,
    plan: str,
    cache: str = DEFAULT_CACHE,
    limits: Limits | None = None,
    on_progress: StagedProgress = no_staged_progress,
) -> VerifyReport:
    """Check each weight format on each renderer.

    Renderers that do not open, and formats that do not fit one, are reported as unusable, which is not a failure. An
    error of OpenGL or of a shader ends a run, which then has failed.

    Args:
        checkpoint: the model.
        renderers: see :func:`every_renderer`.
        formats: weight formats, see :func:`every_format`.
        options: which checks to run.
        plan: one of :data:`glinfer.models.choice.PLANS`.
        cache: one of :data:`glinfer.models.choice.CACHES`.
        limits: upper bounds on the limits of each renderer.
        on_progress: receives (check, finished items, items).

    Raises:
        InputError: the plan or format is unknown, or the model cannot run the ids.
    """
    runs: list[VerifyRun] = []
    unusable: list[UnusableRun] = []
    for renderer in renderers:
        try:
            device = open_device(renderer.device, api=renderer.api, limits=limits)
        except (ContextError, GLError) as error:
            unusable.append(UnusableRun(renderer.number, renderer.api, None, str(error)))
            continue
        with device:
            for name in formats:
                run = VerifyRun(
                    device.description,
                    device=renderer.number,
                    api=device.api,
                    max_texture_size=device.limits.max_texture_size,
                    plan=plan,
                    weights=weights_named(name, checkpoint.formats()),
                    cache=cache,
                )
                try:
                    runs.append(_checked(run, checkpoint, device, options, on_progress))
                except PlanError as error:
                    unusable.append(UnusableRun(renderer.number, device.api, run.weights, str(error)))
    return VerifyReport(checkpoint.source, tuple(runs), tuple(unusable))


def _checked(
    run: VerifyRun, checkpoint: Checkpoint, device: Device, options: CheckOptions, on_progress: StagedProgress
) -> VerifyRun:
    """Return the run with the results of all checks; an error of OpenGL or of a shader ends it."""
    config, how = checkpoint.config, {"weights": run.weights, "cache": run.cache}
    kernels, edge = kernels_for(device, config, run.weights), run.max_texture_size
    try:
        plan = plan_for(
            config,
            run.plan,
            weights=run.weights,
            cache=run.cache,
            formats=checkpoint.formats(),
            kernels=kernels,
            max_texture_size=edge,
        )
        arrays = weights_for(checkpoint, run.plan, run.weights)
        advance = partial(on_progress, "checking textures")
        textures = verify_textures(checkpoint, plan, device, weights=arrays, on_progress=advance)
        run = replace(run, textures=tuple(textures))
        run = replace(run, special=tuple(verify_special_values(device)))
        if options.draws:
            listed = with_shortlist(plan, kernels=kernels, max_texture_size=edge) if run.plan == "fast" else plan

            def checked(check: DrawCheck) -> None:
                on_progress("checking draws", check.index + 1, len(listed.draws))

            draws = verify_draws(checkpoint, listed, device, options.ids, weights=arrays, on_check=checked)
            run = replace(run, draws=tuple(draws))
        del plan, arrays  # folded weights are a copy, and the next check makes its own
        if options.greedy is not None:
            on_progress("choosing tokens", 0, 1)
            chosen = verify_greedy(checkpoint, device, options.ids, options.greedy, plan=run.plan, **how)
            run = replace(run, greedy=chosen)
    except (GLError, ShaderError) as error:
        run = replace(run, problem=str(error))
    return run
