"""``model.embed`` and ``model.rerank``: prompts, cut vectors, lengths, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_embedders import TEXTS, write_embedder

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.errors import ConfigError, InputError, NumbersError

pytestmark = pytest.mark.gl

PROMPTS = {"query": "in the rain ", "document": "a "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder") / "m"
    write_embedder(folder, prompts=PROMPTS)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with glinfer.load(folder) as model:
        yield model


def test_one_text_and_many(model: Model) -> None:
    seen: list[tuple[int, int]] = []
    many = model.embed(TEXTS, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(TEXTS), len(TEXTS))
    assert many.shape == (len(TEXTS), 36)
    assert many.dtype == np.float32
    assert np.array_equal(model.embed(TEXTS[3]), many[3])
    assert np.array_equal(model.embed(iter(TEXTS)), many)
    assert model.embed([]).shape == (0, 36)
    assert np.allclose(np.linalg.norm(many, axis=1), 1)


def test_prompts(model: Model) -> None:
    plain = model.embed(["cat"])
    asked = model.embed(["cat"], prompt_name="query")
    assert not np.array_equal(plain, asked)
    assert np.array_equal(asked, model.embed(["in the rain cat"]))
    assert np.array_equal(asked, model.embed(["cat"], prompt="in the rain "))


def test_a_prompt_that_does_not_count(tmp_path: Path, model: Model) -> None:
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    write_embedder(tmp_path / "m", prompts=PROMPTS, pooling=pooling, normalize=False)
    with glinfer.load(tmp_path / "m") as other:
        found = other.embed("cat", prompt_name="query")
        assert np.array_equal(other.embed("cat"), other.embed("cat", prompt=""))
        ids = other.embedder.encoded(["in the rain cat"])
        rows = list(other.engine.steps(ids, [4]))  # type: ignore[attr-defined]
        assert rows
        assert not np.array_equal(found, other.embed("in the rain cat"))


def test_vectors_that_are_cut_are_normalised_afterwards(model: Model) -> None:
    whole = model.embed(TEXTS, normalize=False)
    found = model.embed(TEXTS, dimensions=5)
    assert found.shape == (len(TEXTS), 5)
    assert np.abs(found - whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)).max() < 1e-6
    assert np.array_equal(model.embed(TEXTS, dimensions=5, normalize=False), whole[:, :5])


def test_long_texts_are_cut_as_the_files_say(model: Model) -> None:
    assert model.config.max_position_embeddings == 40
    long = "cat " * 100
    assert np.array_equal(model.embed(long), model.embed("cat " * 38))


def test_a_model_that_embeds_ranks_by_its_prompts(model: Model) -> None:
    texts = ["the dog", "a cat sat", "rain"]
    found = model.rerank("cat", texts)
    one, others = model.embed("cat", prompt_name="query"), model.embed(texts, prompt_name="document")
    scores = others @ one
    assert [each.index for each in found] == np.argsort(-scores).tolist()
    assert np.abs(scores[[each.index for each in found]] - [each.score for each in found]).max() < 1e-6
    assert model.rerank("cat", []) == []


REFUSED: list[tuple[Callable[[Model], Any], str]] = [
    (lambda m: m.embed(3), "the texts are int; expected a list of them"),
    (lambda m: m.embed(b"abc"), "the texts are bytes; expected a list of them"),
    (lambda m: m.embed(["a", 3]), "text 1 is int; expected a str, or token ids"),
    (lambda m: m.embed([[1, 99]]), "token 1 of text 0 is 99; this vocabulary has ids 0 to 20"),
    (lambda m: m.embed([[1] * 41]), "text 0 has 41 tokens; expected 1 to 40"),
    (lambda m: m.embed([[]]), "text 0 has 0 tokens; expected 1 to 40"),
    (lambda m: m.embed(["a"], dimensions=37), "dimensions is 37; expected 1 to 36"),
    (lambda m: m.embed(["a"], normalize="no"), "normalize is 'no'; expected True or False"),
    (lambda m: m.embed(["a"], dimensions=True), "dimensions is True; expected 1 to 36"),
    (
        lambda m: m.embed(["a"], prompt_name="ask"),
        "prompt_name is 'ask'; expected 'query' or 'document'; for a text of your own, use prompt=…",
    ),
    (lambda m: m.embed(["a"], prompt_name="query", prompt="b"), "found both prompt_name and prompt"),
    (lambda m: m.embed(["a"], on_progress=3), "on_progress is int; expected a function"),
    (lambda m: m.rerank("a", ["b"], on_progress=None), "on_progress is NoneType; expected a function"),
    (lambda m: m.embed({"a", "b"}), "the texts are set; expected a list of them"),
    (lambda m: m.rerank("a", "b"), "the texts are str; expected a list of them"),
    (lambda m: m.rerank(1, ["b"]), "the query is int; expected a str"),
    (lambda m: m.rerank("a", ["b", None]), "text 1 is NoneType; expected a str"),
]
CONTINUES: list[Callable[[Model], Any]] = [
    lambda m: m.generate("a"),
    lambda m: m.stream([1, 2]),
    lambda m: m.logits("a"),
    lambda m: m.session(),
    lambda m: m.score(["a b", "c d"]),
    lambda m: m.scheduler(),
    lambda m: list(m.batch([glinfer.BatchRequest("a", {})])),
    lambda m: m.forward([1]),
]


def test_refusals(folder: Path, model: Model) -> None:
    continues = "this model embeds texts and does not generate any; use embed or rerank"
    for run, said in (*REFUSED, *((run, continues) for run in CONTINUES)):
        with pytest.raises(InputError, match=said):
            run(model)
    with pytest.raises(InputError, match="the numpy executor does not run models that embed texts; leave executor out"):
        glinfer.load(folder, executor="numpy")
    with pytest.raises(InputError, match="a model that embeds texts has no reference plan"):
        glinfer.load(folder, plan="reference")


def test_a_model_that_continues_texts_embeds_none(shared_gab: Model) -> None:
    with pytest.raises(InputError, match="this model generates text and makes no vectors"):
        shared_gab.embed("hello")
    with pytest.raises(InputError, match="this model generates text"):
        shared_gab.rerank("a", ["b"])


def test_broken_numbers_are_told(folder: Path) -> None:
    with glinfer.load(folder) as model:
        model.bound.texture("h.1.attn.norm").fill(np.nan)
        with pytest.raises(NumbersError, match="a vector contains NaN or infinity"):
            model.embed(["cat"])


def test_a_closed_model(folder: Path) -> None:
    model = glinfer.load(folder)
    model.close()
    with pytest.raises(glinfer.GlinferError, match="this model was closed"):
        model.embed("a")


def test_shapes_that_cannot_be() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"pooling": "median"}, "pooling is 'median'; expected one of mean, cls"),
        ({"dense": ((0, True, "tanh"),)}, "dense is .*; expected"),
        ({"dense": ((3, True, "relu"),)}, "dense is"),
        ({"dense": 3}, "dense is 3"),
        ({"type_vocab_size": -1}, "type_vocab_size is -1"),
    ]
    for fields, said in refused:
        with pytest.raises(ConfigError, match=said):
            ModelConfig(30, 32, 4, 2, 64, model_type="bert", **fields)


def test_a_shape_is_written_and_read_back() -> None:
    config = ModelConfig(
        30, 32, 4, 2, 64, model_type="bert", pooling="cls", dense=((8, True, "tanh"),), type_vocab_size=2
    )
    assert ModelConfig.from_json(config.to_json()) == config
