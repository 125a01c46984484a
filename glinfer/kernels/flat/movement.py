"""Moves elements: strided copies, reshapes, and concatenations, of floats or integers.

A copy may convert elements of any type into floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES
from glinfer.gl.layouts.matrix import FORMATS, Extent
from glinfer.kernels.flat.draws import Define, Uniform, flat_draw
from glinfer.kernels.flat.strided import MAX_AXES, Axis, axes_in, bounds, collapsed, walk, walk_defines
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, given, op

MAX_RUNS = 2
MAX_PARTS = 8
"""Limit for the tensors that one draw concatenates."""


def _kind_of_elements(name: str, x: TensorSpec, out: TensorSpec, *, converts: bool) -> list[Define]:
    whole, into_whole = FORMATS[x.format].is_integer, FORMATS[out.format].is_integer
    if x.format != out.format and (not converts or into_whole):
        raise PlanError(f"draw {name}: {x.name} has format {x.format} and {out.name} {out.format}; expected one format")
    return given(WHOLE=whole, TO_FLOAT=whole and not into_whole, TO_HALF=x.format != out.format == "rgba16f")


def strided_axes(axes: Sequence[Axis], cols: int) -> tuple[list[Axis], list[Axis]]:
    """A copy's axes of (row, column) strides, outermost first, split into axes of its rows and of its ``cols`` columns.

    Raises:
        PlanError: no axis ends where the columns begin, or too many axes remain that no stride joins.
    """
    split = len(axes)
    while split and prod(axis.size for axis in axes[split:]) < cols:
        split -= 1
    if prod(axis.size for axis in axes[split:]) != cols:
        raise PlanError(f"axes of sizes {[axis.size for axis in axes]} do not end in {cols} columns")
    by_row, by_col = collapsed(axes[:split]), collapsed(axes[split:])
    if len(by_row) > MAX_AXES or len(by_col) > MAX_RUNS:
        raise PlanError(
            f"a copy over {len(by_row)} axes of rows and {len(by_col)} of columns that no stride joins; at most "
            f"{MAX_AXES} and {MAX_RUNS} are possible: copy in two steps"
        )
    return by_row, by_col


def _fetches(by_row: Sequence[Axis], by_col: Sequence[Axis], col_offset: int) -> int:
    """Texels of the source that hold the four elements of one texel of the output."""
    *runs, run = by_col
    alone = not runs and run.size == 1
    in_row = (run.first, run.second) == (0, 1) and not (runs and run.size % LANES)
    whole_texels = not any(col % LANES for col in (col_offset, *(axis.second for axis in (*by_row, *runs))))
    if (alone or in_row) and whole_texels:
        return 1
    return 2 if in_row else 4


def strided_copy(
    draw: Pass, x: TensorSpec, out: TensorSpec, axes: Sequence[Axis], *, row_offset: Extent = 0, col_offset: int = 0
) -> DrawSpec:
    """``out[i0, i1, …] = x[row_offset + Σ i · row stride, col_offset + Σ i · column stride]``.

    Args:
        x: the source [R, C].
        out: a tensor of x's format, or of floats, to which elements are converted; float16 rounds to nearest.
        axes: the axes of out, outermost first: size, row stride, column stride. The last ones are its columns.
        row_offset, col_offset: element of x where the walk begins; the row may be the name of a run value.

    Raises:
        PlanError: the axes are not those of out, or too many; or the formats do not fit.
    """
    by_row, by_col = strided_axes(axes, out.shape[1])
    if prod(axis.size for axis in by_row) != out.shape[0]:
        raise PlanError(
            f"draw {draw.name}: {out.name} is {list(out.shape)}; its axes have {[axis.size for axis in axes]}"
        )
    defines = [*_kind_of_elements(draw.name, x, out, converts=True), *walk_defines(by_row)]
    run = by_col[-1]
    defines += [("RUN_A", run.first), ("RUN_B", run.second), ("FETCHES", _fetches(by_row, by_col, col_offset))]
    if len(by_col) > 1:
        defines += [("RUN_SIZE", run.size), ("RUNS_A", by_col[0].first), ("RUNS_B", by_col[0].second)]
    offsets: list[Uniform] = [("row_offset", row_offset), ("col_offset", col_offset)]
    return flat_draw(draw, "strided_copy", {"x": x}, [out], defines=defines, uniforms=offsets)


def _runs_in(params: Params, cols: int) -> list[Axis]:
    size = int(params.get("RUN_SIZE", cols))
    run = Axis(size, int(params["RUN_A"]), int(params["RUN_B"]))
    return [Axis(cols // size, int(params["RUNS_A"]), int(params["RUNS_B"])), run] if size < cols else [run]


def _check_strided_copy(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    by_row, by_col = axes_in(params, rows), _runs_in(params, cols)
    counts = prod(axis.size for axis in by_row), prod(axis.size for axis in by_col)
    shapes.require(counts == (rows, cols), f"output is {[rows, cols]}; the axes have {list(counts)} elements")
    for edge, size, offset, (least, most) in zip(
        ("row", "column"),
        shapes.by_name["x"],
        (int(params["row_offset"]), int(params["col_offset"])),
        bounds([*by_row, *by_col]),
        strict=True,
    ):
        shapes.require(
            offset + least >= 0 and offset + most < size,
            f"it reads {edge}s {offset + least} to {offset + most} of x, which has {size}",
        )


_EITHER = ("x", "output")


@op("strided_copy", ("x",), (), _check_strided_copy, either=_EITHER)
def _oracle_strided_copy(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, cols = size
    row_of_row, col_of_row = walk(axes_in(params, rows), rows)
    row_of_col, col_of_col = walk(_runs_in(params, cols), cols)
    at_row = int(params["row_offset"]) + row_of_row[:, None] + row_of_col
    at_col = int(params["col_offset"]) + col_of_row[:, None] + col_of_col
    found: Array = inputs["x"][at_row, at_col]
    if params.get("TO_HALF"):
        return found.astype(np.float16)
    return found.astype(np.float64) if params.get("TO_FLOAT") else found


def repack(draw: Pass, x: TensorSpec, out: TensorSpec) -> DrawSpec:
    """``out = x.reshape(out.shape)``, of one format.

    If a row of x is a whole number of rows of out, a strided copy is used, which is faster.

    Raises:
        PlanError: the formats differ.
    """
    per_row, rest = divmod(x.shape[1], out.shape[1])
    if not rest and x.shape[0] * per_row == out.shape[0]:
        axes = [Axis(x.shape[0], 1, 0), Axis(per_row, 0, out.shape[1]), Axis(out.shape[1], 0, 1)]
        return strided_copy(draw, x, out, axes)
    defines = [*_kind_of_elements(draw.name, x, out, converts=False), ("X_COLS", x.shape[1])]
    return flat_draw(draw, "repack", {"x": x}, [out], defines=defines)


def _check_repack(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["X_COLS"])
    x, output = shapes.by_name["x"], shapes.by_name["output"]
    shapes.require(prod(x) == prod(output), f"x is {list(x)} and output {list(output)}; expected as many elements")


@op("repack", ("x",), (), _check_repack, either=_EITHER)
def _oracle_repack(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    return inputs["x"].reshape(-1)[: prod(size)].reshape(size)


def concat(draw: Pass, parts: Sequence[TensorSpec], out: TensorSpec, *, groups: int | None = None) -> DrawSpec:
    """Concatenate 1 to :data:`MAX_PARTS` tensors of one format.

    Args:
        parts: [R, C0], [R, C1], … for ``groups`` None; else [groups · R0, C], [groups · R1, C], …
        out: [R, ΣC]; else [groups · ΣR, C], where each group has the rows of that group of every part.
        groups: groups of rows to concatenate; None to concatenate columns.

    Raises:
        PlanError: the parts are too many, the formats differ, or rows are not a whole number of groups.
    """
    if not 1 <= len(parts) <= MAX_PARTS:
        raise PlanError(f"draw {draw.name} concatenates {len(parts)} tensors; expected 1 to {MAX_PARTS}")
    defines: list[Define] = [("PARTS", len(parts))]
    for part in parts:
        kind_of_elements = _kind_of_elements(draw.name, part, out, converts=False)
        if groups is not None and part.shape[0] % groups:
            raise PlanError(
                f"draw {draw.name}: {part.name} is {list(part.shape)}; expected a multiple of {groups} rows"
            )
    sizes = [part.shape[1] if groups is None else part.shape[0] // groups for part in parts]
    for number, size in enumerate(sizes):
        defines += [(f"START{number}", sum(sizes[:number])), (f"SIZE{number}", size)]
    if groups is not None:
        defines += [("ALONG_ROWS", 1), ("PERIOD", sum(sizes))]
    inputs = {f"x{number}": part for number, part in enumerate(parts)}
    defines += kind_of_elements
    return flat_draw(draw, "concat", inputs, [out], defines=defines)


def _check_concat(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    period = int(params.get("PERIOD", 0))
    total = 0
    for number in range(int(params["PARTS"])):
        size = int(params[f"SIZE{number}"])
        if period:
            shapes.expect(f"x{number}", rows // period * size, cols)
        else:
            shapes.expect(f"x{number}", rows, size)
        total += size
    if period:
        shapes.expect("output", rows // period * total, cols)
    else:
        shapes.expect("output", rows, total)


_MORE_PARTS = tuple(f"x{number}" for number in range(1, MAX_PARTS))


@op("concat", ("x0",), _MORE_PARTS, _check_concat, either=("x0", *_MORE_PARTS, "output"))
def _oracle_concat(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    parts = [inputs[f"x{number}"] for number in range(int(params["PARTS"]))]
    if not params.get("PERIOD"):
        return np.concatenate([part[: size[0]] for part in parts], axis=1)
    groups = len(parts[0]) // int(params["SIZE0"])
    grouped = [part.reshape(groups, -1, part.shape[1]) for part in parts]
    return np.concatenate(grouped, axis=1).reshape(-1, parts[0].shape[1])[: size[0]]
