"""Kernels for normalisations along the last axis: LayerNorm, RMSNorm, softmax and its logarithm."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.kernels.flat.normalize import Norm, normalized
from glinfer.kernels.spec import TensorSpec
from glinfer.tensors.base import Group, Result, expect_floats, expect_rows, expect_same_shape
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Normalizations(Group):
    """Normalisations of rows, computed in float32 by two draws, or three for long rows.

    Squares are those of float32: elements beyond about 1e18 overflow them, and the row becomes 0 or NaN.
    """

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-5,
        **result: Unpack[Result],
    ) -> Tensor:
        """``(x - mean) / sqrt(variance + eps) * weight + bias`` (Ba et al. 2016); x [..., D].

        Rows far from 0 keep their digits, because deviations from an element of the row are summed. A row of equal
        elements becomes the bias, or NaN if eps is 0; one with NaN or an infinity becomes NaN.

        Args:
            x: float32 or float16, at least one axis.
            weight, bias: [D] of float32 or float16; 1 and 0 by default.
            eps: at least 0.
        """
        _expect(x, eps, weight=weight, bias=bias)
        return self._normalized("layer", x, **result, weight=weight, bias=bias, eps=float(eps))

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        eps: float = 1e-6,
        offset: float = 0.0,
        **result: Unpack[Result],
    ) -> Tensor:
        """``x / sqrt(mean(x²) + eps) * (weight + offset)`` (Zhang and Sennrich 2019); x [..., D].

        A row with NaN becomes NaN; in a row with infinities, these become NaN and the rest 0, as in NumPy.

        Args:
            x: float32 or float16, at least one axis.
            weight: [D] of float32 or float16; 1 by default.
            eps: at least 0.
            offset: added to the weight, which must be given: 1 in Gemma.
        """
        _expect(x, eps, offset, weight=weight)
        return self._normalized("rms", x, **result, weight=weight, eps=float(eps), offset=float(offset))

    def add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None = None,
        *,
        eps: float = 1e-6,
        offset: float = 0.0,
        dtype: npt.DTypeLike = "float32",
    ) -> tuple[Tensor, Tensor]:
        """``x + residual`` and :meth:`rms_norm` of the sum, without a further draw; both [..., D].

        Args:
            x: float32 or float16, at least one axis.
            residual: of x's shape, float32 or float16.
            weight, eps, offset: as in :meth:`rms_norm`.
            dtype: the results' type, float32 or float16; the norm is that of the float32 sum.
        """
        _expect(x, eps, offset, weight=weight)
        expect_floats(residual=residual)
        expect_same_shape(x=x, residual=residual)

        def build(passes: Passes, x: TensorSpec, y: TensorSpec, **vectors: Any) -> None:
            _draw(passes, x, y, Norm("rms", eps=float(eps), offset=float(offset), **vectors))

        reads = {"x": x, "residual": residual, "weight": weight}
        added, y = self._results(build, reads, {"added": x.shape, "y": x.shape}, dtype)
        return added, y

    def softmax(self, x: Tensor, **result: Unpack[Result]) -> Tensor:
        """``exp(x) / sum(exp(x))`` over the last axis; x [..., N] of float32 or float16.

        Rows do not overflow, because their largest element is subtracted first. -Inf becomes 0; in a row of only -Inf,
        or of equal elements such as -1e30, every element becomes 1/N. A row with NaN or +Inf becomes NaN.
        """
        expect_rows(x=x)
        return self._normalized("softmax", x, **result)

    def log_softmax(self, x: Tensor, **result: Unpack[Result]) -> Tensor:
        """The logarithm of :meth:`softmax`, even if that is too small for float32; -Inf stays -Inf."""
        expect_rows(x=x)
        return self._normalized("log_softmax", x, **result)

    def _normalized(
        self,
        name: str,
        x: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
        **numbers: Any,
    ) -> Tensor:
        def build(passes: Passes, x: TensorSpec, out: TensorSpec, **vectors: Any) -> None:
            _draw(passes, x, out, Norm(name, **vectors, **numbers))

        return self._run(build, {"x": x, "weight": weight, "bias": bias}, x.shape, dtype, out)


def _draw(passes: Passes, x: TensorSpec, out: TensorSpec, norm: Norm) -> None:
    draws = normalized(passes.named(), x, out, norm, scratch=passes.scratch)
    passes.draw(*draws)


def _expect(x: Tensor, eps: float, offset: float = 0.0, **vectors: Tensor | None) -> None:
    expect_rows(x=x)
    expect_floats(**vectors)
    for name, vector in vectors.items():
        if vector is not None and vector.shape != x.shape[-1:]:
            raise InputError(f"x is {list(x.shape)} and {name} is {list(vector.shape)}; expected {list(x.shape[-1:])}")
    if not (_is_number(eps) and eps >= 0):
        raise InputError(f"eps is {eps!r}; expected a number that is at least 0")
    if not _is_number(offset):
        raise InputError(f"offset is {offset!r}; expected a number")
    if offset and vectors["weight"] is None:
        raise InputError(f"offset is {offset} and there is no weight to add it to; give a weight, or no offset")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
