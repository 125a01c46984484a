"""Kernels for activations and for the gates of gated MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glinfer.errors import InputError
from glinfer.kernels.flat.activate import activation as activation_draw
from glinfer.kernels.flat.activate import gate as gate_draw
from glinfer.tensors.base import Group, Result, expect_activation, expect_floats, expect_same_shape
from glinfer.tensors.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Activations(Group):
    """Element-wise functions and gates, computed in float32."""

    def activate(self, x: Tensor, activation: str, **result: Unpack[Result]) -> Tensor:
        """``activation(x)``; x [...] of float32 or float16.

        Args:
            x: any shape.
            activation: ``silu``, ``gelu`` (the erf form), ``gelu_new`` (the tanh form), ``tanh`` or ``none``.
        """
        return self._activated(x, activation, **result)

    def silu(self, x: Tensor, **result: Unpack[Result]) -> Tensor:
        """``x / (1 + exp(-x))`` (Elfwing et al. 2017), see :meth:`activate`."""
        return self._activated(x, "silu", **result)

    def gelu(self, x: Tensor, **result: Unpack[Result]) -> Tensor:
        """GELU in its erf form (Hendrycks and Gimpel 2016), see :meth:`activate`."""
        return self._activated(x, "gelu", **result)

    def gelu_new(self, x: Tensor, **result: Unpack[Result]) -> Tensor:
        """GELU in its tanh form, see :meth:`activate`."""
        return self._activated(x, "gelu_new", **result)

    def gate(
        self, x: Tensor, up: Tensor | None = None, *, activation: str, gate_first: bool = True, **result: Unpack[Result]
    ) -> Tensor:
        """``activation(gate) * up``, the gate of a gated MLP (Shazeer 2020); of float32 or float16.

        Args:
            x: the gate [...] if ``up`` is given; else both in each row, [..., 2·N], as from one projection.
            up: the gated values [...].
            activation: as in :meth:`activate`.
            gate_first: whether the gate is the first half of each row of x, or the second; ignored with ``up``.

        Returns:
            [...], or [..., N]; in float32 products beyond the range of float16 stay finite.
        """
        return self._gated(x, up, activation, gate_first, **result)

    def silu_gate(
        self, x: Tensor, up: Tensor | None = None, *, gate_first: bool = True, **result: Unpack[Result]
    ) -> Tensor:
        """``silu(gate) * up``, as in SwiGLU, see :meth:`gate`."""
        return self._gated(x, up, "silu", gate_first, **result)

    def gelu_gate(
        self, x: Tensor, up: Tensor | None = None, *, gate_first: bool = True, **result: Unpack[Result]
    ) -> Tensor:
        """``gelu(gate) * up`` in the erf form, as in GeGLU, see :meth:`gate`."""
        return self._gated(x, up, "gelu", gate_first, **result)

    def gelu_new_gate(
        self, x: Tensor, up: Tensor | None = None, *, gate_first: bool = True, **result: Unpack[Result]
    ) -> Tensor:
        """``gelu_new(gate) * up`` in the tanh form, see :meth:`gate`."""
        return self._gated(x, up, "gelu_new", gate_first, **result)

    def _activated(self, x: Tensor, activation: str, **result: Unpack[Result]) -> Tensor:
        expect_activation(activation)
        expect_floats(x=x)
        return self._draw(activation_draw, {"x": x}, x.shape, **result, activation=activation)

    def _gated(
        self, x: Tensor, up: Tensor | None, activation: str, gate_first: bool, **result: Unpack[Result]
    ) -> Tensor:
        expect_activation(activation)
        expect_floats(x=x, up=up)
        expect_same_shape(x=x, up=up)
        shape = x.shape
        if up is None:
            if not shape or shape[-1] % 2:
                raise InputError(f"x is {list(shape)}; without up expected [..., 2·N], the gate and the gated values")
            shape = (*shape[:-1], shape[-1] // 2)
        options: dict[str, Any] = {"activation": activation, "gate_first": gate_first}
        return self._draw(gate_draw, {"x": x, "up": up}, shape, **result, **options)
