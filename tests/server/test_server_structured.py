"""Structured answers over HTTP: response_format, guided fields, and what is refused."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import jsonschema
import openai
import pytest
from running_server import HELLO, Running, refused

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("no_processes")]
pytest.importorskip("llguidance", reason="llguidance is not installed")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["king", "fool"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}


def written(client: openai.OpenAI, **options: Any) -> Any:
    given: Any = {"model": "small", "prompt": "ROMEO:", "max_tokens": 50, "seed": 3, "temperature": 1.3, **options}
    found = client.completions.create(**given)
    return found if "stream" in options else found.choices[0]


def test_a_schema(client: openai.OpenAI) -> None:
    choice = written(client, extra_body={"response_format": FORMAT})
    jsonschema.validate(json.loads(choice.text), SCHEMA)
    assert choice.finish_reason == "stop"
    cut = written(client, max_tokens=4, extra_body={"response_format": FORMAT})
    assert (cut.finish_reason, choice.text.startswith(cut.text)) == ("length", True)


def test_guided_fields(client: openai.OpenAI) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"guided_regex": "[A-Z]{3}-[0-9]{2}"}, "[A-Z]{3}-[0-9]{2}"),
        ({"guided_choice": ["yes", "nö"]}, "yes|nö"),
        ({"guided_json": {"enum": [1, "zwei"]}}, '1|"zwei"'),
        ({"guided_json": json.dumps(SCHEMA)}, '\\{"name": ".*", "kind": "(king|fool)"\\}'),
        ({"guided_grammar": 'start: "a" ("b" | "c")~3'}, "a[bc]{3}"),
    )
    for guided, expected in cases:
        choice = written(client, extra_body=guided)
        assert re.fullmatch(expected, choice.text), guided
        assert choice.finish_reason == "stop"


def test_a_response(client: openai.OpenAI) -> None:
    given: Any = {"model": "small", "input": "Who are you?", "max_output_tokens": 45, "extra_body": {"seed": 3}}
    form: Any = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}
    for each in (form, {"type": "json_object"}):
        response = client.responses.create(**given, text={"format": each})
        assert response.output_text.startswith("{")
        assert response.to_dict()["text"] == {"format": each}
        if each is form:
            jsonschema.validate(json.loads(response.output_text), SCHEMA)
        *_, last = client.responses.create(**given, text={"format": each}, stream=True)
        assert last.response.output_text == response.output_text


DEEP: Any = {"type": "integer"}
for _ in range(120):
    DEEP = {"type": "array", "items": DEEP}


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "sound"}}, "response_format", "found 'sound'"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "needs a json_schema exactly if"),
    ({"guided_json": {"not": {}}}, "guided_json", '"not"'),
    ({"guided_json": DEEP}, "guided_json", "nested more than"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
    ({"guided_regex": "a" * (1 << 19)}, "guided_regex", "bytes; expected at most"),
    ({"guided_grammar": "start: nobody"}, "guided_grammar", "nobody"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "found both guided_regex and guided_choice"),
    ({"guided_regex": "a", "response_format": FORMAT}, "guided_regex", "found both"),
]


def test_bad_structures(served: Running) -> None:
    asked = {"/v1/completions": {"prompt": "hi"}, "/v1/chat/completions": {"messages": HELLO}}
    for route, (change, param, words) in [*product(asked, BAD[:4]), *product(["/v1/completions"], BAD[4:])]:
        answer = served.post(route, {"model": "speaker", **asked[route], **change})
        assert len(refused(answer, words=words, param=param)["message"]) < 500


def test_the_server_goes_on_after_a_structure_that_is_too_complex(served: Running) -> None:
    """A grammar that may read the same text in endlessly many ways runs into the library's bound of one step."""
    rules = "\n".join(f"r{place}: r{place + 1} r{place + 1} | /[a-z]/" for place in range(30)) + '\nr30: "z" | '
    body = {"model": "small", "prompt": "hi", "max_tokens": 30, "guided_grammar": f"start: r0\n{rules}"}
    answer = served.post("/v1/completions", body)
    if answer.status_code != 200:
        refused(answer, code="structure_too_complex")
    assert served.post("/v1/completions", {"model": "small", "prompt": "hi", "max_tokens": 2}).status_code == 200
