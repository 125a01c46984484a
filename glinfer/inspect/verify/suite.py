"""The checks of ``glinfer verify`` for each weight format on each renderer, and their report.

glinfer/schemas/verify.schema.json describes the report's JSON document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.engine.engine import Engine
from glinfer.engine.loading import prepare
from glinfer.engine.model import Model
from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.engine.report import Report, plain
from glinfer.engine.textures import TextureCheck
from glinfer.errors import FormatError, GLError, InputError, NumbersError, ShaderError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.settings import RunSetting, UnusableRun, run_each
from glinfer.inspect.verify.draws import DrawCheck, verify_draws
from glinfer.inspect.verify.greedy import GreedyCheck, verify_greedy
from glinfer.inspect.verify.special import SpecialCheck, verify_special_values
from glinfer.lower.plans import check_choice, weights_named
from glinfer.program.session import WrongTexture
from glinfer.quant.formats import DEFAULT_CACHE, FROM_FILE, WEIGHT_FORMATS

VERSION = 2
"""Version of the JSON document; it changes with the meaning of a field."""
SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "verify.schema.json"
"""The JSON schema of the document (draft 2020-12)."""


@dataclass(frozen=True)
class VerifyRun(Report):
    """Checks of one weight format on one renderer; draws, greedy tokens and tokens generated ``after`` if requested.

    ``textures`` are weights, read back after everything else has run; ``wrong_textures`` inputs of draws that sample
    another texture than their plan names. ``device`` is the number of the requested one. ``problem`` is the error that
    ended the run; empty without one.
    """

    hidden = ("special",)
    derived = ("passed",)

    renderer: str
    textures: tuple[TextureCheck, ...] = ()
    wrong_textures: tuple[WrongTexture, ...] = ()
    after: int | None = None
    special: tuple[SpecialCheck, ...] = ()
    draws: tuple[DrawCheck, ...] = ()
    greedy: GreedyCheck | None = None
    device: int | None = None
    api: str = ""
    max_texture_size: int = 0
    plan: str = ""
    weights: str = ""
    cache: str = DEFAULT_CACHE
    problem: str = ""

    @property
    def bad_textures(self) -> list[TextureCheck]:
        """Textures with wrong bits."""
        return [check for check in self.textures if not check.passed]

    @property
    def bad_draws(self) -> list[DrawCheck]:
        """Draws that differ from the oracle or ran in a wrong state."""
        return [check for check in self.draws if not check.passed]

    @property
    def first_bad_draw(self) -> DrawCheck | None:
        """First of the bad draws."""
        return next(iter(self.bad_draws), None)

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        stored = all(check.stored for check in self.special)
        chosen = self.greedy is None or self.greedy.passed
        held = not self.bad_textures and not self.wrong_textures
        return not self.problem and stored and chosen and held and self.first_bad_draw is None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; null stands for an infinite or NaN error."""
        first = self.first_bad_draw
        further = {"problem": self.problem or None, "first_bad_draw": first and first.name}
        return {**super().to_json(), **further, "special_values": plain(self.special)}


@dataclass(frozen=True)
class VerifyReport(Report):
    """Finished runs, and renderers and formats that could not be run; :data:`SCHEMA` describes the JSON form.

    ``load_refuses`` is the reason why loading refuses the model, whose weights are not all finite, which ``allow_nan``
    accepts. ``origin`` is repository, commit and file of a model in the cache of a hub.
    """

    derived = ("version", "passed")

    version = VERSION

    model: str
    runs: tuple[VerifyRun, ...]
    unusable: tuple[UnusableRun, ...] = ()
    load_refuses: str | None = None
    allow_nan: bool = False
    origin: dict[str, str] | None = None

    @property
    def passed(self) -> bool:
        """Whether at least one run finished, and all passed."""
        accepted = self.load_refuses is None or self.allow_nan
        return accepted and bool(self.runs) and all(run.passed for run in self.runs)


@dataclass(frozen=True)
class CheckOptions:
    """Selection of checks besides textures and special values.

    ``draws`` compares every draw with float64, ``greedy`` this many tokens, both after ``ids``; ``after`` tokens are
    generated before the textures are compared. None is for none.
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
    """Check a model by each setting; ``on_progress`` receives (check, finished items, items).

    NaN and infinite weights are compared too, if the model is not run; the report states that loading refuses them, and
    fails unless they are allowed. Renderers that do not open, and formats that do not fit one, are reported as
    unusable, which is not a failure. An error of OpenGL or of a shader ends a run, which then fails.

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
        with Model(engine) as model:
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

    NumbersError if the model produces NaN or infinite logits.
    """
    prompt = list(ids)
    model.generate(prompt, max_tokens=count, temperature=0)
    if model.plan.name != "fast":
        return
    model.generate(prompt, max_tokens=min(count, 8), top_k=4, seed=1)
    room = model.config.max_position_embeddings - len(prompt)
    if room > 0:
        model.generate([prompt, prompt[:1]], max_tokens=min(count, room), temperature=0)
