"""Second-generation Gab, "Gift of Gab": a JSON manifest and the .bin files next to it.

The manifest has ``format`` (``gift-of-gab-f32`` or ``gift-of-gab-q8``), ``format_version`` 2, ``architecture`` (the
shape, under the names of Hugging Face's Llama), ``files`` (see :mod:`glinfer.formats.manifest.files`) and ``tensors``,
each with ``name``, ``shape`` [out, in] and ``storage``. ``float32`` has its bytes at ``data``;
``q8_rowwise_symmetric`` has int8 rows at ``q`` and a float32 scale for each row at ``scale``. Each of the three has
``offset`` and ``length`` in bytes. Everything is little-endian.

Source: the browser engine of Gab 100M and the script that packs its weights. Version 1 had no ``mlp.up_bias`` and
rotated other pairs of elements; that engine and glinfer refuse it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families import FAMILIES
from glinfer.families.settings import Settings, is_integer, quoted
from glinfer.formats.checkpoint import Checkpoint, check_tensors
from glinfer.formats.files import AnyPath, described_by, inside, is_directory, shown
from glinfer.formats.json_files import read_json
from glinfer.formats.manifest.files import ByteRange, Shards, bytes_at, find_shards
from glinfer.formats.packed import PackedTensor
from glinfer.limits import MAX_MANIFEST_BYTES, MAX_TENSOR_EDGE

_FAMILY = next(family for family in FAMILIES.values() if family.manifest)
_FORMAT, _VERSION = "gift-of-gab", 2
_PREFIX = "model."  # of the names of tensors, which the file may omit
_UP_BIAS, _UP_BIAS_IN_FILE = f".{_FAMILY.names.up}.bias", ".mlp.up_bias"
_Q8, _F32 = ("q8_rowwise_symmetric", "q8", "int8"), ("float32", "f32")
_MAX_CANDIDATES = 64  # .json files of a directory that are examined
_NEEDED = ("vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")
_OPTIONAL = ("intermediate_size", "num_key_value_heads", "head_dim")


@dataclass(frozen=True)
class _Entry:
    """A tensor in the manifest: rows of int8 with a scale each, or float32 if ``scale`` is None."""

    shape: tuple[int, ...]
    data: ByteRange
    scale: ByteRange | None = None

    @property
    def kind(self) -> str:
        """The type of the tensor in the checkpoint; only matrices keep int8 rows packed."""
        return "Q8_ROW" if self.scale and len(self.shape) == 2 else "float32"


def is_manifest(path: AnyPath) -> bool:
    """Whether a file is a manifest of any version; False if it cannot be read.

    It is recognised by its ``format``, or by having both an ``architecture`` and ``tensors``.
    """
    try:
        values = read_json(Path(path), MAX_MANIFEST_BYTES)
    except FormatError:
        return False
    named = isinstance(values.get("format"), str) and values["format"].startswith(_FORMAT)
    return named or (isinstance(values.get("architecture"), dict) and "tensors" in values)


def find_manifest(folder: AnyPath) -> Path | None:
    """The manifest in a directory, or None; if there are several, the first that is not q8, else the first."""
    try:
        files = sorted(itertools.islice(Path(folder).glob("*.json"), _MAX_CANDIDATES))
    except (OSError, ValueError):
        return None
    found = [file for file in files if _is_own(file) and is_manifest(file)]
    return next((file for file in found if "q8" not in file.stem), found[0] if found else None)


def _is_own(file: Path) -> bool:
    """Whether a file is in its folder, and not a link that leads elsewhere."""
    try:
        inside(file)
    except FormatError:
        return False
    return True


def read_manifest(path: AnyPath) -> Checkpoint:
    """Read a second-generation Gab model from its manifest, or from the directory that contains it.

    The tensors have the names and shapes of :func:`glinfer.formats.tensors.weight_shapes`; in the file, names may lack
    ``model.``, and the bias is called ``mlp.up_bias``. float32 tensors are read-only views of the mapped files; one
    that spans two files is copied. A q8 matrix becomes ``Q8_ROW``, with the scale of each row after its integers, and
    takes its size in memory once. Everything but the numbers is checked before the first byte is copied;
    :meth:`glinfer.formats.checkpoint.Checkpoint.check_finite` checks the numbers.

    Raises:
        FormatError: a file is missing, unreadable, truncated or outside the manifest's directory; the manifest has
            another version or a setting that is not supported; a tensor is missing, unknown, of another type or shape,
            or outside the files.
    """
    manifest = find_manifest(path) if is_directory(path) else Path(path)
    if manifest is None:
        raise FormatError(
            f"{shown(path)}: found a directory without a manifest; expected a .json file whose format is {_FORMAT}-f32 "
            f"or {_FORMAT}-q8, and the .bin files that it names"
        )
    label = shown(manifest)
    values = read_json(manifest, MAX_MANIFEST_BYTES)
    entries = _entries(values, label)
    _check_version(values, entries, label)
    config = _config(values, entries, label)
    check_tensors(config, {name: (entry.kind, entry.shape) for name, entry in entries.items()}, label)
    shards = find_shards(values, manifest)
    _check_ranges(entries, shards, label)
    parts = ((name, _part(entry, shards)) for name, entry in entries.items())
    return Checkpoint.of_parts(config, parts, shown(path), files=(manifest, *shards.files))


def _part(entry: _Entry, shards: Shards) -> npt.NDArray[np.float32] | PackedTensor:
    """A tensor of the manifest; vectors of int8 rows are widened."""
    if entry.scale is None:
        return _floats(shards.read(entry.data)).reshape(entry.shape)
    rows = _rows(entry.data, entry.scale, entry.shape[-1], shards)
    return rows if len(entry.shape) == 2 else rows.floats().reshape(entry.shape)


def _check_version(values: Mapping[str, Any], entries: Mapping[str, _Entry], label: str) -> None:
    """Refuse other layouts, especially version 1, which would load but generate nonsense."""
    version = values.get("format_version")
    biased = any(name.endswith(_UP_BIAS) for name in entries)
    if version is None and not biased:
        raise FormatError(f"{label}: found no format_version and no mlp.up_bias; expected format_version {_VERSION}")
    if version is not None and (version != _VERSION or isinstance(version, bool)):
        raise FormatError(
            f"{label}: found format_version {quoted(version)}, which is not supported; expected {_VERSION}; get the "
            "newest files of the model"
        )
    name = _FORMAT if values.get("format") is None else values["format"]
    if not isinstance(name, str) or not name.startswith(_FORMAT):
        raise FormatError(
            f"{label}: found format {quoted(name)}, which is not supported; expected {_FORMAT}-f32 or {_FORMAT}-q8"
        )
    Settings(values, label).only("endianness", ("little", None))


def _config(values: Mapping[str, Any], entries: Mapping[str, _Entry], label: str) -> ModelConfig:
    """The configuration in the manifest; a missing ``mlp_bias`` follows from the tensors."""
    found = next((values[name] for name in ("architecture", "config") if name in values), None)
    if not isinstance(found, Mapping):
        raise FormatError(f"{label}: found {quoted(found)} for architecture; expected an object with the model's shape")
    settings = Settings({name: value for name, value in found.items() if value is not None}, label)
    for name, needed in _FAMILY.manifest.items():
        settings.only(name, (needed,))
    missing = [name for name in _NEEDED if not settings.given(name)]
    if missing:
        raise FormatError(f"{label}: its architecture has no {missing[0]}; expected {', '.join(_NEEDED)}")
    biased = any(name.endswith(_UP_BIAS) for name in entries)
    with described_by(f"{label}: its architecture"):
        config = ModelConfig(
            **{name: settings.value(name) for name in (*_NEEDED, *_OPTIONAL) if settings.given(name)},
            layer_norm_eps=settings.number("rms_norm_eps", 1e-5),
            rope_theta=settings.number("rope_theta", _FAMILY.rope_theta),
            **{name: value for name, value in _FAMILY.manifest.items() if name in ModelConfig.__dataclass_fields__},
            mlp_bias=settings.flag("mlp_bias", default=biased),
        )
    if config.head_dim % 2:
        raise FormatError(f"{label}: head_dim is {config.head_dim}; expected an even number, as elements turn in pairs")
    return config


def _entries(values: Mapping[str, Any], label: str) -> dict[str, _Entry]:
    """Every tensor by its name in a checkpoint."""
    entries: dict[str, _Entry] = {}
    for name, entry in _listed(values.get("tensors"), label):
        usual = name if name.startswith((_PREFIX, f"{_FAMILY.names.head}.")) else _PREFIX + name
        if usual.endswith(_UP_BIAS_IN_FILE):
            usual = usual.removesuffix(_UP_BIAS_IN_FILE) + _UP_BIAS
        if usual in entries:
            raise FormatError(f"{label}: tensor {quoted(name)} appears twice; expected every tensor once")
        entries[usual] = _entry(entry, f"{label}: tensor {quoted(name)}")
    return entries


def _listed(tensors: object, label: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and entries, from a list of entries with names or from an object that maps names to entries."""
    if not isinstance(tensors, (list, dict)) or not tensors:
        raise FormatError(f"{label}: found {quoted(tensors)} for tensors; expected a list of them")
    pairs = tensors.items() if isinstance(tensors, dict) else ((None, entry) for entry in tensors)
    for key, entry in pairs:
        name = entry.get("name", key) if isinstance(entry, dict) else key
        if not isinstance(entry, dict) or not isinstance(name, str):
            raise FormatError(f"{label}: found {quoted(entry)} among tensors; expected an object with a name")
        yield name, entry


