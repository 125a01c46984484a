"""Files to models and back: GAB1, safetensors and Hugging Face checkpoints, BPE1 tokenizers.

This room knows files, configurations and named arrays, and nothing of graphics.
"""

from __future__ import annotations

from pathlib import Path

from glinfer.errors import FormatError, InputError
from glinfer.formats.bpe import BpeModel, read_bpe, write_bpe
from glinfer.formats.bundled import BundledModel, bundled_models, find_model
from glinfer.formats.checkpoint import Checkpoint, random_checkpoint
from glinfer.formats.families import weight_shapes
from glinfer.formats.files import BPE1_MAGIC, GAB1_MAGIC, AnyPath, opened, replacing, shown
from glinfer.formats.gab import read_gab, write_gab
from glinfer.formats.huggingface import read_huggingface
from glinfer.formats.huggingface_files import OTHER_WEIGHTS, is_directory, read_header
from glinfer.formats.safetensors import read_safetensors, write_safetensors

__all__ = [
    "BpeModel",
    "BundledModel",
    "Checkpoint",
    "bundled_models",
    "find_model",
    "load_checkpoint",
    "random_checkpoint",
    "read_bpe",
    "read_gab",
    "read_huggingface",
    "read_safetensors",
    "replacing",
    "save_checkpoint",
    "weight_shapes",
    "write_bpe",
    "write_gab",
    "write_safetensors",
]

_SNIFFED = 9  # a safetensors header's length takes 8 bytes, and the header starts with "{"


def load_checkpoint(path: AnyPath) -> Checkpoint:
    """Read a bundled model by its name, or a checkpoint of any known format, which its first bytes tell.

    A directory is a Hugging Face model's; so is its config.json, and a safetensors file that glinfer did not save.

    Raises:
        FormatError: the file cannot be read, is a tokenizer, is of no known format, or is damaged.
    """
    path = find_model(path)
    if is_directory(path):
        return read_huggingface(path)
    with opened(path) as (file, size):
        start = file.read(_SNIFFED)
    if start.startswith(GAB1_MAGIC.to_bytes(4, "little")):
        return read_gab(path)
    if start[8:] == b"{":
        _, metadata = read_header(Path(path))
        if metadata.get("format") == "glinfer":
            return read_safetensors(path)
        if Path(path).suffix != ".safetensors":
            raise FormatError(
                f"{shown(path)}: found a safetensors file that glinfer did not save; expected one that it saved, or "
                "the directory of a Hugging Face model"
            )
        return read_huggingface(path)
    if start.startswith(BPE1_MAGIC.to_bytes(4, "little")):
        raise FormatError(
            f"{shown(path)}: this is a BPE1 tokenizer file; expected a checkpoint; give the model's .gab or "
            ".safetensors file here"
        )
    if Path(path).suffix == ".json" or Path(path).name in OTHER_WEIGHTS:
        return read_huggingface(path)
    found = f"first bytes {start[:8].hex(' ')}" if start else "an empty file"
    raise FormatError(f"{shown(path)}: found {found} ({size} bytes in all); expected a GAB1 or safetensors checkpoint")


def save_checkpoint(checkpoint: Checkpoint, path: AnyPath, *, dtype: str = "float32") -> None:
    """Write a checkpoint in the format that the end of the name asks for: ``.gab`` or ``.safetensors``.

    ``dtype`` may be ``float16`` for safetensors: half the size, every number rounded.

    Raises:
        InputError: the name ends otherwise, or the format has no such dtype.
        FormatError: the format cannot hold this model, or the file cannot be written.
    """
    suffix = Path(path).suffix
    if suffix.lower() == ".safetensors":
        write_safetensors(checkpoint, path, dtype=dtype)
    elif suffix.lower() != ".gab":
        found = f"the name ends in {suffix!r}" if suffix else "the name has no ending"
        raise InputError(f"{shown(path)}: {found}; expected .gab or .safetensors")
    elif dtype != "float32":
        raise InputError(f"{shown(path)}: a .gab file holds float32, not {dtype}; write a .safetensors file")
    else:
        write_gab(checkpoint, path)
