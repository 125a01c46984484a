"""Small random models that a soak serves beside its own: one that chats, with an adapter, and one that embeds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from glinfer.config import ModelConfig
from glinfer.formats import random_checkpoint
from glinfer.formats.huggingface.config import read_config

CHATS, ADAPTER, EMBEDS = "chats", "adapted", "embeds"
"""The names that requests give."""
WORDS = ("the", "cat", "dog", "sat", "on", "mat", "rain", "play", "##ing", "##s", "in", "a", "?", ".", "love", "crown")
_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "intermediate_size": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 5 + len(WORDS),
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
_RANK = 4


def write_models(folder: Path) -> tuple[Path, Path, Path]:
    """Write the models into a folder: directories of the one that chats, of its adapter, and of the one that embeds."""
    chats, adapter, embeds = folder / CHATS, folder / ADAPTER, folder / EMBEDS
    _write_llama(chats)
    _write_adapter(adapter)
    _write_bert(embeds)
    return chats, adapter, embeds


def _write_weights(folder: Path, config: ModelConfig) -> None:
    tensors = random_checkpoint(config, seed=3, scale=0.2).tensors
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")


def _config(folder: Path, settings: dict[str, object]) -> ModelConfig:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings), "utf-8")
    return read_config(folder / "config.json")


def _write_llama(folder: Path) -> None:
    """A Llama whose tokens are bytes, with a chat template."""
    config = _config(folder, _LLAMA)
    _write_weights(folder, config)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<|start|>", "<|end|>"])
    made.save(str(folder / "tokenizer.json"))
    about = {"eos_token": "<|end|>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), "utf-8")


def _write_adapter(folder: Path) -> None:
    """What PEFT's ``save_pretrained`` writes, of two matrices of each layer of that Llama."""
    folder.mkdir()
    width, heads = 64, {"q_proj": 64, "v_proj": 32}
    about = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 2 * _RANK, "bias": "none", "target_modules": [*heads]}
    (folder / "adapter_config.json").write_text(json.dumps(about), "utf-8")
    random, tensors = np.random.default_rng(5), {}
    for layer in range(2):
        for name, rows in heads.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = (random.standard_normal((_RANK, width)) * 0.3).astype(np.float32)
            tensors[f"{place}.lora_B.weight"] = (random.standard_normal((rows, _RANK)) * 0.3).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")


def _write_bert(folder: Path) -> None:
    """A directory of sentence-transformers: a BERT, the mean of its tokens, and a norm."""
    config = _config(folder, _BERT)
    _write_weights(folder, config)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", "utf-8")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
