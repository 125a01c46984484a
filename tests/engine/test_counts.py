"""Draw counts: sessions, streams and batches count what the plan says, and what the replay loop has issued."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_models import FAST_SMALL_DRAWS, FAST_TAIL_DRAWS, SMALL_DRAWS
from token_streams import finished, stream_of

from glinfer.engine.logits import softmax
from glinfer.engine.model import Model
from glinfer.engine.prefill import MAX_SINGLE_TOKENS
from glinfer.engine.requests import BatchRequest
from glinfer.engine.run.cached import CachedSession
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.run.stats import GenerationStats
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.kernels.fused.allowed import Words, mask_words
from glinfer.lower.plain.gab import PROBS
from glinfer.structured.constraint import DeadEnd

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("chunk_at_once")]

PROMPT = [13, 132, 251, 70]
GREEDY, FILTERED = SamplingOptions(temperature=0), SamplingOptions(top_k=5, seed=3)
CHUNK_DRAWS = 9 * 2 - 4
OPERATIONS = ("logits", "probs", "step", "prefill", "rewind", "hold", "fork", "generate", "allowed", "accept", "stream")
plans = pytest.mark.parametrize("plan", ["fast", "reference"])


@pytest.fixture
def opened(request: pytest.FixtureRequest, plan: str) -> Model:
    """The small model by each plan."""
    found: Model = request.getfixturevalue("model" if plan == "fast" else "reference")
    return found


@dataclass
class Planned:
    """What one session has to issue and to save, from the numbers of draws in the plans alone."""

    fast: bool
    held: int = 0
    cached: int = 0
    handed_over: bool = False
    ready: bool = False
    issued: int = 0
    saved: int = 0

    @property
    def whole(self) -> int:
        return FAST_SMALL_DRAWS if self.fast else SMALL_DRAWS

    def extend(self, count: int) -> None:
        if count:
            self.held, self.ready, self.handed_over = self.held + count, False, False
        if self.fast and self.held - self.cached > MAX_SINGLE_TOKENS:
            self.issued, self.cached, self.handed_over = self.issued + CHUNK_DRAWS, self.held, True
        elif self.fast and self.held - 1 > self.cached:
            self.issued += (self.held - 1 - self.cached) * (FAST_SMALL_DRAWS - 2)
            self.cached = self.held - 1

    def rewind(self, count: int) -> None:
        if count:
            self.held -= count
            self.cached, self.handed_over, self.ready = min(self.cached, self.held), False, False

    def run(self, draws: int) -> None:
        """Run the newest token, up to as many draws as that."""
        done = FAST_SMALL_DRAWS - FAST_TAIL_DRAWS if self.handed_over else 0
        self.issued, self.saved = self.issued + draws - done, self.saved + done
        self.cached, self.handed_over = self.held, False

    def logits(self) -> None:
        if not self.ready:
            self.run(self.whole - self.fast)
            self.ready = True

    def choose(self, count: int, *, by_gpu: bool) -> None:
        for _ in range(count):
            if self.ready and not (self.fast and by_gpu):
                self.saved += self.whole
            else:
                # Three draws choose among filtered tokens, in place of one.
                self.run(self.whole + (0 if by_gpu or not self.fast else 2))
            self.held, self.ready = self.held + 1, False


class Mixed:
    """Sessions of one model, each with what it has to count."""

    def __init__(self, model: Model, stack: ExitStack) -> None:
        self.model, self.stack, self.fast = model, stack, model.plan.name == "fast"
        self.sessions = [(stack.enter_context(model.session()), Planned(self.fast)) for _ in range(2)]
        for session, planned in self.sessions:
            session.prefill(PROMPT)
            planned.extend(len(PROMPT))

    def do(self, operation: str, which: int, number: int) -> None:
        """Do one thing with one session; no other one counts anything then."""
        session, planned = self.sessions[which % len(self.sessions)]
        before = [each.draws_issued for each, _ in self.sessions]
        issued, expected = self.model.device.draws_issued, planned.issued
        getattr(self, operation)(session, planned, number)
        self.check()
        assert self.model.device.draws_issued - issued == planned.issued - expected
        others = zip(before, self.sessions, strict=False)
        assert all(each.draws_issued == count for count, (each, _) in others if each is not session)

    def check(self) -> None:
        for session, planned in self.sessions:
            assert (session.draws_issued, session.draws_saved) == (planned.issued, planned.saved)
            assert len(session) == planned.held

    def logits(self, session: DecodeSession, planned: Planned, number: int) -> None:
        session.logits()
        planned.logits()

    def probs(self, session: DecodeSession, planned: Planned, number: int) -> None:
        found = session.probs()
        planned.logits()
        np.testing.assert_allclose(found, softmax(session.logits()), rtol=1e-4, atol=1e-8)

    def step(self, session: DecodeSession, planned: Planned, number: int) -> None:
        session.step(number)
        planned.extend(1)

    def prefill(self, session: DecodeSession, planned: Planned, number: int) -> None:
        session.prefill(range(number))
        planned.extend(number)

    def rewind(self, session: DecodeSession, planned: Planned, number: int) -> None:
        count = min(number, len(session) - 1)
        session.rewind(count)
        planned.rewind(count)

    def hold(self, session: DecodeSession, planned: Planned, number: int) -> None:
        count = min(number, len(session) - 1)
        session.hold([*session.ids[: len(session) - count], 299])
        planned.rewind(count)
        planned.extend(1)

    def fork(self, session: DecodeSession, planned: Planned, number: int) -> None:
        copied = replace(planned, issued=0, saved=0, handed_over=False)
        self.sessions.append((self.stack.enter_context(session.fork()), copied))

    def generate(self, session: DecodeSession, planned: Planned, number: int) -> None:
        options = (GREEDY, FILTERED)[number % 2]
        session.generate_ids(number, Sampler(options))
        planned.choose(number, by_gpu=options is GREEDY)

    def allowed(self, session: DecodeSession, planned: Planned, number: int) -> None:
        words = np.full(mask_words(self.model.config.vocab_size), 2**32 - 1, np.uint32)
        session.choose_allowed(lambda: words, Sampler((GREEDY, FILTERED)[number % 2]))
        planned.choose(1, by_gpu=False)

    def accept(self, session: DecodeSession, planned: Planned, number: int) -> None:
        options, before = (GREEDY, FILTERED)[number % 2], planned.handed_over
        chosen = session.accept([number] * number, Sampler(options))
        if isinstance(session, CachedSession) and number and not before:
            planned.run(len(session._companions.drafted(number + 1).session.plan.draws) + 2 * (options is FILTERED))
            planned.held, planned.cached = planned.held + len(chosen), planned.held + len(chosen) - 1
            planned.ready = False
        else:
            planned.choose(1, by_gpu=options is GREEDY)

    def stream(self, session: DecodeSession, planned: Planned, number: int) -> None:
        options, before = (GREEDY, FILTERED)[number % 2], (planned.issued, planned.saved)
        stream = stream_of(session, session.ids, options, max_tokens=number + 1)
        stream.chunk = 1 + number // 2
        list(stream)
        planned.choose(number + 1, by_gpu=options is GREEDY)
        stats = stream.stats
        assert (stats.draws, stats.draws_saved) == (planned.issued - before[0], planned.saved - before[1])
        assert stats.prompt_draws == 0
        assert options is FILTERED or stats.draws_per_token == planned.whole


def mixed(model: Model, done: Sequence[tuple[str, int, int]]) -> None:
    with ExitStack() as stack:
        made = Mixed(model, stack)
        made.check()
        for operation, which, number in done:
            if max(len(session) for session, _ in made.sessions) < 50:  # a full context has a test of its own
                made.do(operation, which, number)


@plans
@example(done=[("logits", 0, 0), ("stream", 0, 3), ("probs", 1, 0), ("fork", 1, 0), ("allowed", 2, 1)])
@settings(max_examples=8)
@given(done=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 5)), max_size=10))
def test_all_ways_to_mix_them_count_what_is_planned_and_issued(
    shared_gab: Model, shared_reference: Model, plan: str, done: list[tuple[str, int, int]]
) -> None:
    mixed(shared_gab if plan == "fast" else shared_reference, done)


@plans
def test_probabilities_are_those_of_the_logits_whatever_runs_in_between(opened: Model, plan: str) -> None:
    with opened.session() as session, opened.session() as other:
        session.prefill(PROMPT)
        expected = session.probs()
        if plan == "reference":
            assert np.array_equal(expected, opened.bound.read(PROBS)[0]), "the plan's own, not those of a CPU"
        session.forget()
        session.logits()
        other.prefill(PROMPT[::-1])
        assert not np.array_equal(other.probs(), expected)
        with session.fork() as fork:
            found = session.probs()
            assert np.array_equal(found, expected)
            found[:] = 0
            for each in (session, fork):
                assert np.array_equal(each.probs(), expected)
            assert fork.draws_issued == 0
            fork.step(1)
            assert not np.array_equal(fork.probs(), expected)
        assert np.array_equal(session.probs(), expected)


def test_a_sequence_of_a_batch_counts_what_runs_again_when_its_context_is_full(model: Model) -> None:
    for max_tokens in (3, 70):
        with model.scheduler(slots=1) as scheduler:
            issued = model.device.draws_issued
            running = scheduler.insert(BatchRequest([5] * 10, {"max_tokens": max_tokens, "temperature": 0}))
            finished(scheduler)
            stats = running.stats
            assert (stats.tokens, stats.dropped > 0) == (max_tokens, max_tokens > 60)
            assert stats.draws + stats.prompt_draws == model.device.draws_issued - issued


def test_a_stream_with_drafts_counts_the_draft_model_too(model: Model, reference: Model) -> None:
    stats = counted(model, model.stream(PROMPT, max_tokens=12, temperature=0, draft=reference), reference)
    assert stats.drafted > 0


def test_a_text_that_comes_to_a_dead_end_counts_what_was_run(model: Model) -> None:
    class DeadAfterTwo:
        """A structure that allows everything twice, and nothing then."""

        done = complete = False
        left = 2

        def forced(self, most: int) -> list[int]:
            return []

        def mask(self) -> Words:
            if not self.left:
                raise DeadEnd
            return np.full(mask_words(model.config.vocab_size), 2**32 - 1, np.uint32)

        def push(self, token: int) -> None:
            self.left -= 1

    constraint: Any = DeadAfterTwo()
    stats = counted(model, stream_of(model._own, PROMPT, GREEDY, max_tokens=9, constraint=constraint))
    assert (stats.tokens, stats.finish_reason) == (2, "length")


def counted(model: Model, stream: Any, draft: Model | None = None) -> GenerationStats:
    """The statistics of a stream after its end, which count all that was issued for it."""
    devices = {each.device for each in (model, draft) if each is not None}
    before = sum(device.draws_issued for device in devices) - stream.stats.draws - stream.stats.prompt_draws
    list(stream)
    stats: GenerationStats = stream.stats
    assert sum(device.draws_issued for device in devices) - before == stats.draws + stats.prompt_draws
    return stats
