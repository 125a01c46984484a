"""Kernels for matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError, PlanError
from glinfer.ops.flat.matmul import matmul as matmul_draws
from glinfer.ops.flat.matmul_choice import explained, resolve
from glinfer.ops.flat.product import Finish, Product, Strategy
from glinfer.ops.published.linear import ACTIVATIONS
from glinfer.tensors.base import expect_floats
from glinfer.tensors.elementwise import Elementwise
from glinfer.tensors.movement import Movement
from glinfer.tensors.tensor import Shape, Tensor

_AXES = 3


@dataclass(frozen=True)
class StackPairs:
    """The pairs of matrices of two stacks to multiply, along up to three axes."""

    sizes: tuple[int, int, int]
    x_steps: tuple[int, int, int]
    y_steps: tuple[int, int, int]


@dataclass(frozen=True)
class After:
    """The operations on the sums of a product, see :class:`glinfer.ops.flat.product.Finish`."""

    bias: Tensor | None = None
    activation: str = "none"
    residual: Tensor | None = None
    scale: float = 1.0
    causal: int | None = None


def batch_of(x: Shape, y: Shape) -> StackPairs | None:
    """Broadcast the leading axes of two stacks of matrices; None if that needs more than three axes.

    Raises:
        ValueError: they do not broadcast.
    """
    shape = np.broadcast_shapes(x, y)
    padded_x, padded_y = ((1,) * (len(shape) - len(own)) + own for own in (x, y))
    groups: list[tuple[int, bool, bool]] = []
    for size, of_x, of_y in zip(shape, padded_x, padded_y, strict=True):
        if size == 1:
            continue
        moves = of_x > 1, of_y > 1
        if groups and groups[-1][1:] == moves:
            groups[-1] = (groups[-1][0] * size, *moves)
        else:
            groups.append((size, *moves))
    if len(groups) > _AXES:
        return None
    sizes = (1,) * (_AXES - len(groups)) + tuple(size for size, _, _ in groups)
    steps = []
    for which in (1, 2):
        moving = [False] * (_AXES - len(groups)) + [bool(group[which]) for group in groups]
        own, step = [0] * _AXES, 1
        for axis in reversed(range(_AXES)):
            if moving[axis]:
                own[axis], step = step, step * sizes[axis]
        steps.append((own[0], own[1], own[2]))
    return StackPairs((sizes[0], sizes[1], sizes[2]), steps[0], steps[1])


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
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``activation(x @ y + bias) + residual``, with ``@`` as in ``numpy.matmul``.

        Args:
            x: [..., M, K] or [K], of float32 or float16.
            y: [..., K, N] or [K]; leading axes broadcast.
            bias: [N].
            activation: a key of :data:`glinfer.ops.published.linear.ACTIVATIONS`.
            residual: of the result's shape.
            strategy: one of :data:`glinfer.ops.flat.matmul.STRATEGIES`; by default chosen by shape.
            dtype: the result's type, float32 or float16.
            out: the tensor to write to; a new one by default.

        Returns:
            [..., M, N], without M or N if that operand is a vector.

        Raises:
            InputError: the shapes do not fit, an operand is not of floats, or the strategy cannot compute this.
        """
        expect_floats("matmul", x=x, y=y, bias=bias, residual=residual)
        product, after = _matrices("matmul", x, y), After(bias, activation, residual)
        if y.ndim == 1:
            return self._matrix_vector(x, y, product, after, strategy, dtype, out)
        n, leading = product.n, np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        shape = (*leading, n) if x.ndim == 1 else (*leading, x.shape[-2], n)
        if 0 in shape:
            _expect_after("matmul", after, n, shape)
            return self._passes("matmul").computed_zeros(shape, dtype, out, x=x, y=y, bias=bias, residual=residual)
        if batch_of(x.shape[:-2], y.shape[:-2]) is None:
            added: dict[str, Any] = {"bias": bias, "activation": activation, "residual": residual}
            with self._copied(x, leading) as left, self._copied(y, leading) as right:
                return self.matmul(left, right, **added, strategy=strategy, dtype=dtype, out=out)
        return self._product("matmul", {"x": x, "y": y}, product, shape, after, strategy, dtype, out)

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
        self,
        x: Tensor,
        y: Tensor,
        product: Product,
        after: After,
        strategy: str | Strategy | None,
        dtype: npt.DTypeLike,
        out: Tensor | None,
    ) -> Tensor:
        """Multiply x [..., M, K] by y [K]: the rows of x are the weights, and y the one row."""
        if after.bias is not None:
            raise InputError(f"matmul: y is {list(y.shape)}, so the result has no columns for a bias")
        shape, rows = x.shape[:-1], product.n
        if shape == (rows,):
            return self._product("matmul", {"y": y, "x": x}, product, shape, after, strategy, dtype, out)
        residual = None if after.residual is None else after.residual.reshape(rows)
        with self._product(
            "matmul", {"y": y, "x": x}, product, (rows,), replace(after, residual=residual), strategy, dtype, None
        ) as found:
            if residual is not None:
                residual.release()
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
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``activation(x @ weight.T + bias) + residual``: a linear layer.

        Args:
            x: [..., K], of float32 or float16.
            weight: [N, K], of float32, float16 or a packed format, which the shader unpacks.
            bias, activation, residual, strategy, dtype, out: see :meth:`matmul`.

        Returns:
            [..., N].

        Raises:
            InputError: the shapes do not fit, x is not of floats, or the strategy cannot compute this.
        """
        expect_floats("linear", x=x, bias=bias, residual=residual)
        if not weight.packed:
            expect_floats("linear", weight=weight)
        product = _layer("linear", x, weight, "weight")
        reads, after, shape = {"x": x, "weight": weight}, After(bias, activation, residual), (*x.shape[:-1], product.n)
        return self._product("linear", reads, product, shape, after, strategy, dtype, out)

    def dot(
        self,
        x: Tensor,
        y: Tensor,
        *,
        strategy: str | Strategy | None = None,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``numpy.dot``: the sum product over the last axis of x and the second-to-last of y.

        ``dot(x, y)[i…, j…, n] = Σ_k x[i…, k] · y[j…, k, n]``; for vectors the inner product; for a tensor without axes
        every element times that number.

        Args:
            x: [..., K] or [], of float32 or float16.
            y: [..., K, N], [K] or [].
            strategy, dtype, out: see :meth:`matmul`.

        Raises:
            InputError: the shapes do not fit, or an operand is not of floats.
        """
        expect_floats("dot", x=x, y=y)
        if not x.shape or not y.shape:
            return self.multiply(x, y, dtype=dtype, out=out)
        if y.ndim <= 2:
            return self.matmul(x, y, strategy=strategy, dtype=dtype, out=out)
        _expect_inner("dot", x, y, x.shape[-1], y.shape[-2])
        k, n = y.shape[-2:]
        axes = (y.ndim - 2, *range(y.ndim - 2), y.ndim - 1)
        shape = (*x.shape[:-1], *y.shape[:-2], n)
        with (
            self.transpose(y, axes) as moved,
            moved.reshape(k, math.prod(y.shape[:-2]) * n) as flat,
            self.matmul(x, flat, dtype=dtype) as found,
        ):
            return self.repack(found, shape, out=out)

    def explain(self, x: Tensor, y: Tensor, *, linear: bool = False) -> str:
        """The strategy of :meth:`matmul` (or :meth:`linear`) of x and y on this device, and the reason; draws nothing.

        Raises:
            InputError: the shapes do not fit, or an operand is not of floats.
        """
        expect_floats("explain", x=x, **({} if linear and y.packed else {"y": y}))
        product = _layer("explain", x, y, "y") if linear else _matrices("explain", x, y)
        if not product.count * product.m * product.n:
            return "no strategy; the result has no elements"
        product = replace(product, k=max(1, product.k))
        return explained(product, self._device.kernels, blends=self._device.blends_floats)[1]

    def _product(
        self,
        call: str,
        reads: dict[str, Tensor],
        product: Product,
        shape: Shape,
        after: After,
        strategy: str | Strategy | None,
        dtype: npt.DTypeLike,
        out: Tensor | None,
    ) -> Tensor:
        """Multiply the first tensor, a stack of product.m rows of product.k, by the second, into ``shape``."""
        (left, x), (right, weight) = reads.items()
        _expect_after(call, after, product.n, shape)
        if 0 in shape:
            inputs = {"bias": after.bias, "residual": after.residual}
            return self._passes(call).computed_zeros(shape, dtype, out, **reads, **inputs)
        if product.k == 0:  # an empty sum is 0, like a sum of zeros
            edges = (*weight.shape[:-1], 1) if product.transposed else (*weight.shape[:-2], 1, weight.shape[-1])
            with self._device.zeros((*x.shape[:-1], 1)) as one, self._device.zeros(edges) as other:
                reads = {left: one, right: other}
                return self._product(call, reads, replace(product, k=1), shape, after, strategy, dtype, out)
        passes = self._passes(call)
        finish = Finish(
            None if after.bias is None else passes.read("bias", after.bias),
            after.activation,
            None if after.residual is None else passes.read("residual", after.residual),
            after.scale,
            after.causal,
        )
        try:
            chosen = resolve(strategy, product, passes.kernels, blends=self._device.blends_floats)
            draws = matmul_draws(
                call,
                call,
                passes.read(left, x),
                passes.read(right, weight),
                passes.computed("result", shape, dtype, out),
                product=product,
                strategy=chosen,
                finish=finish,
                kernels=passes.kernels,
                scratch=passes.scratch,
            )
        except PlanError as error:
            passes.abandon()
            raise InputError(str(error)) from None
        passes.draw(*draws)
        (y,) = passes.run()
        return y


