"""Draw counts: planned (no GPU needed) and really issued."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.models.gab import TOKENS
from glinfer.models.plan import DrawTable, Plan, draw_table
from glinfer.models.session import Session


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
            "config": dataclasses.asdict(self.config),
        }


def planned(config: ModelConfig, plan: Plan, tokens: int) -> DrawReport:
    """Count from the plan alone."""
    return DrawReport(config, draw_table(plan, tokens))


def measured(checkpoint: Checkpoint, plan: Plan, tokens: int, device: Device) -> DrawReport:
    """Count from the plan, and beside it what one real forward over ``tokens`` tokens issues."""
    table = draw_table(plan, tokens)
    session = Session(plan, checkpoint.tensors, device)
    try:
        before = device.draws_issued
        session.write(TOKENS, example_ids(checkpoint.config, tokens)[:, None])
        session.run({"rows": tokens})
        issued = device.draws_issued - before
    finally:
        session.release()
    return DrawReport(checkpoint.config, table, issued, device.description)


def example_ids(config: ModelConfig, tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Token ids [tokens] spread over the vocabulary, the same every time."""
    return (np.arange(tokens, dtype=np.int64) * 7919 % config.vocab_size).astype(np.int32)
