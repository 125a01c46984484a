"""Streams of ids over a session without a model, schedulers that run to their end, and random prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.sampler import SamplingOptions
from glinfer.engine.scheduler import Event, Scheduler
from glinfer.engine.stream import TokenStream


def stream_of(
    session: DecodeSession,
    prompt: Sequence[int],
    sampling: SamplingOptions,
    *,
    max_tokens: int,
    stop_ids: Sequence[int] = (),
    constraint: Any = None,
    **further: Any,
) -> TokenStream:
    """Continue a prompt of checked ids; ``further`` are options of TokenStream."""
    request, ends = BatchRequest(prompt), frozenset(stop_ids)
    return TokenStream(
        session, Running(request, list(prompt), sampling, max_tokens, ends, constraint=constraint), **further
    )


def finished(scheduler: Scheduler) -> list[Event]:
    """All events until nothing is left to do."""
    events = []
    while len(scheduler):
        events += scheduler.next()
    return events


def random_ids(count: int, seed: int = 1, vocab: int = 300) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return found
