"""Kernels for matrix products."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.kernels.flat.matmul import matmul as matmul_draws
from glinfer.kernels.flat.matmul_choice import explained, resolve
from glinfer.kernels.flat.product import Finish, Product, Strategy
from glinfer.kernels.spec import TensorSpec
from glinfer.tensors.base import Result, expect_activation, expect_floats
from glinfer.tensors.elementwise import Elementwise
from glinfer.tensors.movement import Movement
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import Shape, Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

_AXES = 3


class Products(Elementwise, Movement):
    """Matrix products as in NumPy, and linear layers over weights in any format."""

    def matmul(
        self,
        x: Tensor,
        y: Tensor,
        *,
        bias: Tensor | None = None,
        activation: str = "none",
        residual: Tensor | None = None,
        strategy: str | Strategy | None = None,
        **result: Unpack[Result],
    ) -> Tensor:
        """``activation(x @ y + bias) + residual``, with ``@`` as in ``numpy.matmul``.

        Args:
            x: [..., M, K] or [K], of float32 or float16.
            y: [..., K, N] or [K]; leading axes broadcast.
            bias: [N].
            activation: a key of :data:`glinfer.kernels.published.linear.ACTIVATIONS`.
            residual: of the result's shape.
            strategy: one of :data:`glinfer.kernels.flat.matmul.STRATEGIES`; by default chosen by shape.

        Returns:
            [..., M, N], without M or N if that operand is a vector.
        """
        expect_floats(x=x, y=y, bias=bias, residual=residual)
        product = _matrices(x, y)
        if y.ndim == 1:
            if bias is not None:
                raise InputError(f"y is {list(y.shape)}, so the result has no columns for a bias")
            return self._matrix_vector(x, y, product, residual, activation=activation, strategy=strategy, **result)
        leading = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        shape = (*leading, product.n) if x.ndim == 1 else (*leading, x.shape[-2], product.n)
        finish: dict[str, Any] = {"bias": bias, "activation": activation, "residual": residual}
        if 0 not in shape and len(_batch(x.shape[:-2], y.shape[:-2])[1]) > _AXES:
            with self._copied(x, leading) as left, self._copied(y, leading) as right:
                return self.matmul(left, right, **finish, strategy=strategy, **result)
        return self._product({"x": x, "y": y}, product, shape, strategy, **result, **finish)

    def _copied(self, x: Tensor, leading: Shape) -> Tensor:
        """Copy x with its leading axes broadcast, axis by axis."""
        shape = [1] * (len(leading) - x.ndim + 2) + list(x.shape)
        copied = x.reshape(tuple(shape))
        for axis in reversed(range(len(leading))):
            if shape[axis] != leading[axis]:
                shape[axis] = leading[axis]
                with copied as smaller:
                    copied = self.expand(smaller, tuple(shape))
        return copied

    def _matrix_vector(
        self, x: Tensor, y: Tensor, product: Product, residual: Tensor | None, out: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Multiply x [..., M, K] by y [K]: the rows of x are the weights, and y the one row."""
        reads, shape, rows = {"y": y, "x": x}, x.shape[:-1], (product.n,)
        if shape == rows:
            return self._product(reads, product, shape, out=out, residual=residual, **options)
        flat = None if residual is None else residual.reshape(rows)
        with self._product(reads, product, rows, residual=flat, **options) as found:
            return self.repack(found, shape, out=out)

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        activation: str = "none",
        residual: Tensor | None = None,
        strategy: str | Strategy | None = None,
        **result: Unpack[Result],
    ) -> Tensor:
        """``activation(x @ weight.T + bias) + residual``: a linear layer.

        Args:
            x: [..., K], of float32 or float16.
            weight: [N, K], of float32, float16 or a packed format, which the shader unpacks.
            bias, activation, residual, strategy: see :meth:`matmul`.

        Returns:
            [..., N].
        """
        expect_floats(x=x, weight=None if weight.packed else weight, bias=bias, residual=residual)
        product = _layer(x, weight, "weight")
        reads, shape = {"x": x, "weight": weight}, (*x.shape[:-1], product.n)
        finish: dict[str, Any] = {"bias": bias, "activation": activation, "residual": residual}
        return self._product(reads, product, shape, strategy, **result, **finish)

    def dot(self, x: Tensor, y: Tensor, *, strategy: str | Strategy | None = None, **result: Unpack[Result]) -> Tensor:
        """``numpy.dot``: the sum product over the last axis of x and the second-to-last of y.

        ``dot(x, y)[i…, j…, n] = Σ_k x[i…, k] · y[j…, k, n]``; for vectors the inner product; for a tensor without axes
        every element times that number.

        Args:
            x: [..., K] or [], of float32 or float16.
            y: [..., K, N], [K] or [].
            strategy: see :meth:`matmul`.
        """
        expect_floats(x=x, y=y)
        if not x.shape or not y.shape:
            return self.multiply(x, y, **result)
        if y.ndim <= 2:
            return self.matmul(x, y, strategy=strategy, **result)
        _expect_inner(x, y, x.shape[-1], y.shape[-2])
        k, n = y.shape[-2:]
        axes = (y.ndim - 2, *range(y.ndim - 2), y.ndim - 1)
        shape = (*x.shape[:-1], *y.shape[:-2], n)
        out = result.pop("out", None)
        with (
            self.transpose(y, axes) as moved,
            moved.reshape(k, math.prod(y.shape[:-2]) * n) as flat,
            self.matmul(x, flat, **result) as found,
        ):
            return self.repack(found, shape, out=out)

    def explain(self, x: Tensor, y: Tensor, *, linear: bool = False) -> str:
        """The strategy of :meth:`matmul` or :meth:`linear` of x and y on this device, and why; draws nothing."""
        expect_floats(x=x, y=None if linear and y.packed else y)
        product = _layer(x, y, "y") if linear else _matrices(x, y)
        if not product.count * product.m * product.n:
            return "no strategy; the result has no elements"
        product = replace(product, k=max(1, product.k))
        return explained(product, self._device.kernels, blends=self._device.blends_floats)[1]

    def _product(
        self,
        reads: dict[str, Tensor],
        product: Product,
        shape: Shape,
        strategy: str | Strategy | None,
        *,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        activation: str = "none",
        **finish: Any,
    ) -> Tensor:
        """Multiply the first tensor, a stack of product.m rows of product.k, by the second, into ``shape``."""
        expect_activation(activation)
        if bias is not None and bias.shape != (product.n,):
            raise InputError(f"bias is {list(bias.shape)}; expected [{product.n}]")
        if residual is not None and residual.shape != shape:
            raise InputError(f"residual is {list(residual.shape)}; expected {list(shape)}, like the result")
        with ExitStack() as made:
            if product.k == 0 and 0 not in shape:  # an empty sum is 0, like a sum of zeros
                product = replace(product, k=1)
                axes = (-1, -1 if product.transposed else -2)
                for axis, (name, tensor) in zip(axes, list(reads.items()), strict=True):
                    edges = list(tensor.shape)
                    edges[axis] = 1
                    reads[name] = made.enter_context(self._device.zeros(edges))

            def build(passes: Passes, out: TensorSpec, **specs: Any) -> None:
                x, weight = (specs.pop(name) for name in reads)
                chosen = resolve(strategy, product, passes.kernels, blends=self._device.blends_floats)
                options: dict[str, Any] = {"product": product, "strategy": chosen, "scratch": passes.scratch}
                options["finish"] = Finish(activation=activation, **specs, **finish)
                passes.draw(*matmul_draws(passes.named(), x, weight, out, **options))

            return self._run(build, {**reads, "bias": bias, "residual": residual}, shape, dtype, out)


