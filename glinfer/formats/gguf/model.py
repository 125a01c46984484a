"""Models in GGUF files: llama.cpp's architectures as glinfer's families, with matrices left in their blocks.

Source of the order of rows: convert_hf_to_gguf.py of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families.names import Names
from glinfer.families.settings import Settings, quoted
from glinfer.formats.checkpoint import Checkpoint, check_blocks, check_names
from glinfer.formats.files import AnyPath
from glinfer.formats.gguf.config import LONG_FACTORS, ROPE_FREQS, block_counts, config_of, family_of
from glinfer.formats.gguf.embedders import answers_yes_or_no, embedding_of, names_in, passed_over
from glinfer.formats.gguf.file import GgufFile, GgufTensor, keys_of
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.huggingface.layouts import rows_by_part
from glinfer.formats.packed import PACKED_FORMATS, PackedTensor, block_weights
from glinfer.formats.reranker import with_classifier
from glinfer.formats.tensors import StoredTensor, stored_tensors
from glinfer.graph.nodes import ModelTensor

Rows = npt.NDArray[Any]
_BLOCKS = "blocks of its metadata"
_ROUNDED = 0.01  # largest error of a constant of a file relative to its value, which may have been a bfloat16
_READ = ("F32", *(name for name in PACKED_FORMATS if not name.endswith("_ROW")))


def read_gguf(path: AnyPath) -> Checkpoint:
    """Read a model from a GGUF file, or from its parts, if a family's record has its architecture.

    Names, shapes and the order of rows are those of :func:`glinfer.formats.tensors.weight_shapes`. Matrices keep the
    file's format. They are views of the memory-mapped file, unless their rows are reordered, as for queries and keys of
    some architectures (:func:`rows_from_file`). Vectors become float32.

    Raises:
        FormatError: the file cannot be read or is damaged; the architecture or a setting is not supported; a tensor is
            missing, unknown, of another shape or of an unknown type.
    """
    return checkpoint_of(read_gguf_file(path))


def checkpoint_of(file: GgufFile) -> Checkpoint:
    """Convert a GGUF file that has been read; see :func:`read_gguf`."""
    file, config = _with_joined_latents(_with_listed(file)), config_of(file)
    found = checked_parts(config, file, names_in(file, config.family), _ignored(config, file))
    embedding = embedding_of(file, config)
    found = replace(found, embedding=embedding)
    if not answers_yes_or_no(file, config):
        return found
    yes, no = found.floats(f"{config.family.names.of('dense', None, '0')}.weight")
    return with_classifier(found, yes, no, embedding.pair or config.family.rerank_prompt)


def _with_listed(file: GgufFile) -> GgufFile:
    """A file with the numbers of layers that its metadata list as tensors [1]."""
    form, tensors = family_of(file).in_gguf, dict(file.tensors)
    for role in form.listed:
        key = getattr(form.names, role)
        found = file.metadata.get(key)
        if not isinstance(found, list) or not all(isinstance(each, float) for each in found):
            raise Settings(file.metadata, file.source).refused(key, "a list of numbers, one a layer")
        for layer, number in enumerate(found):
            name = form.names.of(role, layer)
            tensors[name] = GgufTensor(name, "F32", (1,), np.array([number], "<f4").view(np.uint8))
    for key, number in form.constants.items():
        found = file.metadata.get(key, number)
        given = found if isinstance(found, list) else [found]
        if any(not isinstance(each, float) or abs(each / number - 1) > _ROUNDED for each in given):
            raise FormatError(f"{file.source}: {key} is {quoted(found)}; expected {number:g} for every layer")
    return replace(file, tensors=tensors)


def _with_joined_latents(file: GgufFile) -> GgufFile:
    """A file with the products of a latent in one tensor; newer files have those of keys apart and transposed."""
    tensors, ending = dict(file.tensors), "attn_k_b.weight"
    for name in [name for name in tensors if name.endswith(ending)] if family_of(file).latent else ():
        stem = name.removesuffix(ending)
        keys, values = tensors.pop(name), tensors.pop(f"{stem}attn_v_b.weight", None)
        fits = values is not None and len(keys.shape) == len(values.shape) == 3
        if not fits or values is None or keys.shape[:2] != (values.shape[0], values.shape[2]):
            raise FormatError(
                f"{file.source}: tensor {quoted(name)} has shape {quoted(list(keys.shape))}, and attn_v_b "
                f"{quoted(list(values.shape) if values else None)}; expected [heads, latent, key] and [heads, value, "
                "latent]; get another conversion"
            )
        both = (keys.floats().reshape(keys.shape).swapaxes(1, 2), values.floats().reshape(values.shape))
        rows = np.concatenate(both, axis=1).reshape(-1, keys.shape[1])
        joined = f"{stem}attn_kv_b.weight"
        tensors[joined] = GgufTensor(joined, "F32", rows.shape, np.ascontiguousarray(rows, "<f4").view(np.uint8))
    return replace(file, tensors=tensors)


def _ignored(config: ModelConfig, file: GgufFile) -> set[str]:
    """The names of tensors that the model does not need, although they belong to its file."""
    form = config.family.in_gguf
    ignored = passed_over(file, config) | ({ROPE_FREQS} if form.has_factors or form.proportional else set())
    ignored |= set(LONG_FACTORS.values()) if form.partial_rotary else set()
    layers, every_block = block_counts(keys_of(file, config.family))
    check_blocks(every_block, file.tensors, _BLOCKS, file.source)
    guessing = tuple(form.names.layer.format(layer) for layer in range(layers, every_block))
    return ignored | {name for name in file.tensors if name.startswith(guessing) or re.fullmatch(form.unused, name)}


def checked_parts(
    config: ModelConfig, file: GgufFile, names: Names, ignored: Collection[str] = frozenset()
) -> Checkpoint:
    """The tensors with these names in a file, which has no others than the ``ignored``; messages use these names."""
    check_blocks(config.num_hidden_layers, file.tensors, _BLOCKS, file.source)
    stored = stored_tensors(config, names)
    expected = {tensor.name: tensor for tensor in stored}
    counts = f"found {len(file.tensors)} tensors, expected {len(expected)} for {config.num_hidden_layers} blocks"
    given = (name for name in file.tensors if name in expected or name not in ignored)
    check_names(expected, given, counts, file.source)
    for name, wanted in expected.items():
        found = file.tensors[name]
        if found.type not in _READ:
            raise FormatError(
                f"{file.source}: tensor {quoted(name)} is {found.type}, which is not supported; known: "
                f"{', '.join(_READ)}; get the model in one of them"
            )
        if found.shape != wanted.outer_shape:
            raise FormatError(
                f"{file.source}: tensor {quoted(name)} has shape {quoted(list(found.shape))}; expected "
                f"{list(wanted.outer_shape)} from the metadata (outermost first)"
            )
    parts = (part for each in stored for part in _parts(config, each, file.tensors[each.name]))
    return Checkpoint.of_parts(config, parts, file.source, files=file.paths)


def _parts(config: ModelConfig, stored: StoredTensor, found: GgufTensor) -> Iterator[tuple[str, Rows | PackedTensor]]:
    """The model's tensors in one checked tensor of the file, by name."""
    is_packed = found.type != "F32" and len(stored.shape) == 2
    if stored.by_columns and is_packed:
        is_packed = stored.tensors[0].shape[1] % block_weights(found.type) == 0
    rows: Rows = found.rows().reshape(stored.shape[0], -1) if is_packed else found.floats().reshape(stored.shape)
    if is_by_key(config, stored):
        rows = rows[rows_by_part(stored, config)]
    for tensor, part in stored.split(rows):
        own = rows_from_file(config, tensor, part)
        yield tensor.name(config.family.names), PackedTensor(found.type, own) if is_packed else own


