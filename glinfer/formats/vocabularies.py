"""The vocabulary that lies beside a checkpoint, as a file that is written from it can take it along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glinfer.formats.bpe import BpeModel, read_bpe
from glinfer.formats.files import AnyPath
from glinfer.formats.huggingface_files import is_directory
from glinfer.formats.huggingface_json import read_json

_LARGEST = 1 << 27  # bytes of a tokenizer.json
Vocabulary = BpeModel | dict[str, Any]
"""A BPE1 vocabulary, or what a ``tokenizer.json`` holds."""


def vocabulary_beside(checkpoint: AnyPath) -> Vocabulary | None:
    """The first there is of ``<checkpoint>.bpe``, ``model.bpe`` and ``tokenizer.json`` beside a checkpoint, or in it.

    Raises:
        FormatError: it is damaged.
    """
    path = Path(checkpoint)
    folder = path if is_directory(path) else path.parent
    for candidate in (path.with_suffix(".bpe"), folder / "model.bpe", folder / "tokenizer.json"):
        if candidate.is_file():
            return read_bpe(candidate) if candidate.suffix == ".bpe" else read_json(candidate, _LARGEST)
    return None
