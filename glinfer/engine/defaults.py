"""Sampling defaults of a model, for options that the caller leaves out.

They come from the model's files: ``generation_config.json`` of a Hugging Face directory, ``general.sampling.*`` of a
GGUF file. Files without them get :data:`USUAL`, since a small model rambles at temperature 1 over all tokens.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from glinfer.engine.sampler import NEUTRAL, SamplingOptions
from glinfer.errors import GlinferWarning, InputError
from glinfer.formats.files import AnyPath
from glinfer.formats.sampling import recommended_sampling

USUAL = SamplingOptions(temperature=0.7, top_k=40, top_p=0.95)
"""Sampling of models whose files name none; it excludes the long tail of unlikely tokens."""


def usable_sampling(path: AnyPath) -> tuple[dict[str, Any], SamplingOptions]:
    """The checked sampling options that a model's files name, and the resulting sampling defaults.

    If a file names a temperature or a filter, filters that it leaves out are off, and a missing temperature is 1. The
    repetition penalty is 1 unless named. Files without options get :data:`USUAL`. Invalid files and options are ignored
    with a GlinferWarning. ``path`` may also name a bundled model. Raises InputError if gguf is needed and missing.
    """
    found, source = recommended_sampling(path)
    usable, problems = dict[str, Any](), dict[str, InputError]()
    for name, value in found.items():
        try:
            usable[name] = getattr(SamplingOptions(**{name: value}), name)
        except InputError as error:
            problems[name] = error
    start = NEUTRAL if usable.keys() - {"repetition_penalty"} else USUAL
    for name, problem in problems.items():
        warnings.warn(f"{source}: {problem}; using {getattr(start, name):g}", GlinferWarning, stacklevel=3)
    return usable, dataclasses.replace(start, **usable)


def default_sampling(path: AnyPath) -> SamplingOptions:
    """The sampling defaults of a model; see :func:`usable_sampling`, also for the errors."""
    return usable_sampling(path)[1]


def merged(defaults: SamplingOptions, given: Mapping[str, Any]) -> SamplingOptions:
    """Replace defaults by the given options that are not None; InputError for one out of range."""
    return dataclasses.replace(defaults, **{name: value for name, value in given.items() if value is not None})
