"""Depthwise convolutions along the rows of a tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.kernels.flat.draws import flat_draw
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, op


def causal_conv(
    draw: Pass,
    x: TensorSpec,
    taps: TensorSpec,
    out: TensorSpec,
    *,
    bias: TensorSpec | None = None,
    sequence: int | None = None,
) -> DrawSpec:
    """``out[r] = bias + Σ over k of taps[k] * x[r - length + 1 + k]``, with zeros before a sequence's first row.

    The depthwise causal convolution of Mamba (Gu and Dao 2023) and of LFM2, without its activation.

    Args:
        x, out: [R, C].
        taps: [length, C]; the last row multiplies the row itself.
        bias: [1, C].
        sequence: rows of each sequence; all by default.
    """
    inputs = {"x": x, "taps": taps, "bias": bias}
    defines = [("LENGTH", taps.shape[0]), ("BIASED", int(bias is not None)), ("SEQUENCE", sequence or x.shape[0])]
    return flat_draw(draw, "causal_conv", inputs, [out], defines=defines)


def _check(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    shapes.expect("x", rows, cols)
    shapes.expect("taps", params["LENGTH"], cols)
    shapes.expect("bias", 1, cols)


@op("causal_conv", ("x", "taps"), ("bias",), _check)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, taps = float64(inputs, ["x", "taps"])
    bias = float64(inputs, ["bias"])[0] if params["BIASED"] else np.zeros((1, size[1]))
    found = np.repeat(bias, size[0], axis=0)
    for row in range(size[0]):
        first = row // int(params["SEQUENCE"]) * int(params["SEQUENCE"])
        seen = x[max(first, row + 1 - len(taps)) : row + 1]
        found[row] += (taps[len(taps) - len(seen) :] * seen).sum(axis=0)
    return found
