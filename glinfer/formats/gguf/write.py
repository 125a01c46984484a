"""Writing GGUF files that llama.cpp loads."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import InputError, required
from glinfer.families.settings import Unread
from glinfer.formats.checkpoint import Checkpoint, FloatArray, check_checkpoint
from glinfer.formats.files import AnyPath, replacing
from glinfer.formats.gguf.config import metadata_of
from glinfer.formats.gguf.model import is_by_key, rows_for_file
from glinfer.formats.gguf.vocabulary import Vocabulary, vocabulary_metadata
from glinfer.formats.huggingface.layouts import rows_by_part
from glinfer.formats.packed import block_weights, row_bytes
from glinfer.formats.sampling import sampling_metadata
from glinfer.formats.tensors import StoredTensor, stored_tensors, weight_shapes
from glinfer.quant.formats import F16
from glinfer.quant.ggml import pack

DTYPES = {
    "float32": ("F32", "ALL_F32"),
    "float16": ("F16", "MOSTLY_F16"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
    **{name.lower(): (name, f"MOSTLY_{name}") for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K")},
    **{name.lower(): (name, f"MOSTLY_{name}_S") for name in ("Q3_K", "Q4_K", "Q5_K")},
    **{name.lower(): (name, f"MOSTLY_{name}") for name in ("Q6_K", "IQ4_NL", "IQ4_XS")},
}
"""Types of written matrices: GGML's name, and the name of llama.cpp's file type."""
INSTEAD = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Types with blocks of 32 for rows that are not whole blocks of 256; llama.cpp chooses the same."""
Importance = Mapping[str, npt.NDArray[np.float32]]
"""The importance of each input of a matrix, [inputs], by the matrix's name."""
SHIFT = np.float32(0.25)
"""The constant that :func:`fold_head` adds to each normalised number: small, but enough to carry a bias."""


