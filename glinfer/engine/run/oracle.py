"""The executor ``numpy``: runs a model's plan in float64 NumPy, op by op, without OpenGL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from glinfer.engine.engine import Engine
from glinfer.engine.run.decode import DecodeSession, Floats, RecomputeSession
from glinfer.engine.textures import WeightSource
from glinfer.errors import ContextError, InputError
from glinfer.gl.context import Device, Limits
from glinfer.kernels.spec import Array
from glinfer.lower.feed import runs
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.decoder import LOGITS
from glinfer.lower.plans import USUAL_DRAW_BUFFERS, USUAL_TEXTURE_SIZE, USUAL_TEXTURE_UNITS, ReferencePlans
from glinfer.program.oracle import by_output, run_plan
from glinfer.program.plan import Plan
from glinfer.program.session import Session, weight_matrix

EXECUTORS = ("gl", "numpy")
"""The values of ``executor=`` and ``--executor``."""


class _WithoutRenderer:
    """Refuses every attribute that its class does not define, since those need a renderer."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal()


def _refusal() -> InputError:
    return InputError(
        "the numpy executor only computes logits and tokens of one sequence at a time; leave out "
        "executor='numpy' (--executor numpy)"
    )


class NumpyDevice(_WithoutRenderer, Device):
    """A device for models, without an OpenGL context."""

    limits = Limits(USUAL_TEXTURE_SIZE, USUAL_DRAW_BUFFERS, USUAL_TEXTURE_UNITS, 1 << 14, 1.0)
    description = "float64 NumPy, no OpenGL"
    in_main_memory, closed, draws_issued = True, False, 0

    def __init__(self) -> None:
        """Do nothing."""

    def require_usable(self) -> None:
        """Refuse a closed device."""
        if self.closed:
            raise ContextError("this device was closed; open or load again")

    activate = require_usable

    def close(self) -> None:
        """Refuse all later uses."""
        self.closed = True


def device_of(executor: str, device: Device | str | int | None, *others: object) -> Device | str | int | None:
    """The device of a model; InputError for an unknown executor, or for ``numpy`` with options that need a renderer."""
    if executor not in EXECUTORS:
        raise InputError(f"there is no executor {executor!r}; expected one of {', '.join(EXECUTORS)}")
    if executor == "gl" or isinstance(device, NumpyDevice):
        return device
    if any(each is not None for each in (device, *others)):
        raise InputError("the numpy executor has no renderer; leave out device, api, limits, shader_root and lora")
    return NumpyDevice()


class NumpySession(_WithoutRenderer, Session):
    """A plan and its weights, without textures."""

    draws_issued = 0

    def __init__(self, plan: Plan, weights: Mapping[str, Array], device: Device) -> None:
        """Keep the array of every weight."""
        self.plan, self.device = plan, device
        self.weights = {each.name: weight_matrix(each, weights) for each in plan.of_kind("weight")}

    def release(self) -> None:
        """Drop the weights."""
        self.weights = {}


class NumpyEngine(Engine):
    """Any plan, computed in NumPy; the fast plan keeps the caches of the newest sequence."""

    bound: NumpySession

    def __init__(
        self, options: PlanOptions, bound: NumpySession, source: WeightSource, plans: ReferencePlans | None = None
    ) -> None:
        """Take over a plan; ``plans`` has one for each length, for models without a published plan."""
        super().__init__(options, bound, source)
        self.nan_guard.traces = False
        self._plans, self._held, self._caches = plans, list[int](), dict[str, Array]()

    def _new_session(self, own: bool) -> DecodeSession:
        return RecomputeSession(self.options.config, self._logits)

    def _logits(self, ids: Sequence[int]) -> Floats:
        plan = self.plan if self._plans is None else self._plans.of(self._plans.rows_for(len(ids)))
        steps, held, self._held = runs(plan, ids), self._held, []  # so that an interrupt leaves nothing held
        continues = len(steps) == len(ids) > len(held) and list(ids[: len(held)]) == held
        if not continues or plan.is_long(len(held)) != plan.is_long(len(ids)):
            held, self._caches = [], {}
        logits = np.empty((1, 0))
        for inputs, values in steps[len(held) :]:
            for draw, written in run_plan(plan, self.bound.weights, inputs, values, self._caches):
                logits = by_output(draw, written).get(LOGITS, logits)
        self._held = list(ids)
        return np.asarray(logits[0, : self.options.config.vocab_size], dtype=np.float32)

    def _refused(self, *_: object, **__: object) -> NoReturn:
        raise _refusal()

    sessions_for = scheduler = _new_scorer = forward = _refused
