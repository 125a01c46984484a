"""GGUF files in several parts, as llama.cpp's ``gguf-split`` makes them: one model, whichever part is given.

The parts are called ``NAME-00001-of-00003.gguf`` and lie in one folder. Each says in its metadata which part it is
(``split.no``, from 0), how many there are (``split.count``) and how many tensors these have together
(``split.tensors.count``). The first one has all other metadata, the tokenizer among it; tensors lie in any of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from glinfer.errors import FormatError
from glinfer.formats.files import AnyPath, inside, shown
from glinfer.formats.gguf.file import GgufFile, GgufTensor, is_gguf, read_gguf_part
from glinfer.formats.json_files import quoted
from glinfer.limits import MAX_GGUF_PARTS

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(?P<start>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST_NAMED = 3


def read_gguf_file(path: AnyPath) -> GgufFile:
    """Read a GGUF file of version 2 or 3, with all others of which it is a part.

    The tensors' bytes are mapped into memory, not read.

    Raises:
        FormatError: a file cannot be read, is not GGUF, is of another version or for machines of the other byte order,
            is truncated, or says something that cannot be; a part is missing, is one of another model, or is a link to
            somewhere else.
        InputError: the package gguf is not installed.
    """
    found = read_gguf_part(path)
    count = found.metadata.get(COUNT, 1)
    if isinstance(count, int) and count in (0, 1):
        return found
    number = _number(found, NUMBER, 0, MAX_GGUF_PARTS)
    count = _number(found, COUNT, number + 1, MAX_GGUF_PARTS)
    return _joined(found, [read_gguf_part(each) for each in _paths(path, number, count, found.source)])


def gguf_parts(path: AnyPath) -> list[Path]:
    """The files of all parts of a model, by the name of one; none where the name or the file is of no part."""
    given = Path(os.fsdecode(path))
    match = _NAME.fullmatch(given.name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]) <= MAX_GGUF_PARTS or not is_gguf(given):
        return []
    return _named(given, match["start"], int(match["count"]))


def _named(given: Path, start: str, count: int) -> list[Path]:
    return [given.with_name(f"{start}-{place:05}-of-{count:05}.gguf") for place in range(1, count + 1)]


def _number(part: GgufFile, key: str, least: int, most: int) -> int:
    found = part.metadata.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise FormatError(
            f"{part.source}: its {key} is {quoted(found)}; expected a whole number from {least} to {most}; the file is "
            "damaged, get it again"
        )
    return found


def _paths(path: AnyPath, number: int, count: int, label: str) -> list[Path]:
    """The files of all parts, beside the one that is given."""
    given = Path(os.fsdecode(path))
    match = _NAME.fullmatch(given.name)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        raise FormatError(
            f"{label}: this is part {number + 1} of {count} of a model; expected a name that ends in "
            f"-{number + 1:05}-of-{count:05}.gguf, by which the others are found; give it the name that it had"
        )
    found = _named(given, match["start"], count)
    missing = [shown(each.name) for each in found if not os.path.lexists(each)]
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        names = f"{', '.join(missing[:_MOST_NAMED])}{more}"
        raise FormatError(
            f"{label}: this is part {number + 1} of {count} of a model; found no {names} beside it; get all parts into "
            "one folder"
        )
    return [each if each.name == given.name else inside(each) for each in found]


def _joined(given: GgufFile, parts: list[GgufFile]) -> GgufFile:
    """One file of all parts, with the metadata of the first."""
    total = _number(given, TENSORS, 0, 1 << 31)
    tensors: dict[str, GgufTensor] = {}
    for place, part in enumerate(parts):
        _check_part(part, {NUMBER: place, COUNT: len(parts), TENSORS: total})
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


def _check_part(part: GgufFile, expected: Mapping[str, Any]) -> None:
    for key, value in expected.items():
        found = part.metadata.get(key)
        if found != value or isinstance(found, bool):
            raise FormatError(
                f"{part.source}: its {key} is {quoted(found)}; expected {value}, as the other parts of the model have "
                "it; get all parts of one model"
            )
