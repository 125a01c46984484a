"""Streams of ids over a session, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.sampler import SamplingOptions
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
