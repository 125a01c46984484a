"""What the tests of llama.cpp's server and of vLLM's ask of theirs, asked here; docs/server.md lists case by case."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from running_server import HELLO, Running, refused

pytestmark = pytest.mark.gl

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs" / "notes" / "server.md"
PROMPT = "I believe the meaning"
GREEDY: dict[str, Any] = {"model": "small", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
LONG = PROMPT * 64


def changed(server: Running, path: str, change: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The error of a request with such a change."""
    base = {"model": "small", "messages": HELLO} if "chat" in path else {"model": "small", "prompt": "x"}
    return refused(server.post(path, {**base, **change}), **fields)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit(served: Running, stream: bool) -> None:
    """Is refused before a stream begins, with its length and the limit."""
    long = {"prompt": LONG, "stream": stream}
    changed(served, "/v1/completions", long, words="holds 64", code="context_length_exceeded")
    changed(served, "/v1/chat/completions", {"messages": HELLO * 100, "stream": stream})


def test_ids_and_texts_in_one_list(served: Running) -> None:
    changed(served, "/v1/completions", {"prompt": [[1, 2], "x"]})
    changed(served, "/v1/completions", {"prompt": [1, 2, "x"]})


def test_lists_with_several_answers(client: openai.OpenAI, served: Running) -> None:
    ids = served.post("/tokenize", {"model": "small", "prompt": PROMPT}).json()["tokens"]
    for prompts in ([PROMPT] * 2, [ids] * 2):
        many = client.completions.create(**{**GREEDY, "prompt": prompts, "temperature": 1.0}, n=2, seed=1)
        texts = [choice.text for choice in many.choices]
        assert (texts[0], texts[1]) == (texts[2], texts[3])
        assert texts[0] != texts[1]
        pieces = [""] * 2
        for chunk in client.completions.create(**{**GREEDY, "prompt": prompts}, stream=True):
            pieces[chunk.choices[0].index] += chunk.choices[0].text
        assert pieces[0] == pieces[1] != ""


def test_log_probabilities_of_completions(client: openai.OpenAI) -> None:
    assert client.completions.create(**GREEDY).choices[0].logprobs is None
    for count in (0, 5):
        found = client.completions.create(**GREEDY, logprobs=count).choices[0].logprobs
        assert found is not None
        assert all(value <= 0 for value in found.token_logprobs or [])
        assert all(max(count, 1) <= len(top) <= count + 1 for top in found.top_logprobs or [])
        assert len(found.tokens or []) == len(found.top_logprobs or []) == 8
    letters = client.completions.create(**{**GREEDY, "model": "speaker"}, logprobs=3).choices[0]
    assert letters.logprobs is not None
    assert "".join(letters.logprobs.tokens or []) == letters.text
    assert letters.logprobs.text_offset == [*range(8)]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError):
            client.completions.create(**GREEDY, logprobs=21, stream=stream)


def test_stream_options_without_a_stream(served: Running) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        for stream, name in itertools.product((None, False), ("include_usage", "continuous_usage_stats")):
            changed(served, path, {"stream": stream, "stream_options": {name: True}}, param="stream_options")


def test_stream_options_that_ask_for_nothing(client: openai.OpenAI) -> None:
    empty: tuple[Any, ...] = ({}, {"include_usage": False})
    for options in empty:
        chunks = list(client.completions.create(**GREEDY, stream=True, stream_options=options))
        assert all(chunk.usage is None for chunk in chunks)


MESSAGES = [None, "string", [], [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [{"content": "x"}]]
MESSAGES += [[{"role": "system", "content": "x"}, {}], [{"role": "my-own-role", "content": "x"}]]
MESSAGES += [[*HELLO, *[{"role": "assistant", "content": "x"}] * 2], [{"role": "user", "content": []}]]
MESSAGES += [[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]]
MESSAGES += [[{"role": "user", "content": "x", "extra_field": "0"}]]


def test_messages_that_are_none(served: Running) -> None:
    for messages in MESSAGES:
        changed(served, "/v1/chat/completions", {"messages": messages})


def test_parts_of_a_message(client: openai.OpenAI) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    asked: dict[str, Any] = {"model": "small", "seed": 0, "max_tokens": 8}
    one, other = (client.chat.completions.create(**asked, messages=each) for each in (parts, HELLO))
    assert one.choices[0].message.content == other.choices[0].message.content


UNKNOWN = ("json_schema", "grammar", "structured_outputs", "use_beam_search", "prompt_logprobs")
UNKNOWN += ("truncate_prompt_tokens", "timings_per_token", "return_progress", "n_probs", "min_tokens", "maxTokens")


def test_fields_of_other_servers(served: Running) -> None:
    """Are refused by name: ignored, they would give another answer than was asked for."""
    for field in UNKNOWN:
        error = changed(served, "/v1/completions", {field: 1}, param=field, code="unknown_parameter")
        assert error["message"] == f"there is no field {field}; see /openapi.json"
    message = {"role": "user", "content": "x", "max-Tokens": 1}
    error = changed(served, "/v1/chat/completions", {"messages": [message]})
    assert error["message"] == "there is no field messages.0.'max-Tokens'; see /openapi.json"


def test_seeds_of_more_than_64_bits(served: Running) -> None:
    for seed in (-(1 << 63) - 1, 1 << 63):
        changed(served, "/v1/chat/completions", {"seed": seed}, param="seed")


def test_an_answer_as_long_as_the_context(client: openai.OpenAI) -> None:
    """No context is shifted: an answer ends where it is full."""
    answer = client.completions.create(model="small", prompt="x", max_tokens=999, seed=2, logit_bias={"65": 100})
    assert (answer.choices[0].finish_reason, answer.usage and answer.usage.total_tokens) == ("length", 64)


def test_the_table_names_tests_that_there_are() -> None:
    """And names every test of this module."""
    named = set(re.findall(r"`(test_\w+)`", DOCS.read_text("utf-8")))
    there = {name for path in HERE.glob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))}
    assert named <= there | {path.stem for path in HERE.glob("test_*.py")}, named - there
    mine = set(re.findall(r"def (test_\w+)", Path(__file__).read_text("utf-8")))
    assert mine - {"test_the_table_names_tests_that_there_are"} <= named
