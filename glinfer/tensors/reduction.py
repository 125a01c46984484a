"""Kernels for reductions along the last axis: sum, max, argmax and cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glinfer.errors import InputError
from glinfer.kernels.flat.stats import STATS, summarize
from glinfer.kernels.spec import Op, TensorSpec, register
from glinfer.tensors.base import Group, Result, expect_rows
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MAX_ARGMAX_COLUMNS = 1 << 24
"""Limit for the columns of a row in an argmax, because a float32 carries the column's number."""


class Reductions(Group):
    """One number for every row, computed in float32 by two draws, or three for long or many rows."""

    def sum(self, x: Tensor, *, keepdims: bool = False, **result: Unpack[Result]) -> Tensor:
        """The sum over the last axis; x [..., N] of float32 or float16 → [...], or [..., 1].

        Rows are summed in nested blocks, so the error hardly grows with N. NaN and infinities behave as in NumPy.

        Args:
            x: at least one axis.
            keepdims: keep the last axis, with one element.
        """
        return self._column(x, "sum", keepdims, **result)

    def max(self, x: Tensor, *, keepdims: bool = False, **result: Unpack[Result]) -> Tensor:
        """The largest element of the last axis, which must have one, or NaN if the row has NaN; see :meth:`sum`."""
        return self._column(x, "largest", keepdims, **result)

    def argmax(self, x: Tensor, *, keepdims: bool = False, out: Tensor | None = None) -> Tensor:
        """The index of the largest element of the last axis, as int32; see :meth:`sum`.

        Ties give the first index; NaN counts as larger than all others, as in NumPy. x has at most 2^24 columns, whose
        numbers float32 holds.
        """
        if x.shape and x.shape[-1] > _MAX_ARGMAX_COLUMNS:
            raise InputError(
                f"x is {list(x.shape)}; expected at most {_MAX_ARGMAX_COLUMNS} columns, whose numbers float32 holds; "
                "split the rows"
            )
        return self._column(x, "largest", keepdims, dtype="int32", out=out, index=True)

    def cross_entropy(self, logits: Tensor, targets: Tensor, **result: Unpack[Result]) -> Tensor:
        """``log(sum(exp(logits))) - logits[target]``; logits [..., V], targets int32 [...] → [...].

        Each row has its own loss; there is no mean. A target outside of [0, V) gives 0 whatever the row holds, to skip
        rows like PyTorch's ``ignore_index``. Otherwise it is minus :meth:`log_softmax` at the target, infinities and
        NaN included.

        Args:
            logits: float32 or float16, at least one axis.
            targets: the shape of logits without its last axis.
        """
        expect_rows(logits=logits)
        if targets.shape != logits.shape[:-1] or targets.dtype != "int32":
            raise InputError(
                f"logits is {list(logits.shape)} and targets {list(targets.shape)} of {targets.dtype}; expected "
                f"targets {list(logits.shape[:-1])} of int32"
            )

        def build(passes: Passes, logits: TensorSpec, targets: TensorSpec, out: TensorSpec) -> None:
            inputs = {"x": logits, "stats": _stats(passes, "exponents", logits), "targets": targets}
            defines = [("STAT", STATS["exponents"]), ("COLS", logits.shape[1])]
            passes.step("cross_entropy", inputs, [out], defines=defines)

        # Every target is outside an empty vocabulary, so its loss is 0.
        return self._run(build, {"logits": logits, "targets": targets}, targets.shape, **result)

    def _column(self, x: Tensor, stat: str, keepdims: bool, *, index: bool = False, **result: Unpack[Result]) -> Tensor:
        """One number of the statistics of every row: element i of the result, in row-major order, is that of row i."""
        expect_rows(x=x)
        if stat == "largest" and not x.shape[-1] and 0 not in x.shape[:-1]:
            raise InputError(f"x is {list(x.shape)}, whose rows have no elements and so no largest one")

        def build(passes: Passes, x: TensorSpec, out: TensorSpec) -> None:
            defines = [("STAT", STATS[stat]), ("COLUMN", int(index))]
            passes.step("stat_column", {"stats": _stats(passes, stat, x)}, [out], defines=defines)

        shape = (*x.shape[:-1], 1) if keepdims else x.shape[:-1]
        return self._run(build, {"x": x}, shape, **result, exact=index)


def _stats(passes: Passes, stat: str, x: TensorSpec) -> TensorSpec:
    """Append the draws of the statistics of each row."""
    stats, draws = summarize(passes.named(), x, stat=stat, readers=x.shape[0], scratch=passes.scratch)
    passes.draw(*draws)
    return stats


register(Op("stat_column", ("stats",), either=("output",)))
register(Op("cross_entropy", ("x", "stats", "targets"), integers=("targets",)))
