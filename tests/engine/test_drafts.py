"""Drafted tokens: run together they have the bits that they have one by one, and so the text is the same without."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import agree
from made_models import IDS, of_family, opened
from scripted_models import FAST_TAIL_DRAWS

import glinfer
from glinfer.engine import model as models
from glinfer.engine.model import Model
from glinfer.engine.prefill import DraftedRows
from glinfer.engine.requests import BatchRequest
from glinfer.engine.run.cached import CachedSession
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.run.drafts import RunTimes
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import ContextError, InputError, NumbersError

pytestmark = pytest.mark.gl

PROMPT = [1, 2, 3, 4, 5]
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"seed": 5},
    "filtered": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 7},
    "penalised": {"temperature": 0, "repetition_penalty": 1.3},
    "penalised and drawn": {"repetition_penalty": 1.2, "seed": 9},
}
NGRAM = {"speculate": "ngram"}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of any number of rows take equally long, so that a draft always pays."""
    monkeypatch.setattr(RunTimes, "of", lambda self, rows: 1.0 if rows else 0.0)


def sampler_of(name: str) -> Sampler:
    return Sampler(SamplingOptions(**SAMPLERS[name]))


def drafted(session: DecodeSession, expected: list[int], sampler: Sampler) -> list[int]:
    """As many tokens as expected, by drafts of every length, right ones and some that are wrong somewhere."""
    random, found = np.random.default_rng(1), list[int]()
    while len(found) < len(expected):
        draft = expected[len(found) : len(found) + int(random.integers(0, 16))]
        if draft and random.random() < 0.5:
            wrong = int(random.integers(len(draft)))
            draft[wrong] = (draft[wrong] + 1) % 300
        found += session.accept(draft, sampler)
    return found[: len(expected)]


def check_rows(model: Model, held: int) -> None:
    """The logits of a row, and what it leaves in the caches, after so many tokens."""
    ids = [token % 300 for token in IDS]
    with model.session() as session, model.session() as single:
        assert isinstance(session, CachedSession)
        for each in (session, single):
            each.prefill(ids[:held])
            each.step(ids[held])
        for count in (2, 5, 9):
            first = len(session) - 1
            runs = session._companions.drafted(count)
            runs.choose(
                [session.ids[-1], *ids[held + 1 : held + count]], first, SamplingOptions(temperature=0), [None] * count
            )
            for row in range(count):
                found = runs.logits(row)
                assert agree(found, single.logits()), (count, row)
                single.step(ids[held + 1 + row])
            single.rewind(count)
        best = session.generate_ids(1)
        session.rewind(1)
        assert session.accept([*best, 1, 2, 3, 4], sampler_of("greedy"))[:1] == best
        session.prefill([5, 6])
        for token in session.ids[held + 1 :]:
            single.step(token)
        assert agree(session.logits(), single.logits())