def _matrices(call: str, x: Tensor, y: Tensor) -> Product:
    """The product ``x @ y``; if more than three axes would broadcast, the product of both with all leading axes.

    Raises:
        InputError: the shapes do not fit.
    """
    if not x.shape or not y.shape:
        raise InputError(f"{call}: x is {list(x.shape)} and y is {list(y.shape)}; both need an axis to sum over")
    _expect_inner(call, x, y, x.shape[-1], y.shape[-min(2, y.ndim)])
    if y.ndim == 1:
        return Product(1, math.prod(x.shape[:-1]), y.shape[0], transposed=True)
    try:
        leading = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        raise InputError(
            f"{call}: x is {list(x.shape)} and y is {list(y.shape)}; their leading axes do not broadcast"
        ) from None
    batch = batch_of(x.shape[:-2], y.shape[:-2]) or batch_of(leading, leading)
    assert batch is not None  # equal axes are one
    k, n = y.shape[-2:]
    m = 1 if x.ndim == 1 else x.shape[-2]
    return joined(Product(m, n, k, False, None, batch.sizes, batch.x_steps, batch.y_steps))


def _layer(call: str, x: Tensor, weight: Tensor, name: str) -> Product:
    """The product of a linear layer, whose weight the caller calls ``name``."""
    if not x.shape or weight.ndim != 2:
        raise InputError(f"{call}: x is {list(x.shape)} and {name} is {list(weight.shape)}; expected [..., K], [N, K]")
    _expect_inner(call, x, weight, x.shape[-1], weight.shape[-1], name)
    n, k = weight.shape
    return Product(math.prod(x.shape[:-1]), n, k, transposed=True, table_format=weight.dtype if weight.packed else None)


