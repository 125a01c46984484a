"""Reading and writing models: GAB1, safetensors, GGUF and Hugging Face checkpoints, BPE1 tokenizers.

This package handles files, configurations and named arrays; it does not depend on OpenGL.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glinfer.errors import FormatError, InputError
from glinfer.formats.bundled import BundledModel, bundled_models
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.files import BPE1_MAGIC, GAB1_MAGIC, AnyPath, check_ending, is_directory, opened, replacing, shown
from glinfer.formats.gab.bpe import BpeModel, read_bpe, write_bpe
from glinfer.formats.gab.file import read_gab, write_gab
from glinfer.formats.gguf.file import GGUF_MAGIC
from glinfer.formats.gguf.model import read_gguf
from glinfer.formats.gguf.vocabulary import Vocabulary
from glinfer.formats.gguf.write import DTYPES as GGUF_DTYPES
from glinfer.formats.gguf.write import Importance, write_gguf
from glinfer.formats.huggingface.files import CONFIG, OTHER_WEIGHTS
from glinfer.formats.huggingface.model import read_huggingface
from glinfer.formats.manifest.model import find_manifest, is_manifest, read_manifest
from glinfer.formats.names import find_model
from glinfer.formats.random_weights import random_checkpoint, random_packed_checkpoint
from glinfer.formats.safetensors import DTYPES as SAFETENSORS_DTYPES
from glinfer.formats.safetensors import read_safetensors, write_safetensors
from glinfer.formats.safetensors_file import read_header
from glinfer.formats.tensors import weight_shapes
from glinfer.formats.zipped import dropped_if_refused, unpacked

__all__ = [
    "BpeModel",
    "BundledModel",
    "Checkpoint",
    "bundled_models",
    "find_model",
    "load_checkpoint",
    "random_checkpoint",
    "random_packed_checkpoint",
    "read_bpe",
    "read_gab",
    "read_gguf",
    "read_huggingface",
    "read_manifest",
    "read_safetensors",
    "replacing",
    "save_checkpoint",
    "unpacked",
    "weight_shapes",
    "write_bpe",
    "write_gab",
    "write_gguf",
    "write_safetensors",
]

AS_IN_FILE = "file"
DTYPES = (*GGUF_DTYPES, AS_IN_FILE)
HELD = {".gab": ("float32",), ".safetensors": SAFETENSORS_DTYPES, ".gguf": DTYPES}
"""The values of ``dtype`` that each file format supports."""
_SNIFFED = 9  # a safetensors header's length takes 8 bytes, and the header starts with "{"


def load_checkpoint(path: AnyPath) -> Checkpoint:
    """Read a bundled model by name, or a checkpoint whose format its first bytes show.

    Directories, config.json, and safetensors files that glinfer did not save are read as Hugging Face models.

    Raises:
        FormatError: the file cannot be read, is a tokenizer, is damaged, or has an unknown format.
        InputError: ``path`` is not a path, or a package that the format needs is not installed.
    """
    path = unpacked(find_model(path))
    with dropped_if_refused(path):
        return _load(path)


def _load(path: AnyPath) -> Checkpoint:
    if is_directory(path):
        manifest = None if (Path(path) / CONFIG).exists() else find_manifest(Path(path))
        return read_huggingface(path) if manifest is None else read_manifest(manifest)
    with opened(path) as (file, size):
        start = file.read(_SNIFFED)
    if start.startswith(GAB1_MAGIC.to_bytes(4, "little")):
        return read_gab(path)
    if start.startswith(GGUF_MAGIC):
        return read_gguf(path)
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
    if is_manifest(path):
        return read_manifest(path)
    if Path(path).suffix == ".json" or Path(path).name in OTHER_WEIGHTS:
        return read_huggingface(path)
    found = f"first bytes {start[:8].hex(' ')}" if start else "an empty file"
    raise FormatError(
        f"{shown(path)}: found {found} ({size} bytes in all); expected a GAB1, safetensors or GGUF checkpoint"
    )


def save_checkpoint(
    checkpoint: Checkpoint,
    path: AnyPath,
    *,
    dtype: str = "float32",
    tokenizer: Vocabulary | None = None,
    sampling: Mapping[str, Any] | None = None,
    importance: Importance | None = None,
    images: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint in the format of the file name's ending: ``.gab``, ``.safetensors`` or ``.gguf``.

    For safetensors, ``dtype`` may be ``float16``: half the size, every number rounded. For GGUF it is one of
    :data:`glinfer.formats.gguf.write.DTYPES`, or ``file`` to keep each tensor's type. Only GGUF files store
    ``tokenizer``, ``sampling`` and ``images``, and use ``importance``: see
    :func:`glinfer.formats.gguf.write.write_gguf`.

    Raises:
        InputError: the name has another ending, or the format does not support the dtype.
        FormatError: the format cannot hold this model, or the file cannot be written.
    """
    suffix = check_ending(path)
    if suffix == ".safetensors":
        write_safetensors(checkpoint, path, dtype=dtype)
    elif suffix == ".gguf":
        of_tensors = None if dtype == AS_IN_FILE else dtype
        further: dict[str, Any] = {"tokenizer": tokenizer, "sampling": sampling, "importance": importance}
        write_gguf(checkpoint, path, dtype=of_tensors, images=images, **further)
    elif dtype != "float32":
        others = [ending for ending, held in HELD.items() if dtype in held]
        raise InputError(f"{shown(path)}: a .gab file holds float32, not {dtype}; write a {' or '.join(others)} file")
    else:
        write_gab(checkpoint, path)
