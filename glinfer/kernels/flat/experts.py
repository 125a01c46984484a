"""The weight of one expert in each row, from the router's logits; for reference plans only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.families.layer import Experts
from glinfer.kernels.flat.draws import flat_draw
from glinfer.kernels.routing import route_defines, routed
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, op


def expert_weight(
    draw: Pass, logits: TensorSpec, out: TensorSpec, experts: Experts, *, expert: int, bias: TensorSpec | None = None
) -> DrawSpec:
    """The weight of an expert in each row, out [rows, 1]; 0 if the row does not choose it.

    logits [rows, experts], bias [1, experts]; experts are chosen as in :func:`glinfer.kernels.fused.experts.route`.
    """
    inputs, defines = {"logits": logits, "bias": bias}, route_defines(experts)
    return flat_draw(draw, "expert_weight", inputs, [out], defines=defines, uniforms=[("expert", expert)])


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("logits", shapes.rows("output"), params["EXPERTS"])
    shapes.expect("bias", 1, params["EXPERTS"])
    shapes.expect("output", None, 1)
    shapes.require(0 <= params["expert"] < params["EXPERTS"], f"there is no expert {params['expert']}")


@op("expert_weight", ("logits",), ("bias",), _check)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (logits,) = float64(inputs, ["logits"])
    chosen, weights = routed(logits[: size[0]], params, inputs.get("bias"))
    return np.asarray(np.where(chosen == params["expert"], weights, 0.0).sum(axis=1, keepdims=True))