def _expect_after(call: str, after: After, columns: int, shape: Shape) -> None:
    if after.activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise InputError(f"{call}: there is no activation {after.activation!r}; known: {known}")
    if after.bias is not None and after.bias.shape != (columns,):
        raise InputError(f"{call}: bias is {list(after.bias.shape)}; expected [{columns}]")
    if after.residual is not None and after.residual.shape != shape:
        raise InputError(f"{call}: residual is {list(after.residual.shape)}; expected {list(shape)}, like the result")


def joined(product: Product) -> Product:
    """Join neighbouring matrices with the same weight into one matrix."""
    batch, x_steps, weight_steps = list(product.batch), list(product.x_steps), list(product.weight_steps)
    m = product.m
    for axis in reversed(range(_AXES)):
        size = batch[axis]
        if size == 1:
            continue
        if x_steps[axis] != 1 or weight_steps[axis] != 0:
            break
        m, batch[axis], x_steps[axis] = m * size, 1, 0
        x_steps = [step // size for step in x_steps]
    sizes, own, other = ((each[0], each[1], each[2]) for each in (batch, x_steps, weight_steps))
    return replace(product, m=m, batch=sizes, x_steps=own, weight_steps=other)


def _expect_inner(call: str, x: Tensor, y: Tensor, of_x: int, of_y: int, name: str = "y") -> None:
    if of_x != of_y:
        raise InputError(
            f"{call}: x is {list(x.shape)} and {name} is {list(y.shape)}; they sum over {of_x} and {of_y} elements"
        )
