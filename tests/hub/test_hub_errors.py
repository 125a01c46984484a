"""What goes wrong with a hub: each is one line that says what to do, and exit status 2."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import refused
from each_case import each_case
from hub_server import Hub

from glinfer.errors import HubError
from glinfer.hub import cache as cache_module
from glinfer.hub import find_model

constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed")
NAME = "org/small"
Said = Callable[..., str]


@pytest.fixture
def said(hub: Hub, cache: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """The one line that a command prints which fails; the cache has no file afterwards."""

    def line(name: str = NAME, command: str = "pull") -> str:
        return refused(capsys, command, name).removeprefix("glinfer: ").rstrip()

    yield line
    assert not [each for each in cache.glob("models--*/**/*") if each.is_file()]


GATED = "gated: accept its terms at {url}/org/small, then set HF_TOKEN to your token"
PRIVATE = "has no such repository, or a private one; check the name, or set HF_TOKEN for it"
UNKNOWN = "rejects the token in HF_TOKEN or from 'hf auth login'; renew it"


@each_case(
    ("facts", "token", "name", "words"),
    [
        (None, "", NAME, PRIVATE),
        ({"token": "hf_right"}, "", NAME, PRIVATE),
        ({"token": "hf_right", "gated": True}, "", NAME, GATED),
        ({"token": "hf_right", "gated": True}, "hf_other", NAME, GATED),
        ({}, "hf_wrong", NAME, UNKNOWN),
        ({}, "", f"{NAME}@v9", "org/small has no revision v9; {url}/org/small lists its branches and tags"),
        ({}, "", f"hf://{NAME}/x.gguf", "has no file or folder x.gguf"),
    ],
)
def test_what_is_not_there_or_not_for_everybody(
    hub: Hub,
    said: Said,
    gguf: bytes,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any] | None,
    token: str,
    name: str,
    words: str,
) -> None:
    if facts is not None:
        hub.add(NAME, {"m-Q8_0.gguf": gguf}, **facts)
    monkeypatch.setenv("HF_TOKEN", token)
    line = said(name)
    assert words.format(url=hub.url) in line
    assert not token or token not in line


@each_case(
    ("status", "headers", "words"),
    [
        (429, {"Retry-After": "30"}, "received too many requests (429); try again in 30 seconds, or with HF_TOKEN set"),
        (429, {"Retry-After": "9" * 30}, "received too many requests (429); try again later"),
        (503, {}, "has an internal error (503); try again later"),
        (403, {"X-Error-Message": "No \x07 entry"}, "forbids it ('No \\x07 entry'); see "),
        (407, {}, "the proxy requires a name and a password; put them into HTTPS_PROXY"),
        (418, {}, "answered with status 418; check HF_ENDPOINT"),
    ],
)
def test_answers_of_the_hub(hub: Hub, said: Said, status: int, headers: dict[str, str], words: str) -> None:
    hub.faults[:] = [lambda handler: handler.reply(status, headers, b"")]
    assert words in said()


@each_case("status", [403, 404, 502])
def test_answers_of_the_storage(hub: Hub, said: Said, gguf: bytes, status: int) -> None:
    hub.add(NAME, {"m-Q8_0.gguf": gguf})
    hub.faults[:] = [lambda handler: handler.origin == "storage" and handler.reply(status, {}, b"no")]
    assert said().startswith(f"{NAME}: ")


@each_case("location", ["ftp://x/y", "file:///etc/passwd", "http://", "http://[::1", "//", "http://a:99999/x"])
def test_redirects_to_places_that_are_none(hub: Hub, said: Said, gguf: bytes, location: str) -> None:
    hub.add(NAME, {"m-Q8_0.gguf": gguf})
    hub.faults[:] = [lambda handler: "/resolve/" in handler.path and handler.reply(302, {"Location": location}, b"")]
    assert said().startswith(f"{NAME}: ")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine that nobody listens at, and that nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_hub_that_is_away(said: Said, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"http://user:secret@127.0.0.1:{closed_port}")
    line = said()
    assert f"127.0.0.1:{closed_port} cannot be reached (" in line
    assert line.endswith("check the connection, or HF_ENDPOINT and HTTPS_PROXY")
    assert "secret" not in line


def test_a_connection_that_is_cut(hub: Hub, said: Said, gguf: bytes) -> None:
    hub.add(NAME, {"m-Q8_0.gguf": gguf})
    hub.faults.append(lambda handler: handler.cut(b"{}", 1, promised=50))
    assert "broke off (" in said()
    hub.faults[:] = [lambda handler: handler.origin == "storage" and handler.cut(gguf, 100)]
    assert "broke off while it sent m-Q8_0.gguf" in said()


def test_a_hub_that_does_not_answer(hub: Hub, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
    ended = threading.Event()
    hub.faults.append(lambda handler: ended.wait(60))
    try:
        assert "broke off (" in said()
    finally:
        ended.set()


def test_without_the_package_its_extra_is_named(hub: Hub, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.setitem(sys.modules, name, None)
    for command in ("pull", "info", "draws"):
        line = said(command=command)
        assert line.startswith(f"{NAME}: fetching models of a hub needs the package huggingface_hub")
        assert "[hub]" in line
    assert not hub.asked


def test_an_old_client_is_told(hub: Hub, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    for version in ("0.36.0", "1.19.0"):
        monkeypatch.setattr(huggingface_hub, "__version__", version)
        assert f"found huggingface_hub {version}; expected 1.20 or later" in said()


def test_offline_nothing_is_asked(hub: Hub, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    line = said()
    assert "HF_HUB_OFFLINE is set, and the cache does not have the whole model; unset it, or fetch" in line
    assert f"'glinfer pull {NAME}'" in line
    assert not hub.asked


def test_a_cache_that_cannot_be_written_to_or_a_full_disk(
    hub: Hub, gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    hub.add(NAME, {"m-Q8_0.gguf": gguf})
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "download", full)
        with pytest.raises(HubError, match="No space left on device; check the folder, its permissions and the free"):
            find_model(NAME)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    with pytest.raises(HubError, match=r"cannot write into .*: Not a directory; check the folder, its permissions"):
        find_model(NAME)