def is_by_key(config: ModelConfig, stored: StoredTensor) -> bool:
    """Whether a tensor joins several input matrices of a delta rule, whose rows are then grouped by key head."""
    return stored.tensors[0].role == "delta_in" and len(stored.tensors) > 1 and not config.family.scans


def rows_from_file(config: ModelConfig, tensor: ModelTensor, rows: Rows) -> Rows:
    """Convert rows (or numbers) of a tensor from a file's form to glinfer's.

    Files store the gains of norms; glinfer stores them without the family's offset. Files store decay factors, -exp(x);
    glinfer stores x. In some architectures, query and key heads have the two elements of each rotary pair side by side.
    glinfer stores the first elements of all pairs, then the second ones.
    """
    offset, heads = np.float32(config.family.norm_offset), _heads_in_pairs(config, tensor)
    if tensor.role == "decay_rate":
        if not (rows < 0).all():
            name = tensor.name(config.family.in_gguf.names)
            raise FormatError(f"tensor {quoted(name)} has a factor of a decay that is not below 0; expected all below")
        return np.asarray(np.log(-rows))
    if tensor.is_gain and offset:
        rows = rows - offset
    return halves_apart(rows, heads) if heads else rows


def rows_for_file(config: ModelConfig, tensor: ModelTensor, rows: Rows) -> Rows:
    """The reverse of :func:`rows_from_file`."""
    offset, heads = np.float32(config.family.norm_offset), _heads_in_pairs(config, tensor)
    if tensor.role == "decay_rate":
        return np.asarray(-np.exp(rows))
    if tensor.is_gain and offset:
        rows = rows + offset
    return halves_together(rows, heads) if heads else rows


def _heads_in_pairs(config: ModelConfig, tensor: ModelTensor) -> int:
    if not config.family.in_gguf.pairs_together or tensor.role != "projection" or tensor.letter == "v":
        return 0
    return config.num_attention_heads if tensor.letter == "q" else config.num_key_value_heads


def halves_apart(rows: Rows, heads: int) -> Rows:
    """Reorder rows (or numbers) from pairs side by side to two halves; returns a copy."""
    by_pair = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(rows.shape)


def halves_together(rows: Rows, heads: int) -> Rows:
    """The reverse of :func:`halves_apart`; llama.cpp's converter calls it ``permute``."""
    by_half = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return by_half.swapaxes(1, 2).reshape(rows.shape)
