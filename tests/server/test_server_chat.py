"""POST /v1/chat/completions by OpenAI's client: whole and in pieces, stops, counts, log-probabilities."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any

import openai
import pytest
from running_server import HELLO, Running, opening, refused

from glinfer.server import worker

pytestmark = pytest.mark.gl

LONG: Any = [{"role": "user", "content": "x" * 20}]


def test_a_reply(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="speaker", messages=HELLO)
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "héy", "stop")
    assert (reply.object, reply.model, reply.id[:9]) == ("chat.completion", "speaker", "chatcmpl-")
    assert reply.usage is not None
    counts = reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens
    assert counts == (len(opening("hi")), 5, len(opening("hi")) + 5)


def test_a_reply_that_is_cut(client: openai.OpenAI) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        reply = client.chat.completions.create(model="speaker", messages=HELLO, **{field: 1})  # type: ignore[call-overload]
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("h", "length"), field


def test_in_pieces(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="speaker", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks[1:-2]] == ["h", "é", "y"]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 5)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_streams_that_run_together_have_fewer_pieces(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its first token at once, and here the others at its end."""
    monkeypatch.setattr(worker, "EVENT_SECONDS", 1000)
    found = dict[int, list[str]]()
    for chunk in client.chat.completions.create(model="speaker", messages=HELLO, n=2, stream=True):
        found.setdefault(chunk.choices[0].index, []).append(chunk.choices[0].delta.content or "")
    assert [list(filter(None, pieces)) for pieces in found.values()] == [["h", "éy"]] * 2


def test_counts_in_every_piece(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.chat.completions.create(model="speaker", messages=HELLO, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 5)
    assert all(chunk.usage.prompt_tokens == len(opening("hi")) for chunk in chunks)


def test_the_events_end_with_done(served: Running) -> None:
    body = {"model": "speaker", "messages": HELLO, "stream": True}
    with served.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = answer.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])


def test_stop_strings_across_tokens(client: openai.OpenAI) -> None:
    stops: list[tuple[Any, str]] = [("é", "h"), (["x", "y"], "hé"), ("éy", "h"), (["éyx", "z"], "héy")]
    for (stop, text), stream in product(stops, (False, True)):
        answer: Any = client.chat.completions.create(model="speaker", messages=HELLO, stop=stop, stream=stream)
        chunks = list(answer) if stream else [answer]
        found = "".join(
            (each.delta if stream else each.message).content or "" for each in (c.choices[0] for c in chunks)
        )
        assert (found, chunks[-1].choices[0].finish_reason) == (text, "stop"), stop


def test_several_answers_are_those_of_their_seeds(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "small", "messages": HELLO, "max_tokens": 12, "temperature": 1.0}
    many = client.chat.completions.create(**asked, n=3, seed=5)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in many.choices]
    assert len(set(texts)) == 3
    each = [client.chat.completions.create(**asked, seed=5 + place) for place in range(3)]
    assert [one.choices[0].message.content for one in each] == texts
    assert many.usage is not None
    assert many.usage.completion_tokens == sum(one.usage.completion_tokens for one in each if one.usage)
    chunks = list(client.chat.completions.create(**asked, n=3, seed=5, stream=True))
    for place, text in enumerate(texts):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == place]
        assert "".join(choice.delta.content or "" for choice in mine) == text


def test_log_probabilities(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "small", "messages": HELLO, "max_tokens": 6, "temperature": 0, "logprobs": True}
    reply = client.chat.completions.create(**asked, top_logprobs=4)
    assert reply.choices[0].logprobs is not None
    content = reply.choices[0].logprobs.content
    assert content is not None
    data = b"".join(bytes(each.bytes or []) for each in content)
    assert data.decode(errors="replace") == reply.choices[0].message.content
    for each in content:
        likely = [one.logprob for one in each.top_logprobs]
        assert likely == sorted(likely, reverse=True)
        assert (len(likely), each.logprob) == (4, likely[0]), "greedy takes the likeliest"
        assert sum(math.exp(one) for one in likely) <= 1
    chunks = list(client.chat.completions.create(**asked, stream=True))
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert [one.logprob for one in streamed] == [one.logprob for one in content]


