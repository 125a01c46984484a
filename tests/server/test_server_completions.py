"""POST /v1/completions, /v1/score and the routes about tokens: what harnesses need of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import openai
import pytest
from running_server import HELLO, WORDS, Running, opening

import glinfer

pytestmark = pytest.mark.gl

PROMPT = "Once upon a time"
ASKED: dict[str, Any] = {"model": "small", "max_tokens": 10, "seed": 3, "temperature": 0.8}


def test_text_and_ids_are_the_same_prompt(client: openai.OpenAI, served: Running) -> None:
    ids = served.post("/tokenize", {"model": "small", "prompt": PROMPT}).json()["tokens"]
    one = client.completions.create(prompt=PROMPT, **ASKED)
    many = client.completions.create(prompt=[PROMPT, PROMPT[:5]], **ASKED)
    assert client.completions.create(prompt=ids, **ASKED).choices[0].text == one.choices[0].text
    assert client.completions.create(prompt=[ids, ids[:2]], **ASKED).choices[0].text == one.choices[0].text
    assert many.choices[0].text == one.choices[0].text
    assert [choice.index for choice in many.choices] == [0, 1]
    assert one.usage is not None
    assert one.usage.prompt_tokens == len(ids)
    echoed = client.completions.create(prompt=PROMPT, echo=True, **ASKED).choices[0].text
    assert echoed == PROMPT + one.choices[0].text
    plain = client.completions.create(model="speaker", prompt=PROMPT)
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 16, "where no number is named"


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_log_probabilities(served: Running, client: openai.OpenAI, max_tokens: int, stream: bool) -> None:
    """The request of lm-evaluation-harness: ids, echo, one logprob."""
    bodies = [{"model": "small", "prompt": text} for text in (PROMPT, "a")]
    prompts = [served.post("/tokenize", body).json()["tokens"] for body in bodies]
    answer: Any = client.completions.create(
        model="small", prompt=prompts, max_tokens=max_tokens, temperature=0, logprobs=1, echo=True, stream=stream
    )
    data = served.post("/v1/score", {"model": "small", "input": [prompts[0]]}).json()["data"][0]
    if stream:
        chunks = [chunk.choices[0] for chunk in answer if chunk.choices[0].index == 0]
        text = "".join(chunk.text for chunk in chunks)
        tops = [top for chunk in chunks if chunk.logprobs for top in chunk.logprobs.top_logprobs]
        values = [value for chunk in chunks if chunk.logprobs for value in chunk.logprobs.token_logprobs]
        offsets = [value for chunk in chunks if chunk.logprobs for value in chunk.logprobs.text_offset]
    else:
        choice = answer.choices[0]
        text, tops, values = choice.text, choice.logprobs.top_logprobs, choice.logprobs.token_logprobs
        offsets = choice.logprobs.text_offset
        assert len(answer.choices[1].logprobs.tokens) == 1 + max_tokens
    assert text.startswith(PROMPT)
    assert (len(values), len(offsets)) == (len(prompts[0]) + max_tokens,) * 2
    assert values[: len(prompts[0])] == data["token_logprobs"]
    assert tops[0] is None
    pairs = zip(values[1 : len(prompts[0])], tops[1:], data["likeliest"][1:], prompts[0][1:], strict=False)
    for value, top, likeliest, token in pairs:
        assert (value == max(top.values())) == (likeliest == token)
    assert [text[start:][:1] for start in offsets[:2]] == [text[0], text[offsets[1]]]


def test_texts_and_scores_are_those_of_python(served: Running, client: openai.OpenAI, small: Path) -> None:
    """The defaults of sampling are the model's own too."""
    texts = ["To be, or not to be", "that is the question:\n" * 5]
    answer = served.post("/v1/score", {"model": "small", "input": texts}).json()
    with glinfer.load(small) as model:
        expected, text = model.score(texts), model.generate(PROMPT, max_tokens=20, seed=4)
    assert client.completions.create(model="small", prompt=PROMPT, max_tokens=20, seed=4).choices[0].text == text
    for found, score in zip(answer["data"], expected, strict=True):
        assert found["tokens"] == score.ids
        assert found["token_logprobs"] == [None, *score.logprobs.tolist()]
        assert found["total"] == score.total
        assert found["perplexity"] == score.perplexity
        assert all(math.isfinite(each) for each in found["token_logprobs"][1:])
    assert answer["usage"]["prompt_tokens"] == sum(len(score.ids) for score in expected)


def test_tokens_there_and_back(served: Running) -> None:
    found = served.post("/tokenize", {"model": "speaker", "prompt": "héy"}).json()
    assert found == {"tokens": list("héy".encode()), "count": 4, "max_model_len": 64}
    assert served.post("/detokenize", {"model": "speaker", "tokens": found["tokens"]}).json() == {"prompt": "héy"}
    found = served.post("/apply-template", {"model": "speaker", "messages": HELLO}).json()
    assert found == {"prompt": WORDS.decode(opening("hi")), "tokens": opening("hi")}
    assert served.post("/tokenize", {"model": "speaker", "messages": HELLO}).json()["tokens"] == opening("hi")


def test_no_tokens_have_no_log_probabilities(served: Running) -> None:
    """Lists without elements, as of any other choice whose request asks for log-probabilities."""
    body = {"model": "small", "prompt": "x", "max_tokens": 0, "logprobs": 1}
    answer = served.post("/v1/completions", body).json()
    empty = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert answer["choices"] == [{"index": 0, "text": "", "logprobs": empty, "finish_reason": "length"}]
    assert answer["usage"]["total_tokens"] == 1


BAD: list[tuple[str, Any, str]] = [
    ("/v1/completions", {"prompt": ""}, "at least 1 character"),
    ("/v1/completions", {"prompt": []}, "at least 1 item"),
    ("/v1/completions", {"prompt": [[1], [-1]]}, "ids 0 to 299"),
    ("/v1/completions", {"prompt": [300]}, "ids 0 to 299"),
    ("/v1/completions", {"prompt": "x" * 64}, "and 1 more for the answer; the context of speaker holds 64"),
    ("/v1/completions", {"prompt": "x" * 65, "max_tokens": 0}, "65 tokens; the context of speaker holds 64"),
    ("/v1/completions", {"prompt": "x", "echo": True, "logprobs": 2}, "expected 0 or 1"),
    ("/v1/completions", {"prompt": "x", "best_of": 2}, "best_of is not supported"),
    ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix is not supported"),
    ("/v1/completions", {"prompt": ["x"] * 100, "n": 3}, "300 sequences; this server takes at most"),
    ("/v1/score", {"input": ["x"]}, "at least 2"),
    ("/v1/score", {"input": ["x" * 40000, "x" * 40000]}, "80000 tokens; expected at most 65536"),
    ("/tokenize", {}, "either prompt or messages"),
    ("/tokenize", {"prompt": "x", "messages": HELLO}, "either prompt or messages"),
    ("/detokenize", {"tokens": [300]}, "ids 0 to 299"),
    ("/apply-template", {"messages": [{"role": "user", "content": ""}]}, "empty"),
    ("/v1/completions", {"prompt": "x", "temperature": -1}, "found -1"),
]


def test_bad_requests(served: Running) -> None:
    for path, change, words in BAD:
        answer = served.post(path, {"model": "speaker", **change})
        assert answer.status_code == 400, (path, change, answer.text)
        assert words in answer.json()["error"]["message"], (path, change)
