"""Draw counts of a plan, planned (without a GPU) and issued."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.engine.report import plain
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.kernels.spec import KINDS, Array
from glinfer.lower.feed import runs
from glinfer.lower.plans import USUAL_DRAW_BUFFERS, USUAL_TEXTURE_SIZE, USUAL_TEXTURE_UNITS
from glinfer.program.plan import DrawTable, Plan, PlanLimits, draw_table
from glinfer.program.session import Session


@dataclass(frozen=True)
class DrawReport:
    """Draw table and textures of a plan, and the draws that a forward pass issued, if one ran.

    ``texture_bytes`` is by kind of tensor; ``largest`` is the tensor of the largest texture, with its width and height
    in texels. With ``estimate`` the table counts the passes of the simplest kernels; renderers may use others.
    """

    config: ModelConfig
    table: DrawTable
    texture_bytes: Mapping[str, int]
    largest: tuple[str, int, int]
    issued: int | None = None
    renderer: str | None = None
    estimate: bool = False

    @property
    def agrees(self) -> bool:
        """Whether a forward pass, if one ran, issued as many draws as the plan has."""
        return self.issued is None or self.issued == self.table.total

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found = {
            "plan": self.table.plan,
            "tokens": self.table.tokens,
            "draws": self.table.total,
            "issued": self.issued,
            "agrees": self.agrees,
            "renderer": self.renderer,
            "estimate": self.estimate,
            "texture_bytes": self.texture_bytes,
            "largest_texture": dict(zip(("name", "width", "height"), self.largest, strict=True)),
            "passes": self.table.rows,
            "config": self.config,
        }
        return {name: plain(value) for name, value in found.items()}


def planned(config: ModelConfig, plan: Plan, tokens: int, max_texture_size: int = USUAL_TEXTURE_SIZE) -> DrawReport:
    """Count from the plan alone, with textures of at most ``max_texture_size`` texels a side.

    PlanError if the plan does not accept ``tokens``, or does not fit such textures.
    """
    plan.check_limits(PlanLimits(max_texture_size, USUAL_DRAW_BUFFERS, USUAL_TEXTURE_UNITS))
    layouts = {tensor.name: tensor.layout_within(max_texture_size) for tensor in plan.tensors}
    largest = max(layouts, key=lambda name: layouts[name].nbytes)
    memory = {kind: plan.texture_bytes(max_texture_size, kind) for kind in KINDS}
    size = largest, layouts[largest].width, layouts[largest].height
    return DrawReport(config, draw_table(plan, tokens), memory, size)


def measured(
    checkpoint: Checkpoint, plan: Plan, tokens: int, device: Device, *, weights: Mapping[str, Array] | None = None
) -> DrawReport:
    """Count from the plan, and count the draws that the last run over ``tokens`` tokens issues.

    ``weights`` are the plan's weights by tensor name; default: the checkpoint's.
    """
    report = planned(checkpoint.config, plan, tokens, device.limits.max_texture_size)
    session = Session(plan, checkpoint.tensors if weights is None else weights, device)
    try:
        issued = 0
        for inputs, values in runs(plan, example_ids(checkpoint.config, tokens).tolist()):
            for name, array in inputs.items():
                session.write(name, array)
            before = device.draws_issued
            session.run(values)
            issued = device.draws_issued - before
    finally:
        session.release()
    return dataclasses.replace(report, issued=issued, renderer=device.description)


def example_ids(config: ModelConfig, tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return token ids [tokens] spread over the vocabulary, always the same."""
    return (np.arange(tokens, dtype=np.int64) * 7919 % config.vocab_size).astype(np.int32)
