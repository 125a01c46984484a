"""An engine beside glinfer that is always there: the float64 oracle, one whole run for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glinfer.formats import Checkpoint
from glinfer.lower.plain.gab import LOGITS, TOKENS, reference_plan
from glinfer.program.oracle import final_tensors
from qa.peers.peer import Logits, Peer


def oracle(checkpoint: Checkpoint, ids: Sequence[int]) -> Any:
    """Float64 logits [vocab] after ``ids``."""
    tokens = {TOKENS: np.array(ids, dtype=np.int32)[:, None]}
    return final_tensors(reference_plan(checkpoint.config), checkpoint.tensors, tokens, {"rows": len(ids)})[LOGITS][0]


class OraclePeer(Peer):
    """Keeps the tokens, and runs them all each time."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.config, "oracle")
        self.checkpoint = checkpoint
        self.ids: list[int] = []

    def append(self, ids: Sequence[int]) -> Logits:
        self.ids += ids
        found: Logits = oracle(self.checkpoint, self.ids).astype(np.float32)
        return found

    def rewind(self, length: int) -> None:
        del self.ids[length:]

    def close(self) -> None:
        self.ids.clear()
