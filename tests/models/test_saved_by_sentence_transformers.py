"""EmbeddingGemma's whole chain, and a cross-encoder, as sentence-transformers itself saves and runs them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.embedders import FORMS, SHAPE, transformers_model
from tiny_embedders import TEXTS, VOCABULARY

import glinfer

pytestmark = [pytest.mark.gl, pytest.mark.slow]


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


def write_base(folder: Path, kind: str, more: dict[str, Any], head: str = "Model") -> None:
    """A model of transformers with random weights, and a tokenizer."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=60)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{each}_token_id") for name, each in
           (("pad", "pad"), ("bos", "cls"), ("eos", "sep"))}  # fmt: skip
    transformers_model(kind, head, **{**more, **ids, "vocab_size": len(tokenizer)}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_two_dense_steps_and_prompts_behind_a_gemma(tmp_path: Path, library: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    name, more, _ = FORMS["gemma_embedding"]
    write_base(tmp_path / "base", name, more)
    parts = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    dense = {"bias": False, "activation_function": torch.nn.Identity()}
    modules = [
        parts.Transformer(str(tmp_path / "base")),
        parts.Pooling(SHAPE["hidden_size"], "mean"),
        parts.Dense(SHAPE["hidden_size"], 80, **dense),
        parts.Dense(80, SHAPE["hidden_size"], **dense),
        parts.Normalize(),
    ]
    prompts = {"query": "the rain ? ", "document": "a cat . "}
    theirs = library.SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    theirs.save(str(tmp_path / "m"))
    with glinfer.load(tmp_path / "m") as model:
        assert model.config.model_type == "gemma_embedding"
        assert [outputs for outputs, *_ in model.config.dense] == [80, SHAPE["hidden_size"]]
        for prompt in (None, "query", "document"):
            expected = theirs.encode(TEXTS, prompt_name=prompt)
            assert np.abs(model.embed(TEXTS, prompt_name=prompt) - expected).max() <= 1e-5, prompt
        assert np.abs(expected - expected.mean(axis=0)).max() > 0.05, "texts that are all alike show little"
        short = theirs.encode(TEXTS, truncate_dim=20, normalize_embeddings=True)
        assert np.abs(model.embed(TEXTS, dimensions=20) - short).max() <= 1e-5


def test_scores_of_a_cross_encoder(tmp_path: Path, library: Any) -> None:
    write_base(tmp_path / "m", "Bert", {"num_labels": 1}, "ForSequenceClassification")
    theirs = library.CrossEncoder(str(tmp_path / "m"), device="cpu")
    query, texts = TEXTS[0], [text for text in TEXTS[1:] if text]
    expected = theirs.predict([(query, text) for text in texts])
    with glinfer.load(tmp_path / "m") as model:
        found = {each.index: each.score for each in model.rerank(query, texts)}
    assert np.ptp(expected) > 0.01, "texts that are all alike show little"
    assert np.abs(np.array([found[place] for place in range(len(texts))]) - expected).max() <= 1e-5
