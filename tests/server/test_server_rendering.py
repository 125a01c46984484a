"""How conversations become prompts: arguments of the template, messages that are continued, and messages of calls."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from each_case import each_case
from running_server import Running, refused, running
from template_models import write_other

from glinfer.text import own_process, templates
from glinfer.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("no_processes")]

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools[0].function.name }}{% endif %}{{ note }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}-{% endif %}{% endif %}"
)
USER, BEGUN = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hel"}
ASKED = "<|im_start|>user\nhi<|im_end|>"
OPENED = f"{ASKED}<|im_start|>assistant\n"
CONTINUED = {"messages": [USER, BEGUN], "continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, no_processes: None) -> Iterator[tuple[Running, Tokenizer]]:
    """A model that continues BEGUN with "lo", and says "nolo" after ``-``."""
    folder = tmp_path_factory.mktemp("other")
    _, words = write_other(folder, {}, TEMPLATE)
    at = len(words.encode(OPENED))
    path, words = write_other(folder, {at: "no", at + 2: "lo"}, TEMPLATE)  # a token has the place of the one before it
    with running(("other", path), ("org/other", path), slots=2) as found:
        yield found, words


def prompt(server: Running, **body: Any) -> str:
    answer = server.post("/apply-template", {"model": "other", "messages": [USER], **body}).json()
    same = server.post("/tokenize", {"model": "other", "messages": [USER], **body}).json()
    assert same.get("tokens") == answer.get("tokens")
    return str(answer["error"]["message"] if "error" in answer else answer["prompt"])


@each_case(
    ("body", "found"),
    [
        ({}, OPENED),
        ({"chat_template_kwargs": {}}, OPENED),
        ({"chat_template_kwargs": {"enable_thinking": False}}, f"{OPENED}-"),
        ({"chat_template_kwargs": {"enable_thinking": True, "note": ["é"]}}, f"['é']{OPENED}"),
        ({"add_generation_prompt": False}, ASKED),
        ({"add_generation_prompt": True, "continue_final_message": False}, OPENED),
        (CONTINUED, f"{OPENED}hel"),
        ({"messages": [USER, BEGUN], "continue_final_message": True}, f"{OPENED}hel"),
        ({**CONTINUED, "messages": [USER, {**BEGUN, "content": "hel \n"}]}, f"{OPENED}hel \n"),
        ({**CONTINUED, "messages": [USER, {**BEGUN, "content": ""}]}, OPENED),
        ({"messages": [USER, BEGUN], "add_generation_prompt": False}, f"{OPENED}hel<|im_end|>"),
    ],
)
def test_prompts(other: tuple[Running, Tokenizer], body: Any, found: str) -> None:
    assert prompt(other[0], **body) == found


@each_case(
    ("command", "status", "code", "words"),
    [
        (["/no/such/program"], 503, "no_process", "could be started (No such file or directory)"),
        (["false"], 400, None, "was stopped (status 1); its limits are 10 seconds and 1024 MiB"),
    ],
)
def test_processes_that_fail_are_in_the_log(
    other: tuple[Running, Tokenizer],
    capfd: pytest.CaptureFixture[str],
    command: Any,
    status: int,
    code: Any,
    words: str,
) -> None:
    start = subprocess.Popen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "answer_of", own_process.answer_of)
        patch.setattr(subprocess, "Popen", lambda _, **how: start(command, **how))
        answer = other[0].post("/apply-template", {"model": "other", "messages": [USER]})
    assert refused(answer, status, code=code)["message"].endswith(words)
    assert capfd.readouterr().err.endswith(f"{words}\n")


def test_arguments_spell_no_control_tokens(other: tuple[Running, Tokenizer]) -> None:
    body = {"model": "other", "messages": [USER], "chat_template_kwargs": {"note": "<|im_end|>"}}
    found = other[0].post("/apply-template", body).json()
    assert found["prompt"] == f"<|im_end|>{OPENED}"
    assert found["tokens"].count(other[1].special_id("<|im_end|>")) == 1


@each_case(
    ("body", "words"),
    [
        ({"chat_template_kwargs": {"thinking": 1}}, "no argument 'thinking'; expected enable_thinking, note"),
        ({"chat_template_kwargs": {"messages": []}}, "no argument 'messages'"),
        ({"continue_final_message": True}, "is not a text of the assistant's"),
        ({**CONTINUED, "add_generation_prompt": True}, "found both add_generation_prompt and continue_final_message"),
        ({"messages": None, "prompt": "x", "add_generation_prompt": False}, "need messages"),
    ],
)
def test_refused(other: tuple[Running, Tokenizer], body: Any, words: str) -> None:
    refused(other[0].post("/tokenize", {"model": "other", "messages": [USER], **body}), words=words)


def test_answers(other: tuple[Running, Tokenizer]) -> None:
    """A continued message's answer has what is new, whole and in a stream; the same template serves responses."""
    server, usual = other[0], {"model": "org/other", "max_tokens": 9, "temperature": 0}
    whole = server.post("/v1/chat/completions", {**usual, **CONTINUED}).json()
    assert whole["choices"][0]["message"]["content"] == "lo"
    assert whole["usage"]["prompt_tokens"] == len(other[1].encode(f"{OPENED}hel"))
    stream = server.post("/v1/chat/completions", {**usual, **CONTINUED, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks) == "lo"
    given = {
        "input": "hi",
        "chat_template_kwargs": {"enable_thinking": False},
        "max_output_tokens": 9,
        "temperature": 0,
    }
    answer = server.post("/v1/responses", {"model": "org/other", **given}).json()
    assert answer["output"][0]["content"][0]["text"] == "nolo"
    assert server.get("/v1/models/org/other").json()["id"] == "org/other"


def called(arguments: str, content: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def test_messages_of_calls(other: tuple[Running, Tokenizer]) -> None:
    """Blank arguments are none, and such a message needs no content."""
    server = other[0]
    for arguments in ("", " ", "\n", "\r\n\t ", "{}", " {} "):
        for content in (None, [], ""):
            assert prompt(server, messages=[USER, called(arguments, content), USER]).count("{}<|im_end|>") == 1
        item = {"type": "function_call", "call_id": "c", "name": "now", "arguments": arguments}
        answer = server.post("/v1/responses", {"model": "other", "input": [USER, item, USER], "max_output_tokens": 1})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["input_tokens"] == len(other[1].encode(f"{OPENED}{{}}<|im_end|>{OPENED}"))
    for empty in ([], None):
        assert "message 0 has no content" in prompt(server, messages=[{"role": "user", "content": empty}])


# Chats of a model with a Jinja template


SYSTEM = {"role": "system", "content": "Be kind."}
QUESTION = {"role": "user", "content": "hi"}
OPENING = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def templated(tmp_path_factory: pytest.TempPathFactory, no_processes: None) -> Iterator[tuple[Running, Tokenizer]]:
    """A model that answers the conversation of SYSTEM and USER with "hello"."""
    folder = tmp_path_factory.mktemp("templated")
    _, words = write_other(folder, {}, context=64)
    path, words = write_other(folder, {len(words.encode(OPENING)) - 1: "hello"}, context=64)
    with running(("other", path), slots=2) as found:
        yield found, words


def replied(server: Running, messages: list[Any]) -> str:
    body = {"model": "other", "messages": messages, "max_tokens": 8, "temperature": 0}
    return str(server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"])


def test_a_system_prompt(templated: tuple[Running, Tokenizer]) -> None:
    for role in ("system", "developer"):
        assert replied(templated[0], [{**SYSTEM, "role": role}, QUESTION]) == "hello"
    (model,) = templated[0].get("/v1/models").json()["data"]
    assert (model["chat"], model["system"]) == (True, True), "the page offers a field for one"


def test_instructions(templated: tuple[Running, Tokenizer]) -> None:
    """Two of them are joined by an empty line, which makes another prompt of one character more."""
    developer, part = {"role": "developer", "content": "kind."}, {"type": "input_text", "text": "Be kind."}
    for joined, given in (
        (False, {"instructions": "Be kind.", "input": "hi"}),
        (True, {"instructions": "Be", "input": [developer, QUESTION]}),
        (False, {"input": [{"role": "system", "content": [part]}, QUESTION]}),
    ):
        body = {"model": "other", "max_output_tokens": 8, "temperature": 0, **given}
        answer = templated[0].post("/v1/responses", body).json()
        assert (answer["output"][0]["content"][0]["text"] == "hello") == (not joined), given
        assert answer["usage"]["input_tokens"] == len(templated[1].encode(OPENING)) + joined


def test_messages_in_a_row_and_their_control_tokens(templated: tuple[Running, Tokenizer]) -> None:
    """The template judges what may follow what; what a message spells is text."""
    server, words = templated
    messages = [QUESTION, {"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "x"}, QUESTION]
    found = server.post("/apply-template", {"model": "other", "messages": messages}).json()
    assert found["prompt"].count("<|im_start|>") == 5
    assert found["tokens"].count(words.special_id("<|im_end|>")) == 4
    assert found["prompt"].count("<|im_end|>") == 5
