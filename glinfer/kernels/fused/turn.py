"""Normalises queries and keys, by head or all heads together, and rotates them by their positions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.families.layer import Latent
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.dense import Rotation, half_defines, rotated_rows
from glinfer.kernels.fused.draws import Inputs, block_draw, expect_table
from glinfer.kernels.fused.rows import X_ROWS, RowInterleaved, gathered, rotary_rows
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, given, looked_up, op


def turn_heads(
    draw: Pass,
    x: RowInterleaved,
    gains: TensorSpec,
    rotation: Rotation,
    out: RowInterleaved,
    *,
    head_dim: int,
    eps: float,
    whole: bool = False,
    values: bool = False,
    rotated_first: bool = False,
    latent: Latent | None = None,
    low_at: int = 0,
    rows: TensorSpec | None,
    first: Extent = 0,
) -> DrawSpec:
    """``out[r] = rotated(x[r] / sqrt(mean(x[r]²) + eps) · gains)`` for each head of keys and queries; values stay.

    With ``values`` their heads are divided too, without gains.

    x and out [rows, k | v | q], gains [2, head_floats] for keys and for queries: RMSNorm (Zhang and Sennrich 2019) over
    ``head_dim`` elements. Further columns of x are ignored. With ``whole`` the mean is over all keys, or all queries,
    of a row, and gains are [2, floats of all queries], padded with zeros for keys. Without a table of angles nothing is
    rotated. With a ``latent``, the last elements of each key and value, only these are divided, by their own mean; and
    queries by that of the vector they are made of, the ``latent.query_rank`` columns of x from ``low_at`` on, if any.
    With ``rotated_first`` heads are rotated before all this; then no angle may change lengths. With the table
    ``rows`` rows are rotated by their positions; without it one row, by the run value position, and written into slot
    ``first`` of out.
    """
    alone, rotates = rows is None, rotation.table is not None
    inputs: Inputs = {"x": x, "gains": expect_table(draw.name, gains), **rotation.inputs(draw.name)}
    inputs["rows"] = rows if rotates and not rotation.by_row else None
    defines = [
        *rotation.defines,
        *half_defines(out.layout),
        ("ALONE", int(alone)),
        ("TEXELS", out.cols // 4),
        ("HEAD_DIM", head_dim),
        ("EPS", eps if latent is None else latent.eps),
        *given(WHOLE=whole, VALUES=values, TURNED_FIRST=rotated_first),
    ]
    if latent is not None:
        defines += [("LATENT", latent.rank), ("LOW", latent.query_rank), ("LOW_AT", low_at // 4)]
    per_run = (("position", rotation.run_value),) if alone and rotates else ()
    return block_draw(draw, "turn_heads", inputs, out, defines, cells=not alone, first=first, per_run=per_run)


def _check(shapes: Shapes, params: Params) -> None:
    cols = shapes.by_name["output"][1]
    found = shapes.by_name["x0"][1]
    shapes.require(found >= cols, f"x0 has {found} columns; expected {cols} or more")
    shapes.expect(X_ROWS, None, found)
    shapes.expect("gains", 2, cols - 4 * params["QUERY_AT"] if params.get("WHOLE") else 4 * params["HEAD_TEXELS"])
    shapes.expect("rope", None, 4 * (params["HEAD_TEXELS"] + params.get("QUERY_TURNS", 0)))
    shapes.require(params["HEAD_DIM"] <= 4 * params["HEAD_TEXELS"], "a head is larger than its texels")
    if params["ALONE"] and params.get("ROPE"):
        shapes.require(params["position"] < shapes.rows("rope"), f"there is no position {params['position']}")


@op(
    "turn_heads",
    ("gains",),
    (*X_ROWS, "rope", "rows"),
    _check,
    ("rows",),
    regions=(*X_ROWS, "output"),
    parts=looked_up("rope"),
)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x = gathered(inputs, params, size[0])
    (gains,) = float64(inputs, ["gains"])
    if "LATENT" in params:
        return _rotated(_latents_normed(x, gains, params)[:, : size[1]], inputs, params)
    x = x[:, : size[1]]
    if params.get("TURNED_FIRST"):
        return _normed(_rotated(x, inputs, params), gains, params)
    return _rotated(_normed(x, gains, params), inputs, params)


def _normed(x: Array, gains: Array, params: Params) -> Array:
    """Rows with keys and queries normalised and multiplied by gains."""
    floats, keys, queries = (4 * int(params[name]) for name in ("HEAD_TEXELS", "KEY_TEXELS", "QUERY_AT"))
    found = x.copy()
    parts = [(slice(0, keys), gains[0]), (slice(queries, x.shape[1]), gains[1])]
    parts += [(slice(keys, 2 * keys), np.ones(floats))] if params.get("VALUES") else []
    for part, gain in parts:
        width = x[:, part].shape[1]
        normed = width if params.get("WHOLE") else floats
        by_head = x[:, part].reshape(len(x), -1, normed)
        elements = params["HEAD_DIM"] * normed // floats
        norms = np.sqrt((by_head**2).sum(axis=-1, keepdims=True) / elements + params["EPS"])
        found[:, part] = (by_head / norms * gain[:normed]).reshape(len(x), -1)
    return found


def _latents_normed(x: Array, gains: Array, params: Params) -> Array:
    """Rows whose latents, and queries made of a vector, are divided, and multiplied by gains."""
    floats, keys, queries, low_at = (
        4 * int(params[name]) for name in ("HEAD_TEXELS", "KEY_TEXELS", "QUERY_AT", "LOW_AT")
    )
    rank, dim, low = (int(params[name]) for name in ("LATENT", "HEAD_DIM", "LOW"))
    norms, factors = np.ones_like(x), np.ones(x.shape[1])

    def root(part: slice) -> Array:
        return np.asarray(np.sqrt((x[:, part] ** 2).mean(axis=1, keepdims=True) + params["EPS"]))

    for head in range(0, 2 * keys, floats):
        part = slice(head + dim - rank, head + dim)
        norms[:, part] = root(part)
    if low:
        norms[:, queries:low_at] = root(slice(low_at, low_at + low))
    for first, end, gain in ((0, keys, gains[0]), (queries, low_at, gains[1])):
        factors[first:end] = np.resize(gain, end - first)
    return x / norms * factors


def _rotated(x: Array, inputs: Mapping[str, Array], params: Params) -> Array:
    """Rows with keys and queries rotated by their positions, if they are."""
    if not params.get("ROPE"):
        return x
    (rope,) = float64(inputs, ["rope"])
    alone = np.full(len(x), int(params.get("position", 0)))
    return rotated_rows(x, rope, params, alone if params["ALONE"] else rotary_rows(inputs, params, len(x)))
