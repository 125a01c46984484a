"""Kernels for element-wise arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glinfer.errors import InputError
from glinfer.kernels.flat.elementwise import arithmetic, broadcast_axes
from glinfer.kernels.flat.elementwise import scale as scale_draw
from glinfer.tensors.base import Group, Result, expect_floats, expect_same_shape
from glinfer.tensors.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MAX_FLOAT = float(np.finfo(np.float32).max)


class Elementwise(Group):
    """Arithmetic of float32 or float16 tensors, with NumPy's broadcasting.

    It is computed in float32, and the result is float32 unless ``dtype`` is float16.
    """

    def add(self, x: Tensor, y: Tensor, **result: Unpack[Result]) -> Tensor:
        """``x + y``."""
        return self._arithmetic("add", x, y, **result)

    def subtract(self, x: Tensor, y: Tensor, **result: Unpack[Result]) -> Tensor:
        """``x - y``, see :meth:`add`."""
        return self._arithmetic("subtract", x, y, **result)

    def multiply(self, x: Tensor, y: Tensor, **result: Unpack[Result]) -> Tensor:
        """``x * y``, see :meth:`add`."""
        return self._arithmetic("multiply", x, y, **result)

    def divide(self, x: Tensor, y: Tensor, **result: Unpack[Result]) -> Tensor:
        """``x / y``, see :meth:`add`; a division by zero gives infinity or NaN, as in NumPy."""
        return self._arithmetic("divide", x, y, **result)

    def add_bias(self, x: Tensor, bias: Tensor, **result: Unpack[Result]) -> Tensor:
        """x [..., D] + bias [D]."""
        if not x.shape or bias.shape != x.shape[-1:]:
            raise InputError(f"x is {list(x.shape)} and bias is {list(bias.shape)}; expected [..., D] and [D]")
        return self._arithmetic("add", x, bias, **result)

    def residual_add(self, x: Tensor, residual: Tensor, **result: Unpack[Result]) -> Tensor:
        """``x + residual``, of one shape."""
        expect_same_shape(x=x, residual=residual)
        return self._arithmetic("add", x, residual, **result)

    def scale(self, x: Tensor, factor: float, **result: Unpack[Result]) -> Tensor:
        """``factor * x``, the factor rounded to float32."""
        expect_floats(x=x)
        number = isinstance(factor, (int, float, np.integer, np.floating)) and not isinstance(factor, bool)
        if not number or not abs(factor) <= _MAX_FLOAT:
            raise InputError(f"factor is {factor!r}; expected a finite number that float32 holds")
        return self._draw(scale_draw, {"x": x}, x.shape, **result, factor=float(factor))

    def _arithmetic(self, operation: str, x: Tensor, y: Tensor, **result: Unpack[Result]) -> Tensor:
        expect_floats(x=x, y=y)
        try:
            shape = np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            raise InputError(
                f"{list(x.shape)} and {list(y.shape)} do not broadcast; expected equal edges from the last one on, or "
                "edges of 1"
            ) from None
        axes = [] if 0 in shape else broadcast_axes(x.shape, y.shape)
        return self._draw(arithmetic, {"x": x, "y": y}, shape, **result, operation=operation, axes=axes)
