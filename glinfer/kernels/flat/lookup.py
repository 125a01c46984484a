"""Lookup of table rows: token and position embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.errors import InputError, PlanError
from glinfer.gl.layouts.flat import LANES
from glinfer.kernels.flat.draws import Define, flat_draw
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, looked_up, op
from glinfer.quant.formats import BY_NUMBER, block_format
from glinfer.quant.ggml import table_of


def lookup(
    draw: Pass,
    ids: TensorSpec,
    weight: TensorSpec,
    out: TensorSpec,
    *,
    table_format: str | None,
    inputs: int,
    images: TensorSpec | None = None,
) -> DrawSpec:
    """``out[r] = weight[ids[r]]``; zeros for an id outside the table, such as one below 0.

    With ``images`` [R, ``inputs``], in floats, ``out[r] = images[r]`` for an id beyond the table.

    ids is an int32 matrix whose elements, in row-major order, belong to the rows of out; further elements are ignored.
    weight [V, ``inputs``] holds the words of rows packed as ``table_format``. With None it holds floats, or int32 as
    out does. out [R, inputs].

    Raises:
        PlanError: there is no such format, a row is not a whole number of its blocks, or a tensor has another layout.
    """
    whole = table_format is None and weight.format == "rgba32i"
    defines = [
        *table_defines(draw, table_format, inputs),
        ("WHOLE", int(whole)),
        ("WEIGHT_ROWS", weight.shape[0]),
        ("IDS_COLS", ids.shape[1]),
    ]
    tensors = {"ids": ids, "weight": weight, "images": images}
    return flat_draw(draw, "lookup", tensors, [out], defines=defines)


def position_add(
    draw: Pass,
    x: TensorSpec,
    table: TensorSpec,
    out: TensorSpec,
    *,
    length: int,
    offset: int | str,
    padded: bool = False,
) -> DrawSpec:
    """``out[b · length + s] = x[b · length + s] + table[offset + s]``: learned positions (Vaswani et al. 2017).

    x and out [R, D], sequences of ``length`` rows each; table [P, D]. ``offset``, a number or a run value's name, is
    the position of row 0 of a sequence. With ``padded`` rows beyond the table's positions are padding, and get its
    last one.
    """
    defines = [("LENGTH", length), ("TABLE_ROWS", table.shape[0]), ("PADDED", int(padded))]
    inputs: dict[str, TensorSpec | None] = {"x": x, "table": table}
    return flat_draw(draw, "position_add", inputs, [out], defines=defines, uniforms=[("offset", offset)])


def table_defines(draw: Pass, table_format: str | None, inputs: int) -> list[Define]:
    """The defines for a table of rows of ``inputs`` weights, packed as ``table_format``; None for floats.

    Raises:
        PlanError: there is no such format, or a row is not a whole number of its blocks.
    """
    if table_format is None:
        return [("FORMAT", 0)]
    try:
        form = block_format(table_format)
    except InputError as error:
        raise PlanError(f"draw {draw.name}: {error}") from None
    if form.weights and inputs % form.weights:
        raise PlanError(
            f"draw {draw.name}: a row of {inputs} weights is not a whole number of {form.name} blocks of {form.weights}"
        )
    return [*form.defines(inputs), ("MANTISSA", int(draw.kernels.mantissa))]


def _check_lookup(shapes: Shapes, params: Params) -> None:
    cols, form = shapes.by_name["output"][1], BY_NUMBER.get(int(params["FORMAT"]))
    whole = form is None or not form.weights or cols % form.weights == 0
    shapes.require(whole, f"{cols} columns are not {form.name if form else ''} blocks")
    shapes.expect("weight", params["WEIGHT_ROWS"], cols if form is None else LANES * sum(form.section_texels(cols)))
    rows, cols = shapes.by_name["ids"]
    wanted = shapes.rows("output")
    shapes.expect("ids", None, params["IDS_COLS"])
    shapes.expect("images", wanted, shapes.by_name["output"][1])
    shapes.require(rows * cols >= wanted, f"ids has {rows * cols} elements for {wanted} rows of the output")


_LOOKUP: dict[str, Any] = {"either": ("weight", "output"), "parts": looked_up("weight")}


@op("lookup", ("ids", "weight"), ("images",), _check_lookup, ("ids",), **_LOOKUP)
def _lookup(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    table = table_of(inputs["weight"], int(params["FORMAT"]), int(params["OUT_COLS"]))
    ids = inputs["ids"].reshape(-1)[: size[0]]
    there = (ids >= 0) & (ids < len(table))
    found = np.zeros((size[0], table.shape[1]))
    found[there] = table[ids[there]]
    if "images" in inputs:
        found[ids >= len(table)] = inputs["images"][: size[0]][ids >= len(table)]
    return found


def _check_positions(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    shapes.expect("x", rows, cols)
    shapes.expect("table", params["TABLE_ROWS"], cols)
    first, length, positions = int(params["offset"]), int(params["LENGTH"]), shapes.rows("table")
    shapes.require(length >= 1, f"sequences of {length} rows; expected at least 1")
    last = first + (1 if params["PADDED"] else min(length, rows)) - 1
    shapes.require(first >= 0 and last < positions, f"positions {first} to {last}; table has 0 to {positions - 1}")


@op("position_add", ("x", "table"), (), _check_positions, parts=looked_up("table"))
def _add_positions(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, table = float64(inputs, ["x", "table"])
    positions = int(params["offset"]) + np.arange(size[0]) % int(params["LENGTH"])
    return np.asarray(x[: size[0]] + table[np.minimum(positions, len(table) - 1)])
