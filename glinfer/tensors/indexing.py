"""Indices of NumPy's basic indexing: integers, slices, one Ellipsis, None for a new axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import NamedTuple, SupportsIndex

from glinfer.errors import InputError
from glinfer.tensors.tensor import Shape, is_integer

Index = slice | SupportsIndex | EllipsisType | None


class Part(NamedTuple):
    """The elements that one part of an index selects.

    Attributes:
        axis: the axis of the tensor; None for a new one.
        start, size, step: the selected elements.
        kept: whether the result keeps the axis; an integer removes it.
    """

    axis: int | None
    start: int
    size: int
    step: int
    kept: bool


def parts_of(shape: Shape, index: Sequence[Index]) -> list[Part]:
    """The parts of an index of a tensor of this shape, with whole slices for further axes; InputError if it is bad."""
    at = f"x is {list(shape)} and the index [{', '.join(_spelt(part) for part in index)}]"
    given = sum(part is not None and part is not Ellipsis for part in index)
    if given > len(shape) or sum(part is Ellipsis for part in index) > 1:
        raise InputError(f"{at}; expected at most {len(shape)} numbers and slices, and one Ellipsis")
    whole = [slice(None)] * (len(shape) - given)
    first = next((number for number, part in enumerate(index) if part is Ellipsis), len(index))
    found, axis = list[Part](), 0
    for part in (*index[:first], *whole, *index[first + 1 :]):
        if part is None:
            found.append(Part(None, 0, 1, 1, True))
            continue
        edge = shape[axis]
        if isinstance(part, slice):
            found.append(Part(axis, *_steps(at, part, edge), True))
        elif part is not Ellipsis and is_integer(part) and -edge <= operator.index(part) < edge:
            found.append(Part(axis, operator.index(part) % edge, 1, 1, False))
        else:
            expected = f"and no integer from {-edge} to {edge - 1}" if edge else "and the axis has no elements"
            raise InputError(f"{at}; {_spelt(part)} is not a slice, {expected}")
        axis += 1
    return found


def shape_of(parts: Sequence[Part]) -> Shape:
    """The shape of an index's result."""
    return tuple(part.size for part in parts if part.kept)


def _steps(at: str, part: slice, size: int) -> tuple[int, int, int]:
    """The start, length and step of a slice of an axis of this size."""
    try:
        taken = range(size)[part]
    except (TypeError, ValueError) as error:
        raise InputError(f"{at}; {_spelt(part)} is not a slice of integers: {error}") from None
    return (taken[0], len(taken), taken.step) if taken else (0, 0, 1)


def _spelt(part: object) -> str:
    """One part of an index as in source code, on one line."""
    if isinstance(part, slice):
        ends = ["" if end is None else repr(end) for end in (part.start, part.stop, part.step)]
        return ":".join(ends if ends[2] else ends[:2])
    return "..." if part is Ellipsis else " ".join(repr(part).split())