def test_penalties_and_bias(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "speaker", "messages": LONG, "max_tokens": 4, "temperature": 0}
    assert client.chat.completions.create(**asked).choices[0].message.content == "...."
    forced = client.chat.completions.create(**asked, logit_bias={str(ord("z")): 100})
    assert forced.choices[0].message.content == "zzzz"
    banned = client.chat.completions.create(**asked, logit_bias={str(ord(".")): -100})
    assert "." not in str(banned.choices[0].message.content)


def test_a_penalty_makes_an_answer_repeat_less(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "small", "prompt": "the the", "max_tokens": 40, "temperature": 0, "logprobs": 0}
    more: tuple[dict[str, Any], ...] = ({}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0})
    found = [client.completions.create(**asked, **each).choices[0].logprobs for each in more]
    plain, *less = (len(set(each.tokens or [])) for each in found if each is not None)
    assert [count > plain for count in less] == [True, True]


BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "expected system or user"),
    ({"messages": [{"role": "system", "content": "x"}, *HELLO]}, "messages", "does not support a system prompt"),
    ({"messages": [{"role": "user", "content": "x" * 100}]}, "prompt", "tokens.*context of speaker holds 64"),
    ({"chat_template": "{{ 1 }}"}, "chat_template", "not supported"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "has no template"),
    ({"chat_template_kwargs": {str(n): 1 for n in range(101)}}, "chat_template_kwargs", "at most 100 arguments"),
    ({"continue_final_message": True}, "messages", "not a text of the assistant's"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "found both"),
    ({"best_of": 2}, "best_of", "not supported"),
    ({"temperatur": 1}, "temperatur", "no field temperatur"),
    ({"temperature": -1}, "temperature", "found -1"),
    ({"temperature": "1"}, "temperature", "found '1'; input should be a valid number"),
    ({"max_tokens": 0}, "max_tokens", "found 0"),
    ({"n": 33}, "n", "found 33"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "found 21"),
    ({"stop": ["x"] * 33}, "stop", "32"),
    ({"stop": ""}, "stop", "at least 1"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "expected a token id"),
    ({"logit_bias": {"300": 1}}, None, "outside the vocabulary"),
    ({"model": None}, "model", "missing"),
]


def test_bad_requests(served: Running) -> None:
    for change, param, words in BAD:
        answer = served.post("/v1/chat/completions", {"model": "speaker", "messages": HELLO, **change})
        assert re.search(words, refused(answer, param=param)["message"]), change


def test_what_is_harmless_is_ignored(served: Running) -> None:
    body = {"model": "speaker", "messages": HELLO, "user": "me", "metadata": {"a": "b"}, "store": True, "tools": []}
    neutral = {"best_of": 1, "response_format": {"type": "text"}, "logit_bias": {}, "stop": None, "top_k": -1}
    assert served.post("/v1/chat/completions", {**body, **neutral}).status_code == 200


def test_an_answer_is_sent_back_as_the_client_has_it(client: openai.OpenAI) -> None:
    """With all of its fields, most of which are null; one that has a call of a tool is refused by name."""
    asked: dict[str, Any] = {"model": "small", "max_tokens": 4, "temperature": 0}
    message = client.chat.completions.create(**asked, messages=HELLO).choices[0].message
    dumped: Any = {**message.model_dump(), "tool_calls": [], "annotations": []}
    plain: Any = {"role": "assistant", "content": message.content}
    assert {"function_call", "audio"} <= set(dumped)
    found = [
        client.chat.completions.create(**asked, messages=[*HELLO, each, *HELLO])
        for each in (plain, message.model_dump(), dumped)
    ]
    assert len({each.choices[0].message.content for each in found}) == 1
    assert len({each.usage and each.usage.prompt_tokens for each in found}) == 1
    for name, value in (("tool_calls", [{"id": "x"}]), ("function_call", {"name": "f"}), ("audio", {"id": "x"})):
        with pytest.raises(openai.BadRequestError, match=rf"messages\.1\.{name}"):
            client.chat.completions.create(**asked, messages=[*HELLO, {**plain, name: value}, *HELLO])
