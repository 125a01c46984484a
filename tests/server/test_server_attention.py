"""POST /v1/attention: what the last token looks at, as the reference plan computes it, and among other requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from running_server import HELLO, Running, opening

import glinfer

pytestmark = pytest.mark.gl

TEXT = "ROMEO:\nWhat light through yonder window breaks? It is the east, and Juliet is the sun. Arise, fair sun"


def test_weights_are_those_of_the_reference_plan(served: Running) -> None:
    answer = served.post("/v1/attention", {"model": "shakespeare", "prompt": TEXT, "block": 4}).json()
    with glinfer.load("shakespeare", plan="reference") as model:
        assert model.tokenizer is not None
        expected = model.capture("blocks.4.attn.probs", TEXT)["blocks.4.attn.probs"][:, -1]
        assert answer["tokens"] == model.tokenizer.encode(TEXT)
    assert np.array(answer["weights"]).shape == expected.shape
    assert np.abs(np.array(answer["weights"]) - expected).max() < 1e-5
    assert answer["usage"]["prompt_tokens"] == len(answer["tokens"])


def test_a_reply_stands_behind_its_conversation(served: Running) -> None:
    asked = {"model": "speaker", "messages": HELLO, "reply": "<|end|>", "block": 0}
    answer = served.post("/v1/attention", asked).json()
    assert answer["tokens"][: len(opening("hi"))] == opening("hi")
    assert opening("hi")[-2] not in answer["tokens"][len(opening("hi")) :], "a reply forges no control token"
    assert np.allclose(np.array(answer["weights"]).sum(axis=1), 1, atol=1e-4)


def test_others_have_the_text_that_they_have_alone(served: Running) -> None:
    asked: dict[str, Any] = {"model": "shakespeare", "prompt": "Now is the winter", "max_tokens": 60, "seed": 3}
    look = {"model": "shakespeare", "prompt": TEXT, "block": 2}
    alone = served.post("/v1/completions", asked).json()["choices"]
    weights = served.post("/v1/attention", look).json()["weights"]
    with ThreadPoolExecutor(4) as pool:
        text = pool.submit(served.post, "/v1/completions", asked)
        looks = [pool.submit(served.post, "/v1/attention", look) for _ in range(3)]
        assert text.result(60).json()["choices"] == alone
        assert all(each.result(60).json()["weights"] == weights for each in looks)


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"block": 6}, "block", "there is no block 6; expected 0 to 5"),
        ({"block": -1}, "block", "found -1"),
        ({"prompt": "x " * 400}, "prompt", "the context of shakespeare holds 256"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "either prompt or messages"),
        ({"messages": HELLO}, "prompt", "either prompt or messages"),
        ({"prompt": None, "messages": HELLO}, "model", "chat"),
    ],
)
def test_bad_requests(served: Running, change: dict[str, Any], param: str, words: str) -> None:
    answer = served.post("/v1/attention", {"model": "shakespeare", "prompt": TEXT, "block": 0, **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


def test_as_a_method() -> None:
    with glinfer.load("shakespeare") as model:
        found: list[Any] = []

        def run() -> Iterator[int]:
            found.append((yield from model.attention_steps(1, TEXT, piece=10)))

        seen = list(run())
        assert model.tokenizer is not None
        count = len(model.tokenizer.encode(TEXT))
        assert seen == [*range(10, count - 1, 10), count - 1]
        expected = model.capture("blocks.1.attn.scores", TEXT)["blocks.1.attn.scores"][:, -1]
        powers = np.exp(expected - expected.max(axis=1, keepdims=True))
        assert np.abs(found[0] - powers / powers.sum(axis=1, keepdims=True)).max() < 1e-5
        with pytest.raises(glinfer.errors.InputError, match="no block 6"):
            next(model.attention_steps(6, TEXT))
        with pytest.raises(glinfer.errors.InputError, match="context holds 256"):
            next(model.attention_steps(0, [1] * 257))