def _matrices(x: Tensor, y: Tensor) -> Product:
    """The product ``x @ y``; if more than three axes would broadcast, the product of both with all leading axes."""
    shapes = f"x is {list(x.shape)} and y is {list(y.shape)}"
    if not x.shape or not y.shape:
        raise InputError(f"{shapes}; both need an axis to sum over")
    _expect_inner(x, y, x.shape[-1], y.shape[-min(2, y.ndim)])
    if y.ndim == 1:
        return Product(1, math.prod(x.shape[:-1]), y.shape[0], transposed=True)
    try:
        m, groups = _batch(x.shape[:-2], y.shape[:-2])
    except ValueError:
        raise InputError(f"{shapes}; their leading axes do not broadcast") from None
    if len(groups) > _AXES:
        m, groups = 1, [(math.prod(np.broadcast_shapes(x.shape[:-2], y.shape[:-2])), True, True)]
    groups = [(1, False, False)] * (_AXES - len(groups)) + groups
    steps: list[list[int]] = [[0] * _AXES, [0] * _AXES]
    for own, moving in zip(steps, (1, 2), strict=True):
        step = 1
        for axis in reversed(range(_AXES)):
            if groups[axis][moving]:
                own[axis], step = step, step * groups[axis][0]
    batch, of_x, of_y = ((each[0], each[1], each[2]) for each in ([size for size, _, _ in groups], *steps))
    rows = 1 if x.ndim == 1 else x.shape[-2]
    return Product(m * rows, y.shape[-1], y.shape[-2], False, None, batch, of_x, of_y)


def _batch(x: Shape, y: Shape) -> tuple[int, list[tuple[int, bool, bool]]]:
    """Broadcast the leading axes of two stacks of matrices: the number of neighbouring matrices of x that share a
    matrix of y; and the other axes, joined where possible: their sizes, and whether x and y have them.
    """
    shape = np.broadcast_shapes(x, y)
    padded_x, padded_y = ((1,) * (len(shape) - len(own)) + own for own in (x, y))
    groups: list[tuple[int, bool, bool]] = []
    for size, of_x, of_y in zip(shape, padded_x, padded_y, strict=True):
        moves = of_x > 1, of_y > 1
        if groups and groups[-1][1:] == moves:
            groups[-1] = (groups[-1][0] * size, *moves)
        elif size != 1:
            groups.append((size, *moves))
    shared = groups.pop()[0] if groups and groups[-1][1:] == (True, False) else 1
    return shared, groups


def _layer(x: Tensor, weight: Tensor, name: str) -> Product:
    """The product of a linear layer, whose weight the caller calls ``name``."""
    if not x.shape or weight.ndim != 2:
        raise InputError(f"x is {list(x.shape)} and {name} is {list(weight.shape)}; expected [..., K], [N, K]")
    _expect_inner(x, weight, x.shape[-1], weight.shape[-1], name)
    n, k = weight.shape
    return Product(math.prod(x.shape[:-1]), n, k, transposed=True, table_format=weight.dtype if weight.packed else None)


def _expect_inner(x: Tensor, y: Tensor, of_x: int, of_y: int, name: str = "y") -> None:
    if of_x != of_y:
        raise InputError(
            f"x is {list(x.shape)} and {name} is {list(y.shape)}; they sum over {of_x} and {of_y} elements"
        )
