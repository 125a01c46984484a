"""GGUF files of models that embed texts or score pairs: what is read, and llama.cpp's vectors of the same files.

llama.cpp takes GELU from a table of half floats, and the tanh form of it for BERT too: so these models run here with
that form, and what is allowed where a model has GELU is the table's rounding. It rounds what it multiplies matrices of
fewer bits with to 8-bit integers or half floats; float32 has none of this.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_embedders import CLS, LAST, MEAN, RANK, Array, word_pieces, write_embedder
from goldens.llama import llama_vectors
from tiny_embedders import TEXTS, VOCABULARY, write_bert

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.progress import run_steps
from glinfer.errors import FormatError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint

pytestmark = pytest.mark.gl

SHAPE: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 300,
    "tie_word_embeddings": True,
}
ROTARY: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 32, "layer_norm_eps": 1e-6}
LAYERS = ("sliding_attention",) * 5 + ("full_attention",)
WINDOWS = {"num_hidden_layers": 7, "layer_types": LAYERS, "rope_local_base_freq": 10000.0, "rope_theta": 1e6}
BERT = ModelConfig(**SHAPE, model_type="bert", hidden_act="gelu", layer_norm_eps=1e-12, type_vocab_size=2)
NOMIC = replace(BERT, model_type="nomic_bert", hidden_act="silu", rope_theta=1000.0)
MOE = replace(NOMIC, model_type="nomic_bert_moe", hidden_act="gelu", rope_theta=10000.0, type_vocab_size=1)
MOE = replace(MOE, layer_types=("full_attention", "moe"), num_experts=5, num_experts_per_tok=2)
JINA = replace(BERT, model_type="jina_embeddings_v3", rope_theta=20000.0, type_vocab_size=1)
QWEN = ModelConfig(**SHAPE, **ROTARY, model_type="qwen3", hidden_act="silu", rope_theta=1e6)
GEMMA = ModelConfig(
    **{**SHAPE, **ROTARY, **WINDOWS}, model_type="gemma_embedding", hidden_act="gelu_new", sliding_window=9
)
MODERN = ModelConfig(
    **{**SHAPE, "num_hidden_layers": 4}, model_type="modernbert", hidden_act="gelu", sliding_window=9,
    layer_types=("full_attention", "sliding_attention", "sliding_attention", "full_attention"),
    rope_local_base_freq=500.0, rope_theta=1e5,
)  # fmt: skip
EURO = ModelConfig(**SHAPE, **{**ROTARY, "head_dim": 16}, model_type="eurobert", hidden_act="silu")
SCORES = ((64, True, "tanh"), (1, True, "none"))
FORMS: dict[str, tuple[ModelConfig, int]] = {
    "bert": (replace(BERT, pooling="mean"), MEAN),
    "bert, cls": (replace(BERT, pooling="cls", type_vocab_size=0), CLS),
    "bert, scores": (replace(BERT, pooling="cls", type_vocab_size=1, dense=SCORES), RANK),
    "nomic-bert": (replace(NOMIC, pooling="mean"), MEAN),
    "jina-bert-v3": (replace(JINA, pooling="mean"), MEAN),
    "modern-bert": (replace(MODERN, pooling="mean"), MEAN),
    "modern-bert, scores": (
        replace(MODERN, pooling="mean", dense=((64, False, "gelu"), (1, True, "none")), dense_norm=True),
        RANK,
    ),
    "eurobert": (replace(EURO, pooling="lasttoken"), LAST),
    "gemma-embedding": (replace(GEMMA, pooling="mean", dense=((128, False, "none"), (64, False, "none"))), MEAN),
    "qwen3": (replace(QWEN, pooling="lasttoken"), LAST),
    "qwen3, yes or no": (replace(QWEN, pooling="lasttoken", dense=((2, False, "none"),)), RANK),
    "nomic-bert-moe": (replace(MOE, pooling="mean"), MEAN),
}
"""Models, as their files are read, and the number of their pooling."""


JOINED = {**dict.fromkeys("qkv", "Wqkv"), "gate": "Wi", "up": "Wi"}
"""The joined matrices of the last parts of names."""
JOINING = ("nomic_bert", "nomic_bert_moe", "modernbert", "jina_embeddings_v3")
"""The families whose files join them."""


def keys_of(config: ModelConfig, pooling: int) -> dict[str, Any]:
    """The metadata about the architecture, as the converter writes them."""
    family = config.family
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        f"attention.layer_norm_{'rms_' * (family.norm == 'rms')}epsilon": config.layer_norm_eps,
        "pooling_type": pooling,
    }
    if family.encodes and family.norm == "layer":
        keys["attention.causal"] = False
    if family.rotary:
        keys["rope.freq_base"] = config.rope_theta
    if family.rotary and family.norm == "rms":
        keys |= {f"attention.{name}_length": config.head_dim for name in ("key", "value")}
        keys["attention.head_count_kv"] = config.num_key_value_heads
    if config.experts is not None:
        keys |= {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
        keys["moe_every_n_layers"] = len(config.layer_types)
    if config.rope_local_base_freq:
        keys["rope.freq_base_swa"] = config.rope_local_base_freq
    if config.sliding_window:
        keys["attention.sliding_window"] = 2 * (config.sliding_window - 1)
    if config.dense and pooling != RANK:
        for number, (inputs, outputs) in enumerate(((64, 128), (128, 64)), start=2):
            keys |= {f"dense_{number}_feat_in": inputs, f"dense_{number}_feat_out": outputs}
    if pooling == RANK:
        keys["classifier.output_labels"] = ["yes", "no"] if len(config.dense) == 1 else ["LABEL_0"]
    return keys


def renamed(checkpoint: Checkpoint) -> dict[str, Array]:
    """The tensors as the converter finds them: under Hugging Face's names, with projections of some joined."""
    config = checkpoint.config
    found: dict[str, Array] = {}
    ranks = bool(config.dense) and config.model_type != "gemma_embedding"
    behind = ["classifier.dense", "classifier.out_proj"][-len(config.dense) :] if ranks else ["dense_2", "dense_3"]
    for name, tensor in checkpoint.tensors.items():
        beginning = "model." if config.model_type == "modernbert" else "bert."
        whose, _, part = name.removeprefix(beginning).rpartition(".")
        if whose.endswith(".norm") and whose.startswith("dense."):
            whose = "head.norm"
        elif whose.startswith("dense."):
            whose = "cls.output" if config.model_type == "qwen3" else behind[int(whose[-1])]
        if config.family.norm_offset and whose.endswith("norm"):
            tensor = tensor + 1
        stem, _, last = whose.rpartition(".")
        if ".experts." in whose:
            stem, expert = stem.rsplit(".", 1)
            experts = np.asarray(tensor)[None]
            name = f"{stem}.mlp.{last}.weight"
            found[name] = np.concatenate([found[name], experts]) if int(expert) else experts
            continue
        if config.model_type in JOINING and (joined := JOINED.get(last)):
            joined = f"{stem}.{joined}.{part}"
            found[joined] = np.concatenate([found[joined], tensor]) if joined in found else np.asarray(tensor)
            continue
        found[f"{whose}.{part}"] = np.asarray(tensor)
    return found


