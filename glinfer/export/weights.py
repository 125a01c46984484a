"""Weights of a site: the texels of every weight texture in safetensors files, in upload order.

A file ends with the CRC-32 of each line of its texels, by which the page checks bound textures. :func:`weight_files`
splits files between tensors, to respect size limits of hosts and browsers.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.export.plan import PlanExport
from glinfer.kernels.spec import Array, TensorSpec
from glinfer.limits import MAX_SITE_FILE_BYTES
from glinfer.program.session import weight_matrix

FORMAT = "glinfer-web"
WEIGHTS = "weights.safetensors"
LOGITS_ORDER = "logits_order"
LINE_CHECKSUMS = "line_checksums"
_NAMES = {"float32": "F32", "float16": "F16", "int32": "I32", "uint32": "U32"}
_SHARD = re.compile(r"weights-\d{5}-of-\d{5}\.safetensors")
_HEADER = struct.Struct("<Q")


def is_weights_file(name: str) -> bool:
    """Whether a site's file of this name has weights."""
    return name == WEIGHTS or _SHARD.fullmatch(name) is not None


def weight_files(export: PlanExport) -> dict[str, list[TensorSpec]]:
    """Split weights, in upload order, into files with at most :data:`MAX_SITE_FILE_BYTES` of texels each.

    A larger texture gets a separate file. A single file is ``weights.safetensors``; several are
    ``weights-00001-of-00003.safetensors`` and so on.
    """
    files: list[list[TensorSpec]] = [[]]
    size = 0
    for tensor in export.weights:
        nbytes = export.layout(tensor.name).nbytes
        if files[-1] and size + nbytes > MAX_SITE_FILE_BYTES:
            files.append([])
            size = 0
        files[-1].append(tensor)
        size += nbytes
    if len(files) == 1:
        return {WEIGHTS: files[0]}
    return {f"weights-{number:05}-of-{len(files):05}.safetensors": each for number, each in enumerate(files, 1)}


def write_weights(
    folder: Path, export: PlanExport, arrays: Mapping[str, Array], order: Array | None, digest: hashlib._Hash
) -> dict[str, Any]:
    """Write packed texels, one array at a time; the safetensors library would sort, and need all in memory.

    ``order``, the index of each token's logit among the numbers read back, is stored in the last file. ``digest`` is
    updated with the headers and the checksums.

    Returns:
        ``files`` of ``plan.json``: the ``fingerprint``, and of each of the ``weights`` its ``name``, its size in
        ``bytes``, and the ``crc32`` of its header and checksums, by which the page recognises the files of the plan.
    """
    files = weight_files(export)
    last = next(reversed(files))
    weights = [
        _write_file(folder / name, export, tensors, arrays, order if name == last else None, digest)
        for name, tensors in files.items()
    ]
    return {"weights": weights, "fingerprint": digest.hexdigest()}


def _write_file(
    path: Path,
    export: PlanExport,
    tensors: Sequence[TensorSpec],
    arrays: Mapping[str, Array],
    order: Array | None,
    digest: hashlib._Hash,
) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
    end = 0
    for tensor in tensors:
        layout = export.layout(tensor.name)
        form = layout.format
        header[tensor.name] = {
            "dtype": _NAMES[form.dtype_name],
            "shape": [layout.height, layout.width, form.channels],
            "data_offsets": [end, end + layout.nbytes],
        }
        end += layout.nbytes
    lines = sum(export.layout(tensor.name).height for tensor in tensors)
    tables = [] if order is None else [(LOGITS_ORDER, "I32", order.size)]
    for name, dtype, count in (*tables, (LINE_CHECKSUMS, "U32", lines)):
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [end, end + 4 * count]}
        end += 4 * count
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _HEADER.size)
    checksums: list[int] = []
    with path.open("wb") as file:
        file.write(_HEADER.pack(len(text)) + text)
        for tensor in tensors:
            layout = export.layout(tensor.name)
            texels = np.ascontiguousarray(layout.pack(weight_matrix(tensor, arrays)))
            if texels.nbytes != layout.nbytes:
                raise PlanError(f"tensor {tensor.name} packs into {texels.nbytes} bytes; expected {layout.nbytes}")
            texels = texels.astype(texels.dtype.newbyteorder("<"), copy=False)
            file.write(texels.data)
            checksums += [zlib.crc32(line.data) for line in texels]
        if order is not None:
            file.write(order.astype("<i4", copy=False).data)
        sums = np.array(checksums, dtype="<u4").tobytes()
        file.write(sums)
    digest.update(text + sums)
    return {"name": path.name, "bytes": _HEADER.size + len(text) + end, "crc32": zlib.crc32(sums, zlib.crc32(text))}
