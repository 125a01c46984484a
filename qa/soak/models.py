"""Small random models that a soak serves beside its own: one that chats, with an adapter, and one that embeds."""

from __future__ import annotations

import json
from pathlib import Path

from glinfer.config import ModelConfig
from glinfer.formats import random_checkpoint, save_checkpoint
from tests.helpers.made_adapters import made_pairs, write_peft
from tests.helpers.template_models import CHATML, byte_library
from tests.helpers.tiny_embedders import write_embedder

CHATS, ADAPTER, EMBEDS = "chats", "adapted", "embeds"
"""The names that requests give."""
_SHAPE = "family=llama,vocab=258,dim=64,heads=4,kv_heads=2,blocks=2,inner=128,context=256"


def write_models(folder: Path) -> tuple[Path, Path, Path]:
    """Write the models into a folder: that which chats, whose tokens are bytes, its adapter, and that which embeds."""
    chats, adapter, embeds = folder / CHATS / "model.safetensors", folder / ADAPTER, folder / EMBEDS
    chats.parent.mkdir()
    checkpoint = random_checkpoint(ModelConfig.from_options(_SHAPE), seed=3, scale=0.2)
    save_checkpoint(checkpoint, chats)
    byte_library().save(str(chats.with_name("tokenizer.json")))
    about = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    chats.with_name("tokenizer_config.json").write_text(json.dumps(about), "utf-8")
    pairs = made_pairs(checkpoint.config, rank=4, seed=5)
    write_peft(adapter, {name: pair for name, pair in pairs.items() if name.endswith(("q_proj", "v_proj"))})
    write_embedder(embeds, max_position_embeddings=128)
    return chats, adapter, embeds
