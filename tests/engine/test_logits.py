"""What a request adds to a row of logits, and the log-probabilities that it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.engine.logits import MIN_LOGPROB, LogitChanges, token_logprob
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest, BatchResult
from glinfer.errors import InputError


def test_changes_by_hand() -> None:
    changes = LogitChanges(presence_penalty=0.5, frequency_penalty=0.25, bias={2: 3.0, 0: -1.0})
    assert changes.applied(np.zeros(4, np.float32), [1, 1, 0]).tolist() == [-1.75, -1.0, 3.0, 0.0]


def test_nothing_to_change() -> None:
    assert LogitChanges.checked(0, 0.0, {}, 10) is None
    assert LogitChanges.checked(0, 0, None, 10) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("x", 0, None), "presence_penalty is 'x'; expected a finite number"),
        ((0, float("inf"), None), "frequency_penalty is inf; expected a finite number"),
        ((0, True, None), "frequency_penalty is True; expected a finite number"),
        ((0, 0, [1]), "logit_bias is list; expected a mapping"),
        ((0, 0, {10: 1}), "token 10 of logit_bias is outside the vocabulary; expected 0 to 9"),
        ((0, 0, {-1: 1}), "expected a whole number of at least 0"),
        ((0, 0, {1: None}), "the logit_bias of token 1 is None"),
    ],
)
def test_changes_that_cannot_be(given: tuple[Any, Any, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        LogitChanges.checked(*given, 10)
    assert words in str(caught.value)


def test_log_probabilities_by_hand() -> None:
    found = token_logprob(np.log(np.array([0.5, 0.125, 0.125, 0.25], np.float32)), 2, 3)
    assert found.logprob == pytest.approx(np.log(0.125))
    assert [token for token, _ in found.top] == [0, 3, 1], "of equal ones the lowest id"
    assert [logprob for _, logprob in found.top] == pytest.approx(np.log([0.5, 0.25, 0.125]))
    assert token_logprob(np.array([0.0, -np.inf], np.float32), 1, 0) == (1, MIN_LOGPROB, [])


@pytest.fixture
def model(small: Path) -> Iterator[Model]:
    with glinfer.load(small) as opened:
        yield opened


def one(model: Model, **options: Any) -> BatchResult:
    (result,) = model.batch([BatchRequest([1, 2, 3], {"max_tokens": 8, **options})])
    return result


@pytest.mark.gl
class TestInABatch:
    @pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 1}, {"seed": 1, "top_k": 5}], ids=str)
    def test_log_probabilities_change_no_token(self, model: Model, options: dict[str, Any]) -> None:
        plain, told = one(model, **options), one(model, **options, logprobs=2)
        assert told.ids == plain.ids
        assert plain.logprobs is None
        assert told.logprobs is not None
        for place, found in enumerate(told.logprobs):
            logits = model.logits([1, 2, 3, *told.ids[:place]]).astype(np.float64)
            expected = logits[told.ids[place]] - np.log(np.exp(logits).sum())
            assert (found.token, found.logprob) == (told.ids[place], pytest.approx(expected, abs=1e-4))
            assert found.top[0][0] == int(logits.argmax())

    def test_bias_and_penalties(self, model: Model) -> None:
        assert one(model, temperature=0, logit_bias={7: 100}).ids == [7] * 8
        first = one(model, temperature=0).ids[0]
        assert first not in one(model, temperature=0, logit_bias={first: -100}).ids
        assert len(set(one(model, temperature=0, presence_penalty=100.0).ids)) == 8
        assert one(model, temperature=0, logit_bias={7: 100}, frequency_penalty=60.0).ids[:3] != [7] * 3
