"""Draws of matrix products by several strategies, and of the final step on their sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.kernels.flat.draws import Define, Scratch, flat_draw
from glinfer.kernels.flat.product import PLAIN, Finish, Product, Strategy
from glinfer.kernels.published.attention import MASKED
from glinfer.kernels.published.linear import activate, activation_number, soft_cap
from glinfer.kernels.spec import (
    Array,
    DrawSpec,
    Op,
    Params,
    Pass,
    Shapes,
    TensorSpec,
    float64,
    given,
    no_oracle,
    op,
    register,
)
from glinfer.quant.ggml import table_of


def matmul(
    draw: Pass,
    x: TensorSpec,
    weight: TensorSpec,
    out: TensorSpec,
    *,
    product: Product,
    strategy: Strategy,
    finish: Finish = PLAIN,
    scratch: Scratch,
) -> list[DrawSpec]:
    """The one or two draws of ``out = finish(x · weight)``.

    x [x matrices · M, K]; weight [matrices · K, N], or transposed [matrices · N, K], whose rows may be packed words;
    out [products · M, N]: flat tensors (:mod:`glinfer.gl.layouts.flat`). ``matvec`` needs x of one row, ``split_k`` a
    renderer that blends floats. The second draw is ``<name>.finish``, and ``scratch`` declares the tensors between.
    Plans have ``small`` products, and these alone have an oracle.

    Raises:
        PlanError: the strategy cannot compute this product, or a tensor has another layout.
    """
    name, kernels, _ = draw.name, draw.kernels, activation_number(draw.name, finish.activation)
    m, targets, parts = product.m, strategy.targets, strategy.parts_of(product.units)
    matvec, rows = strategy.name == "matvec", product.count * product.m
    if matvec and (rows > 1 or not kernels.quad or (parts > 1 and not product.transposed)):
        raise PlanError(
            f"draw {name}: matvec needs one row, exact derivatives, and for parts of k transposed weights; "
            f"found {product.count}×{m} rows in {parts} parts"
        )
    if targets > m:
        raise PlanError(f"draw {name}: {targets} targets need as many rows; found matrices of {m}")
    blended = parts > 1 and strategy.name in ("split_k", "matvec")
    stacked = parts > 1 and not blended and targets == 1  # parts below each other
    outputs = [out]
    if targets > 1:
        groups = product.count * -(-m // targets)
        outputs = [scratch(f"{name}.target{i}", groups, product.n) for i in range(targets)]
    elif stacked or (blended and not finish.plain):
        outputs = [scratch(f"{name}.sums", (parts if stacked else 1) * rows, product.n)]
    here = finish if outputs == [out] and not blended else PLAIN
    defines = [*product.defines(mantissa=kernels.mantissa), *here.defines()]
    defines += [("M", 1)] if matvec else _shares(product, targets, parts)
    blending: dict[str, Any] = {}
    if blended or not matvec:
        defines.append(("PART_UNITS", strategy.part_units(product.units)))
    if blended:  # each instance computes a part of k, and blending adds them
        blending = {"instances": parts, "adds": True, "clears": "all", "vertex": "common/parts.vert"}
    defines += given(BLENDED=blended)
    inputs = {"x": x, "weight": weight, **here.inputs()}
    op, how = "matvec" if matvec else "matmul", {"defines": defines, "uniforms": here.uniforms(), **blending}
    product_draw = flat_draw(draw, op, inputs, outputs, **how)
    if outputs == [out]:
        return [product_draw]
    # Joins the rows of targets, or adds up parts, and finishes the sums.
    inputs = {**{f"x{i}": source for i, source in enumerate(outputs)}, **finish.inputs()}
    defines = [*_shares(product, targets, parts if stacked else 1), *finish.defines()]
    last = draw._replace(name=f"{name}.finish", kind=draw.group)
    return [product_draw, flat_draw(last, "finish", inputs, [out], defines=defines, uniforms=finish.uniforms())]


def _shares(product: Product, targets: int, parts: int) -> list[Define]:
    """The split of rows over targets, and of k over parts."""
    m = product.m
    groups, rows = -(-m // targets), product.count * m
    return [("M", m), ("ROWS", targets), ("ROW_GROUPS", groups), ("PARTS", parts), ("PART_ROWS", rows)]


def _plain(params: Params) -> bool:
    """Whether a draw is a ``small`` product, whose fragments each compute four columns of a row over all of k."""
    return params["ROWS"] == params["PARTS"] == 1


def _check(shapes: Shapes, params: Params) -> None:
    if not _plain(params):
        return
    k, m, (rows, n) = int(params["K"]), int(params["M"]), shapes.by_name["output"]
    transposed = bool(params.get("TRANSPOSED"))
    shapes.expect("x", None, k)
    if not transposed:
        shapes.expect("weight", None, n)
    elif not params["FORMAT"]:
        shapes.expect("weight", None, k)
    for name, edge in (("x", m), ("weight", n if transposed else k)):
        wanted = (max(_matrices(params, name.upper(), rows // m)) + 1) * edge
        shapes.require(shapes.rows(name) >= wanted, f"{name} has {shapes.rows(name)} rows; expected {wanted}")
    shapes.expect("bias", 1, n)
    shapes.expect("residual", rows, n)


def _matrices(params: Params, which: str, count: int) -> list[int]:
    """The matrix of x or weight that each product of a draw uses."""
    if not params.get("BATCHED"):
        return [0] * count
    inner = int(params["BATCH1"]), int(params["BATCH2"])
    steps = [int(params[f"{which}_BATCH{axis}"]) for axis in range(3)]
    shape = count // (inner[0] * inner[1]), *inner
    return [int(np.dot(index, steps)) for index in np.ndindex(*shape)]


_AFTER = ("bias", "residual")


@op("matmul", ("x", "weight"), _AFTER, _check, either=("weight",))
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    if not _plain(params):
        return no_oracle(inputs, params, size)
    (x,) = float64(inputs, ["x"])
    weight = table_of(inputs["weight"], int(params.get("FORMAT", 0)), int(params["K"]))
    m, k, n = (int(params[name]) for name in ("M", "K", "OUT_COLS"))
    transposed, count = bool(params.get("TRANSPOSED")), size[0] // m
    y, edge = np.zeros((count, m, n)), n if transposed else k
    pairs = zip(_matrices(params, "X", count), _matrices(params, "WEIGHT", count), strict=True)
    for product, (left, right) in enumerate(pairs):
        matrix = weight[right * edge : (right + 1) * edge]
        y[product] = x[left * m : (left + 1) * m] @ (matrix.T if transposed else matrix)
    y = y.reshape(size) * params["SCALE"]
    if "bias" in inputs:
        y = y + float64(inputs, ["bias"])[0]
    y = activate(y, int(params["ACTIVATION"]))
    if "residual" in inputs:
        y = y + float64(inputs, ["residual"])[0][: len(y)]
    if params.get("CAP"):
        y = soft_cap(y, float(params["CAP"]))
    if params.get("CAUSAL"):
        columns, last = np.arange(n), np.arange(len(y))[:, None] % m + params["offset"]
        seen = columns <= last
        if params.get("WINDOW"):
            seen &= columns > last - params["WINDOW"]
        y = np.where(seen, y, MASKED)
    return np.asarray(y)


register(Op("matvec", ("x", "weight"), _AFTER, either=("weight",)))
register(Op("finish", ("x0",), (*(f"x{i}" for i in range(1, 8)), *_AFTER)))
