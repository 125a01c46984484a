"""Python's side of long_chat.mjs: makes a small model and its site, then replies to messages in one chat_session.

``python long_chat.py FOLDER TOKENS``: the site is in ``FOLDER/site`` when the first line is printed. Afterwards each
line of the input is a message as JSON, and each line printed the ids of its greedy reply of at most ``TOKENS`` tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.export.site import export_web
from glinfer.formats import random_checkpoint, save_checkpoint, write_bpe

CONFIG = ModelConfig.from_options("blocks=2,heads=2,dim=64,vocab=300,context=256")


def make(folder: Path) -> Path:
    """A model with random weights and Gab's chat form, and its site beside it."""
    path = folder / "model.gab"
    save_checkpoint(random_checkpoint(CONFIG, seed=3), path)
    write_bpe(demo_tokenizer(CONFIG.vocab_size), path.with_suffix(".bpe"))
    export_web(path, folder / "site")
    return path


def main(folder: str, tokens: str) -> None:
    """Reply until the input ends."""
    path = make(Path(folder))
    print(json.dumps(str(path)), flush=True)
    with glinfer.load(path) as model:
        session = model.chat_session()
        for line in sys.stdin:
            reply = session.stream(json.loads(line), max_tokens=int(tokens), temperature=0)
            reply.reply()
            print(json.dumps(reply.ids), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
