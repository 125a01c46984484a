"""Kernels for the largest elements: a merge sort in passes that keeps at most k elements of a list.

The sort compares whole numbers in the order of the elements, each with its column. The lists of all rows follow each
other in matrices of one texel a row: list l of row r is number ``l * rows + r``.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.gl.layouts.flat import LANES
from glinfer.ops.spec import Op, register
from glinfer.tensors.base import Group, expect_floats
from glinfer.tensors.passes import float_type
from glinfer.tensors.tensor import PACKED, Tensor, as_matrix, is_whole

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

        Raises:
            InputError: k is not from 1 to n, x has no axes or is not of floats, or the lists do not fit a texture.
        """
        expect_floats(x=x)
        if not x.shape:
            raise InputError("x is a single number; expected at least one axis, as in [n]")
        if not is_whole(k) or not 1 <= k <= x.shape[-1]:
            raise InputError(f"k is {k!r} and x is {list(x.shape)}; expected k from 1 to {x.shape[-1]}")
        passes, shape = self._passes, (*x.shape[:-1], int(k))
        if 0 in shape:
            return passes.zeros(shape, float_type(dtype), x=x), passes.zeros(shape, "int32")
        source, (rows, cols), kept = passes.read("x", x), as_matrix(x.shape), -(-int(k) // LANES)
        lists = _lists_of(cols, kept)
        largest = rows * max(count * texels for count, texels in lists)
        pairs = [
            [passes.scratch(f"{part}.{pair}", largest, 4, PACKED) for part in ("columns", "keys")]
            for pair in range(min(2, len(lists)))
        ]
        values, places = passes.computed("values", shape, dtype), passes.result("indices", shape, "int32")
        sizes = [("ROWS", rows), ("COLS", cols)]
        for number, (count, texels) in enumerate(lists):
            # The last pass of the sort does not write the keys.
            outputs = pairs[number % 2][: 1 if number == len(lists) - 1 else 2]
            written = rows * count * texels
            if number == 0:
                defines = [*sizes, ("LIST_TEXELS", texels)]
                passes.step("sort_chunks", [("x", source)], outputs, "top_k.chunks", rows=written, defines=defines)
                continue
            (columns, keys), before = pairs[(number - 1) % 2], lists[number - 1]
            inputs, defines = [("keys", keys), ("columns", columns)], [("ROWS", rows), ("KEPT", kept)]
            # Uniforms instead of defines, so that all passes share a program.
            shift = -1 if texels == kept else texels.bit_length() - 1
            uniforms = [("list_count", before[0]), ("list_texels", before[1]), ("merged_shift", shift)]
            options: dict[str, Any] = {"rows": written, "defines": defines, "uniforms": uniforms}
            passes.step("merge_sorted", inputs, outputs, f"top_k.merge.{number}", **options)
        columns = pairs[(len(lists) - 1) % 2][0]
        inputs = [("x", source), ("columns", columns)]
        passes.step("sorted_pairs", inputs, [values, places], "top_k.pairs", defines=sizes)
        found, indices = passes.run()
        return found, indices


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
