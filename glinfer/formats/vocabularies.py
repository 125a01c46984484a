"""The vocabulary that lies beside a checkpoint, as a file that is written from it can take it along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glinfer.formats.files import AnyPath, inside, opened
from glinfer.formats.gab.bpe import BpeModel, read_bpe
from glinfer.formats.gguf.file import GGUF_MAGIC, read_gguf_file
from glinfer.formats.gguf.vocabulary import VOCABULARY_KEYS
from glinfer.formats.huggingface.files import is_directory
from glinfer.formats.huggingface.json_files import read_json

LARGEST_TOKENIZER, MOST_TOKENIZER_VALUES = 1 << 27, 5 << 19
"""Bytes and values of a ``tokenizer.json``; those of vocabularies of 260 000 tokens have 35 million, and 2 million."""
Vocabulary = BpeModel | dict[str, Any]
"""A BPE1 vocabulary, what a ``tokenizer.json`` holds, or the metadata of a GGUF file about its vocabulary."""


def vocabulary_beside(checkpoint: AnyPath) -> Vocabulary | None:
    """The vocabulary and chat template in a GGUF file's own metadata, or what lies beside another checkpoint.

    That is the first there is of ``<checkpoint>.bpe``, ``model.bpe`` and ``tokenizer.json``, beside it or in it.

    Raises:
        FormatError: it is damaged.
    """
    path = Path(checkpoint)
    if not is_directory(path):
        with opened(path) as (file, _):
            is_gguf = file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
        if is_gguf:
            metadata = read_gguf_file(path).metadata
            found = {key: value for key, value in metadata.items() if key.startswith(VOCABULARY_KEYS)}
            return found if "tokenizer.ggml.tokens" in found else None
    folder = path if is_directory(path) else path.parent
    for candidate in (path.with_suffix(".bpe"), folder / "model.bpe", folder / "tokenizer.json"):
        if candidate.is_file():
            if candidate.suffix == ".bpe":
                return read_bpe(inside(candidate))
            return read_json(inside(candidate), LARGEST_TOKENIZER, MOST_TOKENIZER_VALUES)
    return None
