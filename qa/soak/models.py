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
from tests.helpers.made_adapters import made_pairs, write_peft
from tests.helpers.tiny_embedders import write_embedder

CHATS, ADAPTER, EMBEDS = "chats", "adapted", "embeds"
"""The names that requests give."""
_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 258, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 256,
    "intermediate_size": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


def write_models(folder: Path) -> tuple[Path, Path, Path]:
    """Write the models into a folder: directories of the one that chats, of its adapter, and of the one that embeds."""
    chats, adapter, embeds = folder / CHATS, folder / ADAPTER, folder / EMBEDS
    pairs = made_pairs(_write_llama(chats), rank=4, seed=5)
    write_peft(adapter, {name: pair for name, pair in pairs.items() if name.endswith(("q_proj", "v_proj"))})
    write_embedder(embeds, max_position_embeddings=128)
    return chats, adapter, embeds


def _write_llama(folder: Path) -> ModelConfig:
    """A Llama whose tokens are bytes, with a chat template; returns its shape."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_LLAMA), "utf-8")
    config = read_config(folder / "config.json")
    tensors = random_checkpoint(config, seed=3, scale=0.2).tensors
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<|start|>", "<|end|>"])
    made.save(str(folder / "tokenizer.json"))
    about = {"eos_token": "<|end|>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), "utf-8")
    return config
