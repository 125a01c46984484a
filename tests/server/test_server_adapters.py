"""LoRA adapters of a served model: requests name one in place of the model, from the command line to the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ran, refused
from goldens.gguf_models import K, byte_level
from json_lines import results_in, write_lines
from made_adapters import made_pairs, write_gguf_adapter, write_peft
from running_server import Running, running
from tiny_models import tiny

import glinfer
from glinfer.engine.batch import SchedulerOptions
from glinfer.formats import random_checkpoint, write_gguf
from glinfer.server.served import ModelSource

pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
OPTIONS: dict[str, Any] = {"max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with a tokenizer, and two adapters of it, one as PEFT's and one as a GGUF file."""
    made = tmp_path_factory.mktemp("adapted")
    config = tiny("llama", vocab_size=len(byte_level()[K + "tokens"]), tie_word_embeddings=False)
    write_gguf(random_checkpoint(config, seed=1), made / "m.gguf", tokenizer=byte_level())
    write_peft(made / "a", made_pairs(config, 3, seed=1))
    write_gguf_adapter(made / "b.gguf", config, made_pairs(config, 5, ["projection"], seed=2), 10.0)
    return made


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, str]:
    """What the model continues with, by itself and with each adapter."""
    with glinfer.load(folder / "m.gguf", lora={"a": folder / "a", "b": folder / "b.gguf"}) as model:
        found = {name: model.generate("abc", lora=name, **OPTIONS) for name in ("base", "a", "b")}
    assert len(set(found.values())) == 3
    return found


@pytest.fixture(scope="module")
def adapted(folder: Path) -> Iterator[Running]:
    lora = {"a": str(folder / "a"), "b": str(folder / "b.gguf")}
    source = ModelSource("m", str(folder / "m.gguf"), {"lora": lora}, SchedulerOptions(slots=3))
    with running(source) as found:
        yield found


@pytest.mark.slow  # of what it needs, test_lora.py has the batch
def test_requests_name_an_adapter_in_place_of_the_model(adapted: Running, texts: dict[str, str]) -> None:
    client = adapted.client()
    for name, expected in {"m": texts["base"], "a": texts["a"], "m:a": texts["a"], "b": texts["b"]}.items():
        answer = client.completions.create(model=name, prompt="abc", **OPTIONS)
        assert (answer.model, answer.choices[0].text) == (name, expected)
    listed = {each.id: each.to_dict().get("parent") for each in client.models.list()}
    assert listed == {"m": None, "a": "m", "b": "m"}
    assert client.models.retrieve("a").to_dict()["parent"] == "m"
    missing = adapted.post("/v1/completions", {"model": "m:c", "prompt": "abc"})
    assert missing.status_code == 404
    assert "expected m, a, b" in missing.json()["error"]["message"]
    scores = [adapted.post("/v1/score", {"model": name, "input": "abcd"}).json() for name in ("m", "a", "m:b")]
    assert len({each["data"][0]["total"] for each in scores}) == 3
    refused = adapted.post("/v1/attention", {"model": "a", "prompt": "abc", "block": 0})
    assert refused.status_code == 400


@pytest.fixture
def adapters(folder: Path) -> tuple[str, ...]:
    return "--lora", f"a={folder / 'a'}", "--lora", f"b={folder / 'b.gguf'}"


def said(capsys: Capture, *arguments: object, status: int = 0) -> str:
    """What a command prints, or the one line by which it refuses."""
    return refused(capsys, *arguments) if status else ran(capsys, *arguments)[0]


@pytest.mark.slow
def test_commands_take_adapters(
    folder: Path, tmp_path: Path, texts: dict[str, str], adapters: tuple[str, ...], capsys: Capture
) -> None:
    model = folder / "m.gguf"
    generate = ("generate", model, "abc", "-t", 0, "-n", 8, "-q")
    assert said(capsys, *generate, "--lora", folder / "a") == texts["a"] + "\n"
    assert said(capsys, *generate, "--lora", f"x={folder / 'b.gguf'}") == texts["b"] + "\n"
    lines = [{"prompt": "abc", "lora": "a"}, {"prompt": "abc", "lora": "b"}, {"prompt": "abc"}]
    write_lines(tmp_path / "in.jsonl", *lines)
    batch = ("generate", model, "--batch", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl", "-t", 0, "-n", 8)
    said(capsys, *batch, *adapters)
    found = results_in(tmp_path / "out.jsonl", key="id")
    assert {key: each["text"] for key, each in found.items()} == {1: texts["a"], 2: texts["b"], 3: texts["base"]}
    body = {"prompt": "abc", **OPTIONS}
    asked = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"model": name, **body}}
        for name in "mab"
    ]
    write_lines(tmp_path / "asked.jsonl", *asked)
    said(capsys, "run-batch", "-i", tmp_path / "asked.jsonl", "-o", tmp_path / "answers.jsonl", model, *adapters, "-q")
    answers = results_in(tmp_path / "answers.jsonl")
    by_id = {key: each["response"]["body"]["choices"][0]["text"] for key, each in answers.items()}
    assert by_id == {"m": texts["base"], "a": texts["a"], "b": texts["b"]}
    said(capsys, "convert", model, tmp_path / "merged.gguf", "--lora", folder / "a")
    assert said(capsys, "generate", tmp_path / "merged.gguf", "abc", "-t", 0, "-n", 8, "-q") == texts["a"] + "\n"


def test_draws_of_adapters_are_counted(folder: Path, capsys: Capture) -> None:
    with_one, with_none = (
        json.loads(said(capsys, "draws", folder / "m.gguf", *more, "--json"))["draws"]
        for more in (("--lora", folder / "a"), ())
    )
    assert with_one == with_none + 4 * 2


def test_bad_adapters_are_refused_in_a_line(
    folder: Path, tmp_path: Path, adapters: tuple[str, ...], capsys: Capture
) -> None:
    model = folder / "m.gguf"
    generate = ("generate", model, "abc", "-t", 0, "-n", 8, "-q")
    convert = ("convert", model, tmp_path / "merged.gguf")
    (tmp_path / "in.jsonl").write_text('{"prompt": "abc", "lora": "c"}\n')
    batch = ("generate", model, "--batch", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl")
    for arguments, words in (
        ((*generate, *adapters), "expected one for the whole text"),
        ((*generate, *adapters, *adapters[:2]), "two adapters with the name a"),
        ((*generate, "--lora", tmp_path / "none"), "no such adapter"),
        ((*generate, "--lora", folder / "a", "--plan", "reference"), "next to the fast plan"),
        (("draws", "--config", "blocks=2", "--lora", folder / "a"), "--lora needs a MODEL"),
        (("serve", model, "shakespeare", "--lora", folder / "a"), "--lora needs a single MODEL, found 2"),
        (("serve", f"a={model}", "--port", 0, *adapters), "two models with the name a"),
        ((*convert, "--lora-scale", 2), "without --lora"),
        ((*convert, "--lora", folder / "a", "--lora-scale", "nan"), "expected a finite number"),
        ((*batch, *adapters), "no adapter 'c'"),
    ):
        assert words in said(capsys, *arguments, status=2)
