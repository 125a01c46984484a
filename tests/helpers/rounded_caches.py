"""What tests of caches in half floats and in bytes have in common: prompts, and sequences that never were a chunk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from made_models import IDS, Array, fresh

from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest

PROMPT = IDS[:13]
REQUESTS = [
    BatchRequest(IDS[:3], {"max_tokens": 9, "temperature": 0}, 0),
    BatchRequest(IDS[5:30], {"max_tokens": 12, "seed": 1}, 1),
    BatchRequest(IDS[:40], {"max_tokens": 20, "seed": 2}, 2),  # over a full context
    BatchRequest([5], {"max_tokens": 5, "seed": 3, "top_k": 9}, 3),
]


def one_by_one(model: Model, ids: list[int]) -> Array:
    """The logits after some tokens that never were a chunk."""
    with model.session() as session:
        for token in ids:
            session.step(token)
        return session.logits()


def check_forks_rewinds_and_full_contexts(model: Model, alike: Callable[[Array, Array], bool]) -> None:
    """They go on as a sequence does that was never anything else; ``alike`` compares with single tokens."""
    with model.session() as session:
        session.prefill(IDS[:20])
        with session.fork() as fork:
            fork.rewind(6)
            fork.prefill(IDS[40:50])
            assert np.array_equal(fork.logits(), fresh(model, [*IDS[:14], *IDS[40:50]]))
        assert np.array_equal(session.logits(), fresh(model, IDS[:20]))
        session.prefill(IDS[20:60])
        assert session.dropped
        assert alike(session.logits(), one_by_one(model, session.ids))
