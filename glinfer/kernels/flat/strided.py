"""Walks over the elements of a tensor by strides, as shaders/common/strided.glsl computes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from glinfer.errors import PlanError
from glinfer.kernels.spec import Array, Params

MAX_AXES = 5
"""Limit for the axes that a shader walks over."""


class Axis(NamedTuple):
    """An axis of an output: its length, and its strides in two indices.

    The indices are the row and the column of the source, or the rows of two operands.
    """

    size: int
    first: int
    second: int


def collapsed(axes: Iterable[Axis]) -> list[Axis]:
    """The fewest axes with the same walk, outermost first: none of size 1, and none that continues another."""
    found: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if found and found[-1][1:] == (axis.size * axis.first, axis.size * axis.second):
            axis = Axis(found.pop().size * axis.size, axis.first, axis.second)
        found.append(axis)
    return found or [Axis(1, 0, 0)]


def walk_defines(axes: Sequence[Axis]) -> list[tuple[str, int]]:
    """The defines of strided.glsl for collapsed axes, outermost first."""
    if len(axes) > MAX_AXES:
        raise PlanError(f"found a walk over {len(axes)} axes that no stride joins; at most {MAX_AXES} are possible")
    outer, *others = axes
    defines = [("AXES", len(axes)), ("OUTER_A", outer.first), ("OUTER_B", outer.second)]
    for number, axis in enumerate(reversed(others)):
        sizes = (("SIZE", axis.size), ("A", axis.first), ("B", axis.second))
        defines += [(f"AXIS{number}_{name}", size) for name, size in sizes]
    return defines


def axes_in(params: Params, count: int) -> list[Axis]:
    """The axes of a draw's defines, for a walk over ``count`` elements; the product of their sizes may be less."""
    inner = [
        Axis(*(int(params[f"AXIS{number}_{name}"]) for name in ("SIZE", "A", "B")))
        for number in reversed(range(int(params["AXES"]) - 1))
    ]
    outer = count // prod(axis.size for axis in inner)
    return [Axis(outer, int(params["OUTER_A"]), int(params["OUTER_B"])), *inner]


def bounds(axes: Iterable[Axis]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The smallest and the largest value of each index along the walk."""
    ends = [[stride * (axis.size - 1) for stride in (axis.first, axis.second)] for axis in axes]
    first, second = ((sum(min(0, end[n]) for end in ends), sum(max(0, end[n]) for end in ends)) for n in (0, 1))
    return first, second


def walk(axes: Sequence[Axis], count: int) -> tuple[Array, Array]:
    """Both indices of the first ``count`` elements."""
    rest = np.arange(count)
    sums = np.zeros((2, count), dtype=np.int64)
    for axis in reversed(axes[1:]):
        sums += rest % axis.size * np.array([[axis.first], [axis.second]])
        rest //= axis.size
    sums += rest * np.array([[axes[0].first], [axes[0].second]])
    return sums[0], sums[1]
