"""Model directories as Hugging Face's transformers writes them, and the text that it generates with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from goldens import check_digest, recorded
from goldens.models import MODELS, Made, write_model, write_recorded

import glinfer
from glinfer.cli.app import run
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

IDS = [5, 6, 7, 90, 3, 41, 0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recorded("gpt2", tmp_path_factory.mktemp("gpt2"))


@pytest.mark.slow
def test_shards_and_single_files_are_the_same_model(saved: Path, tmp_path: Path) -> None:
    write_model(MODELS["gpt2"], tmp_path, shards=3)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    with glinfer.load(saved) as whole, glinfer.load(tmp_path) as sharded:
        assert np.array_equal(whole.logits(IDS), sharded.logits(IDS))


def test_commands_take_the_directory(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "gpt2" in out
    assert run(["draws", str(saved), "--plan", "reference"]) == 0
    assert f"{2 * (8 + 4 * 3) + 4} draws/token" in capsys.readouterr().out


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


@pytest.mark.slow
def test_a_text_ends_at_the_directorys_end_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with glinfer.load(folder) as model:
        text = "once upon"
        first = model.generate(model.tokenizer.encode(text), max_tokens=1, temperature=0)[0]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{first}]}}')
    with glinfer.load(folder) as model:
        assert model.generate(text, max_tokens=9, temperature=0) == ""
    assert run(["generate", str(folder), text, "--max-tokens", "9", "--temperature", "0", "--json"]) == 0
    assert '"finish_reason": "stop"' in capsys.readouterr().out


@pytest.mark.slow
def test_batches_and_scores_take_the_directory(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "once upon"}\n{"prompt": "a café"}\n')
    out = tmp_path / "out.jsonl"
    arguments = ["generate", str(folder), "--batch", str(tmp_path / "prompts.jsonl"), "--out", str(out)]
    assert run([*arguments, "--max-tokens", "5", "--quiet"]) == 0
    assert len(out.read_text().splitlines()) == 2
    (tmp_path / "text.txt").write_text("once upon a time there was a naïve café, and then there was none " * 3)
    assert run(["eval", str(folder), "--text", str(tmp_path / "text.txt")]) == 0
