"""Sessions: prefill, step, rewind and fork, sampling on the GPU, full contexts, and what may not happen per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import moderngl
import numpy as np
import pytest
from agreement import agree
from made_models import of_family, opened

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.run.cached import CachedSession
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import InputError, PlanError
from glinfer.gl.context import open_device
from glinfer.gl.program import Program, ProgramCache
from glinfer.gl.texture import Texture
from glinfer.program.session import Session

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("chunk_at_once")]

PROMPT = [13, 132, 251, 70]
SAMPLERS = {
    "greedy": SamplingOptions(temperature=0),
    "plain": SamplingOptions(seed=5),
    "cold": SamplingOptions(temperature=0.3, seed=6),
    "hot": SamplingOptions(temperature=3.0, seed=2**70),
    "filtered": SamplingOptions(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=7),
    "penalised": SamplingOptions(temperature=0, repetition_penalty=1.3),
}


@pytest.fixture(scope="module")
def mistral() -> Iterator[Model]:
    """A model with a context of 8 tokens, and a window of 3."""
    with opened(of_family("mistral", max_position_embeddings=8, sliding_window=3)) as made:
        yield made


@pytest.fixture(
    scope="module",
    params=["shared_gab", *(pytest.param(name, marks=pytest.mark.slow) for name in ("shared_reference", "mistral"))],
)
def short(request: pytest.FixtureRequest) -> Model:
    """A model by the fast plan, by the reference plan, and of another family."""
    found: Model = request.getfixturevalue(request.param)
    return found


def context_of(model: Model) -> int:
    return model.config.max_position_embeddings


def fresh(model: Model, ids: list[int]) -> np.ndarray[Any, Any]:
    """The logits that a session gives which has never held anything else."""
    with model.session() as session:
        session.prefill(ids)
        return session.logits()


class TestHolding:
    """Everything here is the same in both plans, and of every family."""

    def test_a_new_one_is_empty_and_says_so(self, short: Model) -> None:
        with short.session() as session:
            assert (session.ids, len(session), session.dropped) == ([], 0, 0)
            for use in (session.logits, session.probs, lambda: session.generate_ids(1)):
                with pytest.raises(InputError, match="the session holds no tokens; prefill at least one"):
                    use()
            session.prefill([])
            assert session.generate_ids(0) == []
            assert len(session) == 0

    def test_a_rewind_is_as_if_it_had_never_been(self, short: Model) -> None:
        ids = [1, 2, 3, 4, 5]
        with short.session() as session:
            for count in range(6):
                session.rewind(len(session))
                session.prefill(ids)
                session.logits()
                session.rewind(count)
                assert session.ids == ids[: 5 - count]
                if count < 5:
                    assert agree(session.logits(), fresh(short, ids[: 5 - count]))
                session.prefill([7, 8])
                assert agree(session.logits(), fresh(short, [*ids[: 5 - count], 7, 8]))
            session.hold([])
            session.prefill(ids)
            session.rewind(1)  # the prompt has left its last token half done, which the next one must not take over
            session.step(9)
            assert agree(session.logits(), fresh(short, [1, 2, 3, 4, 9]))

    def test_numbers_that_cannot_be_change_nothing(self, short: Model) -> None:
        with short.session() as session:
            session.prefill([1, 2])
            for count in (-1, 1.0, "1", None, True):
                with pytest.raises(
                    InputError, match=r"the number to rewind by is .*; expected an integer of at least 0"
                ):
                    session.rewind(count)  # type: ignore[arg-type]
                with pytest.raises(InputError, match=r"the number of tokens to generate is .*; expected an integer of"):
                    session.generate_ids(count)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="cannot rewind by 3 tokens; the session holds 2"):
                session.rewind(3)
            assert session.ids == [1, 2]

    def test_bad_tokens_change_nothing(self, short: Model) -> None:
        vocab = short.config.vocab_size
        bad: list[tuple[Any, str]] = [
            ([vocab], f"token 0 of the tokens is {vocab}; this vocabulary has ids 0 to {vocab - 1}"),
            ([1, -1], "token 1 of the tokens is -1"),
            ([7.0], "the tokens; expected a sequence of integers"),
            (b"ab", "found bytes for the tokens"),
            (5, "the tokens; expected a sequence of integers"),
        ]
        with short.session() as session:
            session.prefill([1, 2])
            for ids, error in bad:
                for use in (session.prefill, session.hold):
                    with pytest.raises(InputError, match=error):
                        use(ids)
                    assert session.ids == [1, 2]

    def test_a_full_context_drops_its_oldest_half_and_goes_on(self, short: Model) -> None:
        context = context_of(short)
        half = context // 2
        with short.session() as session:
            session.prefill(range(context))
            assert (len(session), session.dropped, session.room) == (context, 0, 1)
            session.step(context)
            assert (session.ids, session.dropped) == ([*range(half, context + 1)], half)
            assert agree(session.logits(), fresh(short, session.ids))
            session.prefill(range(10, 10 + context + half))
            assert session.dropped == 4 * half
            assert session.ids == [*range(10 + context - 1, 10 + context + half)]
            assert agree(session.logits(), fresh(short, session.ids))

    def test_a_token_that_is_only_chosen_needs_no_place(self, short: Model) -> None:
        context = context_of(short)
        half = context // 2
        with short.session() as session:
            session.prefill(range(context - 1))
            first = session.generate_ids(2)
            assert (len(session), session.dropped, session.room) == (context + 1, 0, half)
            expected = fresh(short, [*range(half, context - 1), *first])
            assert agree(session.logits(), expected)
            assert (session.ids, session.dropped) == ([*range(half, context - 1), *first], half)
            assert session.generate_ids(1) == [int(expected.argmax())]

    def test_both_plans_agree_up_to_a_full_context_and_over_it(self, model: Model, reference: Model) -> None:
        with model.session() as session:
            for tokens in (1, 2, 63, 64):
                ids = list(range(1, tokens + 1))
                session.hold(ids)
                assert session.room == 65 - tokens
                np.testing.assert_allclose(session.logits(), reference.logits(ids), atol=1e-5)
        for name in ("greedy", "plain"):
            found = set()
            for made, chunk in ((model, 1), (model, 7), (reference, 20)):
                with made.session() as session:
                    session.prefill(range(55))
                    sampler, chosen = Sampler(SAMPLERS[name]), list[int]()
                    while len(chosen) < 20:
                        chosen += session.generate_ids(min(chunk, 20 - len(chosen)), sampler)
                    found.add((tuple(chosen), tuple(session.ids), session.dropped))
            assert [dropped for _, _, dropped in found] == [32]

    def test_a_fork_in_every_state_knows_what_its_parent_knows(self, short: Model) -> None:
        states: list[Callable[[DecodeSession], Any]] = [
            lambda session: None,
            lambda session: session.logits(),
            lambda session: session.generate_ids(3),
            lambda session: session.rewind(2),
            lambda session: session.generate_ids(6),
            lambda session: session.prefill(range(10, 10 + context_of(short))),
        ]
        for state in states:
            with short.session() as session:
                session.prefill([1, 2, 3])
                state(session)
                with session.fork() as other:
                    assert (other.ids, other.dropped) == (session.ids, session.dropped)
                    session.step(9)
                    session.rewind(1)
                    assert agree(other.logits(), session.logits())
                    assert other.generate_ids(9) == session.generate_ids(9)


class TestCached:
    """What only the fast plan does."""

    def test_the_gpu_chooses_by_the_logits_alone(self, model: Model) -> None:
        with model.session() as session:
            for plain in ({}, {"temperature": 0}, {"top_k": 300}, {"temperature": 3.0, "seed": 1}):
                assert session.chooses(SamplingOptions(**plain))
            for greedy in ({"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.1}):
                assert session.chooses(SamplingOptions(temperature=0, **greedy)), "filters leave the likeliest"
            for filtered in ({"top_k": 299}, {"top_p": 0.99}, {"min_p": 0.01, "temperature": 1e19}):
                assert session.chooses(SamplingOptions(**filtered))
            assert session.chooses(SamplingOptions(repetition_penalty=1.1))
            assert not session.chooses(SamplingOptions(min_p=0.01, temperature=1e21))

    @pytest.mark.parametrize("name", ["greedy", "plain", "filtered"])
    def test_nothing_is_made_or_compiled_per_token(
        self, model: Model, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        made: list[str] = []
        makers = ("texture", "framebuffer", "program", "vertex_array", "buffer", "renderbuffer", "sampler", "scope")
        for maker in makers:
            original = getattr(moderngl.Context, maker)
            monkeypatch.setattr(
                moderngl.Context, maker, lambda *a, _o=original, _n=maker, **k: made.append(_n) or _o(*a, **k)
            )
        with model.session() as session:
            assert "texture" in made, "the spies work"
            session.prefill(PROMPT)
            assert isinstance(session, CachedSession)
            session.generate_ids(2, Sampler(SAMPLERS[name]))
            session.logits()
            assert session._companions.chunks, "the chunk plan was bound with the first prompt"
            alive, programs = model.device.live_objects(), model.bound.program_count
            made.clear()
            monkeypatch.setattr(ProgramCache, "get", None)
            monkeypatch.setattr(Program, "__init__", None)
            monkeypatch.setattr(Session, "texture", None)
            monkeypatch.setattr(Session, "_framebuffer", None)
            session.prefill([1, 2, 3, 4, 5])
            session.generate_ids(10, Sampler(SAMPLERS[name]))
            session.rewind(3)
            session.logits()
            for token in range(80):  # across a full context
                session.step(token)
                session.probs()
            assert made == []
            assert model.device.live_objects() == alive
            assert model.bound.program_count == programs
            assert session.dropped > 0
            monkeypatch.undo()

    def test_a_fork_shares_weights_and_programs_and_frees_what_is_its_own(self, model: Model) -> None:
        model.logits(PROMPT)  # the chunk plan's programs and scratch textures are made once, for all sequences
        alive, programs = model.device.live_objects(), model.bound.program_count
        with model.session() as session:
            session.prefill(PROMPT)
            own = model.device.live_objects() - alive
            assert own["program"] == 0
            weights = len(model.plan.of_kind("weight"))
            assert own["texture"] == len(model.plan.tensors) - weights
            with session.fork() as other:
                assert isinstance(session, CachedSession)
                assert isinstance(other, CachedSession)
                assert other._bound._owner is session._bound._owner is model.bound
                other.prefill(PROMPT)
                assert model.device.live_objects() - alive == own + own
        assert model.device.live_objects() == alive
        assert model.bound.program_count == programs

    def test_a_session_that_is_forgotten_goes_with_its_model(self, small: Path) -> None:
        with open_device() as device:
            model = glinfer.load(small, device=device)
            first = model.session()
            first.prefill(PROMPT)
            forgotten = model.session().fork()
            forgotten.prefill([7, *PROMPT])
            model.close()
            assert sum(device.live_objects().values()) == 0
            with pytest.raises(PlanError, match="was released; bind the plan again"):
                forgotten.fork()
            for ids in ([1, 2], [1, 2, 3, 4]):
                with pytest.raises(PlanError, match="was released; bind the plan again"):
                    forgotten.prefill(ids)
            with pytest.raises(PlanError, match="was released; bind the plan again"):
                first.prefill(PROMPT)
            forgotten.close()
            first.close()

    @pytest.mark.parametrize("name", ["greedy", "plain", "cold", "hot"])
    def test_many_tokens_with_one_readback_are_the_samplers(self, model: Model, llama: Model, name: str) -> None:
        reads: list[tuple[str, int]] = []
        read_rows = Texture.read_rows

        def spy(texture: Texture, first: int, rows: int) -> np.ndarray[Any, Any]:
            reads.append((texture.name, rows))
            return read_rows(texture, first, rows)

        for made in (model, llama):
            with made.session() as session, pytest.MonkeyPatch.context() as patch:
                session.prefill([1])
                patch.setattr(Texture, "read", None)
                patch.setattr(Texture, "read_rows", spy)
                found = session.generate_ids(40, Sampler(SAMPLERS[name]))
                patch.undo()
                session.hold([1])
                sampler = Sampler(SAMPLERS[name])
                for token in found:
                    assert sampler.sample(session.logits()) == token
                    session.step(token)
        assert reads == [("picks", 40)] * 2
