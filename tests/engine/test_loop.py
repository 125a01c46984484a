"""The token loop over fake models: every way to end, what is counted, what is yielded, who is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_streams import stream_of

from glinfer.config import ModelConfig
from glinfer.engine.run.decode import DecodeSession, RecomputeSession
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.engine.stream import TokenStream
from glinfer.errors import ContextError, InputError

VOCAB = 20
GREEDY = SamplingOptions(temperature=0)


def logits_for(token: int) -> npt.NDArray[np.float32]:
    row = np.zeros(VOCAB, np.float32)
    row[token] = 9.0
    return row


class Counter:
    """A fake model: the next token is the length of the sequence; it notes every sequence it was given."""

    def __init__(self, fail_at: int | None = None, error: BaseException | None = None) -> None:
        self.seen: list[list[int]] = []
        self.draws = 0
        self.fail_at, self.error = fail_at, error

    def __call__(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        self.seen.append(list(ids))
        self.draws += 7
        if self.error is not None and len(self.seen) == self.fail_at:
            raise self.error
        return logits_for(len(ids) % VOCAB)


def holding(forward: Callable[[Sequence[int]], Any] | None = None, context: int = 100) -> RecomputeSession:
    """A session over a fake model."""
    config = ModelConfig.from_options(f"vocab={VOCAB},dim=4,heads=1,blocks=1,context={context}")
    return RecomputeSession(config, forward or Counter(), count_draws=lambda: 0)


def make(
    forward: Callable[[Sequence[int]], Any] | None = None,
    prompt: Sequence[int] = (0, 0),
    *,
    session: DecodeSession | None = None,
    context: int = 100,
    **options: Any,
) -> TokenStream:
    settings: dict[str, Any] = {"max_tokens": 5, **options}
    session = holding(forward, context) if session is None else session
    return stream_of(session, prompt, settings.pop("sampling", GREEDY), **settings)


class Chooser(RecomputeSession):
    """A session that chooses several tokens at once, as the fast plan does; it notes how many each time."""

    def __init__(self, forward: Callable[[Sequence[int]], Any], context: int) -> None:
        self.__dict__.update(holding(forward, context).__dict__)
        self.chunks: list[int] = []

    def chooses(self, options: SamplingOptions) -> bool:
        return options.top_k == 0

    def _choose(self, count: int, sampler: Sampler) -> list[int]:
        self.chunks.append(count)
        return [token for _ in range(count) for token in super(Chooser, self)._choose(1, sampler)]


def make_and_run(**options: Any) -> TokenStream:
    stream = make(**options)
    list(stream)
    return stream


def test_chunks_change_nothing_but_when_it_is_computed() -> None:
    for chunk, max_tokens in itertools.product((2, 3, 8, 1000), (1, 5, 30)):
        session = Chooser(Counter(), 10)
        stream = make(session=session, max_tokens=max_tokens)
        stream.chunk = chunk
        expected = make_and_run(max_tokens=max_tokens, context=10)
        assert list(stream) == expected.ids
        assert (stream.stats.dropped, stream.stats.tokens) == (expected.stats.dropped, max_tokens)
        assert stream.stats.surplus == 0
        assert sum(session.chunks) == max_tokens
        assert max(session.chunks) <= min(chunk, 10)


def test_what_was_computed_behind_a_stop_is_forgotten_again() -> None:
    model = Counter()
    session = Chooser(model, 100)
    stream = make(session=session, stop_ids=[4], max_tokens=50)
    stream.chunk = 8
    assert list(stream) == [2, 3]
    assert session.ids == [0, 0, 2, 3, 4]
    assert (stream.stats.tokens, stream.stats.surplus, stream.stats.finish_reason) == (3, 5, "stop")


def test_what_was_computed_when_it_is_closed_is_forgotten_again() -> None:
    session = Chooser(Counter(), 100)
    stream = make(session=session, max_tokens=50)
    stream.chunk = 8
    assert next(stream) == 2
    stream.close()
    assert session.ids == [0, 0, 2]
    other = make(session=session, max_tokens=50)
    other.chunk = 8
    next(other)
    session.hold([9])
    other.close()
    assert session.ids == [9], "what another use holds by now is left alone"


def test_without_the_gpus_choice_nothing_is_computed_ahead() -> None:
    session = Chooser(Counter(), 100)
    stream = make(session=session, sampling=SamplingOptions(temperature=0, top_k=3), max_tokens=50)
    stream.chunk = 8
    next(stream)
    assert session.chunks == [1]


def test_a_session_that_is_closed_ends_the_stream_with_an_error() -> None:
    session, ends = Chooser(Counter(), 100), Mock()
    stream = make(session=session, max_tokens=50, on_end=ends)
    stream.chunk = 2
    next(stream)
    session.close("gone")
    assert next(stream) == 3, "it was computed before"
    with pytest.raises(ContextError, match="gone"):
        next(stream)
    assert (ends.call_count, stream.stats.finish_reason) == (1, "error")


def test_one_that_is_closed_after_its_last_token_was_not_cut_short() -> None:
    for options, reason in (({"max_tokens": 2}, "length"), ({"max_tokens": 3}, "closed")):
        ends = Mock()
        stream = make(on_end=ends, **options)
        assert ([next(stream), next(stream)], ends.call_count) == ([2, 3], 0)
        stream.close()
        assert (stream.stats.finish_reason, ends.call_count) == (reason, 1)


@pytest.mark.parametrize("error", [InputError("no"), ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_inside_forward_comes_through_and_closes(error: BaseException) -> None:
    ends = Mock()
    stream = make(Counter(fail_at=2, error=error), on_end=ends)
    assert next(stream) == 2
    with pytest.raises(type(error)) as caught:
        next(stream)
    assert caught.value is error
    reason = "closed" if isinstance(error, KeyboardInterrupt) else "error"
    assert (ends.call_count, stream.stats.finish_reason, stream.ids) == (1, reason, [2])
    assert list(stream) == []
    assert ends.call_count == 1


def test_seconds_leave_out_what_the_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("glinfer.engine.stream.time.perf_counter", lambda: now[0])

    def forward(ids: Sequence[int]) -> npt.NDArray[np.float32]:
        now[0] += 0.5
        return logits_for(1)

    stream = make(forward)
    assert (stream.stats.tokens_per_second, stream.stats.draws_per_token) == (0.0, 0.0)
    next(stream)
    now[0] += 100.0
    next(stream)
    assert stream.stats.seconds == 1.0
    assert stream.stats.tokens_per_second == 2.0


@given(
    prompt=st.integers(1, 8),
    max_tokens=st.integers(1, 12),
    context=st.integers(8, 12),
    stop=st.sets(st.integers(1, 12)),
)
def test_the_ids_are_the_longest_run_that_all_limits_allow(
    prompt: int, max_tokens: int, context: int, stop: set[int]
) -> None:
    ends = Mock()
    stream = make(prompt=[0] * prompt, max_tokens=max_tokens, context=context, stop_ids=list(stop), on_end=ends)
    # The next token is the length of the sequence, and a full context is cut to its newer half and the newest token.
    lengths = [prompt]
    while len(lengths) < max_tokens:
        lengths.append(lengths[-1] + 1 if lengths[-1] < context else context // 2 + 1)
    computed = [length % VOCAB for length in lengths]
    before_stop = [token for place, token in enumerate(computed) if stop.isdisjoint(computed[: place + 1])]
    assert list(stream) == before_stop
    assert ends.call_count == 1
    if before_stop != computed:
        assert stream.stats.finish_reason == "stop"
    else:
        assert stream.stats.finish_reason == "length"
