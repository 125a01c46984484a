"""Kernels for activations and for the gates of gated MLPs."""

from __future__ import annotations

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
            out: where to write; a new tensor where it is left out.

        Raises:
            InputError: there is no such activation, or x is not of floats.
        """
        _expect_activation("activate", activation)
        expect_floats("activate", x=x)
        return self._compute("activate", activation_draw, {"x": x}, x.shape, dtype, out, activation=activation)

    def silu(self, x: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """``x / (1 + exp(-x))`` (Elfwing et al. 2017), see :meth:`activate`."""
        return self.activate(x, "silu", dtype=dtype, out=out)

    def gelu(self, x: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """GELU in its erf form (Hendrycks and Gimpel 2016), see :meth:`activate`."""
        return self.activate(x, "gelu", dtype=dtype, out=out)

    def gelu_new(self, x: Tensor, *, dtype: npt.DTypeLike = "float32", out: Tensor | None = None) -> Tensor:
        """GELU in its tanh form, see :meth:`activate`."""
        return self.activate(x, "gelu_new", dtype=dtype, out=out)

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
            x: the gate [...], where ``up`` is given; else both in each row, [..., 2·N], as one projection makes them.
            up: [...], what the gate lets through.
            activation: as in :meth:`activate`.
            gate_first: whether the gate is the first half of each row of x, or the second. Without meaning with ``up``.
            dtype: the result's type, float32 or float16.
            out: where to write; a new tensor where it is left out.

        Returns:
            [...], or [..., N]; in float32 products beyond the range of float16 stay finite.

        Raises:
            InputError: there is no such activation, the shapes differ, a row has no two halves, or a tensor is not of
                floats.
        """
        _expect_activation("gate", activation)
        expect_floats("gate", x=x, up=up)
        expect_same_shape("gate", x=x, up=up)
        if up is None and (not x.shape or x.shape[-1] % 2):
            raise InputError(
                f"gate: x is {list(x.shape)}; without up expected [..., 2·N], the gate and what it lets by"
            )
        shape = x.shape if up is not None else (*x.shape[:-1], x.shape[-1] // 2)
        passes = self._passes("gate")
        if 0 in shape:
            return passes.computed_zeros(shape, dtype, out, x=x, up=up)
        source = passes.read("x", x)
        other = None if up is None else passes.read("up", up)
        target = passes.computed("y", shape, dtype, out)
        passes.draw(
            gate_draw(
                "gate",
                "gate",
                source,
                target,
                up=other,
                activation=activation,
                gate_first=gate_first,
                kernels=passes.kernels,
            )
        )
        (y,) = passes.run()
        return y

    def silu_gate(
        self,
        x: Tensor,
        up: Tensor | None = None,
        *,
        gate_first: bool = True,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``silu(gate) * up``, as SwiGLU has it, see :meth:`gate`."""
        return self.gate(x, up, activation="silu", gate_first=gate_first, dtype=dtype, out=out)

    def gelu_gate(
        self,
        x: Tensor,
        up: Tensor | None = None,
        *,
        gate_first: bool = True,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``gelu(gate) * up`` in the erf form, as GeGLU has it, see :meth:`gate`."""
        return self.gate(x, up, activation="gelu", gate_first=gate_first, dtype=dtype, out=out)

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
        return self.gate(x, up, activation="gelu_new", gate_first=gate_first, dtype=dtype, out=out)


def _expect_activation(call: str, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise InputError(f"{call}: there is no activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
