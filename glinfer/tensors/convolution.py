"""Kernels for convolutions."""

from __future__ import annotations

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.ops.flat.convolve import causal_conv as causal_conv_draw
from glinfer.tensors.base import Group, expect_floats
from glinfer.tensors.tensor import Tensor


class Convolutions(Group):
    """Kernels that mix each row with earlier rows."""

    def causal_conv(
        self,
        x: Tensor,
        taps: Tensor,
        bias: Tensor | None = None,
        *,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """A depthwise causal convolution along the sequence: ``bias + Σ taps[k] * x[s - L + 1 + k]``.

        It is that of Mamba (Gu and Dao 2023) and LFM2, without the activation; zeros precede a sequence.

        Args:
            x: float32 or float16; the axis before the last is the sequence, as in [S, D] or [batch, S, D].
            taps: [L, D] of float32 or float16, the last row for the row itself: PyTorch's [D, 1, L] transposed.
            bias: [D] of float32 or float16; 0 by default.
            dtype: the result's type, float32 or float16.
            out: the tensor to write to; a new one by default.

        Raises:
            InputError: the shapes do not fit, or a tensor is not of floats.
        """
        expect_floats(x=x, taps=taps, bias=bias)
        if x.ndim < 2 or taps.ndim != 2 or taps.shape[1] != x.shape[-1] or not taps.shape[0]:
            raise InputError(
                f"x is {list(x.shape)} and taps is {list(taps.shape)}; expected [..., sequence, D] and [positions, D]"
            )
        if bias is not None and bias.shape != x.shape[-1:]:
            raise InputError(f"bias is {list(bias.shape)}; expected {list(x.shape[-1:])}")
        reads, optional = {"x": x, "taps": taps}, {"bias": bias}
        return self._draw(causal_conv_draw, reads, x.shape, dtype, out, optional=optional, sequence=x.shape[-2])
