"""Small models that embed texts: what transformers and glinfer make of the same shapes and random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from glinfer.config import ModelConfig
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.formats.tensors import stored_tensors

Array = np.ndarray[Any, Any]
SHAPE: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 70,
    "max_position_embeddings": 300,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
FORMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", {}, "mean"),
    "roberta": ("Roberta", {"type_vocab_size": 1}, "cls"),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1}, "cls"),
    "jina_embeddings_v3": ("JinaEmbeddingsV3", {"type_vocab_size": 1}, "mean"),
    "nomic_bert": ("NomicBert", {}, "mean"),
    "modernbert": (
        "ModernBert",
        {"local_attention": 16, "cls_token_id": 2, "sep_token_id": 3, "global_attn_every_n_layers": 2},
        "mean",
    ),
    "eurobert": ("EuroBert", {**GROUPED, "mlp_bias": True}, "mean"),
    "qwen3": ("Qwen3", GROUPED, "lasttoken"),
    "gemma_embedding": (
        "Gemma3Text",
        {
            **GROUPED,
            "query_pre_attn_scalar": 16,
            "sliding_window": 15,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "use_bidirectional_attention": True,
        },
        "mean",
    ),
}
"""By family: the name in transformers, settings beside those of SHAPE, and the pooling."""


def transformers_model(kind: str, head: str = "Model", **settings: Any) -> Any:
    """A model of transformers of these settings beside SHAPE, with random weights far from trivial."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = getattr(transformers, f"{kind}{head}")(getattr(transformers, f"{kind}Config")(**{**SHAPE, **settings}))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(0, 0.2)
            if tensor.ndim == 1 and name.endswith("weight"):
                tensor.add_(1.0)
    return model.eval()


def texts(*lengths: int) -> list[list[int]]:
    """The ids of texts of so many tokens and two more."""
    random = np.random.default_rng(3)
    return [[2, *random.integers(4, 90, length).tolist(), 3] for length in lengths]


RECORDED = texts(1, 6, 30, 45)
"""The texts whose vectors are recorded."""


def pooled(rows: Array, how: str) -> Array:
    return np.asarray({"cls": rows[0], "lasttoken": rows[-1], "mean": rows.mean(axis=0)}[how])


def write_pooling(folder: Path, pooling: str) -> None:
    """What sentence-transformers writes beside a model."""
    modes = {"cls": "cls_token", "mean": "mean_tokens"}
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{modes.get(pooling, pooling)}": True}))


def weights_of(config: ModelConfig) -> Checkpoint:
    """The weights that figures are recorded with."""
    return random_checkpoint(config, seed=5, scale=0.2)


def replace_weights(path: Path, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's numbers in the place of those in a file that transformers wrote."""
    config = checkpoint.config
    form, names = config.family.in_huggingface, config.family.names
    held = load_file(path)
    for stored in stored_tensors(config, form.names or names):
        rows = np.concatenate([np.asarray(checkpoint.tensors[each.name(names)]) for each in stored.tensors])
        name = stored.name if stored.name in held else stored.name.removeprefix(form.prefix)
        if stored.tensors[0].role == "positions":
            rows = np.pad(rows, [(len(held[name]) - len(rows), 0), (0, 0)])
        assert held[name].shape == rows.shape, name
        held[name] = np.ascontiguousarray(rows)
    save_file(held, path, metadata={"format": "pt"})
