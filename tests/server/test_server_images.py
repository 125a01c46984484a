"""Images in requests: data URLs in messages, and what is refused."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from goldens.pictures import TOKENS, about, picture, write_smolvlm
from running_server import Running, refused, running

import glinfer

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("no_processes")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_smolvlm(tmp_path_factory.mktemp("pictures") / "model")


@pytest.fixture(scope="module")
def server(folder: Path, no_processes: None) -> Iterator[Running]:
    with running(("sees", folder), slots=2) as found:
        yield found


def url(seed: int = 0) -> str:
    data = io.BytesIO()
    picture(seed=seed).save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def asking(where: object, **more: Any) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": where}, {"type": "text", "text": "What is it?"}]
    return {
        "model": "sees",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 6,
        "temperature": 0,
    } | more


def test_answers_are_those_of_the_model(server: Running, folder: Path) -> None:
    answers = [server.post("/v1/chat/completions", asking({"url": url(seed)})).json() for seed in (0, 3, 0)]
    texts = [each["choices"][0]["message"]["content"] for each in answers]
    assert texts[0] == texts[2]
    with glinfer.load(folder) as model:
        assert texts[:2] == [model.chat(about(picture(seed=seed)), max_tokens=6, temperature=0) for seed in (0, 3)]
    assert answers[0]["usage"]["prompt_tokens"] > 5 * TOKENS
    content = [{"type": "input_image", "image_url": url()}, {"type": "input_text", "text": "What is it?"}]
    body = {"model": "sees", "input": [{"role": "user", "content": content}], "max_output_tokens": 6, "temperature": 0}
    assert server.post("/v1/responses", body).json()["output"][0]["content"][0]["text"] == texts[0]


def test_prompts_show_placeholders(server: Running) -> None:
    body = {"model": "sees", "messages": asking({"url": url()})["messages"]}
    found = server.post("/apply-template", body).json()
    assert found["prompt"].count("<image>") == 5 * TOKENS
    assert server.post("/tokenize", body).json()["tokens"] == found["tokens"]


@each_case(
    ("body", "words"),
    [
        (asking({"url": "https://example.org/a.png"}), "nothing is fetched"),
        (asking({"url": "/etc/passwd"}), "expected a data URL"),
        (asking({"url": "data:image/png;base64,AAAA"}), "cannot be decoded"),
        (asking({"url": url(), "size": 3}), "size"),
    ],
)
def test_bad_images(server: Running, body: dict[str, Any], words: str) -> None:
    refused(server.post("/v1/chat/completions", body), words=words)
