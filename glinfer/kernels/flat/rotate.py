"""Rotary positions: pairs of elements of each head rotated by their position's angles (Su et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.flat.draws import Uniform, flat_draw
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, looked_up, op


def rotate(
    draw: Pass,
    x: TensorSpec,
    table: TensorSpec,
    out: TensorSpec,
    *,
    heads: int = 1,
    interleaved: bool = False,
    sequence: int | None = None,
    position: Extent = 0,
    positions: TensorSpec | None = None,
) -> DrawSpec:
    """``out`` = x [R, heads × D] with the pairs of each head rotated by their rows' positions.

    Args:
        x: sequences of ``sequence`` rows each; one sequence by default.
        table: [positions, rotary_dim] of :func:`glinfer.kernels.rotary.cosines_and_sines`.
        out: a tensor like x.
        heads: heads side by side in a row.
        interleaved: rotate elements (2i, 2i + 1) of a head, not (i, i + rotary_dim / 2).
        sequence: rows of a sequence.
        position: position of the first row of each sequence, a number or a run value's name.
        positions: integers [1, sequence], instead of ``position``.
    """
    dim, rotary = x.shape[1] // heads, table.shape[1]
    if table.shape[0] == 1:
        positions = None  # every row uses the only position
    inputs = {"x": x, "table": table, "positions": positions}
    uniforms: list[Uniform] = [("position", position)] if positions is None and table.shape[0] > 1 else []
    defines = [
        ("HEADS", heads),
        ("HEAD_DIM", dim),
        ("ROTARY", rotary),
        ("SEQUENCE", x.shape[0] if sequence is None else sequence),
        ("TABLE_ROWS", table.shape[0]),
        ("INTERLEAVED", int(interleaved)),
        ("POSITIONS", int(positions is not None)),
        ("WHOLE", int(dim % 4 == 0 and rotary % (4 if interleaved else 8) == 0)),
    ]
    return flat_draw(draw, "rotate", inputs, [out], defines=defines, uniforms=uniforms)


def _check(shapes: Shapes, params: Params) -> None:
    heads, dim, rotary, sequence = (int(params[key]) for key in ("HEADS", "HEAD_DIM", "ROTARY", "SEQUENCE"))
    shapes.expect("x", None, heads * dim)
    shapes.expect("output", *shapes.by_name["x"])
    shapes.expect("positions", 1, sequence)
    positions = int(params["TABLE_ROWS"])
    shapes.expect("table", positions, rotary)
    shapes.require(rotary % 2 == 0 and rotary <= dim, f"cannot rotate {rotary} of {dim} elements of a head in pairs")
    whole = shapes.rows("x") % sequence == 0
    shapes.require(whole, f"{shapes.rows('x')} rows are not a whole number of sequences of {sequence}")
    first = params.get("position", 0)
    shapes.require(0 <= first < positions, f"position {first} is not in a table of {positions} positions")


@op("rotate", ("x", "table"), ("positions",), _check, ("positions",), parts=looked_up("table"))
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, table = float64(inputs, ["x", "table"])
    rows = size[0]
    rows_in_sequence = np.arange(rows) % int(params["SEQUENCE"])
    if params["POSITIONS"]:
        at = np.asarray(inputs["positions"], dtype=np.int64).reshape(-1)[rows_in_sequence]
    else:
        at = int(params.get("position", 0)) + rows_in_sequence
    angles = table[at.clip(0, int(params["TABLE_ROWS"]) - 1)]
    cos, sin = angles[:, None, 0::2], angles[:, None, 1::2]
    heads = x[:rows].reshape(rows, int(params["HEADS"]), -1)
    return rotated_pairs(heads, cos, sin, interleaved=bool(params["INTERLEAVED"])).reshape(size)


def rotated_pairs(heads: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """Heads [..., D] with their first elements rotated in pairs, by cosines and sines [..., pairs]."""
    pairs = cos.shape[-1]
    first = np.arange(0, 2 * pairs, 2) if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    rotated = heads.copy()
    rotated[..., first] = heads[..., first] * cos - heads[..., second] * sin
    rotated[..., second] = heads[..., second] * cos + heads[..., first] * sin
    return rotated
