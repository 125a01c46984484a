"""Kernels along a sequence: causal convolution, and the gated delta rule with its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glinfer.errors import InputError
from glinfer.kernels.flat.convolve import causal_conv as causal_conv_draw
from glinfer.kernels.flat.delta import MAX_KEY_ELEMENTS, delta_rule
from glinfer.tensors.base import Group, Result, expect_floats
from glinfer.tensors.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Sequences(Group):
    """Kernels whose results depend on earlier rows."""

    def causal_conv(self, x: Tensor, taps: Tensor, bias: Tensor | None = None, **result: Unpack[Result]) -> Tensor:
        """A depthwise causal convolution along the sequence: ``bias + Σ taps[k] * x[s - L + 1 + k]``.

        It is that of Mamba (Gu and Dao 2023) and LFM2, without the activation; zeros precede a sequence.

        Args:
            x: float32 or float16; the axis before the last is the sequence, as in [S, D] or [batch, S, D].
            taps: [L, D] of float32 or float16, the last row for the row itself: PyTorch's [D, 1, L] transposed.
            bias: [D] of float32 or float16; 0 by default.
        """
        expect_floats(x=x, taps=taps, bias=bias)
        if x.ndim < 2 or taps.ndim != 2 or taps.shape[1] != x.shape[-1] or not taps.shape[0]:
            raise InputError(
                f"x is {list(x.shape)} and taps is {list(taps.shape)}; expected [..., sequence, D] and [positions, D]"
            )
        if bias is not None and bias.shape != x.shape[-1:]:
            raise InputError(f"bias is {list(bias.shape)}; expected {list(x.shape[-1:])}")
        reads = {"x": x, "taps": taps, "bias": bias}
        return self._draw(causal_conv_draw, reads, x.shape, **result, sequence=x.shape[-2])

    def gated_delta_rule(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float | None = None,
        norm_eps: float | None = None,
        **result: Unpack[Result],
    ) -> Tensor:
        """The linear attention of Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024), over whole sequences.

        Each value head has a matrix S [D_K, D_V], zero at first. Each token updates it: ``S = exp(g) * S``, then
        ``S += k ⊗ beta * (v - Sᵀ k)``, and the result is ``scale * Sᵀ q``. The work grows with the square of the
        length of a sequence.

        Args:
            q, k: [..., S, G, D_K] of float32 or float16, D_K at most 256.
            v: [..., S, H, D_V] of float32 or float16; H / G adjacent value heads share a head of queries and keys.
            g: [..., S, H] of float32 or float16, the logarithm of the decay, at most 0.
            beta: [..., S, H] of float32 or float16, the share of a correction that is written.
            scale: the factor of the results, ``D_K ** -0.5`` by default.
            norm_eps: divide each q and each k by ``sqrt(Σ x² + norm_eps)`` first; None for no division.

        Returns:
            [..., S, H, D_V].
        """
        expect_floats(q=q, k=k, v=v, g=g, beta=beta)
        whole = v.ndim >= 3 and k.ndim == v.ndim and q.shape == k.shape and k.shape[:-2] == v.shape[:-2]
        if not whole or g.shape != v.shape[:-1] or beta.shape != v.shape[:-1]:
            raise InputError(
                f"q is {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}, g {list(g.shape)} and beta "
                f"{list(beta.shape)}; expected q and k [..., S, G, D_K], v [..., S, H, D_V], g and beta [..., S, H]"
            )
        heads, key_heads, elements = v.shape[-2], *k.shape[-2:]
        if not key_heads or heads % key_heads or not 1 <= elements <= MAX_KEY_ELEMENTS:
            raise InputError(
                f"{heads} value heads and {key_heads} key heads with {elements} elements; expected a multiple of the "
                f"key heads, and 1 to {MAX_KEY_ELEMENTS} elements"
            )
        if norm_eps is not None and not norm_eps >= 0:
            raise InputError(f"norm_eps is {norm_eps}; expected a number, at least 0")
        reads = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        factor = elements**-0.5 if scale is None else scale
        return self._draw(delta_rule, reads, v.shape, **result, sequence=v.shape[-3], scale=factor, norm_eps=norm_eps)
