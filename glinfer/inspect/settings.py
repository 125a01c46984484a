"""How to run a model: its plan and formats, and the renderer."""

from __future__ import annotations

from dataclasses import dataclass

from glinfer.gl.context import Device, Limits, open_device
from glinfer.models.choice import DEFAULT_PLAN, DEFAULT_WEIGHTS
from glinfer.quant.formats import DEFAULT_CACHE


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
