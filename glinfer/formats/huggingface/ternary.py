"""Matrices of BitNet: every weight is -s, 0 or s, with one scale s for a matrix, as transformers' quantizer makes them.

A file has floats w, from which s = mean|w| and the nearest of the three follow (Ma et al. 2024), rounded to the file's
type. Or it has packed ones: ``NAME`` of bytes [out / 4, in] with four weights each, bits 2·n of row r being row
r + n · out / 4 and holding the weight over s plus 1; and ``NAME_scale`` [1], which is s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

from glinfer.errors import FormatError
from glinfer.families.huggingface import TERNARY, HuggingFace
from glinfer.families.settings import Settings, quoted
from glinfer.formats.files import shown
from glinfer.formats.packed import GatheredTensor, PackedTensor
from glinfer.formats.safetensors_file import STORED, FoundTensor, ScaledTensor, floats_of
from glinfer.formats.tensors import StoredTensor
from glinfer.graph.nodes import ModelTensor
from glinfer.quant.block_bytes import Bytes
from glinfer.quant.words import bfloat16_bits

SCALE = "_scale"
_EACH = 4
_LEAST = np.float32(1e-5)
Array = npt.NDArray[np.float32]


def is_ternary(form: HuggingFace) -> bool:
    """Whether a family has such matrices."""
    return TERNARY in form.layouts.values()


def check_quantization(settings: Settings, method: str) -> None:
    """Refuse another ``quantization_config`` than those of published BitNet models, which name the ``method``.

    Raises:
        FormatError: it is missing, or of another method, class or mode.
    """
    given = settings.value("quantization_config")
    found = Settings(given if isinstance(given, dict) else {}, f"{settings.label}: quantization_config")
    for name, known in (
        ("quant_method", (method,)),
        ("linear_class", ("autobitlinear",)),
        ("quantization_mode", ("online", "offline")),
    ):
        if found.values.get(name, "offline" if name == "quantization_mode" else None) not in known:
            raise found.refused(name, f"{' or '.join(known)}, as published BitNet b1.58 models have it")
    found.only("use_rms_norm", (False, None))


def with_ternary(found: Mapping[str, FoundTensor], form: HuggingFace) -> dict[str, FoundTensor]:
    """The tensors of a file, with packed weights and their scales joined."""
    joined = dict(found)
    for name, each in found.items() if is_ternary(form) else ():
        scales = found.get(name + SCALE)
        if scales is None:
            continue
        if each.dtype != "U8" or len(each.shape) != 2 or scales.dtype not in STORED or scales.shape != (1,):
            raise FormatError(
                f"{shown(each.file)}: tensor {quoted(name)} is {each.dtype} {list(each.shape)} and its scale is "
                f"{scales.dtype} {list(scales.shape)}; expected U8 [rows / 4, inputs] and one float; get the file again"
            )
        del joined[name + SCALE]
        rows, inputs = each.shape
        shape = (_EACH * rows, inputs)
        joined[name] = ScaledTensor(each.file, each.dtype, shape, each.start, scales, SCALE, _EACH)
    return joined


def ternary_parts(
    stored: StoredTensor, found: FoundTensor, data: Mapping[str, Bytes]
) -> Iterator[tuple[ModelTensor, PackedTensor | Array]]:
    """The matrix of a checked tensor: float32, or half floats that are computed on access."""
    (tensor,), raw = stored.tensors, data[stored.name]
    rows, inputs = stored.shape
    kind, by_row = found.dtype, raw.reshape(rows, -1) if not isinstance(found, ScaledTensor) else raw

    @cache
    def scale() -> np.float32:
        if isinstance(found, ScaledTensor):
            return np.float32(floats_of(data[stored.name + SCALE], found.scales).reshape(-1)[0])
        return np.float32(max(_LEAST, np.abs(floats_of(raw, found)).mean(dtype=np.float64)))

    def levels(asked: slice) -> Array:
        if isinstance(found, ScaledTensor):
            wanted, bytes_ = np.arange(rows)[asked], raw.reshape(-1, inputs)
            shifts = (2 * (wanted // len(bytes_))).astype(np.uint8)[:, None]
            return (bytes_[wanted % len(bytes_)] >> shifts & 3).astype(np.float32) - 1
        own = FoundTensor(found.file, kind, (len(by_row[asked]), inputs), 0)
        floats = floats_of(np.ascontiguousarray(by_row[asked]).reshape(-1), own)
        return np.asarray(np.clip(np.rint(floats * (1 / scale())), -1, 1))

    def halves(asked: slice) -> Bytes:
        floats = levels(asked) * scale()
        if kind == "F16":
            return np.ascontiguousarray(floats.astype("<f2")).view(np.uint8)
        return bfloat16_bits(floats).astype("<u2").view(np.uint8)

    if isinstance(found, ScaledTensor):
        kind = found.scales.dtype
    yield tensor, levels(slice(None)) * scale() if kind == "F32" else GatheredTensor(kind, (rows, inputs), halves)