def random_model(form: str) -> Checkpoint:
    return random_checkpoint(FORMS[form][0], seed=5, scale=0.15)


def write_model(path: Path, form: str, dtype: str = "F32", **changes: Any) -> Path:
    """A file of a form with random weights, and no more of a tokenizer than llama.cpp needs."""
    config, pooling = FORMS[form]
    vocabulary = [*VOCABULARY, *(f"w{number}" for number in range(config.vocab_size - len(VOCABULARY)))]
    types = {"tokenizer.ggml.token_type_count": max(1, config.type_vocab_size)}
    keys = {**keys_of(config, pooling), **word_pieces(vocabulary), **types, **changes}
    architecture = form.split(",")[0]
    return write_embedder(path, architecture, renamed(random_model(form)), keys, dtype)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_read_as_the_model_that_it_was_made_of(tmp_path: Path, form: str) -> None:
    expected, found = random_model(form), load_checkpoint(write_model(tmp_path / "m.gguf", form))
    answers = form.endswith("yes or no")
    dense = ((1, False, "none"),) if answers else expected.config.dense
    assert found.config == replace(expected.config, dense=dense)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        if answers and name == "dense.0.weight":
            tensor = (tensor[0] - tensor[1])[None]
        assert np.array_equal(found.tensors[name], tensor) or np.abs(found.tensors[name] - tensor).max() < 1e-7, name
    ranks = FORMS[form][1] == RANK
    assert (found.embedding.ranks, found.embedding.squashes, found.embedding.normalizes) == (ranks, ranks, not ranks)


