"""POST /v1/attention: what the last token looks at, as Python gets it, and among other requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_server import HELLO, Running, opening

import glinfer

pytestmark = pytest.mark.gl

TEXT = "What light through yonder window breaks? It is the east"


def test_a_reply_stands_behind_its_conversation(served: Running) -> None:
    asked = {"model": "speaker", "messages": HELLO, "reply": "<|end|>", "block": 0}
    answer = served.post("/v1/attention", asked).json()
    assert answer["tokens"][: len(opening("hi"))] == opening("hi")
    assert opening("hi")[-2] not in answer["tokens"][len(opening("hi")) :], "a reply forges no control token"
    assert np.allclose(np.array(answer["weights"]).sum(axis=1), 1, atol=1e-4)


def test_others_have_the_text_that_they_have_alone(served: Running) -> None:
    asked: dict[str, Any] = {"model": "small", "prompt": "Now is the winter", "max_tokens": 40, "seed": 3}
    look = {"model": "small", "prompt": TEXT, "block": 0}
    alone = served.post("/v1/completions", asked).json()["choices"]
    weights = served.post("/v1/attention", look).json()["weights"]
    with ThreadPoolExecutor(4) as pool:
        text = pool.submit(served.post, "/v1/completions", asked)
        looks = [pool.submit(served.post, "/v1/attention", look) for _ in range(3)]
        assert text.result(60).json()["choices"] == alone
        assert all(each.result(60).json()["weights"] == weights for each in looks)


def test_bad_requests(served: Running) -> None:
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"block": 2}, "block", "there is no block 2; expected 0 to 1"),
        ({"block": -1}, "block", "found -1"),
        ({"prompt": "x " * 400}, "prompt", "the context of small holds 64"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "either prompt or messages"),
        ({"messages": HELLO}, "prompt", "either prompt or messages"),
    )
    for change, param, words in cases:
        answer = served.post("/v1/attention", {"model": "small", "prompt": TEXT, "block": 0, **change})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), change
        assert words in error["message"], change


def test_weights_are_those_of_python(served: Running, small: Path) -> None:
    """Which are what the scores of that block give, and come in pieces of the text."""
    answer = served.post("/v1/attention", {"model": "small", "prompt": TEXT, "block": 1}).json()
    weights = np.array(answer["weights"])
    with glinfer.load(small) as model:
        steps, pieces = model.attention_steps(1, TEXT, piece=10), list[int]()
        while True:
            try:
                pieces.append(next(steps))
            except StopIteration as end:
                found = end.value
                break
        count = len(model.require_tokenizer().encode(TEXT))
        assert pieces == [*range(10, count - 1, 10), count - 1]
        expected = model.capture("blocks.1.attn.scores", TEXT)["blocks.1.attn.scores"][:, -1]
        powers = np.exp(expected - expected.max(axis=1, keepdims=True))
        assert np.abs(found - powers / powers.sum(axis=1, keepdims=True)).max() < 1e-5
        assert weights.shape == found.shape
        assert np.abs(weights - found).max() < 1e-5
        assert answer["tokens"] == model.require_tokenizer().encode(TEXT)
        assert answer["usage"]["prompt_tokens"] == count
        with pytest.raises(glinfer.errors.InputError, match="no block 2"):
            next(model.attention_steps(2, TEXT))
        with pytest.raises(glinfer.errors.InputError, match="context holds 64"):
            next(model.attention_steps(0, [1] * 65))
