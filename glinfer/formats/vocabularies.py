"""The vocabulary beside a checkpoint, for files that are written from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glinfer.formats.files import AnyPath, inside, is_directory
from glinfer.formats.gab.bpe import BpeModel, read_bpe
from glinfer.formats.gguf.file import is_gguf, read_gguf_file
from glinfer.formats.gguf.vocabulary import VOCABULARY_KEYS
from glinfer.formats.json_files import read_json
from glinfer.limits import MAX_TOKENIZER_BYTES, MAX_TOKENIZER_VALUES

Vocabulary = BpeModel | dict[str, Any]
"""A BPE1 vocabulary, what a ``tokenizer.json`` holds, or the metadata of a GGUF file about its vocabulary."""


def vocabulary_beside(checkpoint: AnyPath) -> Vocabulary | None:
    """The vocabulary and chat template in a GGUF file's own metadata, or what lies beside another checkpoint.

    That is the first there is of ``<checkpoint>.bpe``, ``model.bpe`` and ``tokenizer.json``, beside it or in it.

    Raises:
        FormatError: it is damaged.
    """
    path = Path(checkpoint)
    if not is_directory(path) and is_gguf(path):
        metadata = read_gguf_file(path).metadata
        found = {key: value for key, value in metadata.items() if key.startswith(VOCABULARY_KEYS)}
        return found if "tokenizer.ggml.tokens" in found else None
    folder = path if is_directory(path) else path.parent
    for candidate in (path.with_suffix(".bpe"), folder / "model.bpe", folder / "tokenizer.json"):
        if candidate.is_file():
            if candidate.suffix == ".bpe":
                return read_bpe(inside(candidate))
            return read_json(inside(candidate), MAX_TOKENIZER_BYTES, MAX_TOKENIZER_VALUES)
    return None
