"""Kernels for reductions along the last axis: sum, max, argmax and cross-entropy."""

from __future__ import annotations

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.ops.flat.normalize import cross_entropy as cross_entropy_draw
from glinfer.ops.flat.stats import MAX_ARGMAX_COLUMNS, largest_column, stat_column, summarize
from glinfer.tensors.base import Group, expect_floats
from glinfer.tensors.passes import Passes, float_type
from glinfer.tensors.tensor import Shape, Tensor


class Reductions(Group):
    """One number for every row, computed in float32 by two draws, or three for long or many rows."""

    def sum(
        self, x: Tensor, *, keepdims: bool = False, dtype: npt.DTypeLike = "float32", out: Tensor | None = None
    ) -> Tensor:
        """The sum over the last axis; x [..., N] of float32 or float16 → [...], or [..., 1].

        Rows are summed in nested blocks, so the error hardly grows with N. NaN and infinities behave as in NumPy.

        Args:
            x: at least one axis.
            keepdims: keep the last axis, with one element.
            dtype: the result's type, float32 or float16.
            out: the tensor to write to; a new one by default.

        Raises:
            InputError: x has no axis, is not of floats, or ``out`` does not fit.
        """
        return _column(self._passes("sum"), x, "sum", keepdims, dtype, out)

    def max(
        self, x: Tensor, *, keepdims: bool = False, dtype: npt.DTypeLike = "float32", out: Tensor | None = None
    ) -> Tensor:
        """The largest element of the last axis, or NaN if the row has one; see :meth:`sum`.

        Raises:
            InputError: as in :meth:`sum`; or rows have no elements.
        """
        return _column(self._passes("max"), x, "largest", keepdims, dtype, out)

    def argmax(self, x: Tensor, *, keepdims: bool = False, out: Tensor | None = None) -> Tensor:
        """The index of the largest element of the last axis, as int32; see :meth:`sum`.

        Ties give the first index; NaN counts as larger than all others, as in NumPy.

        Raises:
            InputError: as in :meth:`max`; or x has more than 2^24 columns, whose numbers float32 cannot hold.
        """
        return _column(self._passes("argmax"), x, "largest", keepdims, "int32", out)

    def cross_entropy(
        self, logits: Tensor, targets: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None
    ) -> Tensor:
        """``log(sum(exp(logits))) - logits[target]``; logits [..., V], targets int32 [...] → [...].

        Each row has its own loss; there is no mean. A target outside of [0, V) gives 0 whatever the row holds, to skip
        rows like PyTorch's ``ignore_index``. Otherwise it is minus :meth:`log_softmax` at the target, infinities and
        NaN included.

        Args:
            logits: float32 or float16, at least one axis.
            targets: the shape of logits without its last axis.
            dtype: the result's type, float32 or float16.
            out: the tensor to write to; a new one by default.

        Raises:
            InputError: the shapes do not fit, or one is of another type.
        """
        expect_rows("cross_entropy", logits=logits)
        if targets.shape != logits.shape[:-1] or targets.dtype != "int32":
            raise InputError(
                f"cross_entropy: logits is {list(logits.shape)} and targets {list(targets.shape)} of {targets.dtype}; "
                f"expected targets {list(logits.shape[:-1])} of int32"
            )
        passes = self._passes("cross_entropy")
        if logits.size == 0:  # every target is outside an empty vocabulary, so its loss is 0
            return passes.computed_zeros(targets.shape, dtype, out, logits=logits, targets=targets)
        source, wanted = passes.read("logits", logits), passes.read("targets", targets)
        name, kernels = "cross_entropy", passes.kernels
        stats, draws = summarize(
            name, name, source, stat="exponents", readers=source.shape[0], scratch=passes.scratch, kernels=kernels
        )
        target = passes.computed("y", targets.shape, dtype, out)
        passes.draw(*draws, cross_entropy_draw(name, name, source, stats, wanted, target, kernels=kernels))
        (y,) = passes.run()
        return y


def _column(passes: Passes, x: Tensor, stat: str, keepdims: bool, dtype: npt.DTypeLike, out: Tensor | None) -> Tensor:
    call = passes.call
    expect_rows(call, x=x)
    if call == "argmax" and x.shape[-1] > MAX_ARGMAX_COLUMNS:
        raise InputError(
            f"{call}: x is {list(x.shape)}; expected at most {MAX_ARGMAX_COLUMNS} columns, whose numbers float32 "
            "holds; split the rows"
        )
    shape: Shape = (*x.shape[:-1], 1) if keepdims else x.shape[:-1]
    if x.size == 0:
        if stat == "sum":
            return passes.computed_zeros(shape, dtype, out, x=x)
        if 0 not in shape:
            raise InputError(f"{call}: x is {list(x.shape)}, whose rows have no elements and so no largest one")
        return passes.empty(shape, "int32" if call == "argmax" else float_type(call, dtype), out, x=x)
    source = passes.read("x", x)
    stats, draws = summarize(
        call, call, source, stat=stat, readers=source.shape[0], scratch=passes.scratch, kernels=passes.kernels
    )
    passes.draw(*draws)
    if call == "argmax":
        target = passes.result("y", shape, "int32", out)
        passes.draw(largest_column(call, call, stats, target, cols=x.shape[-1], kernels=passes.kernels))
    else:
        target = passes.computed("y", shape, dtype, out)
        passes.draw(stat_column(call, call, stats, target, stat=stat, kernels=passes.kernels))
    (y,) = passes.run()
    return y


def expect_rows(call: str, **tensors: Tensor) -> None:
    """Accept tensors of floats that have a last axis.

    Raises:
        InputError: a tensor has another type or no axes; the message names the call and the tensor.
    """
    expect_floats(call, **tensors)
    for name, tensor in tensors.items():
        if not tensor.shape:
            raise InputError(f"{call}: {name} is a single number, without axes; expected at least one axis")
