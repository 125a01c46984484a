"""Pooling: one vector of each text from its tokens' vectors, several texts in a fragment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.draws import Inputs, block_draw
from glinfer.kernels.fused.rows import BASE, LAST, POSITION, X_ROWS, RowInterleaved, check_listed, gathered
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, TensorSpec, op

KINDS = {"mean": 0, "max": 1, "mean_sqrt_len": 2, "weightedmean": 3}
"""Names of sentence-transformers, and their numbers in shaders/pool_rows.frag."""


def pool_rows(
    name: str,
    x: RowInterleaved,
    texts: TensorSpec,
    out: RowInterleaved,
    *,
    slots: Extent,
    how: str,
    kernels: KernelOptions,
) -> DrawSpec:
    """The pooled vector of each text of the first ``slots`` slots of out; ``how`` is a key of :data:`KINDS`.

    Row t of the table ``texts`` (:mod:`glinfer.kernels.fused.rows`) describes a text: its tokens are rows base +
    position to base + last of x.

    Raises:
        PlanError: there is no such kind.
    """
    if how not in KINDS:
        raise PlanError(f"draw {name}: there is no pooling {how!r}; expected one of {', '.join(KINDS)}")
    inputs: Inputs = {"x": x, "rows": texts}
    defines = [("POOL", KINDS[how])]
    return block_draw(name, "pool", "pool_rows", inputs, out, slots, defines, kernels=kernels, cells=True)


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, shapes.by_name["output"][1])
    check_listed(shapes, params)


@op("pool_rows", ("rows",), X_ROWS, _check, ("rows",))
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    count, how = int(params["ROWS"]), int(params["POOL"])
    x, found = gathered(inputs, params), np.zeros((size[0] * count, size[1]))
    for text, info in enumerate(inputs["rows"][: len(found)].astype(np.intp)):
        tokens = x[info[BASE] + info[POSITION] : info[BASE] + info[LAST] + 1, : size[1]]
        if how == KINDS["max"]:
            found[text] = tokens.max(axis=0)
        elif how == KINDS["mean_sqrt_len"]:
            found[text] = tokens.sum(axis=0) / np.sqrt(len(tokens))
        else:
            weights = np.arange(info[POSITION], info[LAST] + 1) + 1.0 if how == KINDS["weightedmean"] else None
            found[text] = np.average(tokens, axis=0, weights=weights)
    return found
