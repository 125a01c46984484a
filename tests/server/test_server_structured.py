"""Structured answers over HTTP: response_format, guided fields, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import openai
import pytest
from running_server import HELLO, Running
from tiers import tiered

pytestmark = pytest.mark.gl
pytest.importorskip("llguidance", reason="llguidance is not installed")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["king", "fool"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}


def written(client: openai.OpenAI, **options: Any) -> Any:
    given: Any = {
        "model": "shakespeare",
        "prompt": "ROMEO:",
        "max_tokens": 120,
        "seed": 3,
        "temperature": 1.3,
        **options,
    }
    return client.completions.create(**given).choices[0]


def test_a_schema(client: openai.OpenAI) -> None:
    choice = written(client, extra_body={"response_format": FORMAT})
    jsonschema.validate(json.loads(choice.text), SCHEMA)
    assert choice.finish_reason == "stop"


def test_any_object(client: openai.OpenAI) -> None:
    """Random weights write no end: what there is of the object is JSON as far as it goes."""
    choice = written(client, extra_body={"response_format": {"type": "json_object"}})
    assert choice.text.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.text), dict)


@pytest.mark.parametrize(
    ("guided", "expected"),
    [
        ({"guided_regex": "[A-Z]{3}-[0-9]{2}"}, "[A-Z]{3}-[0-9]{2}"),
        ({"guided_choice": ["yes", "nö"]}, "yes|nö"),
        ({"guided_json": {"enum": [1, "zwei"]}}, '1|"zwei"'),
        ({"guided_json": json.dumps(SCHEMA)}, '\\{"name": ".*", "kind": "(king|fool)"\\}'),
        ({"guided_grammar": 'start: "a" ("b" | "c")~3'}, "a[bc]{3}"),
    ],
)
def test_guided_fields(client: openai.OpenAI, guided: dict[str, Any], expected: str) -> None:
    choice = written(client, extra_body=guided)
    assert re.fullmatch(expected, choice.text)
    assert choice.finish_reason == "stop"


def test_a_chat_in_pieces(client: openai.OpenAI) -> None:
    given: Any = {"model": "small", "messages": HELLO, "max_tokens": 40, "seed": 1}
    whole = client.chat.completions.create(**given, extra_body={"guided_regex": "[a-z]{4}!"})
    pieces = list(client.chat.completions.create(**given, stream=True, extra_body={"guided_regex": "[a-z]{4}!"}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content
    assert re.fullmatch("[a-z]{4}!", text)
    assert pieces[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("schema", [SCHEMA, None], ids=["schema", "any object"])
def test_a_response(client: openai.OpenAI, schema: dict[str, Any] | None) -> None:
    form: Any = {"type": "json_object"}
    if schema is not None:
        form = {"type": "json_schema", "name": "person", "schema": schema, "strict": True}
    given: Any = {"model": "small", "input": "Who are you?", "max_output_tokens": 120, "extra_body": {"seed": 3}}
    response = client.responses.create(**given, text={"format": form})
    assert response.output_text.startswith("{")
    assert response.to_dict()["text"] == {"format": form}
    if schema is not None:
        jsonschema.validate(json.loads(response.output_text), schema)
    *_, last = client.responses.create(**given, text={"format": form}, stream=True)
    assert last.response.output_text == response.output_text


def test_several_answers_are_those_of_their_seeds(client: openai.OpenAI) -> None:
    given: Any = {"model": "shakespeare", "prompt": "KING:", "max_tokens": 60, "seed": 5}
    body = {"response_format": FORMAT}
    both = [each.text for each in client.completions.create(**given, n=2, extra_body=body).choices]
    alone = [client.completions.create(**{**given, "seed": seed}, extra_body=body).choices[0].text for seed in (5, 6)]
    assert both == alone


def test_an_object_that_is_cut(client: openai.OpenAI) -> None:
    choice = written(client, max_tokens=4, extra_body={"response_format": FORMAT})
    assert choice.finish_reason == "length"
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(choice.text)


def test_a_structured_answer_leaves_free_ones_beside_it_as_they_are(client: openai.OpenAI) -> None:
    """Both kinds in one request of several prompts cannot be; so two requests whose sequences run together."""
    alone = written(client, max_tokens=60).text
    stream = client.completions.create(
        model="shakespeare", prompt="ROMEO:", max_tokens=60, seed=3, temperature=1.3, stream=True
    )
    pieces = [next(iter(stream)).choices[0].text]
    written(client, extra_body={"response_format": FORMAT})
    pieces += [piece.choices[0].text for piece in stream]
    assert "".join(pieces) == alone


DEEP: Any = {"type": "integer"}
for _ in range(120):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"response_format": {"type": "sound"}}, "response_format", "found 'sound'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "has a json_schema if"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format", "only then"),
        ({"guided_json": {"not": {}}}, "guided_json", '"not"'),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", '"uniqueItems"'),
        ({"guided_json": "{"}, "guided_json", "no JSON"),
        ({"guided_json": DEEP}, "guided_json", "nested more than"),
        ({"guided_json": {"$ref": "https://example.org/x"}}, "guided_json", "not present"),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
        ({"guided_regex": "(" * 200 + ")" * 200}, "guided_regex", "nested 200 deep"),
        ({"guided_regex": "a" * (1 << 19)}, "guided_regex", "bytes; expected at most"),
        ({"guided_regex": "(?=a)a"}, "guided_regex", "look-around"),
        ({"guided_regex": ""}, "guided_regex", "is empty"),
        ({"guided_grammar": "start: nobody"}, "guided_grammar", "nobody"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "choice 1 is"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "found both guided_regex and guided_choice"),
        ({"guided_regex": "a", "response_format": FORMAT}, "guided_regex", "found both"),
    ],
)
@tiered("route", ["/v1/completions", "/v1/chat/completions"], keep=1)
def test_bad_structures(served: Running, route: str, change: dict[str, Any], param: str, words: str) -> None:
    asked = {"prompt": "hi"} if route == "/v1/completions" else {"messages": HELLO}
    answer = served.post(route, {"model": "speaker", **asked, **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert words in error["message"]
    assert len(error["message"]) < 500
    assert "\n" not in error["message"]


def test_the_server_goes_on_after_a_structure_that_is_too_complex(served: Running) -> None:
    """A grammar that may read the same text in endlessly many ways runs into the library's bound of one step."""
    rules = "\n".join(f"r{place}: r{place + 1} r{place + 1} | /[a-z]/" for place in range(30)) + '\nr30: "z" | '
    body = {"model": "small", "prompt": "hi", "max_tokens": 30, "guided_grammar": f"start: r0\n{rules}"}
    answer = served.post("/v1/completions", body)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["code"] == "structure_too_complex"
    assert served.post("/v1/completions", {"model": "small", "prompt": "hi", "max_tokens": 2}).status_code == 200
