"""Heads of attention out of rows of projections: normalised, turned by their positions, and put where they are needed.

A row of projections has the heads of queries, keys and values side by side. Attention wants all rows of one head below
each other: queries for one run, keys and values in caches that later runs read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layout import Extent
from glinfer.ops.flat import Define, Uniform, flat_draw, flat_layout
from glinfer.ops.kernels import Kernels
from glinfer.ops.rotary import turned_pairs
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register


@dataclass(frozen=True)
class Turned:
    """What is done to a head of queries or keys.

    Attributes:
        table: cosines and sines [positions, head_dim], see :func:`glinfer.ops.rotary.rope_table`; None to turn nothing.
        interleaved: turn elements (2i, 2i + 1), not (i, i + head_dim / 2).
        norm: weights [1, head_dim] of an RMSNorm of each head before that; None for no norm.
        eps: of the norm.
    """

    table: TensorSpec | None = None
    interleaved: bool = False
    norm: TensorSpec | None = None
    eps: float = 0.0

    def inputs(self) -> list[tuple[str, TensorSpec]]:
        """What is sampled."""
        given = (("table", self.table), ("norm", self.norm))
        return [(name, tensor) for name, tensor in given if tensor is not None]

    def defines(self) -> list[Define]:
        """What the shaders need of it."""
        return [
            ("TURNS", int(self.table is not None)),
            ("TABLE_ROWS", self.table.shape[0] if self.table is not None else 1),
            ("INTERLEAVED", int(self.interleaved)),
            ("NORMED", int(self.norm is not None)),
            ("EPS", float(self.eps)),
        ]


def split_heads(
    name: str,
    kind: str,
    x: TensorSpec,
    out: TensorSpec,
    *,
    rows: int,
    first: int,
    turned: Turned,
    position: Extent,
    kernels: Kernels,
) -> DrawSpec:
    """``out[h · rows + r] = turned(x[r, (first + h) · D …])``: heads of queries, all rows of one below each other.

    x [rows, heads · D], out [H · rows, D]; row r has position ``position + r``, a number or a run value's name.

    Raises:
        PlanError: a tensor is laid out in another way.
    """
    # Of a table of one position no shader takes another one.
    chooses = turned.table is not None and turned.table.shape[0] > 1
    uniforms: list[Uniform] = [("position", position)] if chooses else []
    return flat_draw(
        name,
        kind,
        "split_heads",
        [("x", x), *turned.inputs()],
        [out],
        kernels=kernels,
        defines=[("ROWS", rows), ("FIRST", first), ("HEAD_DIM", out.shape[1]), *turned.defines()],
        uniforms=uniforms,
    )


def append_heads(
    name: str,
    kind: str,
    x: TensorSpec,
    keys: TensorSpec,
    values: TensorSpec,
    *,
    rows: int,
    heads: int,
    first: int,
    turned: Turned,
    position: Extent,
    used: Extent,
    appended: Extent,
    kernels: Kernels,
) -> DrawSpec:
    """Puts heads of keys and values into caches: row r of head g into row ``g · slots + position + r``.

    x [rows, …] has the heads of keys from head ``first`` on, those of values right behind them; keys and values
    [heads · slots, D] in 32-bit floats. What has no slot is not put anywhere.

    Args:
        name, kind: of the draw.
        x, keys, values: see above.
        rows: how many rows x has.
        heads: how many heads of keys, and as many of values.
        first: the first head of keys.
        turned: what is done to keys; values stay as they are.
        position: of the first row, a number or a run value's name.
        used: how many of the rows are put there, likewise.
        appended: heads · used, likewise.
        kernels: how passes are shaped on the renderer.

    Raises:
        PlanError: a tensor is laid out in another way.
    """
    if keys.shape != values.shape or keys.shape[0] % heads:
        raise PlanError(f"draw {name}: caches {list(keys.shape)} and {list(values.shape)} for {heads} heads")
    slots, dim = keys.shape[0] // heads, keys.shape[1]
    return flat_draw(
        name,
        kind,
        "append_heads",
        [("x", x), *turned.inputs()],
        [keys, values],
        kernels=kernels,
        rows=appended,
        defines=[
            ("ROWS", rows),
            ("HEADS", heads),
            ("SLOTS", slots),
            ("FIRST", first),
            ("HEAD_DIM", dim),
            *turned.defines(),
        ],
        uniforms=[("position", position), ("used", used)],
        vertex="common/append_heads.vert",
        points=rows * heads * flat_layout(name, keys).row_texels,
    )


def _check_turned(shapes: Shapes, params: Params) -> None:
    dim = int(params["HEAD_DIM"])
    shapes.expect("table", params["TABLE_ROWS"], dim)
    shapes.expect("norm", 1, dim)
    shapes.require(not params["TURNS"] or dim % 2 == 0, f"heads of {dim} elements do not turn in pairs")
    positions = int(params["TABLE_ROWS"])
    outside = params["TURNS"] and not 0 <= params.get("position", 0) < positions
    shapes.require(not outside, f"position {params.get('position')} is not in a table of {positions} positions")


def _check_split(shapes: Shapes, params: Params) -> None:
    rows, dim = int(params["ROWS"]), int(params["HEAD_DIM"])
    heads, rest = divmod(shapes.rows("output"), rows)
    shapes.require(not rest, f"output has {shapes.rows('output')} rows; expected whole heads of {rows}")
    shapes.expect("x", rows, None)
    cols = shapes.by_name["x"][1]
    shapes.require(cols >= (params["FIRST"] + heads) * dim, f"x has {cols} columns; expected {heads} heads of {dim}")
    shapes.expect("output", None, dim)
    _check_turned(shapes, params)


def _check_append(shapes: Shapes, params: Params) -> None:
    rows, heads, dim = (int(params[name]) for name in ("ROWS", "HEADS", "HEAD_DIM"))
    shapes.expect("x", rows, None)
    shapes.expect("output", heads * params["SLOTS"], dim)
    cols = shapes.by_name["x"][1]
    shapes.require(cols >= (params["FIRST"] + 2 * heads) * dim, f"x has {cols} columns; expected 2 × {heads} heads")
    shapes.require(1 <= params["used"] <= rows, f"{params['used']} rows of {rows} are to be appended")
    _check_turned(shapes, params)


def _heads_of(x: Array, params: Params, first: int, heads: int) -> Array:
    """Heads [heads, rows, D] of x."""
    dim = int(params["HEAD_DIM"])
    return np.moveaxis(x[:, first * dim : (first + heads) * dim].reshape(len(x), heads, dim), 1, 0)


def _turned(heads: Array, inputs: Mapping[str, Array], params: Params) -> Array:
    if params["NORMED"]:
        means = (heads**2).mean(axis=-1, keepdims=True)
        heads = heads / np.sqrt(means + params["EPS"]) * float64(inputs, ["norm"])[0]
    if not params["TURNS"]:
        return heads
    (table,) = float64(inputs, ["table"])
    at = np.minimum(int(params.get("position", 0)) + np.arange(heads.shape[1]), len(table) - 1)
    return turned_pairs(heads, table[at, 0::2], table[at, 1::2], interleaved=bool(params["INTERLEAVED"]))


def _oracle_split(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    rows = int(params["ROWS"])
    heads = _heads_of(x[:rows], params, int(params["FIRST"]), size[0] // rows)
    return _turned(heads, inputs, params).reshape(size)


def _oracle_append(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    heads, first, used = (int(params[name]) for name in ("HEADS", "FIRST", "used"))
    keys = _turned(_heads_of(x, params, first, heads), inputs, params)
    values = _heads_of(x, params, first + heads, heads)
    return np.stack([keys[:, :used].reshape(size), values[:, :used].reshape(size)])


def _appended(inputs: Mapping[str, Array], params: Params) -> Array:
    """Rows of the caches that a draw writes, head by head."""
    heads, slots = int(params["HEADS"]), int(params["SLOTS"])
    places = int(params["position"]) + np.arange(int(params["used"]))
    return np.asarray((np.arange(heads)[:, None] * slots + places).reshape(-1))


register(Op("split_heads", ("x",), ("table", "norm"), _check_split, _oracle_split))
register(Op("append_heads", ("x",), ("table", "norm"), _check_append, _oracle_append, places=_appended))
