"""Small models that embed texts, as directories of sentence-transformers, with the weights of :func:`in_floats`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from glinfer.config import ModelConfig
from glinfer.formats import random_checkpoint
from glinfer.formats.tensors import weight_shapes

Array = np.ndarray[Any, Any]
WORDS = ["the", "cat", "dog", "sat", "on", "mat", "rain", "play", "##ing", "##s", "in", "a", "?", ".", "é", "e"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SETTINGS: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": len(VOCABULARY),
    "hidden_size": 36,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 50,
    "max_position_embeddings": 150,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
TEXTS = ["the cat sat on the mat", "a", "", "the dog plays in the rain?", "cats playing " * 20, "dogs"]


def write_bert(folder: Path, seed: int = 3, **changes: Any) -> ModelConfig:
    """A BERT without more: config.json, weights with gains and biases far from trivial, and a vocab.txt."""
    from glinfer.formats.huggingface.config import read_config

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SETTINGS, **changes}))
    config = read_config(folder / "config.json")
    tensors = random_checkpoint(config, seed=seed, scale=0.2).tensors
    renamed = {"dense.0": "bert.pooler.dense", "dense.1": "classifier"}
    found = {}
    for name, tensor in tensors.items():
        whose, _, part = name.rpartition(".")
        found[f"{renamed.get(whose, whose)}.{part}"] = np.asarray(tensor)
    save_file(found, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return config


def write_embedder(
    folder: Path,
    *,
    pooling: Mapping[str, Any] | None = None,
    dense: tuple[int, ...] = (),
    prompts: Mapping[str, str] | None = None,
    most: int | None = 40,
    normalize: bool = True,
    **changes: Any,
) -> ModelConfig:
    """A directory of sentence-transformers around such a BERT."""
    config = write_bert(folder, **changes)
    kinds = ["Transformer", "Pooling", *(["Dense"] * len(dense)), *(["Normalize"] if normalize else [])]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    chosen = {"word_embedding_dimension": config.hidden_size, **(pooling or {"pooling_mode_mean_tokens": True})}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(chosen))
    inputs, random = config.hidden_size, np.random.default_rng(4)
    for number, outputs in enumerate(dense, start=2):
        own = folder / f"{number}_Dense"
        own.mkdir()
        settings = {
            "in_features": inputs,
            "out_features": outputs,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        (own / "config.json").write_text(json.dumps(settings))
        tensors: dict[str, Array] = {
            "linear.weight": random.standard_normal((outputs, inputs)).astype(np.float32) / 4,
            "linear.bias": random.standard_normal(outputs).astype(np.float32),
        }
        save_file(tensors, own / "model.safetensors")
        inputs = outputs
    if most is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": most, "do_lower_case": False}))
    about = {"__version__": {}, "prompts": dict(prompts or {}), "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    return config


def bert_vectors(config: ModelConfig, tensors: Mapping[str, Array], ids: list[int], types: list[int]) -> Array:
    """What BERT computes of one text, float64 [tokens, D], written down as the paper has it."""
    from glinfer.kernels.published.linear import ACTIVATIONS, activate

    weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    assert weights.keys() == weight_shapes(config).keys()

    def linear(x: Array, name: str) -> Array:
        return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + config.layer_norm_eps)
        return np.asarray(centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    embeddings = "bert.embeddings"
    x = weights[f"{embeddings}.word_embeddings.weight"][ids]
    x = x + weights[f"{embeddings}.position_embeddings.weight"][: len(ids)]
    x = norm(x + weights[f"{embeddings}.token_type_embeddings.weight"][types], f"{embeddings}.LayerNorm")
    heads, dim = config.num_attention_heads, config.head_dim
    for layer in range(config.num_hidden_layers):
        name = f"bert.encoder.layer.{layer}"
        q, k, v = (linear(x, f"{name}.attention.self.{what}") for what in ("query", "key", "value"))
        mixed = np.zeros_like(q)
        for head in range(heads):
            own = slice(head * dim, (head + 1) * dim)
            scores = q[:, own] @ k[:, own].T / np.sqrt(dim)
            likely = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, own] = likely / likely.sum(axis=1, keepdims=True) @ v[:, own]
        x = norm(x + linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        inner = activate(linear(x, f"{name}.intermediate.dense"), ACTIVATIONS[config.hidden_act])
        x = norm(x + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
    return x
