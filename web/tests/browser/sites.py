"""A small model that chats, with its site."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from scripted_models import SMALL, random_file

import glinfer
from glinfer.engine.random_model import demo_tokenizer
from glinfer.export.site import export_web
from glinfer.formats import write_bpe


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
