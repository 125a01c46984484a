"""GGUF models in several parts, as llama.cpp's ``gguf-split`` writes them; any part stands for the model.

The parts are named ``NAME-00001-of-00003.gguf``, in one folder. The metadata of each has its number from 0
(``split.no``), the number of parts (``split.count``) and the number of tensors in all parts (``split.tensors.count``).
The first part has all other metadata, including the tokenizer; any part can hold tensors.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from glinfer.errors import FormatError
from glinfer.families.settings import Settings, quoted
from glinfer.formats.files import AnyPath, inside, shown
from glinfer.formats.gguf.file import GgufFile, GgufTensor, is_gguf, read_gguf_part
from glinfer.limits import MAX_GGUF_PARTS

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(?P<start>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST_NAMED = 3


def read_gguf_file(path: AnyPath) -> GgufFile:
    """Read a GGUF model of version 2 or 3 from one file, or from all of its parts.

    The tensors' bytes are mapped into memory, not read.

    Raises:
        FormatError: a file cannot be read, is not GGUF, has another version, is big-endian, truncated or inconsistent;
            a part is missing, belongs to another model, or is a link that leads elsewhere.
    """
    found = read_gguf_part(path)
    count = found.metadata.get(COUNT, 1)
    if isinstance(count, int) and count in (0, 1):
        return found
    settings = Settings(found.metadata, found.source)
    number = settings.integer(NUMBER, least=0, most=MAX_GGUF_PARTS)
    count = settings.integer(COUNT, least=number + 1, most=MAX_GGUF_PARTS)
    return _joined(found, [read_gguf_part(each) for each in _paths(path, number, count, found.source)])


def gguf_parts(path: AnyPath) -> list[Path]:
    """The files of all parts of a model, from the name of one; empty if the file is not a part."""
    given = Path(os.fsdecode(path))
    match = _NAME.fullmatch(given.name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]) <= MAX_GGUF_PARTS or not is_gguf(given):
        return []
    return _named(given, match["start"], int(match["count"]))


def _named(given: Path, start: str, count: int) -> list[Path]:
    return [given.with_name(f"{start}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


def _paths(path: AnyPath, number: int, count: int, label: str) -> list[Path]:
    """The files of all parts, in the folder of the given one."""
    given = Path(os.fsdecode(path))
    match = _NAME.fullmatch(given.name)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        raise FormatError(
            f"{label}: this is part {number + 1} of {count} of a model; expected a name that ends in "
            f"-{number + 1:05}-of-{count:05}.gguf, by which the others are found; restore its name"
        )
    found = _named(given, match["start"], count)
    missing = [shown(each.name) for each in found if not os.path.lexists(each)]
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        names = f"{', '.join(missing[:_MOST_NAMED])}{more}"
        raise FormatError(
            f"{label}: this is part {number + 1} of {count} of a model; found no {names} next to it; get all parts "
            "into one folder"
        )
    return [each if each.name == given.name else inside(each) for each in found]


def _joined(given: GgufFile, parts: list[GgufFile]) -> GgufFile:
    """Join all parts to one file, with the metadata of the first."""
    total = Settings(given.metadata, given.source).integer(TENSORS, least=0)
    tensors: dict[str, GgufTensor] = {}
    for number, part in enumerate(parts):
        for key, value in {NUMBER: number, COUNT: len(parts), TENSORS: total}.items():
            found = part.metadata.get(key)
            if found != value or isinstance(found, bool):
                raise FormatError(
                    f"{part.source}: its {key} is {quoted(found)}; expected {value}, as the other parts of the model "
                    "have it; get all parts of one model"
                )
        twice = next((name for name in part.tensors if name in tensors), None)
        if twice is not None:
            raise FormatError(f"{part.source}: tensor {quoted(twice)} is in another part too; get all parts again")
        tensors.update(part.tensors)
    if len(tensors) != total:
        raise FormatError(
            f"{given.source}: its {len(parts)} parts have {len(tensors)} tensors; expected {total}, as {TENSORS} says; "
            "get all parts again"
        )
    return replace(
        given,
        metadata=parts[0].metadata,
        tensors=MappingProxyType(tensors),
        paths=tuple(path for part in parts for path in part.paths),
    )
