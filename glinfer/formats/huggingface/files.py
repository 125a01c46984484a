"""The files of a Hugging Face model: its configuration, and its weights in one safetensors file or several.

The weights are one ``model.safetensors``, or several shards and an index that maps tensors to shards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from glinfer.errors import FormatError
from glinfer.families.settings import quoted
from glinfer.formats.files import AnyPath, inside, is_directory, opened, shown
from glinfer.formats.json_files import check_plain_name, check_present, read_json
from glinfer.formats.safetensors_file import FoundTensor, read_header
from glinfer.limits import MAX_INDEX_BYTES

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
"""File names of weights in formats that cannot be read."""

_TEXT = {
    **{"language_model.model.": "model.", "language_model.": "", "model.language_model.": "model."},
    "model.text_model.": "model.",
}
_PICTURES = (
    *("vision_tower.", "multi_modal_projector.", "visual.", "audio_tower.", "embed_vision.", "embed_audio."),
    *("vision_model.", "connector."),
)
_IS_A_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\.safetensors")


def locate(path: AnyPath) -> tuple[Path, Path]:
    """Find the configuration and the weights (one safetensors file, or an index) for ``path``.

    ``path`` is a model's directory or its config.json (either means the model.safetensors there, else the index), a
    safetensors file (these weights), an index, or a shard (the index it belongs to).
    """
    if is_directory(path):
        folder = Path(path)
        _check_config(folder, f"{shown(path)}: found a directory without {CONFIG}")
        return inside(folder / CONFIG), _weights_in(folder)
    name = Path(path).name
    with opened(path):
        pass  # report a missing file first, whatever its name
    folder = Path(path).parent
    if name == CONFIG:
        return folder / CONFIG, _weights_in(folder)
    if name in OTHER_WEIGHTS:
        raise _save_as_safetensors(shown(path), name)
    if not name.endswith((".safetensors", ".safetensors.index.json")):
        raise FormatError(
            f"{shown(path)}: found another kind of file; expected a model's directory, or the {CONFIG}, {WEIGHTS} "
            f"or {INDEX} in it"
        )
    _check_config(folder, f"{shown(path)}: found no {CONFIG} next to it")
    shard = _IS_A_SHARD.fullmatch(name)
    return inside(folder / CONFIG), inside(folder / f"{shard[1]}.safetensors.index.json") if shard else Path(path)


def _check_config(folder: Path, found: str) -> None:
    if not os.path.lexists(folder / CONFIG):
        raise FormatError(
            f"{found}; expected a Hugging Face model: {CONFIG} and {WEIGHTS} (or {INDEX} and its shards) "
            "in one directory; get the missing files"
        )


def _weights_in(folder: Path) -> Path:
    for name in (WEIGHTS, INDEX):
        if os.path.lexists(folder / name):
            return inside(folder / name)
    for name in OTHER_WEIGHTS:
        if os.path.lexists(folder / name):
            raise _save_as_safetensors(shown(folder), name)
    raise FormatError(f"{shown(folder)}: found {CONFIG} but no weights next to it; expected {WEIGHTS} or {INDEX}")


def _save_as_safetensors(label: str, name: str) -> FormatError:
    return FormatError(
        f"{label}: found {name} only; expected {WEIGHTS}; save the model as safetensors: load it with transformers "
        "and call save_pretrained"
    )


def find_tensors(weights: Path) -> dict[str, FoundTensor]:
    """Find every tensor in a safetensors file, or in the shards of an index, by name; reads headers only."""
    if not weights.name.endswith(".json"):
        return read_header(weights)[0]
    label = shown(weights)
    placed = weight_map(weights)
    shards = sorted(set(placed.values()))
    check_present(shards, weights, "shards", "the index")
    found: dict[str, FoundTensor] = {}
    for shard in shards:
        held = read_header(inside(weights.parent / shard))[0]
        absent = [name for name, file in placed.items() if file == shard and name not in held]
        if absent:
            raise FormatError(
                f"{label}: it places tensor {quoted(absent[0])} in {quoted(shard)}, which does not have it; "
                "expected an index that matches its shards; get them again"
            )
        astray = [name for name in held if placed.get(name) != shard]
        if astray:
            raise FormatError(
                f"{label}: {quoted(shard)} has tensor {quoted(astray[0])}, which the index does not place there; "
                "expected an index that matches its shards; get them again"
            )
        found.update(held)
    return found


def text_tensors(found: Mapping[str, FoundTensor]) -> dict[str, FoundTensor]:
    """The tensors of the language model in a multimodal one, under the names of a text-only model."""
    if not any(name.startswith(before) for name in found for before in _TEXT):
        return dict(found)
    renamed = {}
    for name, tensor in found.items():
        if not name.removeprefix("model.").startswith(_PICTURES):
            before = next((before for before in _TEXT if name.startswith(before)), "")
            renamed[_TEXT.get(before, "") + name.removeprefix(before)] = tensor
    return renamed


def weight_map(index: Path) -> dict[str, str]:
    """The shard of each tensor, from an index; every shard is a plain file name."""
    label = shown(index)
    placed = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise FormatError(f"{label}: found no weight_map; expected an object that gives each tensor's shard")
    for name, shard in placed.items():
        if not isinstance(shard, str):
            raise FormatError(f"{label}: the file of tensor {quoted(name)} is {quoted(shard)}; expected a file's name")
        check_plain_name(shard, f"{label}: the shard", "the index")
    return placed
