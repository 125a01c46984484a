"""Runs all checks of ``glinfer verify`` for each weight format on each renderer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from glinfer.engine.engine import Engine
from glinfer.engine.loading import prepare
from glinfer.engine.model import Loaded, Model
from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.engine.textures import TextureCheck
from glinfer.errors import FormatError, GLError, InputError, NumbersError, ShaderError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.settings import RunSetting, run_each
from glinfer.inspect.verify.draws import DrawCheck, verify_draws
from glinfer.inspect.verify.greedy import verify_greedy
from glinfer.inspect.verify.report import VerifyReport, VerifyRun
from glinfer.inspect.verify.special import verify_special_values
from glinfer.models.choice import check_choice, weights_named
from glinfer.quant.formats import FROM_FILE, WEIGHT_FORMATS


@dataclass(frozen=True)
class CheckOptions:
    """Selection of checks besides textures and special values.

    Attributes:
        draws: compare every draw with float64.
        ids: tokens before the checked draws and greedy tokens.
        greedy: number of greedy tokens to compare with float64; None for none.
        after: number of tokens to generate before the textures are compared; None for none.
    """

    draws: bool = False
    ids: Sequence[int] = ()
    greedy: int | None = None
    after: int | None = None

    @property
    def runs(self) -> bool:
        """Whether the model is run."""
        return self.draws or self.greedy is not None or self.after is not None


def every_format(checkpoint: Checkpoint, plan: str) -> list[str]:
    """List the weight formats that a plan of a model supports."""
    found: dict[str, None] = {}
    for weights in (FROM_FILE, *WEIGHT_FORMATS):
        try:
            check_choice(plan, weights)
        except InputError:
            continue
        found[weights_named(weights, checkpoint.formats())] = None
    return list(found)


def verify_everywhere(
    checkpoint: Checkpoint,
    settings: Sequence[RunSetting],
    options: CheckOptions,
    *,
    allow_nan: bool = False,
    on_progress: StagedProgress = no_staged_progress,
) -> VerifyReport:
    """Check a model by each setting.

    NaN and infinite weights are compared too, if the model is not run; the report states that loading refuses them,
    and fails unless they are allowed.

    Renderers that do not open, and formats that do not fit one, are reported as unusable, which is not a failure. An
    error of OpenGL or of a shader ends a run, which then fails.

    Args:
        checkpoint: the model.
        settings: plans, formats and renderers, see :func:`glinfer.inspect.settings.run_each`.
        options: which checks to run.
        allow_nan: whether NaN and infinite weights are allowed.
        on_progress: receives (check, finished items, items).

    Raises:
        InputError: the plan or format is unknown, or the model cannot run the ids.
        FormatError: a weight is NaN or infinite, and the model is to be run.
    """
    refusal = None
    try:
        checkpoint.check_finite()
    except FormatError as error:
        if options.runs:
            raise
        refusal = str(error)
    formats = checkpoint.formats()
    named = [replace(each, weights=weights_named(each.weights, formats, each.plan)) for each in settings]
    runs, unusable = run_each(named, partial(_checked, checkpoint, options, on_progress))
    return VerifyReport(checkpoint.source, runs, unusable, refusal, allow_nan)


def _checked(
    checkpoint: Checkpoint,
    options: CheckOptions,
    on_progress: StagedProgress,
    setting: RunSetting,
    device: Device,
) -> VerifyRun:
    """Run all checks; an error of OpenGL or of a shader ends the run.

    All checks use one bound engine, whose textures are compared before and after everything else.
    """
    run = VerifyRun(
        device.description,
        device=setting.number,
        api=device.api,
        max_texture_size=device.limits.max_texture_size,
        plan=setting.plan,
        weights=setting.weights,
        cache=setting.cache,
    )
    try:
        with np.errstate(all="ignore"):  # NaN and infinite weights are quantised here too
            prepared = prepare(checkpoint, device, run.plan, run.weights, cache=run.cache)
            engine = prepared.bind(device, on_upload=partial(on_progress, "uploading weights"))
        with Model(Loaded(engine, None, "only token ids are run here", (), False)) as model:
            run = replace(run, textures=_textures(engine, on_progress))
            run = replace(run, special=tuple(verify_special_values(device)))
            if options.after is not None:
                on_progress("generating tokens", 0, 1)
                use(model, options.ids, options.after)
                run = replace(run, after=options.after)
            if options.greedy is not None:
                on_progress("choosing tokens", 0, 1)
                run = replace(run, greedy=verify_greedy(engine, checkpoint, options.ids, options.greedy))
            if options.draws:
                total = sum(len(session.plan.draws) for session in engine.sessions_for(len(options.ids)))

                def checked(check: DrawCheck) -> None:
                    on_progress("checking draws", check.index + 1, total)

                run = replace(run, draws=tuple(verify_draws(engine, options.ids, on_check=checked)))
            if options.runs:
                pairs = zip(run.textures, _textures(engine, on_progress), strict=True)
                run = replace(run, textures=tuple(before if after.passed else after for before, after in pairs))
            run = replace(run, wrong_textures=tuple(engine.textures.wrong_textures()))
    except (GLError, ShaderError, NumbersError) as error:
        run = replace(run, problem=str(error))
    return run


def _textures(engine: Engine, on_progress: StagedProgress) -> tuple[TextureCheck, ...]:
    total, checks = len(engine.plan.of_kind("weight")), []
    with np.errstate(all="ignore"):
        for check in engine.textures.whole():
            checks.append(check)
            on_progress("checking textures", len(checks), total)
    return tuple(checks)


def use(model: Model, ids: Sequence[int], count: int) -> None:
    """Generate ``count`` tokens after the ids: in a sequence, with a filter, and in a batch if the plan supports it.

    Raises:
        NumbersError: the model produces NaN or infinite logits.
    """
    prompt = list(ids)
    model.generate(prompt, max_tokens=count, temperature=0)
    if model.plan.name != "fast":
        return
    model.generate(prompt, max_tokens=min(count, 8), top_k=4, seed=1)
    room = model.config.max_position_embeddings - len(prompt)
    if room > 0:
        model.generate([prompt, prompt[:1]], max_tokens=min(count, room), temperature=0)
