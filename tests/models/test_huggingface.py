"""Model directories as Hugging Face's transformers writes them, and the text that it generates with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from goldens import check_digest, recorded
from goldens.models import Made, write_model

import glinfer
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2 with a byte-level tokenizer of its own, whose text is recorded."""
    figures = recorded("text")
    folder = write_model(Made(figures["settings"], figures["seed"]), tmp_path / "m")
    check_digest(folder / "model.safetensors", {figures["sha256"]})
    (folder / "tokenizer.json").write_text(json.dumps(recorded("tokens")["byte_level"]["tokenizer"]), "utf-8")
    return folder


def test_text_is_that_of_transformers_with_the_directorys_tokenizer(folder: Path) -> None:
    figures = recorded("text")
    with glinfer.load(folder) as model:
        assert isinstance(model.tokenizer, Tokenizer)
        assert model.tokenizer.encode(figures["prompt"]) == figures["ids"]
        assert model.generate(figures["prompt"], max_tokens=40, temperature=0) == figures["text"]
        streamed = "".join(model.stream(figures["prompt"], max_tokens=40, temperature=0))
        assert model.generate(figures["prompt"][:-1], max_tokens=40, temperature=0) != figures["text"]
    assert streamed == figures["text"]
