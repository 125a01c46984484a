"""POST /v1/responses by OpenAI's client, without state."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from running_server import Running, opening

pytestmark = pytest.mark.gl


def test_a_response(client: openai.OpenAI) -> None:
    parts = [{"type": "input_text", "text": "hi"}]
    inputs: list[Any] = [
        "hi",
        [{"role": "user", "content": "hi"}],
        [{"type": "message", "role": "user", "content": parts}],
        [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "hi"}],
    ]
    for given in inputs:
        answer = client.responses.create(model="speaker", input=given)
        assert (answer.output_text, answer.status, answer.id[:5]) == ("héy", "completed", "resp_"), given
        assert answer.usage is not None
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(opening("hi")), 5)


def test_a_response_that_is_cut(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="speaker", input="hi", max_output_tokens=1)
    assert (answer.output_text, answer.status) == ("h", "incomplete")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_events(client: openai.OpenAI) -> None:
    """As a client that writes code sends it, tools and all."""
    given: dict[str, Any] = {
        "model": "speaker",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "tools": [{"type": "function", "name": "shell", "parameters": {}, "strict": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "x",
    }
    events = list(client.responses.create(stream=True, **given))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:7]) == "héy"
    assert events[-1].response.output_text == "héy"
    with client.responses.stream(**given) as stream:
        assert stream.get_final_response().output_text == "héy"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
    ({"background": True}, "background is not supported"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format needs a schema exactly if its type is json_schema"),
    ({"text": {"format": {"type": "text", "schema": {}}}}, "exactly if its type is json_schema"),
    ({"text": {"format": {"type": "sound"}}}, "found 'sound'"),
    ({"tool_choice": "required"}, "but the request has no tools; send them"),
    ({"tool_choice": "required", "tools": [{"type": "function", "name": "now"}]}, "has no place for tools"),
    ({"tools": [{"type": "function", "name": "what now"}]}, "tools.0.function.name: found 'what now'"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "none are kept"),
    ({"input": [{"role": "user"}]}, "lacks role or content"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "lacks call_id, name or arguments"),
    ({"input": [{"type": "function_call", "name": "x", "call_id": "a", "arguments": "["}]}, "not a JSON object"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "lacks call_id or output"),
    ({"input": [{"type": "computer_call"}]}, "computer_call"),
    ({"input": []}, "at least 1"),
    ({"instructions": "Be kind."}, "no place for a system prompt"),
]


def test_bad_requests(served: Running) -> None:
    for change, words in BAD:
        answer = served.post("/v1/responses", {"model": "speaker", "input": "hi", **change})
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]["message"], change
