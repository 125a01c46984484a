"""Sampling defaults: the options with which a model chooses tokens where the caller gives none.

A model's own come from its files: ``generation_config.json`` of a Hugging Face directory, ``general.sampling.*`` of a
GGUF file. Where they say nothing, :data:`USUAL` holds, since a small model rambles at temperature 1 over all tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from glinfer.engine.sampler import NEUTRAL, SamplingOptions
from glinfer.errors import FormatError, InputError
from glinfer.formats.files import AnyPath
from glinfer.formats.sampling import named_sampling

USUAL = SamplingOptions(temperature=0.7, top_k=40, top_p=0.95)
"""Sampling of models whose files name none: mostly the likely tokens, and never one from the long tail."""


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
    named, source = named_sampling(path)
    start = NEUTRAL if named.keys() - {"repetition_penalty"} else USUAL
    try:
        return dataclasses.replace(start, **named)
    except InputError as error:
        raise FormatError(f"{source}: {error}; mend the file, or take the value out") from None


def merged(defaults: SamplingOptions, given: Mapping[str, Any]) -> SamplingOptions:
    """Replace defaults by the options that are given; those that are None keep the default.

    Raises:
        InputError: an option is out of range.
    """
    return dataclasses.replace(defaults, **{name: value for name, value in given.items() if value is not None})
