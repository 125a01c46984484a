"""The plan ``encode``: against BERT written down in NumPy, draw by draw, and bit by bit alone and beside others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import tiered
from tiny_embedders import TEXTS, bert_vectors, write_bert, write_embedder

import glinfer
from glinfer.engine.model import Model
from glinfer.formats import load_checkpoint
from glinfer.inspect.verify.draws import verify_draws
from glinfer.kernels.options import KernelOptions

pytestmark = pytest.mark.gl

DRAWS_A_LAYER = 11
"""Keys, values and queries; their store; scores; sums; projection; factors; norm; two products; factors; norm."""
KERNELS = {
    "default": None,
    "plain": KernelOptions(),
    "one row": KernelOptions(rows_per_draw=1, quad=False, mantissa=True),
    "two rows": KernelOptions(rows_per_draw=2, blends=True, fused=True, tiles=4, largest_cell=2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert") / "model"
    write_bert(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with glinfer.load(folder) as model:
        yield model


def expected(folder: Path, model: Model, texts: list[str]) -> Any:
    checkpoint = load_checkpoint(folder)
    encoded = model.embedder.encoded(texts)
    rows = [bert_vectors(checkpoint.config, checkpoint.tensors, *each).mean(axis=0) for each in encoded]
    return np.array(rows)


@tiered("kernels", KERNELS)
def test_the_vectors_are_those_of_the_paper(folder: Path, kernels: str) -> None:
    with glinfer.load(folder, kernels=KERNELS[kernels]) as model:
        wanted = expected(folder, model, TEXTS)
        found = model.embed(TEXTS)
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
        assert np.abs(wanted - wanted.mean(axis=0)).max() > 0.1, "texts that are all alike show little"


def test_a_text_has_the_bits_it_has_alone(model: Model) -> None:
    texts = [*TEXTS, *(f"the {word} sat on a dog" for word in ("cat", "mat", "rain")), "rain " * 30]
    together = model.embed(texts)
    for place, text in enumerate(texts):
        assert np.array_equal(model.embed([text])[0], together[place]), text
    assert np.array_equal(model.embed(texts[::-1])[::-1], together)


def test_texts_that_take_several_runs(model: Model) -> None:
    """Of several lengths, more than rows and more than texts that one run has."""
    texts = [" ".join(["cat", "dog", "sat", "mat"][place % 4 :]) + " rain" * (place % 9) for place in range(400)]
    runs = model.bound.runs
    found = model.embed(texts)
    assert model.bound.runs - runs > 1
    again = model.embed(texts[123:125])
    assert np.array_equal(found[123:125], again)


def test_every_draw_against_float64(model: Model) -> None:
    checks = verify_draws(model.engine, model.embedder.encoded(["the cat sat on the mat " * 12])[0].ids)
    assert all(check.passed for check in checks), [check for check in checks if not check.passed]
    assert len(checks) == 2 * DRAWS_A_LAYER + 4, "embeddings, their norm of two draws, and the pooling"


@tiered("pooling", ["cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean"], keep=(0, 1))
def test_poolings(tmp_path: Path, folder: Path, model: Model, pooling: str) -> None:
    modes = {"cls": "cls_token", "max": "max_tokens"}
    write_embedder(tmp_path / "m", pooling={f"pooling_mode_{modes.get(pooling, pooling)}": True}, normalize=False)
    checkpoint = load_checkpoint(folder)
    with glinfer.load(tmp_path / "m") as other:
        found = other.embed(TEXTS[:4])
        encoded = other.embedder.encoded(TEXTS[:4])
    for vector, each in zip(found, encoded, strict=True):
        rows = bert_vectors(checkpoint.config, checkpoint.tensors, *each)
        count = np.arange(len(rows))[:, None] + 1.0
        wanted = {
            "cls": rows[0],
            "lasttoken": rows[-1],
            "max": rows.max(axis=0),
            "mean_sqrt_len_tokens": rows.sum(axis=0) / np.sqrt(len(rows)),
            "weightedmean": (rows * count).sum(axis=0) / count.sum(),
        }[pooling]
        assert np.abs(vector - wanted).max() <= 4e-6 * np.abs(rows).max()


def test_matrices_behind_the_pooling(tmp_path: Path) -> None:
    write_embedder(tmp_path / "m", dense=(44, 7))
    checkpoint = load_checkpoint(tmp_path / "m")
    with glinfer.load(tmp_path / "m") as model:
        found, encoded = model.embed(TEXTS), model.embedder.encoded(TEXTS)
    body = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("dense.")}
    plain = glinfer.ModelConfig(**{**vars(checkpoint.config), "dense": ()})
    for vector, each in zip(found, encoded, strict=True):
        x = bert_vectors(plain, body, *each).mean(axis=0)
        for number in range(2):
            weight, bias = (checkpoint.tensors[f"dense.{number}.{part}"] for part in ("weight", "bias"))
            x = np.tanh(weight.astype(np.float64) @ x + bias)
        assert np.abs(vector - x / np.linalg.norm(x)).max() <= 2e-6


@tiered("weights", ["f16", "q8"], keep=0)
def test_weights_in_fewer_bits(folder: Path, model: Model, weights: str) -> None:
    exact = model.embed(TEXTS)
    with glinfer.load(folder, weights=weights) as other:
        found = other.embed(TEXTS)
    assert 0 < np.abs(found - exact).max() <= {"f16": 5e-3, "q16": 2e-3, "q8": 2e-1}[weights] * np.abs(exact).max()


def test_pairs_have_token_types_and_a_score(tmp_path: Path) -> None:
    settings = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    write_bert(tmp_path / "m", **settings)
    checkpoint = load_checkpoint(tmp_path / "m")
    assert checkpoint.config.dense == ((36, True, "tanh"), (1, True, "none"))
    body = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("dense.")}
    plain = glinfer.ModelConfig(**{**vars(checkpoint.config), "dense": ()})
    query, texts = "the dog?", ["the dog sat", "rain", "a cat plays in the rain " * 4]
    with glinfer.load(tmp_path / "m") as model:
        found = model.rerank(query, texts)
        pairs = model.embedder.texts.pairs(query, texts)
        with pytest.raises(glinfer.GlinferError, match=r"this model scores pairs of texts.*use rerank"):
            model.embed(texts)
    assert 1 in pairs[0].types
    scores = []
    for pair in pairs:
        x = bert_vectors(plain, body, *pair)[0]
        weights = {name: np.asarray(tensor, np.float64) for name, tensor in checkpoint.tensors.items()}
        pooled = np.tanh(weights["dense.0.weight"] @ x + weights["dense.0.bias"])
        scores.append(1 / (1 + np.exp(-(weights["dense.1.weight"] @ pooled + weights["dense.1.bias"])[0])))
    assert [each.index for each in found] == np.argsort(scores)[::-1].tolist()
    assert np.abs(np.sort(scores)[::-1] - [each.score for each in found]).max() <= 2e-6