def given(longest: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [[2, *random.integers(5, 90, length).tolist(), 3] for length in (1, 2, 6, 7, 30, 64, 100, longest - 2)]


# Of the largest number: the rounding of float32; of llama.cpp's table for GELU; and of the inputs of matrices.
WITHIN = {"F32": 2e-5, "table": 2e-3, "F16": 4e-3, "Q8_0": 3e-2, "Q4_0": 3e-2}


@pytest.mark.slow
@pytest.mark.parametrize(("form", "dtype"), [*zip(FORMS, itertools.cycle(("F32", "Q8_0", "F16"))), ("bert", "Q4_0")])
def test_vectors_of_llama_cpp(tmp_path: Path, form: str, dtype: str) -> None:
    path, texts = write_model(tmp_path / "m.gguf", form, dtype), given(290)
    options = {} if FORMS[form][0].hidden_act == "silu" else {"gelu": "tanh"}
    ours = raw_vectors(path, texts, **options)
    width = ours.shape[1] * (2 if form.endswith("yes or no") else 1)
    if dtype != "F32":
        whole = raw_vectors(path, texts, weights="f32", **options)
        assert np.abs(ours - whole).max() <= 2e-5 * np.abs(whole).max(), "the file's own numbers"
    theirs = llama_vectors(path, texts, width)
    if form.endswith("yes or no"):
        ours, theirs = 1 / (1 + np.exp(-ours)), theirs[:, :1]
    assert np.abs(theirs - theirs.mean(axis=0)).max() > 0.05, "texts that are all alike show little"
    table = dtype == "F32" and FORMS[form][0].hidden_act != "silu"
    assert np.abs(ours - theirs).max() <= WITHIN["table" if table else dtype] * np.abs(theirs).max()


def raw_vectors(path: Path, texts: list[list[int]], **options: Any) -> Array:
    """The vectors, or scores, of texts as the passes give them."""
    with glinfer.load(path, **{"weights": "file", **options}) as model:
        found: Array = run_steps(model.embedder.encoder.steps(model.embedder.encoded(texts)))
        return found


def test_what_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("bert", {"attention.causal": True}, "bert.attention.causal is True, which is not supported; expected false"),
        ("bert", {"pooling_type": 9}, "bert.pooling_type is 9; expected an integer from 0 to 4"),
        ("bert", {"pooling_type": RANK}, "and there is no tensor 'cls.output.weight'; get the file again"),
        (
            "qwen3",
            {"attention.causal": False},
            "qwen3.attention.causal is False, which is not supported; expected true",
        ),
    ]
    for form, changes, said in cases:
        with pytest.raises(FormatError, match=said):
            load_checkpoint(write_model(tmp_path / "m.gguf", form, **changes))


def test_texts_of_a_file_and_of_its_directory_have_the_same_vectors(tmp_path: Path) -> None:
    config = write_bert(tmp_path / "m", max_position_embeddings=64)
    tensors = {name.removeprefix("bert."): each for name, each in load_checkpoint(tmp_path / "m").tensors.items()}
    path = write_embedder(tmp_path / "m.gguf", "bert", tensors, {**keys_of(config, MEAN), **word_pieces(VOCABULARY)})
    with glinfer.load(tmp_path / "m") as one, glinfer.load(path) as other:
        texts = [*TEXTS, "The CAT plays, été naïve!", "[SEP] rain"]
        assert np.array_equal(one.embed(texts), other.embed(texts, normalize=False))
        assert np.abs(np.linalg.norm(other.embed(texts), axis=1) - 1).max() < 1e-6
