"""Requests as other programs send them; docs/recipes.md has the programs, and how each is set up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running_server import HELLO, Running, refused, running
from tiny_embedders import write_embedder

import glinfer

pytestmark = pytest.mark.gl

FIM = ["<|endoftext|>", *(f"<|fim_{name}|>" for name in ("prefix", "middle", "suffix", "pad")), "<|repo_name|>"]
STOPS = [*FIM, "<|file_sep|>", "<|im_start|>", "<|im_end|>", "\n\n", "\r\n\r\n", "/src/", "#- coding: utf-8", "```"]
KEYWORDS = ["\nfunction", "\nclass", "\nmodule", "\nexport", "\nimport"]


def test_continue_completes_code(served: Running) -> None:
    """Older versions send the first words of a language's statements too: 19 strings for Qwen and TypeScript."""
    body = {
        "model": "small",
        "prompt": "<|fim_prefix|>def f(<|fim_suffix|>return x<|fim_middle|>",
        "max_tokens": 4,
        "temperature": 0.01,
        "stream": True,
        "stop": [*STOPS, *KEYWORDS],
    }
    answer = served.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    refused(served.post("/v1/completions", {**body, "stop": ["x"] * 33}), param="stop")


def test_open_webui_chats_and_names_chats(served: Running) -> None:
    """It adds what a model of its own sets, and removes ``metadata`` and empty options itself."""
    chat: dict[str, Any] = {"model": "speaker", "stream": True, "messages": HELLO, "temperature": 0}
    text = served.post("/v1/chat/completions", {**chat, "stream_options": {"include_usage": True}}).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "héy"
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    title = served.post("/v1/chat/completions", {"model": "speaker", "messages": HELLO, "stream": False}).json()
    assert title["choices"][0]["message"]["content"]
    assert [each["id"] for each in served.get("/v1/models").json()["data"]] == ["small", "speaker"]


def test_the_harness_asks_for_tokens(small: Path, served: Running, tmp_path: Path) -> None:
    """lm-evaluation-harness names no model there, and wants no tokens around a text."""
    with running(("small", small), slots=1) as server:
        assert server.get("/tokenizer_info").json() == {"bos_token": None, "eos_token": "<|end|>"}
        assert len(server.post("/tokenize", {"prompt": "<|end|>", "add_special_tokens": False}).json()["tokens"]) == 1
    write_embedder(tmp_path / "bert")
    with running(("bert", tmp_path / "bert")) as server, glinfer.load(tmp_path / "bert") as model:
        assert server.get("/tokenizer_info").json() == {"bos_token": "[CLS]", "eos_token": None}
        words, found = model.require_tokenizer(), list[list[int]]()
        for more in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            found.append(server.post("/tokenize", {"prompt": "the cat", **more}).json()["tokens"])
        assert found == [words.encode("the cat")] * 2 + [words.encode("the cat")[1:-1]]
        assert server.post("/detokenize", {"tokens": found[2]}).json() == {"prompt": "the cat"}
    for answer in (served.get("/tokenizer_info"), served.post("/tokenize", {"prompt": "x"})):
        refused(answer, words="the request names no model; expected one of small, speaker")
    assert served.get("/tokenizer_info?model=speaker").status_code == 200
