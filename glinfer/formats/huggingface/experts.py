"""The matrices of experts in files that interleave the rows of gate and up, as in gpt-oss.

Floats are stored as [experts, in, out]. In MXFP4 (Open Compute Project, Microscaling Formats 1.0) a matrix is two
tensors of bytes: ``NAME_blocks`` [experts, out, in / 32, 16] with two weights in each byte, the first one in the low
half, and ``NAME_scales`` [experts, out, in / 32], exponents of two. GGML's blocks have the same weights and exponents.
There, the low halves of a block hold its first sixteen weights, and the high halves the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.errors import FormatError
from glinfer.families.huggingface import HuggingFace
from glinfer.families.settings import quoted
from glinfer.formats.files import shown
from glinfer.formats.packed import GatheredTensor, PackedTensor
from glinfer.formats.safetensors_file import FoundTensor, floats_of
from glinfer.formats.tensors import StoredTensor
from glinfer.graph.nodes import ModelTensor
from glinfer.quant.formats import GROUP
from glinfer.quant.ggml import MAX_EXPONENT
from glinfer.quant.parts import Bytes, parts_of

MXFP4 = "MXFP4"
BLOCKS, SCALES = "_blocks", "_scales"
_BYTE = "U8"
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)

Parts = Iterator[tuple[ModelTensor, PackedTensor | npt.NDArray[np.float32]]]


@dataclass(frozen=True)
class FoundBlocks(FoundTensor):
    """Blocks of 4-bit weights as one tensor [experts, out, in] of type MXFP4, with a separate tensor of scales."""

    scales: FoundTensor

    @property
    def nbytes(self) -> int:
        """The size in bytes of the blocks alone."""
        return super().nbytes // 2


def with_blocks(found: Mapping[str, FoundTensor], form: HuggingFace) -> dict[str, FoundTensor]:
    """The tensors of a file, with blocks and their scales joined under the name of the matrix.

    Raises:
        FormatError: blocks or scales have another type, or their shapes do not match.
    """
    joined = dict(found)
    for name in found if form.quantized == MXFP4.lower() else ():
        stem, scales = name.removesuffix(BLOCKS), found.get(name.removesuffix(BLOCKS) + SCALES)
        if stem == name or scales is None:
            continue
        blocks = found[name]
        fits = len(blocks.shape) == 4 and blocks.shape[3] == GROUP // 2 and blocks.shape[:3] == scales.shape
        if not fits or {blocks.dtype, scales.dtype} != {_BYTE}:
            raise FormatError(
                f"{shown(blocks.file)}: tensor {quoted(name)} is {blocks.dtype} {list(blocks.shape)} and its scales "
                f"are {scales.dtype} {list(scales.shape)}; expected {_BYTE} [experts, rows, groups, {GROUP // 2}] and "
                f"{_BYTE} [experts, rows, groups]; get the file again"
            )
        experts, rows, groups = scales.shape
        del joined[name], joined[stem + SCALES]
        shape = (experts, rows, GROUP * groups)
        joined[stem] = FoundBlocks(blocks.file, MXFP4, shape, blocks.start, scales)
    return joined


def is_alternating(stored: StoredTensor, form: HuggingFace) -> bool:
    """Whether a file interleaves the rows of gate and up of these experts."""
    return stored.experts > 1 and form.layouts.get(stored.tensors[0].role) == "alternating"


def is_turned(stored: StoredTensor, form: HuggingFace) -> bool:
    """Whether a file stores the floats of these experts as [experts, in, out]."""
    return is_alternating(stored, form) and len(stored.shape) == 2


def mapped_parts(name: str, found: FoundTensor) -> dict[str, FoundTensor]:
    """The parts of a tensor to map, by name; blocks also need their scales."""
    return {name: found, name + SCALES: found.scales} if isinstance(found, FoundBlocks) else {name: found}


def parts_of_experts(stored: StoredTensor, found: FoundTensor, data: Mapping[str, Bytes]) -> Parts:
    """The matrices or biases of each expert in a checked tensor; packed ones are gathered on access."""
    each, rest = divmod(len(stored.tensors), stored.experts)
    assert not rest
    floats = None
    if len(stored.shape) == 1 or found.dtype == "F32":
        floats = floats_of(data[stored.name], found)
    for place, tensor in enumerate(stored.tensors):
        expert, number = divmod(place, each)
        own = slice(number, None, each)
        if floats is not None:
            yield tensor, floats[expert, :, own].T if len(stored.shape) == 2 else floats[expert, own]
        elif isinstance(found, FoundBlocks):
            yield tensor, _blocks(data[stored.name], data[stored.name + SCALES], found, expert, own, tensor)
        else:
            yield tensor, _halves(data[stored.name], found, expert, own, tensor)


def _halves(data: Bytes, found: FoundTensor, expert: int, own: slice, tensor: ModelTensor) -> PackedTensor:
    """The matrix of an expert in half floats or bfloat16, [in, out] in the file."""
    whole = data.view("<u2").reshape(found.shape)

    def gather(rows: slice) -> Bytes:
        return np.ascontiguousarray(whole[expert, :, own][:, rows].T).view(np.uint8)

    rows, inputs = tensor.shape
    return GatheredTensor(found.dtype, (rows, inputs), gather)


def _blocks(
    blocks: Bytes, scales: Bytes, found: FoundBlocks, expert: int, own: slice, tensor: ModelTensor
) -> PackedTensor:
    """The matrix of an expert in MXFP4, as GGML's blocks: an exponent, then sixteen bytes."""
    halves = blocks.reshape(*found.scales.shape, GROUP // 2)[expert, own]
    exponents = scales.reshape(found.scales.shape)[expert, own]

    def gather(rows: slice) -> Bytes:
        # Eight bytes at a time; each byte has two adjacent weights, the first one in the low half.
        pairs = np.ascontiguousarray(halves[rows]).view(np.uint64).reshape(-1, 2)
        first, second = pairs.T
        codes = np.empty((len(pairs), GROUP // 2), dtype=np.uint8)
        in_turn = codes.reshape(-1)
        in_turn[0::2] = ((first & _LOW) | ((second & _LOW) << np.uint64(4))).view(np.uint8)
        in_turn[1::2] = (((first >> np.uint64(4)) & _LOW) | (second & ~_LOW)).view(np.uint8)
        made = np.empty((len(exponents[rows]), exponents.shape[1] * (1 + GROUP // 2)), dtype=np.uint8)
        parts_of(made, 0, 1, 1 + GROUP // 2)[...] = np.ascontiguousarray(exponents[rows]).view("V1")
        parts_of(made, 1, GROUP // 2, 1 + GROUP // 2)[...] = codes.view(f"V{GROUP // 2}").reshape(exponents[rows].shape)
        return made

    def is_finite() -> bool:
        return int(exponents.max()) <= MAX_EXPONENT

    rows, inputs = tensor.shape
    return GatheredTensor(MXFP4, (rows, inputs), gather, is_finite)
