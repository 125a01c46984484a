"""Nomic's BERT with experts: a directory as published, against its published passes in float64 NumPy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.embedders import texts, write_pooling
from safetensors.numpy import save_file
from tiers import tiered

import glinfer
from glinfer.errors import FormatError
from glinfer.formats import load_checkpoint

pytestmark = pytest.mark.gl
Array = np.ndarray[Any, Any]
WIDTH, INNER, HEADS, LAYERS, EXPERTS, USED = 48, 72, 4, 4, 5, 2
PARTS, W = {"weight": 2, "bias": 1}, ("w1", "w2")
PUBLISHED: dict[str, Any] = {
    "activation_function": "gelu",
    "architectures": ["NomicBertModel"],
    "causal": False,
    "expert_choice_router": False,
    "layer_norm_epsilon": 1e-05,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "model_type": "nomic_bert",
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_top_k": USED,
    "n_embd": WIDTH,
    "n_head": HEADS,
    "n_inner": INNER,
    "n_layer": LAYERS,
    "n_positions": 300,
    "num_experts": EXPERTS,
    "num_shared_experts": 0,
    "pad_token_id": 1,
    "prenorm": False,
    "qkv_proj_bias": True,
    "rotary_emb_base": 10000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "type_vocab_size": 1,
    "use_rms_norm": None,
    "vocab_size": 90,
}


def made() -> dict[str, Array]:
    """Random weights under the published names and in the published shapes."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (90, WIDTH),
        "embeddings.token_type_embeddings.weight": (1, WIDTH),
        "emb_ln.weight": (WIDTH,),
        "emb_ln.bias": (WIDTH,),
    }
    for layer in range(LAYERS):
        products = {"attn.Wqkv": (3 * WIDTH, WIDTH), "attn.out_proj": (WIDTH, WIDTH)}
        if layer % 2 == 0:
            products |= {"mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)}
        own = {f"{name}.{part}": shape[:size] for name, shape in products.items() for part, size in PARTS.items()}
        own |= {f"norm{number}.{part}": (WIDTH,) for number in (1, 2) for part in PARTS}
        if layer % 2:
            own |= {"mlp.router.layer.weight": (EXPERTS, WIDTH), "mlp.experts.bias": (WIDTH,)}
            own |= {f"mlp.experts.mlp.{name}": (EXPERTS * INNER, WIDTH) for name in ("w1", "w2")}
        shapes |= {f"encoder.layers.{layer}.{name}": shape for name, shape in own.items()}
    random = np.random.default_rng(5)
    found = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in found:
        found[name] += ("norm" in name or "emb_ln" in name) and name.endswith("weight")
    return found


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x: Array) -> Array:
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(x / x.sum(axis=-1, keepdims=True))


class Published:
    """The passes of the published model, with its names."""

    def __init__(self, tensors: dict[str, Array]) -> None:
        self.tensors = {name: each.astype(np.float64) for name, each in tensors.items()}

    def linear(self, name: str, x: Array) -> Array:
        return np.asarray(x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0))

    def norm(self, name: str, x: Array) -> Array:
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
        return np.asarray(x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"])

    def attention(self, name: str, x: Array) -> Array:
        q, k, v = self.linear(f"{name}.Wqkv", x).reshape(len(x), 3, HEADS, -1).transpose(1, 2, 0, 3)
        half = q.shape[-1] // 2
        angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
        cos, sin = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)
        q, k = (each * cos + np.concatenate([-each[..., half:], each[..., :half]], -1) * sin for each in (q, k))
        scores = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(2 * half))
        return self.linear(f"{name}.out_proj", (scores @ v).transpose(1, 0, 2).reshape(len(x), -1))

    def mlp(self, name: str, x: Array) -> Array:
        if f"{name}.fc1.weight" in self.tensors:
            return self.linear(f"{name}.fc2", gelu(self.linear(f"{name}.fc1", x)))
        first, second = (self.tensors[f"{name}.experts.mlp.{each}"].reshape(EXPERTS, INNER, WIDTH) for each in W)
        weights, found = softmax(self.linear(f"{name}.router.layer", x)), np.zeros_like(x)
        for row, own in enumerate(weights):
            for expert in np.argsort(-own)[:USED]:
                found[row] += own[expert] * (gelu(x[row] @ first[expert].T) @ second[expert])
        return np.asarray(found + self.tensors[f"{name}.experts.bias"])

    def vector(self, ids: list[int]) -> Array:
        words, types = (self.tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
        x = self.norm("emb_ln", words[ids] + types[0])
        for layer in range(LAYERS):
            name = f"encoder.layers.{layer}"
            x = self.norm(f"{name}.norm1", x + self.attention(f"{name}.attn", x))
            x = self.norm(f"{name}.norm2", x + self.mlp(f"{name}.mlp", x))
        return np.asarray(x.mean(axis=0))


def write(folder: Path, tensors: dict[str, Array], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**PUBLISHED, **changes}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if not (folder / "modules.json").exists():
        write_pooling(folder, "mean")
    return folder


@tiered("dtype", [np.float32, np.float16])
def test_vectors_of_a_directory(tmp_path: Path, dtype: Any) -> None:
    """Few rows take their experts one by one, many in groups; in halves the file's own numbers are computed with."""
    tensors = {name: each.astype(dtype) for name, each in made().items()}
    ids = texts(1, 2, 6, 7, 30, 64, 100, 288)
    expected = np.array([Published(tensors).vector(each) for each in ids])
    assert np.abs(expected - expected.mean(axis=0)).max() > 0.1, "texts that are all alike show little"
    with glinfer.load(write(tmp_path / "m", tensors)) as model:
        assert model.config.model_type == "nomic_bert_moe"
        found, alone = model.embed(ids), model.embed([ids[3]])[0]
        assert model.verify_textures().ok
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert np.array_equal(alone, found[3])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"moe_every_n_layers": 1}, "moe_every_n_layers is 1; expected an integer of at least 2"),
        ({"moe_normalize_expert_weights": True}, "moe_normalize_expert_weights is True, which is not supported"),
        ({"mlp_fc1_bias": False}, "mlp_fc1_bias is False, which is not supported; expected true"),
        ({"moe_top_k": 6}, "num_experts_per_tok is 6; expected at most 5"),
        ({"num_experts": 6}, r"router.layer.weight' has shape \[5, 48\]; expected \[6, 48\] from config.json"),
        ({"n_inner": 60}, r"fc1.weight' has shape \[72, 48\]; expected \[60, 48\] from config.json"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        load_checkpoint(write(tmp_path / "m", made(), **changes))
