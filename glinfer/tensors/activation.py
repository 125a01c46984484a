"""Kernels for activations and for the gates of gated MLPs."""

from __future__ import annotations

from functools import partial

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.ops.flat.activate import activation as activation_draw
from glinfer.ops.flat.activate import gate as gate_draw
from glinfer.ops.published.linear import ACTIVATIONS
from glinfer.tensors.base import Group, expect_floats, expect_same_shape
from glinfer.tensors.tensor import Tensor


class Activations(Group):
    """Element-wise functions and gates, computed in float32."""

    def activate(
        self, x: Tensor, activation: str, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None
    ) -> Tensor:
        """``activation(x)``; x [...] of float32 or float16.

        Args:
            x: any shape.
            activation: ``silu``, ``gelu`` (the erf form), ``gelu_new`` (the tanh form), ``tanh`` or ``none``.
            dtype: the result's type, float32 or float16.
            out: the tensor to write to; a new one by default.

        Raises:
            InputError: there is no such activation, or x is not of floats.
        """
        return self._activated("activate", x, activation, dtype, out)

    def silu(self, x: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """``x / (1 + exp(-x))`` (Elfwing et al. 2017), see :meth:`activate`."""
        return self._activated("silu", x, "silu", dtype, out)

    def gelu(self, x: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """GELU in its erf form (Hendrycks and Gimpel 2016), see :meth:`activate`."""
        return self._activated("gelu", x, "gelu", dtype, out)

    def gelu_new(self, x: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """GELU in its tanh form, see :meth:`activate`."""
        return self._activated("gelu_new", x, "gelu_new", dtype, out)

    def gate(
        self,
        x: Tensor,
        up: Tensor | None = None,
        *,
        activation: str,
        gate_first: bool = True,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``activation(gate) * up``, the gate of a gated MLP (Shazeer 2020); of float32 or float16.

        Args:
            x: the gate [...] if ``up`` is given; else both in each row, [..., 2·N], as from one projection.
            up: the gated values [...].
            activation: as in :meth:`activate`.
            gate_first: whether the gate is the first half of each row of x, or the second; ignored with ``up``.
            dtype: the result's type, float32 or float16.
            out: the tensor to write to; a new one by default.

        Returns:
            [...], or [..., N]; in float32 products beyond the range of float16 stay finite.

        Raises:
            InputError: there is no such activation, the shapes differ, a row cannot be halved, or a tensor is not of
                floats.
        """
        return self._gated("gate", x, up, activation, gate_first, dtype, out)

    def silu_gate(
        self,
        x: Tensor,
        up: Tensor | None = None,
        *,
        gate_first: bool = True,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``silu(gate) * up``, as in SwiGLU, see :meth:`gate`."""
        return self._gated("silu_gate", x, up, "silu", gate_first, dtype, out)

    def gelu_gate(
        self,
        x: Tensor,
        up: Tensor | None = None,
        *,
        gate_first: bool = True,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``gelu(gate) * up`` in the erf form, as in GeGLU, see :meth:`gate`."""
        return self._gated("gelu_gate", x, up, "gelu", gate_first, dtype, out)

    def gelu_new_gate(
        self,
        x: Tensor,
        up: Tensor | None = None,
        *,
        gate_first: bool = True,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``gelu_new(gate) * up`` in the tanh form, see :meth:`gate`."""
        return self._gated("gelu_new_gate", x, up, "gelu_new", gate_first, dtype, out)

    def _activated(self, call: str, x: Tensor, activation: str, dtype: npt.DTypeLike, out: Tensor | None) -> Tensor:
        _expect_activation(call, activation)
        expect_floats(call, x=x)
        return self._compute(call, activation_draw, {"x": x}, x.shape, dtype, out, activation=activation)

    def _gated(
        self,
        call: str,
        x: Tensor,
        up: Tensor | None,
        activation: str,
        gate_first: bool,
        dtype: npt.DTypeLike,
        out: Tensor | None,
    ) -> Tensor:
        _expect_activation(call, activation)
        expect_floats(call, x=x, up=up)
        expect_same_shape(call, x=x, up=up)
        if up is None and (not x.shape or x.shape[-1] % 2):
            raise InputError(
                f"{call}: x is {list(x.shape)}; without up expected [..., 2·N], the gate and the gated values"
            )
        shape = x.shape if up is not None else (*x.shape[:-1], x.shape[-1] // 2)
        passes = self._passes(call)
        if 0 in shape:
            return passes.computed_zeros(shape, dtype, out, x=x, up=up)
        source = passes.read("x", x)
        other = None if up is None else passes.read("up", up)
        target = passes.computed("y", shape, dtype, out)
        gates = partial(gate_draw, activation=activation, gate_first=gate_first, kernels=passes.kernels)
        passes.draw(gates(call, call, source, target, up=other))
        (y,) = passes.run()
        return y


def _expect_activation(call: str, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise InputError(f"{call}: there is no activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
