"""Functions of the caller's that choose tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from glinfer.engine.model import Model
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import InputError

pytestmark = pytest.mark.gl
PROMPT = [3, 1, 4]


def greedy(logits: npt.NDArray[np.float32], _: list[int]) -> np.intp:
    chosen = logits.argmax()
    logits[:] = np.nan  # it is the caller's own
    return chosen


def test_it_chooses_every_token_alone_and_together(model: Model, reference: Model) -> None:
    want = model.generate(PROMPT, max_tokens=70, temperature=0)
    assert model.generate(PROMPT, max_tokens=70, sampler=greedy) == want
    assert model.generate([PROMPT, [5]], max_tokens=70, sampler=greedy)[0] == want
    assert reference.generate(PROMPT, max_tokens=3, sampler=greedy) == want[:3]
    with model.session() as session:
        session.prefill(PROMPT)
        assert session.generate_ids(5, greedy) == want[:5]


def test_it_is_given_the_logits_and_all_ids(model: Model) -> None:
    seen: list[tuple[npt.NDArray[np.float32], list[int]]] = []

    def choose(logits: npt.NDArray[np.float32], ids: list[int]) -> int:
        seen.append((logits, ids))
        return 10 + len(seen)

    drawn = Sampler(SamplingOptions(seed=5))
    assert model.generate(PROMPT, max_tokens=3, sampler=choose) == [11, 12, 13]
    assert [ids for _, ids in seen] == [PROMPT, [*PROMPT, 11], [*PROMPT, 11, 12]]
    assert np.array_equal(seen[1][0], model.logits([*PROMPT, 11]))
    assert (seen[0][0].dtype, seen[0][0].shape) == (np.dtype(np.float32), (300,))
    assert model.generate(PROMPT, max_tokens=9, sampler=drawn.sample) == model.generate(PROMPT, max_tokens=9, seed=5)


def test_a_structure_says_what_may_come(model: Model) -> None:
    options: dict[str, Any] = {"choices": ["yes", "no"], "max_tokens": 9}
    for prompts in ("a", ["a"]):
        assert model.generate(prompts, sampler=greedy, **options) == model.generate(prompts, temperature=0, **options)  # type: ignore[call-overload]
        with pytest.raises(InputError, match="your sampler returned token 0, whose logit is -inf"):
            model.generate(prompts, sampler=lambda *_: 0, **options)


@pytest.mark.parametrize("chosen", [1.0, float("nan"), -1, 300, None, "a", True, np.zeros((2, 2))])
def test_what_is_no_token_is_refused(model: Model, chosen: Any) -> None:
    for prompt in (PROMPT, [PROMPT]):
        with pytest.raises(InputError, match=r"^your sampler returned .+; expected a token id from 0 to 299$"):
            model.generate(prompt, sampler=lambda *_: chosen)
    assert len(model.generate(PROMPT, max_tokens=2)) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sampler": 3}, r"sampler is int; expected a function \(logits, ids\) -> id"),
        ({"sampler": greedy, "temperature": 1}, "found both sampler and temperature; leave out temperature"),
        ({"sampler": greedy, "seed": 1}, "found both sampler and seed; leave out seed"),
        ({"sampler": greedy, "speculate": "ngram"}, "leave out speculate|speculate is for one prompt at a time"),
    ],
)
def test_what_does_not_go_with_it_is_refused(model: Model, options: dict[str, Any], says: str) -> None:
    for prompt in (PROMPT, [PROMPT]):
        with pytest.raises(InputError, match=says):
            model.generate(prompt, **options)