def _entry(entry: Mapping[str, Any], where: str) -> _Entry:
    shape = entry.get("shape")
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 2
        or not all(is_integer(side, 1) and side <= MAX_TENSOR_EDGE for side in shape)
    ):
        raise FormatError(
            f"{where} has shape {quoted(shape)}; expected one or two integers from 1 to {MAX_TENSOR_EDGE}"
        )
    storage = entry.get("storage", entry.get("dtype", _Q8[0] if "q" in entry else _F32[0]))
    count, rows = math.prod(shape), shape[0] if len(shape) == 2 else 1
    if storage in _Q8:
        scale = _range(entry.get("scale"), "scale", 4 * rows, f"{rows} scales", where)
        return _Entry(tuple(shape), _range(entry.get("q"), "q", count, f"shape {shape} in int8", where), scale)
    if storage in _F32:
        data = entry.get("data", entry if "offset" in entry else None)
        return _Entry(tuple(shape), _range(data, "data", 4 * count, f"shape {shape} in float32", where))
    raise FormatError(f"{where} is stored as {quoted(storage)}, which is not supported; expected {_F32[0]} or {_Q8[0]}")


def _range(found: object, part: str, nbytes: int, why: str, where: str) -> ByteRange:
    """The byte range of a part of a tensor, which must have ``nbytes`` bytes."""
    if not isinstance(found, Mapping):
        raise FormatError(f"{where} has no {part} but {quoted(found)}; expected an object with offset and length")
    settings = Settings(found, f"{where}: {part}")
    offset, length = bytes_at(settings, "offset"), bytes_at(settings, "length")
    if length != nbytes:
        raise FormatError(f"{where} has {length} bytes of {part}; expected {nbytes} for {why}")
    return ByteRange(offset, length)