class TestAccepting:
    def test_a_row_has_the_bits_that_it_has_alone(self, model: Model) -> None:
        check_rows(model, 40)

    @pytest.mark.slow
    def test_rows_of_another_family(self) -> None:
        """Over two groups of slots."""
        with opened(of_family("mistral", max_position_embeddings=150)) as model:
            check_rows(model, 129)

    def test_choices_are_those_without_a_draft(self, model: Model) -> None:
        """Across several full contexts."""
        for name in SAMPLERS:
            with model.session() as session, model.session() as other:
                for each in (session, other):
                    each.prefill(PROMPT)
                expected = other.generate_ids(120, sampler_of(name))
                assert drafted(session, expected, sampler_of(name)) == expected
                assert session.dropped >= 64
                assert 0 < session.accepted < session.drafted
                assert (session.logit_reads > 0) == ("repetition_penalty" in SAMPLERS[name])

    def test_the_sampler_goes_on_by_the_tokens_that_were_chosen(self, model: Model) -> None:
        with model.session() as session:
            session.prefill(PROMPT)
            expected = session.generate_ids(9, sampler_of("filtered"))
            session.rewind(9)
            sampler = sampler_of("filtered")
            assert session.accept([*expected[:4], expected[4] ^ 1, *expected[5:7]], sampler) == expected[:5]
            assert (sampler.step, session.ids) == (5, [*PROMPT, *expected[:5]])
            assert (session.drafted, session.accepted) == (7, 4)
            assert session.accept([], sampler) == expected[5:6]
            assert session.accept(expected[6:8], sampler) == expected[6:9]

    def test_right_behind_a_prompt_none_is_run(self, model: Model) -> None:
        """The last token of a chunk is half done, by sums in the chunk's order."""
        with model.session() as session:
            session.prefill(PROMPT)
            expected = session.generate_ids(4)
            session.hold([])
            session.prefill(PROMPT)
            issued = session.draws_issued
            assert session.accept(expected, sampler_of("greedy")) == expected[:1]
            assert (session.drafted, session.draws_issued - issued) == (0, FAST_TAIL_DRAWS)

    def test_bad_drafts_change_nothing(self, model: Model) -> None:
        with model.session() as session:
            with pytest.raises(InputError, match="the session holds no tokens"):
                session.accept([1], Sampler())
            session.prefill(PROMPT)
            with pytest.raises(InputError, match="token 1 of the draft is 300; this vocabulary has ids 0 to 299"):
                session.accept([1, 300], Sampler())
            with pytest.raises(InputError, match="the draft; expected a sequence of integers"):
                session.accept(["a"], Sampler())  # type: ignore[list-item]
            assert session.ids == PROMPT

    def test_no_object_is_made_after_the_first_runs(self, model: Model) -> None:
        with model.session() as session:
            session.prefill(PROMPT)
            for name in ("greedy", "filtered"):
                for count in (3, 15):
                    session.accept([1] * count, sampler_of(name))
            before = model.device.live_objects()
            for name, count in itertools.product(SAMPLERS, (1, 4, 9)):
                session.accept([1] * count, sampler_of(name))
            assert model.device.live_objects() == before

    def test_sessions_side_by_side_do_not_disturb_each_other(self, model: Model) -> None:
        """Their runs share the textures in between."""
        with model.session() as one, model.session() as other, model.session() as third:
            for session, prompt in ((one, PROMPT), (other, [7, 8, 9])):
                session.prefill(prompt)
            expected = [one.generate_ids(12), other.generate_ids(12)]
            one.rewind(12)
            other.rewind(12)
            for start in range(0, 12, 3):
                for session, ids in zip((one, other), expected, strict=True):
                    assert session.accept(ids[start : start + 2], sampler_of("greedy")) == ids[start : start + 3]
            forked = one.fork()
            one.close()
            assert forked.ids == [*PROMPT, *expected[0]]
            third.prefill([*PROMPT, expected[0][0]])
            assert third.generate_ids(1) == expected[0][1:2]
            assert third.accept(expected[0][2:5], sampler_of("greedy")) == expected[0][2:6]
            forked.close()

    def test_while_a_model_is_watched_tokens_run_one_by_one(self, model: Model) -> None:
        with model.session() as session:
            session.prefill(PROMPT)
            expected = session.generate_ids(4)
            session.rewind(4)
            with model.watch("logits", lambda seen: None):
                assert session.accept(expected, sampler_of("greedy")) == expected[:1]
            assert session.drafted == 0

    def test_broken_numbers_take_the_choices_back(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        with model.session() as session:
            session.prefill(PROMPT)
            expected = session.generate_ids(4)
            session.rewind(4)
            session.step(expected.pop(0))
            sampler, run = sampler_of("greedy"), DraftedRows.candidates

            def broken(runs: Any, rows: int) -> Any:
                found = run(runs, rows)
                found[2, ::4] = np.nan
                return found

            monkeypatch.setattr(DraftedRows, "candidates", broken)
            with pytest.raises(NumbersError, match="the best logit after 8 tokens is not a number"):
                session.accept(expected, sampler)
            monkeypatch.undo()
            assert (sampler.step, session.ids[:-1]) == (0, PROMPT)
            assert session.generate_ids(3, sampler) == expected


class Guesses:
    """The tokens of a continuation that is known beforehand, each ``wrong``-th of them wrong."""

    draws_issued = 0

    def __init__(self, continuation: list[int], wrong: int = 9) -> None:
        self.continuation, self.wrong, self.place = continuation, wrong, 0

    def offer(self, ids: Sequence[int]) -> int | None:
        """Find the place by the newest tokens, wherever the sequence begins by now."""
        newest, known = list(ids[-4:]), [*PROMPT, *self.continuation]
        places = (place for place in range(4, len(known)) if known[place - 4 : place] == newest)
        self.place = next(places, len(known)) - len(PROMPT)
        return 1

    def prior(self, kind: int) -> float:
        return 2 / 3

    def draft(self, ids: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        found = self.continuation[self.place : self.place + count]
        wrong = [bool(self.wrong) and not (self.place + n) % self.wrong for n in range(len(found))]
        return [abs(token - 1) if bad else token for token, bad in zip(found, wrong, strict=True)]


def both(model: Model, prompt: Any, **options: Any) -> tuple[Any, Any]:
    """The streams of a prompt without drafts and with them, read to their ends."""
    drafts = {name: options.pop(name) for name in ("speculate", "draft") if name in options}
    streams = [model.stream(prompt, **options), model.stream(prompt, **options, **drafts)]
    for stream, chunk in zip(streams, (1, 8), strict=True):
        stream.chunk = chunk
        stream.pieces = list(stream)
    return streams[0], streams[1]


@pytest.mark.usefixtures("eager")
class TestStreams:
    def test_ids_are_the_same(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        """Through full contexts, by drafts that are mostly right."""
        for name in ("greedy", "filtered"):
            guesses = Guesses(list(model.stream(PROMPT, max_tokens=130, **SAMPLERS[name])))
            monkeypatch.setattr(models, "Ngrams", lambda guesses=guesses: guesses)
            plain, guessed = both(model, PROMPT, max_tokens=130, **NGRAM, **SAMPLERS[name])
            assert guessed.ids == plain.ids
            assert guessed.stats.dropped == plain.stats.dropped >= 64
            assert (guessed.stats.tokens, guessed.stats.surplus) == (130, 0)
            assert 50 < guessed.stats.accepted < guessed.stats.drafted
            assert plain.stats.drafted == 0

    def test_an_end_within_a_draft_is_where_it_is_without(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        """By a stop id, by max_tokens, and by closing the stream."""
        ids = list(model.stream(PROMPT, max_tokens=40, seed=1))
        monkeypatch.setattr(models, "Ngrams", lambda: Guesses(ids, wrong=0))
        options: dict[str, Any] = {"max_tokens": 40, "seed": 1, **NGRAM}
        last = next(token for token in ids[20:] if token not in ids[:20])
        plain, guessed = both(model, PROMPT, stop_ids=[last], **options)
        assert (guessed.ids, guessed.stats.finish_reason) == (plain.ids, "stop")
        assert guessed.stats.tokens == plain.stats.tokens
        assert guessed.stats.accepted > 0
        for count in range(1, 12):
            assert model.generate(PROMPT, **{**options, "max_tokens": count}) == ids[:count]
        with model.stream(PROMPT, **options) as stream:
            assert [next(stream) for _ in range(25)] == ids[:25]
        assert model._own.ids == [*PROMPT, *ids[:25]]

    def test_another_model_drafts(self, small: Path, model: Model, llama: Model) -> None:
        """The same weights are always right, others sometimes; both choose with the seed and the step of the stream."""
        model._require_drafts_of = llama._require_drafts_of = lambda draft: None  # type: ignore[method-assign]
        try:
            with glinfer.load(small, device=model.device) as same:
                plain, guessed = both(model, PROMPT, max_tokens=55, draft=same, **SAMPLERS["filtered"])
                assert guessed.ids == plain.ids
                assert guessed.stats.acceptance == 1
                plain, guessed = both(model, PROMPT, max_tokens=80, draft=llama, **SAMPLERS["drawn"])
                assert guessed.ids == plain.ids
                assert guessed.stats.drafted > guessed.stats.accepted
            # Where a sequence has a token that the other vocabulary has not, nothing is drafted.
            plain, guessed = both(llama, [300, 1], max_tokens=20, seed=1, draft=model)
            assert (guessed.ids, guessed.stats.drafted) == (plain.ids, 0)
        finally:
            del model._require_drafts_of, llama._require_drafts_of


class TestRefusals:
    def test_drafts_that_cannot_be(self, model: Model, llama: Model) -> None:
        with pytest.raises(InputError, match="there is no speculate='model'; expected 'ngram', or None"):
            model.stream(PROMPT, speculate="model")
        with pytest.raises(InputError, match="found both speculate and a draft model; give one of them"):
            model.stream(PROMPT, speculate="ngram", draft=model)
        with pytest.raises(InputError, match="the draft is the model itself; expected another model"):
            model.stream(PROMPT, draft=model)
        with pytest.raises(InputError, match=r"the draft is str; expected another model that glinfer\.load has opened"):
            model.stream(PROMPT, draft="small.gab")  # type: ignore[arg-type]
        words = r"the draft model \(301 tokens\) has another tokenizer than the model \(300"
        with pytest.raises(InputError, match=words):
            model.stream(PROMPT, draft=llama)

    def test_a_draft_model_that_was_closed(self, small: Path, model: Model) -> None:
        other = glinfer.load(small, device=model.device)
        stream = model.stream(PROMPT, draft=other, seed=1)
        other.close()
        with pytest.raises(ContextError, match="this model was closed; load it again"):
            model.stream(PROMPT, draft=other)
        with pytest.raises(ContextError, match="this model was closed; load it again"):
            list(stream)
        assert stream.stats.finish_reason == "error"

    def test_prompts_that_run_together(self, model: Model) -> None:
        for name, value in (("speculate", "ngram"), ("draft", model)):
            refusal = f"{name} is for one prompt at a time; leave it out where prompts run together"
            with pytest.raises(InputError, match=refusal):
                model.generate([PROMPT, PROMPT], **{name: value})  # type: ignore[arg-type]
            with model.scheduler(slots=2) as scheduler, pytest.raises(InputError, match=refusal):
                scheduler.insert(BatchRequest(PROMPT, {name: value}))
        assert len(model.generate([PROMPT, PROMPT], speculate=None, draft=None, max_tokens=2)) == 2

    def test_the_reference_plan(self, reference: Model) -> None:
        with pytest.raises(InputError, match="drafts need the fast plan"):
            reference.stream(PROMPT, speculate="ngram")
        with reference.session() as session:
            session.prefill(PROMPT)
            expected = session.generate_ids(2)
            session.rewind(2)
            assert session.accept(expected, sampler_of("greedy")) == expected[:1]
