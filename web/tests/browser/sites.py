"""Small models for sites: one that chats, with its site, and random ones in blocks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from scripted_models import SMALL, random_file

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.export.site import export_web
from glinfer.formats import Checkpoint, random_checkpoint, write_bpe
from glinfer.formats.packed import PackedTensor
from qa.kernels.cases.embedding import random_blocks


class ChatSite:
    """A small random model with Gab's chat form, its site, and what it replies in Python."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = random_file(folder / f"model{seed}.gab", SMALL, seed)
        write_bpe(demo_tokenizer(300), self.path.with_suffix(".bpe"))
        self.folder = export_web(self.path, folder / "site").folder
        self.reply = cache(self._reply)

    def _reply(self, prompt: str, tokens: int) -> str:
        with glinfer.load(self.path) as model:
            return str(model.chat(prompt, max_tokens=tokens, temperature=0))


def in_blocks_of_256(config: ModelConfig, forms: list[str]) -> Checkpoint:
    """A random model whose matrices have random blocks of these formats in turn."""
    floats, random = random_checkpoint(config, seed=6), np.random.default_rng(6)
    matrices = [name for name, tensor in floats.tensors.items() if tensor.ndim == 2]
    packed = {}
    for place, name in enumerate(matrices):
        form = forms[place % len(forms)]
        packed[name] = PackedTensor(form, random_blocks(random, form, *floats.tensors[name].shape))
    vectors = {name: tensor for name, tensor in floats.tensors.items() if name not in packed}
    return Checkpoint(config, vectors, "blocks of 256", packed)
