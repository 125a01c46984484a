"""Chats of a model with a Jinja template: roles, system prompts, and messages that spell control tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from running_server import Running, running
from template_models import write_other

from glinfer.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("no_processes")]

SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "hi"}
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
        assert replied(templated[0], [{**SYSTEM, "role": role}, USER]) == "hello"
    (model,) = templated[0].get("/v1/models").json()["data"]
    assert (model["chat"], model["system"]) == (True, True), "the page offers a field for one"


def test_instructions(templated: tuple[Running, Tokenizer]) -> None:
    """Two of them are joined by an empty line, which makes another prompt of one character more."""
    developer, part = {"role": "developer", "content": "kind."}, {"type": "input_text", "text": "Be kind."}
    for joined, given in (
        (False, {"instructions": "Be kind.", "input": "hi"}),
        (True, {"instructions": "Be", "input": [developer, USER]}),
        (False, {"input": [{"role": "system", "content": [part]}, USER]}),
    ):
        body = {"model": "other", "max_output_tokens": 8, "temperature": 0, **given}
        answer = templated[0].post("/v1/responses", body).json()
        assert (answer["output"][0]["content"][0]["text"] == "hello") == (not joined), given
        assert answer["usage"]["input_tokens"] == len(templated[1].encode(OPENING)) + joined


def test_messages_in_a_row_and_their_control_tokens(templated: tuple[Running, Tokenizer]) -> None:
    """The template judges what may follow what; what a message spells is text."""
    server, words = templated
    messages = [USER, {"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "x"}, USER]
    found = server.post("/apply-template", {"model": "other", "messages": messages}).json()
    assert found["prompt"].count("<|im_start|>") == 5
    assert found["tokens"].count(words.special_id("<|im_end|>")) == 4
    assert found["prompt"].count("<|im_end|>") == 5
