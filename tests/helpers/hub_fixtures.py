"""A hub of our own for every test of names, and the client's settings that lead to it and to an empty cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub, running_hub
from small_models import hugging_face_files, small_gguf


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The folder of the cache, which is not there yet."""
    return tmp_path / "home" / "hub"


@pytest.fixture(scope="session")
def servers() -> Iterator[Hub]:
    """The servers, and the session with them: making a session reads all certificates, which takes its time."""
    pytest.importorskip("huggingface_hub", "1.20", reason="there is no huggingface_hub 1.20 or later (glinfer[hub])")
    from huggingface_hub.utils import _http

    _http.close_session()
    with running_hub() as made:
        yield made
        _http.close_session()


@pytest.fixture
def hub(servers: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A running hub without repositories, which the client asks."""
    from huggingface_hub import constants

    servers.clear()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", servers.url)
    monkeypatch.setattr(constants, "ENDPOINT", servers.url)
    template = f"{servers.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache.parent / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between two tries of a download
    return servers


@pytest.fixture(scope="session")
def gguf() -> bytes:
    """A GGUF file of a small Llama, its matrices in Q8_0."""
    return small_gguf("q8_0")


@pytest.fixture(scope="session")
def folder_files() -> dict[str, bytes]:
    """The files of a small model as Hugging Face's transformers saves one, with a tokenizer and a chat template."""
    return hugging_face_files()
