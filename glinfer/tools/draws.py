"""Draw counts: planned (no GPU needed) and really issued."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.models.gab import TOKENS
from glinfer.models.plan import DrawTable, Plan, draw_table
from glinfer.models.session import Session
from glinfer.ops.spec import Array


@dataclass(frozen=True)
class DrawReport:
    """A plan's draw table, and what a real forward issued where one was run."""

    config: ModelConfig
    table: DrawTable
    issued: int | None = None
    renderer: str | None = None

    @property
    def agrees(self) -> bool:
        """False only when a real forward issued another number of draws than the plan has."""
        return self.issued is None or self.issued == self.table.total

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "plan": self.table.plan,
            "tokens": self.table.tokens,
            "draws": self.table.total,
            "issued": self.issued,
            "agrees": self.agrees,
            "renderer": self.renderer,
            "passes": [dataclasses.asdict(row) for row in self.table.rows],
            "config": self.config.to_dict(),
        }


def planned(config: ModelConfig, plan: Plan, tokens: int) -> DrawReport:
    """Count from the plan alone."""
    return DrawReport(config, draw_table(plan, tokens))


def measured(
    checkpoint: Checkpoint, plan: Plan, tokens: int, device: Device, *, weights: Mapping[str, Array] | None = None
) -> DrawReport:
    """Count from the plan, and beside it what the last run over ``tokens`` tokens really issues.

    ``weights`` are the plan's, by tensor name, where they are not the checkpoint's own.
    """
    table = draw_table(plan, tokens)
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
    return DrawReport(checkpoint.config, table, issued, device.description)


def runs(plan: Plan, ids: Sequence[int]) -> list[tuple[dict[str, Array], dict[str, int | float]]]:
    """What each run over the ids is given, arrays for input tensors and run values: one run, or one for each token."""
    if TOKENS in plan.table:
        return [({TOKENS: np.asarray(ids, dtype=np.int32)[:, None]}, plan.values_for(len(ids)))]
    return [({}, {**plan.values_for(place + 1), "token": token}) for place, token in enumerate(ids)]


def example_ids(config: ModelConfig, tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Token ids [tokens] spread over the vocabulary, the same every time."""
    return (np.arange(tokens, dtype=np.int64) * 7919 % config.vocab_size).astype(np.int32)
