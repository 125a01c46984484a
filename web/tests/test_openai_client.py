"""The ``openai`` package for JavaScript asks every route of a running server, with every option."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import END, Running, opening, running, speaker

import glinfer
from glinfer.server.auth import Access
from glinfer.server.routes import ROUTES

pytestmark = [pytest.mark.gl, pytest.mark.web]

HERE = Path(__file__).resolve().parent
WITHOUT_CLIENT = {"/v1/embeddings", "/v1/rerank", "/metrics"}
"""Routes whose answer is not JSON, or which these models do not answer."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("served") / "speaker.gab"
    speaker(path, [*"héy".encode(), END], after=len(opening("hi")))
    with running(("shakespeare", "shakespeare"), ("speaker", path), access=Access(keys=("secret",))) as found:
        yield found


@pytest.fixture(scope="module")
def found(server: Running) -> dict[str, Any]:
    """What the client was given."""
    node = shutil.which("node")
    if node is None or not (HERE.parent / "node_modules" / "openai").is_dir():
        pytest.skip("there is no Node.js, or no openai package in web/; 'make test-web' installs it where it may")
    command = [node, str(HERE / "openai_client.mjs"), server.url, "secret"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    seen: dict[str, Any] = json.loads(ran.stdout)
    return seen


def test_every_route_is_asked(found: dict[str, Any], server: Running) -> None:
    metrics = server.get("/metrics", headers={"Authorization": "Bearer secret"}).text
    for route in ROUTES:
        if route.path not in WITHOUT_CLIENT:
            asked = "other" if "{" in route.path else route.path
            assert f'glinfer_requests_total{{route="{asked}",status="200"}}' in metrics, route.path


def test_models(found: dict[str, Any]) -> None:
    assert found["models"] == ["shakespeare", "speaker"]
    assert found["model"] == "speaker"


def test_chats(found: dict[str, Any]) -> None:
    assert found["chat"]["choices"][0]["message"]["content"] == found["chatFinal"] == "héy"
    assert found["chatParts"]["choices"][0]["message"]["content"] == "héy"
    chunks = found["chatChunks"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]) == "héy"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], found["chat"]["usage"])
    styled = found["chatStyled"]["choices"]
    assert [choice["index"] for choice in styled] == [0, 1]
    assert all(len(one["top_logprobs"]) == 3 for choice in styled for one in choice["logprobs"]["content"])


def test_completions(found: dict[str, Any]) -> None:
    text = found["text"]["choices"][0]["text"]
    assert text
    assert "!" not in text, "whose logit is biased"
    assert found["textAgain"]["choices"] == found["text"]["choices"]
    assert "".join(chunk["choices"][0]["text"] for chunk in found["textChunks"] if chunk["choices"]) == text
    many = found["textMany"]["choices"]
    assert [choice["index"] for choice in many] == [0, 1, 2, 3]
    assert all("\n" not in choice["text"] for choice in many)
    assert found["textIds"]["choices"][0]["text"] == "ROMEO:" + text
    assert len(found["textIdLists"]["choices"]) == 2
    scored = found["textScored"]["choices"][0]
    with glinfer.load("shakespeare") as model:
        expected = model.score(["ROMEO:"])[0]
    assert scored["logprobs"]["token_logprobs"][1:] == pytest.approx(expected.logprobs.tolist(), abs=1e-6)
    assert found["score"]["total"] == pytest.approx(expected.total)
    assert found["aborted"] >= 2


def test_responses(found: dict[str, Any]) -> None:
    assert found["response"] == found["responseFinal"] == "héy"
    assert found["responseItems"] == "h�"
    events = found["responseEvents"]
    assert (events[0], events[-1]) == ("response.created", "response.completed")
    assert "response.output_text.delta" in events


def test_tokens(found: dict[str, Any]) -> None:
    assert found["tokens"] == opening("hi")
    assert found["detokenized"] == "hi"
    assert "hi" in found["template"]
    assert found["marks"] == {"bos_token": None, "eos_token": "<|end|>"}
    assert found["attention"] > 1
    assert found["health"] == {"status": "ready"}


@pytest.mark.parametrize(
    ("name", "status", "code", "param"),
    [
        ("noModel", 404, "model_not_found", "model"),
        ("noTools", 400, "no_tools", "tools"),
        ("badOption", 400, "invalid_value", "temperature"),
        ("tooLong", 400, "context_length_exceeded", "prompt"),
        ("noEmbeddings", 400, None, "model"),
        ("noKey", 401, "invalid_api_key", None),
    ],
)
def test_refusals(found: dict[str, Any], name: str, status: int, code: str, param: str | None) -> None:
    error = found[name]
    assert (error["status"], error["code"], error.get("param")) == (status, code, param)
    classes = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError"}
    assert (error["name"], error["type"]) == (classes[status], "invalid_request_error")
