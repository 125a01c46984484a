"""Chats of a model with a Jinja template: roles, system prompts, and messages that spell control tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from running_server import Running, running
from template_models import write_other

import glinfer
from glinfer.engine.batch import SchedulerOptions
from glinfer.server.served import ModelSource
from glinfer.text.tokenizer import Tokenizer
from tests.goldens import recorded, smollm2_file

pytestmark = pytest.mark.gl

SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "hi"}
OPENING = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def templated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Tokenizer]]:
    """A model that answers the conversation of SYSTEM and USER with "hello"."""
    folder = tmp_path_factory.mktemp("templated")
    _, words = write_other(folder, {})
    path, words = write_other(folder, {len(words.encode(OPENING)) - 1: "hello"})
    with running(("other", path)) as found:
        yield found, words


def replied(server: Running, messages: list[Any]) -> str:
    body = {"model": "other", "messages": messages, "max_tokens": 8, "temperature": 0}
    return str(server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_prompt(templated: tuple[Running, Tokenizer], role: str) -> None:
    assert replied(templated[0], [{**SYSTEM, "role": role}, USER]) == "hello"
    (model,) = templated[0].get("/v1/models").json()["data"]
    assert (model["chat"], model["system"]) == (True, True), "the page offers a field for one"


@pytest.mark.parametrize(
    "given",
    [
        {"instructions": "Be kind.", "input": "hi"},
        {"instructions": "Be", "input": [{"role": "developer", "content": "kind."}, USER]},
        {"input": [{"role": "system", "content": [{"type": "input_text", "text": "Be kind."}]}, USER]},
    ],
)
def test_instructions(templated: tuple[Running, Tokenizer], given: dict[str, Any]) -> None:
    """Two of them are joined by an empty line, which makes another prompt of one character more."""
    body = {"model": "other", "max_output_tokens": 8, "temperature": 0, **given}
    answer = templated[0].post("/v1/responses", body).json()
    joined = given.get("instructions") == "Be"
    assert (answer["output"][0]["content"][0]["text"] == "hello") == (not joined)
    assert answer["usage"]["input_tokens"] == len(templated[1].encode(OPENING)) + joined


def test_messages_in_a_row_and_their_control_tokens(templated: tuple[Running, Tokenizer]) -> None:
    """The template judges what may follow what; what a message spells is text."""
    server, words = templated
    messages = [USER, {"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "x"}, USER]
    found = server.post("/apply-template", {"model": "other", "messages": messages}).json()
    assert found["prompt"].count("<|im_start|>") == 5
    assert found["tokens"].count(words.special_id("<|im_end|>")) == 4
    assert found["prompt"].count("<|im_end|>") == 5


@pytest.mark.slow
class TestPublishedModel:
    """SmolLM2 behind OpenAI's own client, as llama.cpp runs it."""

    @pytest.fixture(scope="class")
    @staticmethod
    def smollm2() -> Iterator[openai.OpenAI]:
        source = ModelSource("smollm2", str(smollm2_file()), {"context": 192}, SchedulerOptions(slots=2))
        with running(source) as server, server.client() as client:
            yield client

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_chat_of_three_turns(self, smollm2: openai.OpenAI, stream: bool) -> None:
        messages: list[Any] = []
        for turn in recorded("llama_smollm2")["turns"]:
            messages.append({"role": "user", "content": turn["message"]})
            asked: dict[str, Any] = {"model": "smollm2", "messages": messages, "max_tokens": 32, "temperature": 0}
            if stream:
                chunks = list(
                    smollm2.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
                )
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
                reason, usage = chunks[-2].choices[0].finish_reason, chunks[-1].usage
            else:
                answer = smollm2.chat.completions.create(**asked)
                text, usage = answer.choices[0].message.content, answer.usage
                reason = answer.choices[0].finish_reason
            assert (text, reason) == (turn["text"], "stop")
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens) == (len(turn["prompt"]), len(turn["reply"]))
            messages.append({"role": "assistant", "content": text})

    def test_48_tokens_of_a_prompt(self, smollm2: openai.OpenAI) -> None:
        golden = recorded("llama_smollm2")
        for prompt in (golden["prompt"], golden["ids"]):
            answer = smollm2.completions.create(model="smollm2", prompt=prompt, max_tokens=48, temperature=0)
            assert answer.choices[0].text == golden["text"]

    def test_a_system_prompt_and_a_limit(self, smollm2: openai.OpenAI) -> None:
        """As in Python."""
        messages: Any = [SYSTEM, {"role": "user", "content": "What is the capital of France?"}]
        with glinfer.load(smollm2_file(), context=192) as model:
            expected = model.chat(messages, max_tokens=5, temperature=0)
        answer = smollm2.chat.completions.create(model="smollm2", messages=messages, max_tokens=5, temperature=0)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (str(expected), "length")
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == expected.prompt_tokens
