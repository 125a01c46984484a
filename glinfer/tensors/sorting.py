"""Kernels for the largest elements."""

from __future__ import annotations

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.ops.flat.topk import lists_of, scratch_rows
from glinfer.ops.flat.topk import top_k as top_k_draws
from glinfer.tensors.base import Group, expect_floats
from glinfer.tensors.tensor import PACKED, Tensor, as_matrix, is_whole


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
        expect_floats("top_k", x=x)
        if not x.shape:
            raise InputError("top_k: x is a single number; expected at least one axis, as in [n]")
        if not is_whole(k) or not 1 <= k <= x.shape[-1]:
            raise InputError(f"top_k: k is {k!r} and x is {list(x.shape)}; expected k from 1 to {x.shape[-1]}")
        passes = self._passes("top_k")
        shape = (*x.shape[:-1], int(k))
        if 0 in shape:
            return passes.computed_zeros(shape, dtype, x=x), passes.empty(shape, "int32")
        source, k = passes.read("x", x), int(k)
        rows, cols = as_matrix(x.shape)
        size = scratch_rows(rows, cols, k)
        scratch = [
            (passes.scratch(f"columns.{pair}", size, 4, PACKED), passes.scratch(f"keys.{pair}", size, 4, PACKED))
            for pair in range(min(2, len(lists_of(cols, k))))
        ]
        values = passes.computed("values", shape, dtype)
        places = passes.result("indices", shape, "int32")
        passes.draw(*top_k_draws("top_k", "top_k", source, scratch, values, places, kernels=passes.kernels))
        largest, indices = passes.run()
        return largest, indices