def _check_ranges(entries: Mapping[str, _Entry], shards: Shards, label: str) -> None:
    """Check that every tensor is inside the files, and that copies take no more bytes than the files have."""
    copied = 0
    for name, entry in entries.items():
        for part in filter(None, (entry.data, entry.scale)):
            if part.offset + part.nbytes > shards.nbytes:
                raise FormatError(
                    f"{label}: tensor {quoted(name)} ends at byte {part.offset + part.nbytes}, but its files have "
                    f"{shards.nbytes} together; expected all of it inside them; get the files again"
                )
            copied += part.nbytes if entry.scale or not shards.is_in_one(part) else 0
    if copied > shards.nbytes:
        raise FormatError(
            f"{label}: its tensors take {copied} bytes out of files of {shards.nbytes}; expected every tensor to have "
            "bytes of its own; do not trust these files"
        )


def _floats(found: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Bytes as float32; copied only if they are unaligned or the machine has another byte order."""
    return np.require(found.view("<f4").astype(np.float32, copy=False), requirements="A")


def _rows(data: ByteRange, scale: ByteRange, inputs: int, shards: Shards) -> PackedTensor:
    """Join rows of int8 and their scales, which the files store separately, into packed rows."""
    quants = shards.read(data).reshape(-1, inputs)
    blocks = np.empty((len(quants), inputs + 4), dtype=np.uint8)
    blocks[:, :inputs] = quants
    blocks[:, inputs:] = shards.read(scale).reshape(-1, 4)
    return PackedTensor("Q8_ROW", blocks)