def fold_head(checkpoint: Checkpoint) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Make a final LayerNorm and a head without bias that together give the same logits.

    The normalised vector n sums to 0. So a row w of the head (LayerNorm's gain multiplied in) may be centred:
    (w − mean w)·n = w·n. A centred row does not see a constant c added to all of n, but one that has b / (c·D)
    added to each of its D numbers turns that constant into b:
    (w − mean w + b / (c·D))·(n + c) = w·n + b.

    Returns:
        LayerNorm's gain [D] (ones) and bias [D] (all c), and the head [V, D].
    """
    tensors, width, names = checkpoint.tensors, checkpoint.config.hidden_size, checkpoint.config.family.names
    head = tensors[f"{names.head}.weight"].astype(np.float64)
    bias = tensors[f"{names.head}.bias"] + head @ tensors[f"{names.final_norm}.bias"]
    head *= tensors[f"{names.final_norm}.weight"]
    head += (bias / (float(SHIFT) * width) - head.mean(axis=1))[:, None]
    return np.ones(width, np.float32), np.full(width, SHIFT, np.float32), head.astype(np.float32)


def as_relative(checkpoint: Checkpoint) -> Checkpoint:
    """Convert a model to the family ``gguf_as`` of its record, with the same tensor names and logits.

    Biases that only the other family has are 0, and its head has none: see :func:`fold_head`.
    """
    gain, shift, head = fold_head(checkpoint)
    config, names = _relative(checkpoint.config), checkpoint.config.family.names
    norm = names.final_norm
    tensors = {**checkpoint.tensors, f"{norm}.weight": gain, f"{norm}.bias": shift, f"{names.head}.weight": head}
    shapes = weight_shapes(config).items()
    made = {name: tensors[name] if name in tensors else np.zeros(shape, np.float32) for name, shape in shapes}
    return Checkpoint(config, made, checkpoint.source)


def _with_head(checkpoint: Checkpoint) -> Checkpoint:
    """A tied model, with its embeddings as a separate head too."""
    names = checkpoint.config.family.names
    embeddings, head = f"{names.embeddings}.weight", f"{names.head}.weight"
    tensors, packed = {**checkpoint.tensors}, {**checkpoint.packed}
    if embeddings in packed:
        packed[head] = packed[embeddings]
    else:
        tensors[head] = tensors[embeddings]
    config = replace(checkpoint.config, tie_word_embeddings=False)
    return replace(checkpoint, config=config, tensors=tensors, packed=packed)


def _relative(config: ModelConfig) -> ModelConfig:
    form, layers = config.family.gguf, range(config.num_hidden_layers)
    if form is not None and form.attending and all(config.layer(layer).attends for layer in layers):
        return replace(config, model_type=form.attending)
    return replace(config, model_type=config.family.gguf_as or config.model_type)


@dataclass(frozen=True)
class _Planned:
    """A tensor to be written: its sources, type and size."""

    name: str
    shape: tuple[int, ...]
    format: str
    stored: StoredTensor | None = None

    @property
    def nbytes(self) -> int:
        *outer, inputs = self.shape
        return int(np.prod(outer, dtype=np.int64)) * (
            4 * inputs if self.format == "F32" else row_bytes(self.format, inputs)
        )


def write_gguf(
    checkpoint: Checkpoint,
    path: AnyPath,
    *,
    dtype: str | None = "float32",
    tokenizer: Vocabulary | None = None,
    sampling: Mapping[str, Any] | None = None,
    importance: Importance | None = None,
    images: Mapping[str, Any] | None = None,
) -> None:
    """Write a GGUF file of version 3. A model of the family ``gab`` becomes one of GPT-2's architecture.

    The file is written atomically, with one tensor in memory at a time. Always float32 are vectors, routers, position
    embeddings (float16 with ``float16``), and matrices whose rows are not whole blocks of 32. Rows that are not whole
    blocks of 256 get blocks of 32, see :data:`INSTEAD`.

    Args:
        checkpoint: a model of any family but ``gift_of_gab``.
        path: the file; an existing one is replaced.
        dtype: the type of matrices, one of :data:`DTYPES`; None keeps the type of each.
        tokenizer: see :func:`glinfer.formats.gguf.vocabulary.vocabulary_metadata`; with None the file has no
            vocabulary, and llama.cpp handles only token ids.
        sampling: checked sampling defaults to store, as from :func:`glinfer.formats.sampling.named_sampling`.
        importance: the weight of each input's error in the search of a block's scales, by the matrix's name in the
            checkpoint; matrices without it use the size of their weights.
        images: metadata of a model that takes images, as from :func:`glinfer.formats.vision.image_metadata`.

    Raises:
        InputError: the dtype is unknown; GGUF cannot express the model or its tokenizer; a weight is too large for
            the dtype; or the package gguf is not installed.
        FormatError: tensors do not match the configuration, or the file cannot be written.
    """
    gguf = required("gguf", "gguf", "GGUF files are written with")
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}, or None for tensors as they are")
    check_checkpoint(checkpoint)
    metadata, factors = metadata_of(_relative(checkpoint.config))
    if checkpoint.config.family.gguf_as:
        checkpoint = as_relative(checkpoint)
    checkpoint = replace(checkpoint, config=_relative(checkpoint.config))
    form = checkpoint.config.family.in_gguf
    if form.head == "own" and checkpoint.config.tie_word_embeddings:
        checkpoint = _with_head(checkpoint)
    metadata.update(images or {})
    metadata.update(vocabulary_metadata(tokenizer, checkpoint.config.vocab_size))
    metadata.update(sampling_metadata(sampling or {}))
    if dtype is not None:
        metadata["general.file_type"] = int(gguf.LlamaFileType[DTYPES[dtype][1]])
    planned = [
        _Planned(stored.name, stored.outer_shape, _format(stored, checkpoint, dtype), stored)
        for stored in stored_tensors(checkpoint.config, form.names)
        if stored.tensors[0].role not in form.listed
    ]
    layers, names = range(checkpoint.config.num_hidden_layers), checkpoint.config.family.names
    for role in form.listed:
        numbers = [checkpoint.floats(names.of(role, layer)) for layer in layers]
        metadata[getattr(form.names, role)] = np.concatenate(numbers).tolist()
    metadata.update({key: [number] * len(layers) for key, number in form.constants.items()})
    planned += [_Planned(name, numbers.shape, "F32") for name, numbers in factors.items()]
    with replacing(path) as temporary:
        writer = gguf.GGUFWriter(temporary, form.architecture)
        with contextlib.closing(writer):
            _write(gguf, writer, checkpoint, metadata, factors, planned, importance or {})


def _format(stored: StoredTensor, checkpoint: Checkpoint, dtype: str | None) -> str:
    """The type in which a tensor is written."""
    names = checkpoint.config.family.names
    sources = [tensor.name(names) for tensor in stored.tensors]
    formats = {checkpoint.packed[name].format if name in checkpoint.packed else "F32" for name in sources}
    if len(stored.shape) != 2 or len(stored.outer_shape) == 1:
        return "F32"
    if dtype is None:
        found = formats.pop() if len(formats) == 1 else "F32"  # one tensor of the file has one type
        if found.endswith("_ROW"):
            raise InputError(f"tensor {sources[0]!r} is {found}, which GGUF does not have; choose a dtype")
        return found
    wanted = DTYPES[dtype][0]
    if stored.tensors[0].role == "router":
        return "F32"  # rounding could change the choice of experts; llama.cpp keeps float32 too
    if stored.tensors[0].role == "positions":
        return wanted if wanted == F16 else "F32"
    inputs = stored.tensors[0].shape[-1]
    if wanted == "F32" or inputs % block_weights(wanted) == 0:
        return wanted
    smaller = INSTEAD.get(wanted, "F32")
    return smaller if smaller == "F32" or inputs % block_weights(smaller) == 0 else "F32"


def _write(
    gguf: Any,
    writer: Any,
    checkpoint: Checkpoint,
    metadata: Mapping[str, Any],
    factors: Mapping[str, FloatArray],
    planned: list[_Planned],
    importance: Importance,
) -> None:
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        np.float64: writer.add_float64,
        str: writer.add_string,
    }
    for key, value in metadata.items():
        if not isinstance(value, Unread):
            add.get(type(value), writer.add_array)(key, value)
    for each in planned:
        numbers = gguf.GGMLQuantizationType[each.format]
        writer.add_tensor_info(each.name, each.shape, np.dtype(np.float32), each.nbytes, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for each in planned:
        writer.write_tensor_data(
            factors[each.name] if each.stored is None else _data(each.stored, each.format, checkpoint, importance)
        )


def _data(stored: StoredTensor, form: str, checkpoint: Checkpoint, importance: Importance) -> npt.NDArray[Any]:
    """The bytes or numbers of a tensor, as the file has them."""
    config = checkpoint.config
    parts = [
        rows_for_file(config, tensor, _part(form, tensor.name(config.family.names), checkpoint, importance))
        for tensor in stored.tensors
    ]
    joined = np.concatenate(parts, axis=int(stored.by_columns)) if len(parts) > 1 else parts[0]
    if is_by_key(config, stored):
        joined = joined[np.argsort(rows_by_part(stored, config))]
    joined = np.ascontiguousarray(joined)
    return joined.reshape(stored.outer_shape) if joined.ndim != 2 else joined


def _part(form: str, name: str, checkpoint: Checkpoint, importance: Importance) -> npt.NDArray[Any]:
    packed = checkpoint.packed.get(name)
    if packed is not None and packed.format == form:
        return packed.blocks
    floats = checkpoint.floats(name)
    if form == "F32":
        return floats
    try:
        return _halves(floats) if form == F16 else pack(floats, form, importance.get(name))
    except InputError as error:
        raise InputError(f"{checkpoint.source}: tensor {name!r}: {error}") from None


def _halves(floats: FloatArray) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = floats.astype("<f2")
    if not np.isfinite(halves).all():
        raise InputError("a weight is not finite, or too large for float16; choose bfloat16 or float32")
    return halves
