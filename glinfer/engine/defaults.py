"""Sampling defaults: the options with which a model chooses tokens where the caller gives none.

A model's own come from its files: ``generation_config.json`` of a Hugging Face directory, ``general.sampling.*`` of a
GGUF file. Where they say nothing, :data:`USUAL` holds, since a small model rambles at temperature 1 over all tokens.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glinfer.engine.sampler import NEUTRAL, SamplingOptions
from glinfer.errors import FormatError, InputError
from glinfer.formats import find_model
from glinfer.formats.files import AnyPath, inside, is_directory, shown
from glinfer.formats.gguf.file import is_gguf, read_gguf_file
from glinfer.formats.json_files import read_json
from glinfer.limits import MAX_CONFIG_BYTES

USUAL = SamplingOptions(temperature=0.7, top_k=40, top_p=0.95)
"""Sampling of models whose files name none: mostly the likely tokens, and never one from the long tail."""

CONFIG = "generation_config.json"
_GGUF = "general.sampling."
# Names in GGUF files, by the fields of SamplingOptions; the sources are gguf-py and common/common.cpp of llama.cpp.
_GGUF_NAMES = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
NAMES = tuple(_GGUF_NAMES)
"""The options of a sampler that a model's files may name."""


def default_sampling(path: AnyPath) -> SamplingOptions:
    """The sampling defaults of a model: those that its files name, else :data:`USUAL`.

    A file that names a temperature or a filter is taken as a whole: filters that it leaves out are off, and the
    temperature is 1. The repetition penalty is 1 unless it is named.

    Args:
        path: the model's file or directory, or the name of a bundled model.

    Raises:
        FormatError: the file with the defaults cannot be read, or a number in it is out of range.
        InputError: the package gguf, which reads GGUF files, is not installed.
    """
    named, source = _named(find_model(path))
    start = NEUTRAL if named.keys() - {"repetition_penalty"} else USUAL
    try:
        return dataclasses.replace(start, **named)
    except InputError as error:
        raise FormatError(f"{source}: {error}; mend the file, or take the value out") from None


def named_sampling(path: AnyPath) -> dict[str, Any]:
    """The sampling options that a model's files name, not checked; empty where they name none.

    ``do_sample: false`` of a ``generation_config.json`` is a temperature of 0. Raises as :func:`default_sampling`.
    """
    return _named(find_model(path))[0]


def merged(defaults: SamplingOptions, given: Mapping[str, Any]) -> SamplingOptions:
    """Replace defaults by the options that are given; those that are None keep the default.

    Raises:
        InputError: an option is out of range.
    """
    return dataclasses.replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _named(path: AnyPath) -> tuple[dict[str, Any], str]:
    """What the files of a model name, and the file for messages."""
    if is_gguf(path):
        metadata = read_gguf_file(path).metadata
        found = {name: metadata.get(_GGUF + key) for name, key in _GGUF_NAMES.items()}
        named = {name: value for name, value in found.items() if value is not None}
        for name in ("temperature", "top_k"):  # llama.cpp takes negative ones for 0
            if isinstance(named.get(name), (int, float)):
                named[name] = max(named[name], 0)
        return named, shown(path)
    file = (Path(path) if is_directory(path) else Path(path).parent) / CONFIG
    if not os.path.lexists(file):
        return {}, shown(file)
    values = read_json(inside(file), MAX_CONFIG_BYTES)
    named = {name: values[name] for name in NAMES if values.get(name) is not None}
    if values.get("do_sample") is False:
        named["temperature"] = 0.0
    return named, shown(file)
