"""Kernels for the largest elements: a merge sort in passes that keeps at most k elements of a list.

The sort compares integers in the order of the elements, each with its column. The lists of all rows follow each
other in matrices of one texel a row: list l of row r is number ``l * rows + r``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.gl.layouts.flat import LANES
from glinfer.kernels.spec import Op, TensorSpec, register
from glinfer.tensors.base import Group, expect_rows
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import PACKED, Tensor, is_integer

_CHUNK = 16
"""Elements of the first pass's lists."""


class Sorting(Group):
    """Kernels that order elements."""

    def top_k(self, x: Tensor, k: int, *, dtype: npt.DTypeLike = "float32") -> tuple[Tensor, Tensor]:
        """The k largest elements along the last axis and their indices.

        Sorts groups of 16 elements, then merges neighbouring lists in pairs along their merge path (Green, McColl and
        Bader 2012), and keeps at most k of any list. With k = n it is a whole sort.

        Args:
            x: [..., n] of float32 or float16.
            k: 1 to n.
            dtype: the type of the values, float32 or float16.

        Returns:
            values and indices int32, both [..., k]: largest first, equal values by the lowest index. NaN counts
            as the largest of all, −0 equals 0.
        """
        expect_rows(x=x)
        if not is_integer(k) or not 1 <= k <= x.shape[-1]:
            raise InputError(f"k is {k!r} and x is {list(x.shape)}; expected k from 1 to {x.shape[-1]}")
        shape, kept = (*x.shape[:-1], int(k)), -(-int(k) // LANES)

        def build(passes: Passes, x: TensorSpec, **results: TensorSpec) -> None:
            _sort(passes, x, kept, [*results.values()])

        shapes = {"values": shape, "indices": shape}
        values, indices = self._results(build, {"x": x}, shapes, dtype, {"indices": "int32"})
        return values, indices


def _sort(passes: Passes, x: TensorSpec, kept: int, results: Sequence[TensorSpec]) -> None:
    """Append the draws that sort each row and keep the first ``kept`` texels; ``results`` are values and columns."""
    rows, cols = x.shape
    lists = _lists_of(cols, kept)
    largest = rows * max(count * texels for count, texels in lists)
    pairs = [
        [passes.scratch(f"{part}.{pair}", largest, 4, PACKED) for part in ("columns", "keys")]
        for pair in range(min(2, len(lists)))
    ]
    sizes = [("ROWS", rows), ("COLS", cols)]
    for number, (count, texels) in enumerate(lists):
        outputs = pairs[number % 2][: 1 if number == len(lists) - 1 else 2]  # the last pass does not write the keys
        options: dict[str, Any] = {"rows": rows * count * texels}
        if number == 0:
            options["defines"] = [*sizes, ("LIST_TEXELS", texels)]
            passes.step("sort_chunks", {"x": x}, outputs, "top_k.chunks", **options)
            continue
        (columns, keys), before = pairs[(number - 1) % 2], lists[number - 1]
        # Uniforms instead of defines, so that all passes share a program.
        shift = -1 if texels == kept else texels.bit_length() - 1
        options["uniforms"] = [("list_count", before[0]), ("list_texels", before[1]), ("merged_shift", shift)]
        options["defines"] = [("ROWS", rows), ("KEPT", kept)]
        passes.step("merge_sorted", {"keys": keys, "columns": columns}, outputs, f"top_k.merge.{number}", **options)
    columns = pairs[(len(lists) - 1) % 2][0]
    passes.step("sorted_pairs", {"x": x, "columns": columns}, results, "top_k.pairs", defines=sizes)


def _lists_of(cols: int, kept: int) -> list[tuple[int, int]]:
    """The number of lists of each row after each pass, and the texels kept of each, at most ``kept``."""
    texels = _CHUNK // LANES
    found = [(-(-cols // _CHUNK), min(texels, kept))]
    while found[-1][0] > 1:
        texels *= 2
        found.append((-(-found[-1][0] // 2), min(texels, kept)))
    return found


register(Op("sort_chunks", ("x",), integers=("output",)))
register(Op("merge_sorted", ("keys", "columns"), integers=("keys", "columns", "output")))
register(Op("sorted_pairs", ("x", "columns"), integers=("columns",), either=("output",)))
