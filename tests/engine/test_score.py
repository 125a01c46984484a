"""``Model.score``: log-probabilities of whole texts, against the logits of one token after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import IDS, mixed, of_family, opened
from token_streams import random_ids as ids_of

import glinfer
from glinfer.engine.logits import log_softmax
from glinfer.engine.model import Model
from glinfer.engine.score import SLOT_ALIGNMENT, TextScore, windows
from glinfer.errors import InputError
from glinfer.gl.context import Limits
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

CONTEXT = 64
RELATIVE = 2e-6


def stepped(model: Model, ids: Sequence[int], stride: int | None = None) -> TextScore:
    """The same by the fast plan alone: the logits of every token of every window, softmax in float64."""
    context = model.config.max_position_embeddings
    found = TextScore.unknown(ids)
    for start, stop, scored in windows(len(ids), context, context // 2 if stride is None else stride):
        with model.session() as session:
            for place in range(start, stop):
                session.step(ids[place])
                if place + 1 >= scored:
                    logits = session.logits()
                    found.logprobs[place] = log_softmax(logits)[ids[place + 1]]
                    found.likeliest[place] = logits.argmax()
                    found.best[place] = log_softmax(logits).max()
    return found


def assert_agree(found: TextScore, expected: TextScore, absolute: float = 0.0) -> None:
    assert found.ids == expected.ids
    assert (found.logprobs.dtype, found.logprobs.shape) == (np.float64, (len(expected.ids) - 1,))
    np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=RELATIVE, atol=absolute)
    assert found.likeliest.tolist() == expected.likeliest.tolist()


def assert_same_bits(found: TextScore, expected: TextScore) -> None:
    assert found.ids == expected.ids
    assert np.array_equal(found.logprobs, expected.logprobs)
    assert np.array_equal(found.likeliest, expected.likeliest)


class TestNumbers:
    def test_of_texts_within_the_context(self, model: Model) -> None:
        texts: list[Any] = [ids_of(count, count) for count in (2, 3, 16, 17, 40, CONTEXT, CONTEXT + 1)]
        texts.append("Once upon a time there was")
        for found, ids in zip(model.score(texts), texts, strict=True):
            held = model.require_tokenizer().encode(ids) if isinstance(ids, str) else ids
            assert_agree(found, stepped(model, held))

    def test_total_and_perplexity(self) -> None:
        by_hand = TextScore([1, 2, 3], np.log([0.5, 0.125]), np.array([2, 2]), np.log([0.5, 0.25]))
        assert by_hand.total == pytest.approx(-4 * math.log(2))
        assert by_hand.perplexity == pytest.approx(4)

    def test_of_texts_longer_than_the_context(self, model: Model) -> None:
        for count, stride in ((CONTEXT + 2, None), (150, None), (150, CONTEXT), (90, 11)):
            ids = ids_of(count, 2)
            assert_agree(model.score([ids], stride=stride)[0], stepped(model, ids, stride))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["llama", "mistral", "mixed", "webgl2"])
    def test_of_other_families_formats_and_limits(self, small: Path, name: str) -> None:
        if name == "webgl2":
            made = glinfer.load(small, limits=Limits.webgl2_minimum(), weights="q8l")
        else:
            window = {"sliding_window": 7} if name == "mistral" else {}
            made = opened(mixed("gpt2") if name == "mixed" else of_family(name, **window))
        texts = [[token % 300 for token in ids] for ids in (IDS[:17], IDS[20:140], IDS[3:9])]
        with made as model:
            for found, ids in zip(model.score(texts), texts, strict=True):
                assert_agree(found, stepped(model, ids), absolute=1e-6)


class TestRuns:
    def test_texts_of_exactly_a_chunk_and_around_it(
        self, model: Model, small: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows: list[int] = []
        run = Session.run

        def spy(self: Session, values: Any, **options: Any) -> int:
            if self.plan.name == "score":
                rows.append(values["rows"])
            return run(self, values, **options)

        monkeypatch.setattr(Session, "run", spy)
        with glinfer.load(small, kernels=replace(model.kernels, chunk=SLOT_ALIGNMENT)) as pieces:
            for counts, runs in (
                ([17], [16]),  # the last token is only predicted
                ([18], [16, 1]),
                ([2, 2, 2, 2], [1, 1, 1, 1]),  # the second would begin at 16
                ([17, 17, 2], [16, 16, 1]),
                ([50, 2, 40], [16, 16, 16, 1, 1, 16, 16, 7]),
            ):
                texts = [ids_of(count, place) for place, count in enumerate(counts)]
                rows.clear()
                found = pieces.score(texts)
                assert rows == runs
                for one, ids in zip(found, texts, strict=True):
                    assert_agree(one, stepped(pieces, ids))
        rows.clear()
        model.score([ids_of(10, place) for place in range(9)])
        assert rows == [57, 57, 9], "four texts of nine rows each, beginning at multiples of 16"

    def test_it_leaves_sequences_alone_and_makes_its_plan_once(self, model: Model) -> None:
        ids = ids_of(30, 5)
        logits = model.logits(ids)
        model.score([ids_of(20, 6)])
        alive = model.device.live_objects()
        for _ in range(3):
            model.score([ids_of(20, 7), ids_of(100, 8)])
        assert model.device.live_objects() == alive
        model.logits([1])
        assert np.array_equal(model.logits(ids), logits)


class TestRefusals:
    def test_texts_and_strides(self, model: Model) -> None:
        refused: list[tuple[Any, str]] = [
            ([[1]], "text 0 has 1 token; expected at least 2, one to predict from another"),
            (["x" * 9, ""], "text 1 has 0 tokens; expected at least 2"),
            (b"Once upon", "the texts are bytes; expected a list of them"),
            (5, "the texts are int; expected a list of them"),
            ([1, 2, 3], "text 0; expected a sequence of integers"),
            ([[1, 2], [3, 300]], "token 1 of text 1 is 300; this vocabulary has ids 0 to 299"),
            ([[1, 2.0]], "text 0; expected a sequence of integers"),
            ([b"ab"], "found bytes for text 0"),
            ([None], "text 0; expected a sequence of integers"),
        ]
        draws = model.device.draws_issued
        for texts, words in refused:
            with pytest.raises(InputError) as refusal:
                model.score(texts)
            assert words in str(refusal.value)
        for stride in (0, -1, CONTEXT + 1, 1.5, "2", True):
            with pytest.raises(InputError, match=f"the stride is {stride!r}; expected 1 to {CONTEXT}"):
                model.score([[1, 2, 3]], stride=stride)  # type: ignore[arg-type]
        assert model.score([]) == []
        assert model.device.draws_issued == draws

    def test_the_reference_plan(self, reference: Model) -> None:
        words = r"score needs the fast plan; leave out plan='reference' \(--plan reference\)"
        with pytest.raises(InputError, match=words):
            reference.score([[1, 2]])

    def test_arrays_and_tuples_are_texts(self, model: Model) -> None:
        expected = model.score([[1, 2, 3]])[0]
        for texts in ([np.array([1, 2, 3])], ((1, 2, 3),), np.array([[1, 2, 3]])):
            assert_same_bits(model.score(texts)[0], expected)  # type: ignore[arg-type]
