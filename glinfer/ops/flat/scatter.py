"""The gradient of an embedding table: each row is the sum of the gradients at all places of its token.

``scatter_add`` draws a point on every texel that receives a gradient, and blending adds. In ``gather_add`` each texel
of the table searches for its gradients, for devices that cannot blend into 32-bit floats.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.ops.flat.draws import Define, flat_draw, flat_layout
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, register

METHODS = ("scatter", "gather")


def add_gradients(
    name: str,
    kind: str,
    ids: TensorSpec,
    grad: TensorSpec,
    sums: TensorSpec,
    counts: TensorSpec,
    *,
    method: str,
    accumulates: bool = False,
    before: TensorSpec | None = None,
    kernels: KernelOptions,
) -> DrawSpec:
    """``sums[id] += grad`` for ids [R, C] and grad [R × C, D]; ``counts`` gets the number of added elements.

    sums and counts [vocabulary, D] in 32-bit floats begin at zero. With ``accumulates`` sums keeps its values, which
    ``gather`` reads from ``before``, a copy of sums; ``scatter`` then adds to counts as well. Elements that are not
    finite and gradients of ids outside the table are skipped. Blending may add in another order than that of the ids.

    Raises:
        PlanError: there is no such method, a tensor has another layout, or a copy is missing or superfluous.
    """
    if method not in METHODS:
        raise PlanError(f"draw {name}: gradients are added by {method!r}; known: {', '.join(METHODS)}")
    scatters = method == "scatter"
    if (before is not None) != (accumulates and not scatters):
        raise PlanError(f"draw {name}: found {method}; only gather that accumulates needs a copy of the sums")
    defines: list[Define] = [("IDS_ROWS", ids.shape[0]), ("IDS_COLS", ids.shape[1]), ("OUT_ROWS", sums.shape[0])]
    return flat_draw(
        name,
        kind,
        f"{method}_add",
        [("ids", ids), ("grad", grad), *([("before", before)] if before is not None else [])],
        [sums, counts],
        kernels=kernels,
        defines=[*defines, *([] if scatters else [("BEFORE", int(before is not None))])],
        adds=scatters,
        clears="all" if scatters and not accumulates else "",
        vertex="common/scatter_add.vert" if scatters else "",
        points=grad.shape[0] * flat_layout(name, grad).row_texels if scatters else 0,
    )


def _check(shapes: Shapes, params: Params) -> None:
    rows, cols = int(params["IDS_ROWS"]), int(params["IDS_COLS"])
    shapes.expect("ids", rows, cols)
    shapes.expect("output", params["OUT_ROWS"], None)
    shapes.expect("before", *shapes.by_name["output"])
    shapes.expect("grad", rows * cols, shapes.by_name["output"][1])


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    ids = np.asarray(inputs["ids"], dtype=np.int64).reshape(-1)
    grad = np.asarray(inputs["grad"], dtype=np.float64)
    known = (ids >= 0) & (ids < size[0])
    ids, grad = ids[known], grad[known]
    found = np.zeros((2, *size))
    if "output" in inputs:
        found += inputs["output"]
    elif "before" in inputs:
        found[0] += inputs["before"]
    np.add.at(found[0], ids, np.where(np.isfinite(grad), grad, 0.0))
    np.add.at(found[1], ids, np.isfinite(grad).astype(np.float64))
    return found


for _method in METHODS:
    register(
        Op(f"{_method}_add", ("ids", "grad"), ("before",) if _method == "gather" else (), _check, _oracle, ("ids",))
    )
