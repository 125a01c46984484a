"""How files of some families store tensors, by the role's layout in :class:`glinfer.families.huggingface.HuggingFace`.

``padded`` positions have unused rows before the first one. ``transposed`` matrices are [in, out]. ``by key``, the rows
before a delta rule are grouped by key head; ``by head``, those of queries, keys and values by head. A ``row`` is
[1, numbers]. ``alternating``, a tensor holds the matrices of all experts, with the rows of gate and up in turn. Floats
are [experts, in, out]. ``stacked``, a tensor holds the matrices of all experts one below the other, which are [in, out]
if they are ``stacked, transposed``. In MXFP4 (Open Compute Project, Microscaling Formats 1.0) a matrix is two tensors
of bytes: ``NAME_blocks`` [experts, out, in / 32, 16] with two weights in each byte, the first one in the low half, and
``NAME_scales`` [experts, out, in / 32], exponents of two. GGML's blocks have the same weights and exponents. There, the
low halves of a block hold its first sixteen weights, and the high halves the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families.huggingface import TERNARY, UNUSED_POSITIONS, HuggingFace
from glinfer.families.settings import quoted
from glinfer.formats.files import shown
from glinfer.formats.huggingface.ternary import ternary_parts
from glinfer.formats.packed import GatheredTensor, PackedTensor
from glinfer.formats.safetensors_file import FoundTensor, ScaledTensor, floats_of
from glinfer.formats.tensors import StoredTensor
from glinfer.graph.nodes import ModelTensor
from glinfer.quant.block_bytes import Bytes, parts_of
from glinfer.quant.formats import GROUP
from glinfer.quant.ggml import MAX_EXPONENT

PADDED, TRANSPOSED, BY_KEY, ALTERNATING = "padded", "transposed", "by key", "alternating"
BY_HEAD, ROW = "by head", "row"
STACKED, STACKED_TRANSPOSED = "stacked", "stacked, transposed"
MXFP4 = "MXFP4"
BLOCKS, SCALES = "_blocks", "_scales"
_BYTE = "U8"
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)

Parts = Iterator[tuple[ModelTensor, PackedTensor | npt.NDArray[np.float32]]]


def layout_of(stored: StoredTensor, form: HuggingFace) -> str:
    """The layout of a tensor of a file; empty for [out, in]."""
    found = form.layouts.get(stored.tensors[0].role, "")
    is_other = stored.experts > 1 if found == ALTERNATING else len(stored.shape) == 2 or found in (BY_HEAD, ROW)
    return found if is_other else ""


def has_blocks(form: HuggingFace) -> bool:
    """Whether the matrices of experts may be blocks of MXFP4."""
    return ALTERNATING in form.layouts.values()


def file_shape(config: ModelConfig, stored: StoredTensor) -> tuple[int, ...]:
    """The shape that a tensor of floats has in files of the family."""
    layout, shape = layout_of(stored, config.family.in_huggingface), stored.stacked_shape
    if stored.tensors[0].role == "patches":
        return stored.folded or shape
    if layout == ROW:
        return (1, *shape)
    if layout == PADDED:
        return (shape[0] + UNUSED_POSITIONS, *shape[1:])
    if layout == STACKED:
        return stored.shape
    if layout == STACKED_TRANSPOSED:
        return stored.experts * shape[2], shape[1]
    turned = layout == TRANSPOSED or (layout == ALTERNATING and len(stored.shape) == 2)
    return (*shape[:-2], *shape[-2:][::-1]) if turned else shape


def parts_in(config: ModelConfig, stored: StoredTensor, found: FoundTensor, data: Mapping[str, Bytes]) -> Parts:
    """The model's tensors in a checked tensor of a file.

    Matrices that are not float32 stay packed, unless they are transposed or the family's passes need float32; those in
    another order are gathered on access.
    """
    layout = layout_of(stored, config.family.in_huggingface)
    if layout == STACKED_TRANSPOSED:
        experts, outputs, inputs = stored.stacked_shape
        yield from _of_experts(stored, replace(found, shape=(experts, inputs, outputs)), data)
        return
    if layout in (ALTERNATING, TERNARY):
        yield from (_of_experts if layout == ALTERNATING else ternary_parts)(stored, found, data)
        return
    order = order_in_file(stored, config)
    unused = UNUSED_POSITIONS if layout == PADDED else 0
    if config.family.published or layout == TRANSPOSED or found.dtype == "F32" or len(stored.shape) != 2:
        floats = floats_of(data[stored.name], found)[unused:]
        floats = floats.T if layout == TRANSPOSED else floats.reshape(stored.shape)
        yield from stored.split(floats if order is None else floats[order])
        return
    rows = data[stored.name].reshape(stored.shape[0] + unused, -1)[unused:]
    for tensor, own in stored.split(rows if order is None else order):
        if order is None:
            yield tensor, PackedTensor(found.dtype, own)
            continue

        def gather(asked: slice, own: npt.NDArray[np.intp] = own) -> Bytes:
            return rows[own[asked]]

        yield tensor, GatheredTensor(found.dtype, (tensor.shape[0], tensor.shape[1]), gather)


def order_in_file(stored: StoredTensor, config: ModelConfig) -> npt.NDArray[np.intp] | None:
    """The row indices of :func:`rows_by_part` for a tensor of a directory; None if its rows need no other order."""
    grouped = layout_of(stored, config.family.in_huggingface) in (BY_KEY, BY_HEAD)
    return rows_by_part(stored, config) if grouped else None


def rows_by_part(stored: StoredTensor, config: ModelConfig) -> npt.NDArray[np.intp]:
    """The row indices that reorder a tensor from groups by head, or by key head, to the tensors that it holds.

    The group of a head has its queries, keys and values. That of a key head has its queries, its keys, and the values
    and gates of the value heads that share it; or the shares and decays of those heads.
    """
    layer = stored.tensors[0].layer
    assert layer is not None
    if stored.tensors[0].role == "projection":
        of_heads = np.arange(stored.shape[0]).reshape(config.num_attention_heads, len(stored.tensors), -1)
        return of_heads.swapaxes(0, 1).reshape(-1)
    rule = config.layer(layer).delta
    assert rule is not None
    shared = rule.heads // rule.key_heads
    sizes = {
        "qkv": (rule.key, rule.key, shared * rule.value),
        "z": (shared * rule.value,),
        "b": (shared,),
        "a": (shared,),
    }
    parts = [size for tensor in stored.tensors for size in sizes[tensor.letter]]
    by_head = np.arange(stored.shape[0]).reshape(rule.key_heads, sum(parts))
    return np.concatenate([part.reshape(-1) for part in np.split(by_head, list(accumulate(parts))[:-1], axis=1)])


def with_blocks(found: Mapping[str, FoundTensor], form: HuggingFace) -> dict[str, FoundTensor]:
    """The tensors of a file, with blocks and their scales joined under the name of the matrix."""
    joined = dict(found)
    for name in found if has_blocks(form) else ():
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
        joined[stem] = ScaledTensor(blocks.file, MXFP4, shape, blocks.start, scales, SCALES, 2)
    return joined


def mapped_parts(name: str, found: FoundTensor) -> dict[str, FoundTensor]:
    """The parts of a tensor to map, by name; packed weights also need their scales."""
    return {name: found, name + found.suffix: found.scales} if isinstance(found, ScaledTensor) else {name: found}


def _of_experts(stored: StoredTensor, found: FoundTensor, data: Mapping[str, Bytes]) -> Parts:
    """The matrices or biases of each expert; packed ones are gathered on access."""
    each, rest = divmod(len(stored.tensors), stored.experts)
    assert not rest
    floats = None
    if len(stored.shape) == 1 or found.dtype == "F32":
        floats = floats_of(data[stored.name], found)
    for index, tensor in enumerate(stored.tensors):
        expert, number = divmod(index, each)
        own = slice(number, None, each)
        if floats is not None:
            yield tensor, floats[expert, :, own].T if len(stored.shape) == 2 else floats[expert, own]
        elif isinstance(found, ScaledTensor):
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
    blocks: Bytes, scales: Bytes, found: ScaledTensor, expert: int, own: slice, tensor: ModelTensor
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
