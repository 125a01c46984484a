"""Normalises rows by their statistics: LayerNorm, RMSNorm, softmax and its logarithm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import texels_for
from glinfer.kernels.flat.draws import Define, Scratch, flat_draw
from glinfer.kernels.flat.stats import STATS, row_values, stats_of, summarize
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, given, op

LAYER, RMS, SOFTMAX, LOG_SOFTMAX = range(4)
NORMS = {
    "layer": (LAYER, "moments"),
    "rms": (RMS, "squares"),
    "softmax": (SOFTMAX, "exponents"),
    "log_softmax": (LOG_SOFTMAX, "exponents"),
}
"""Every norm: its number in shaders/normalize.frag, and the statistics that it needs."""


@dataclass(frozen=True)
class Norm:
    """``y = norm(x + residual) * (weight + offset) + bias``, for each row of x [R, C] separately.

    Attributes:
        name: a key of :data:`NORMS`.
        weight, bias: [1, C], both optional.
        eps: added to the variance or the mean square, at least 0.
        offset: added to the weight.
        residual: [R, C], added to x first; optional.
        added: [R, C], receives the sum of x and the residual.
        rounded: whether results are rounded, see :func:`glinfer.program.oracle.rounded_rows`.
    """

    name: str
    weight: TensorSpec | None = None
    bias: TensorSpec | None = None
    eps: float = 0.0
    offset: float = 0.0
    residual: TensorSpec | None = None
    added: TensorSpec | None = None
    rounded: bool = False

    def __post_init__(self) -> None:
        """Refuse inconsistent settings."""
        if self.name not in NORMS:
            raise PlanError(f"there is no norm {self.name!r}; known: {', '.join(NORMS)}")
        if (self.residual is None) != (self.added is None):
            raise PlanError(f"norm {self.name}: residual and added must be given together")
        if not (math.isfinite(self.eps) and self.eps >= 0 and math.isfinite(self.offset)):
            raise PlanError(f"norm {self.name}: eps is {self.eps} and offset {self.offset}; expected numbers, eps ≥ 0")


def normalized(draw: Pass, x: TensorSpec, out: TensorSpec, norm: Norm, *, scratch: Scratch) -> list[DrawSpec]:
    """All draws of ``out = norm(x)``, usually two, for x and out [R, C]; see :class:`Norm`.

    The last draw is the pass itself; the draws before it, and the tensors that ``scratch`` declares for the statistics,
    are named after it.
    """
    number, stat = NORMS[norm.name]
    readers = x.shape[0] * texels_for(x.shape[1])
    stats, draws = summarize(draw, x, stat=stat, readers=readers, scratch=scratch, residual=norm.residual)
    defines: list[Define] = [
        ("NORM", number),
        ("STAT", STATS[stat]),
        ("COLS", x.shape[1]),
        ("EPS", float(norm.eps)),
        ("OFFSET", float(norm.offset)),
        ("ADDS", int(norm.residual is not None)),
        ("WEIGHTED", int(norm.weight is not None)),
        ("BIASED", int(norm.bias is not None)),
        *given(ROUNDED=norm.rounded),
    ]
    inputs = {"x": x, "stats": stats, "residual": norm.residual, "weight": norm.weight, "bias": norm.bias}
    outputs = [out] if norm.added is None else [out, norm.added]
    return [*draws, flat_draw(draw, "normalize", inputs, outputs, defines=defines)]


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["COLS"])
    shapes.expect("stats", shapes.rows("x"), None)
    shapes.expect(("weight", "bias"), 1, params["COLS"])
    shapes.expect(("residual", "output"), *shapes.by_name["x"])


@op("normalize", ("x", "stats"), ("residual", "weight", "bias"), _check)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows = size[0]
    x, stats = row_values(inputs, rows), stats_of(inputs, params, rows)
    a, b, c = (stats[:, number, None] for number in range(3))
    norm, cols = params["NORM"], x.shape[1]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if norm == LAYER:
            found = (x - a - b) / np.sqrt(c / cols + params["EPS"])
        elif norm == RMS:
            found = x / np.sqrt(a / cols + params["EPS"])
        elif norm == SOFTMAX:
            found = np.where(b == 0, 1 / cols, np.exp(x - a) / b)
        else:
            found = np.where(b == 0, -np.log(cols), x - a - np.log(b))
    if "weight" in inputs:
        found = found * (float64(inputs, ["weight"])[0] + params["OFFSET"])
    if "bias" in inputs:
        found = found + float64(inputs, ["bias"])[0]
    return np.stack([found, x]) if params["ADDS"] else found
