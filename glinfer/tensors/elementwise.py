"""Kernels for element-wise arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.kernels.flat.elementwise import arithmetic, broadcast_axes
from glinfer.kernels.flat.elementwise import scale as scale_draw
from glinfer.tensors.base import Group, expect_floats, expect_same_shape
from glinfer.tensors.tensor import Tensor

_MAX_FLOAT = float(np.finfo(np.float32).max)


class Elementwise(Group):
    """Arithmetic of float32 or float16 tensors, with NumPy's broadcasting.

    It is computed in float32, and the result is float32 unless ``dtype`` is float16.
    """

    def add(self, x: Tensor, y: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """``x + y``.

        Raises:
            InputError: the shapes do not broadcast, or a tensor is not of floats.
        """
        return self._arithmetic("add", x, y, dtype, out)

    def subtract(self, x: Tensor, y: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """``x - y``, see :meth:`add`."""
        return self._arithmetic("subtract", x, y, dtype, out)

    def multiply(self, x: Tensor, y: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """``x * y``, see :meth:`add`."""
        return self._arithmetic("multiply", x, y, dtype, out)

    def divide(self, x: Tensor, y: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """``x / y``, see :meth:`add`; a division by zero gives infinity or NaN, as in NumPy."""
        return self._arithmetic("divide", x, y, dtype, out)

    def add_bias(
        self, x: Tensor, bias: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None
    ) -> Tensor:
        """x [..., D] + bias [D].

        Raises:
            InputError: the bias and the rows of x differ in length, or a tensor is not of floats.
        """
        if not x.shape or bias.shape != x.shape[-1:]:
            raise InputError(f"x is {list(x.shape)} and bias is {list(bias.shape)}; expected [..., D] and [D]")
        return self._arithmetic("add", x, bias, dtype, out)

    def residual_add(
        self, x: Tensor, residual: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None
    ) -> Tensor:
        """``x + residual``, of one shape.

        Raises:
            InputError: the shapes differ, or a tensor is not of floats.
        """
        expect_same_shape(x=x, residual=residual)
        return self._arithmetic("add", x, residual, dtype, out)

    def scale(self, x: Tensor, factor: float, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """``factor * x``, the factor rounded to float32.

        Raises:
            InputError: the factor is not a finite float32 number, or x is not of floats.
        """
        expect_floats(x=x)
        number = isinstance(factor, (int, float, np.integer, np.floating)) and not isinstance(factor, bool)
        if not number or not abs(factor) <= _MAX_FLOAT:
            raise InputError(f"factor is {factor!r}; expected a finite number that float32 holds")
        return self._draw(scale_draw, {"x": x}, x.shape, dtype, out, factor=float(factor))

    def _arithmetic(self, operation: str, x: Tensor, y: Tensor, dtype: npt.DTypeLike, out: Tensor | None) -> Tensor:
        expect_floats(x=x, y=y)
        try:
            shape = np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            raise InputError(
                f"{list(x.shape)} and {list(y.shape)} do not broadcast; expected equal edges from the last one on, or "
                "edges of 1"
            ) from None
        axes = [] if 0 in shape else broadcast_axes(x.shape, y.shape)
        return self._draw(arithmetic, {"x": x, "y": y}, shape, dtype, out, operation=operation, axes=axes)
