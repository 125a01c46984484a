"""POST /v1/embeddings and /v1/rerank, by OpenAI's client and a plain one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_server import HELLO, Running, running
from tiny_embedders import TEXTS, write_bert, write_embedder

import glinfer
from glinfer.server.limits import LIMITS

pytestmark = pytest.mark.gl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_embedder(folder / "embedder", prompts={"query": "in the rain "})
    write_bert(folder / "ranker", architectures=["BertForSequenceClassification"], id2label={"0": "x"})
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, small: Path) -> Iterator[Running]:
    names = ("embedder", "ranker")
    with running(*((name, folder / name) for name in names), ("small", small), slots=2) as found:
        yield found


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    """What Python gets: the vectors of TEXTS, and of a cat with a prompt; and the ids of a cat, and its vector."""
    with glinfer.load(folder / "embedder") as model:
        ids = model.embedder.encoded(["cat"])[0].ids
        return model.embed(TEXTS), model.embed("cat", prompt_name="query"), ids, model.embed("cat")


@pytest.fixture(scope="module")
def vectors(expected: Any) -> Any:
    return expected[0]


def test_openais_client_gets_what_python_gets(server: Running, vectors: Any) -> None:
    with server.client() as client:
        found = client.embeddings.create(model="embedder", input=TEXTS)  # which asks for base64 by itself
        plain = client.embeddings.create(model="embedder", input=TEXTS, encoding_format="float")
        short = client.embeddings.create(model="embedder", input=TEXTS[0], dimensions=5)
    assert [each.index for each in found.data] == list(range(len(TEXTS)))
    assert np.array_equal(np.array([each.embedding for each in found.data], np.float32), vectors)
    assert np.array_equal(np.array([each.embedding for each in plain.data], np.float32), vectors)
    assert len(short.data[0].embedding) == 5
    assert np.isclose(np.linalg.norm(short.data[0].embedding), 1)
    assert found.usage.prompt_tokens == found.usage.total_tokens > len(TEXTS)
    body = {"model": "embedder", "input": TEXTS[0], "encoding_format": "base64"}
    data = server.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(data), "<f4"), vectors[0])


def test_prompts_and_ids(server: Running, expected: Any) -> None:
    _, wanted, ids, plain = expected
    body = {"model": "embedder", "input": ["cat"], "prompt_name": "query"}
    assert np.allclose(server.post("/v1/embeddings", body).json()["data"][0]["embedding"], wanted, atol=1e-7)
    body = {"model": "embedder", "input": [ids]}
    assert np.allclose(server.post("/v1/embeddings", body).json()["data"][0]["embedding"], plain, atol=1e-7)


def test_rerank(server: Running, folder: Path) -> None:
    texts = ["the dog", "a cat sat", "rain"]
    with glinfer.load(folder / "ranker") as model:
        wanted = model.rerank("cat?", texts)
    body = {"model": "ranker", "query": "cat?", "documents": [texts[0], {"text": texts[1]}, texts[2]]}
    found = server.post("/v1/rerank", {**body, "return_documents": True}).json()
    assert [each["index"] for each in found["results"]] == [each.index for each in wanted]
    assert np.allclose([each["relevance_score"] for each in found["results"]], [each.score for each in wanted])
    assert [each["document"]["text"] for each in found["results"]] == [texts[each.index] for each in wanted]
    assert len(server.post("/v1/rerank", {**body, "top_n": 1}).json()["results"]) == 1
    by_vectors = server.post("/v1/rerank", {**body, "model": "embedder"})
    assert by_vectors.status_code == 200


def test_beside_a_model_that_continues(server: Running, vectors: Any) -> None:
    with server.client() as client:
        listed = {model.id: model.model_dump()["embeds"] for model in client.models.list()}
        assert listed == {"embedder": True, "ranker": True, "small": False}
        for _ in range(2):
            assert client.completions.create(model="small", prompt="Once", max_tokens=3).choices[0].text
            found = client.embeddings.create(model="embedder", input=TEXTS)
            assert np.array_equal(np.array([each.embedding for each in found.data], np.float32), vectors)
    assert server.metric("glinfer_draws_total", model="embedder") > 0


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/embeddings", {"model": "small", "input": "a"}, "generates text"),
    ("/v1/embeddings", {"model": "ranker", "input": "a"}, "use rerank"),
    ("/v1/embeddings", {"model": "embedder", "input": "a", "dimensions": 99}, "dimensions is 99"),
    ("/v1/embeddings", {"model": "embedder", "input": [[99]]}, "this vocabulary has ids"),
    ("/v1/embeddings", {"model": "embedder", "input": []}, "input"),
    ("/v1/embeddings", {"model": "embedder", "input": "a", "prompt_name": "x"}, "no prompt 'x'"),
    ("/v1/embeddings", {"model": "embedder", "input": "a", "encoding_format": "int8"}, "encoding_format"),
    ("/v1/rerank", {"model": "embedder", "query": "a", "documents": []}, "documents"),
    ("/v1/rerank", {"model": "small", "query": "a", "documents": ["b"]}, "generates text"),
    ("/v1/completions", {"model": "embedder", "prompt": "a"}, "this model embeds texts"),
    ("/v1/score", {"model": "embedder", "input": "a cat"}, "this model embeds texts"),
    ("/v1/attention", {"model": "embedder", "prompt": "a", "block": 0}, "this model embeds texts"),
    ("/v1/chat/completions", {"model": "embedder", "messages": HELLO}, ""),
]


def test_what_is_refused(server: Running) -> None:
    for path, body, said in BAD:
        answer = server.post(path, body)
        assert answer.status_code == 400, (body, answer.text)
        assert said in answer.json()["error"]["message"], body


def test_too_much_at_once(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glinfer.server.texts.LIMITS", replace(LIMITS, embed_tokens=100))
    answer = server.post("/v1/embeddings", {"model": "embedder", "input": ["cat " * 40] * 4})
    assert answer.status_code == 400
    assert "the texts have 160 tokens; expected at most 100 at once" in answer.json()["error"]["message"]
