"""The sampling options that a model's files recommend: reading them, and writing them in another format.

GGUF files have them in the metadata ``general.sampling.*``, other models in ``generation_config.json``. Their names
here are the fields of SamplingOptions, as in ``generation_config.json``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.errors import FormatError, GlinferWarning
from glinfer.families.settings import shortest
from glinfer.formats.files import AnyPath, inside, is_directory, shown
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.huggingface.files import GENERATION_CONFIG
from glinfer.formats.json_files import read_json
from glinfer.formats.names import find_model
from glinfer.limits import MAX_CONFIG_BYTES

_MAX_TOP_K = 2**31 - 1  # llama.cpp reads an int32; no vocabulary has more tokens
GGUF_OPTIONS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""The metadata key of each sampling option in a GGUF file; sources: gguf-py and common/common.cpp of llama.cpp."""
NAMES = tuple(GGUF_OPTIONS)
"""The sampling options that a model's files may set."""


def find_generation_config(path: AnyPath) -> Path | None:
    """Find the ``generation_config.json`` of a model; None for a GGUF file, or if it is missing."""
    if is_gguf(path):
        return None
    file = (Path(path) if is_directory(path) else Path(path).parent) / GENERATION_CONFIG
    return file if os.path.lexists(file) else None


def named_sampling(path: AnyPath) -> tuple[dict[str, Any], str]:
    """The sampling options in a model's files, unchecked, and the file that has them, for messages.

    ``do_sample: false`` in a ``generation_config.json`` means a temperature of 0. A number that is exactly a float32
    becomes its shortest decimal, 0.6 instead of 0.60000002384, so that it is the same in every format.
    """
    path = find_model(path)
    if is_gguf(path):
        named, source = _in_metadata(read_gguf_file(path).metadata), shown(path)
    elif (file := find_generation_config(path)) is not None:
        named, source = _in_generation_config(read_json(inside(file), MAX_CONFIG_BYTES)), shown(file)
    else:
        return {}, ""
    return {name: shortest(value) if isinstance(value, float) else value for name, value in named.items()}, source


def recommended_sampling(path: AnyPath) -> tuple[dict[str, Any], str]:
    """:func:`named_sampling`, but an unreadable file causes a warning and gives no options."""
    try:
        return named_sampling(path)
    except FormatError as error:
        warnings.warn(f"{error}; its recommendations are not used", GlinferWarning, stacklevel=3)
        return {}, ""


def sampling_metadata(named: Mapping[str, Any]) -> dict[str, Any]:
    """The GGUF metadata for checked options: float32, or float64 if float32 loses digits."""
    values: dict[str, Any] = {}
    for name, value in named.items():
        if name == "top_k":
            found: Any = min(int(value), _MAX_TOP_K)
        else:
            with np.errstate(over="ignore"):
                fits = shortest(float(np.float32(value))) == value
            found = float(value) if fits else np.float64(value)
        values[GGUF_OPTIONS[name]] = found
    return values


def generation_config(named: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a ``generation_config.json`` for checked options.

    transformers refuses a temperature of 0, and samples only if ``do_sample`` is true.
    """
    if named.get("temperature") == 0:
        return {"do_sample": False, **{name: value for name, value in named.items() if name != "temperature"}}
    return {**({"do_sample": True} if named.keys() - {"repetition_penalty"} else {}), **named}


def _in_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: metadata[key] for name, key in GGUF_OPTIONS.items() if metadata.get(key) is not None}
    for name in ("temperature", "top_k"):  # llama.cpp treats negative values as 0
        if isinstance(named.get(name), (int, float)):
            named[name] = max(named[name], 0)
    return named


def _in_generation_config(values: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: values[name] for name in NAMES if values.get(name) is not None}
    if values.get("do_sample") is False:
        named["temperature"] = 0.0
    return named
