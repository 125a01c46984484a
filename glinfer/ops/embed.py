"""Token and position embedding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.blocks import BlockLayout, RowLayout
from glinfer.gl.layout import Extent
from glinfer.ops.kernels import Kernels
from glinfer.ops.rows import POSITION, TOKEN, Dealt, dealt, table_layout
from glinfer.ops.sample import best_candidate
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register


def embed(name: str, tokens: TensorSpec, wte: TensorSpec, wpe: TensorSpec, out: TensorSpec) -> DrawSpec:
    """``out[r] = wte[tokens[r]] + wpe[r]`` for the rows in use.

    tokens [S, 1] int32, wte [V, D], wpe [S, D], out [S, D].
    """
    return DrawSpec(
        name=name,
        kind=name,
        op="embed",
        inputs=(("tokens", tokens.name), ("token_embedding", wte.name), ("position_embedding", wpe.name)),
        outputs=(out.name,),
        size=("rows", out.shape[1]),
        defines=(("VOCAB", wte.shape[0]), ("DIM", wte.shape[1])),
    )


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("tokens", None, 1)
    shapes.expect("token_embedding", params["VOCAB"], params["DIM"])
    shapes.expect("position_embedding", shapes.rows("output"), params["DIM"])
    shapes.expect("output", shapes.rows("tokens"), params["DIM"])


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    ids = np.asarray(inputs["tokens"])[: size[0], 0]
    wte, wpe = float64(inputs, ["token_embedding", "position_embedding"])
    known = (ids >= 0) & (ids < params["VOCAB"])
    rows = np.where(known[:, None], wte[np.where(known, ids, 0)], 0.0)
    return rows + wpe[: size[0]]


register(Op("embed", ("tokens", "token_embedding", "position_embedding"), (), _check, _oracle, ("tokens",)))


def embed_token(
    name: str,
    wte: TensorSpec,
    wpe: TensorSpec,
    picks: TensorSpec,
    out: TensorSpec,
    *,
    kernels: Kernels,
) -> DrawSpec:
    """``out = wte[token] + wpe[position]`` of one token, [1, D] in blocks; wte [V, D] and wpe [S, D] are row tables.

    Run values: token, or -1 for the best candidate in slot position - 1 of picks (see :mod:`glinfer.ops.sample`);
    position.
    """
    if not (
        isinstance(wte.layout, RowLayout)
        and isinstance(wpe.layout, RowLayout)
        and isinstance(picks.layout, BlockLayout)
        and isinstance(out.layout, BlockLayout)
    ):
        raise PlanError(f"draw {name}: expected tables of rows, and candidates and output in blocks")
    return DrawSpec(
        name=name,
        kind=name,
        op="embed_token",
        inputs=(("wte", wte.name), ("wpe", wpe.name), ("picks", picks.name)),
        outputs=(out.name,),
        size=(1, out.shape[1]),
        defines=(
            *wte.layout.defines("WTE"),
            *wpe.layout.defines("WPE"),
            *picks.layout.defines("PICKS"),
            *out.layout.defines("OUT"),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
            ("QUAD", 0),
        ),
        per_run=(("token", "token"), ("position", "position")),
        cover=kernels.cover,
    )


def _check_token(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", 1, shapes.by_name["wte"][1])
    shapes.expect("wpe", None, shapes.by_name["wte"][1])
    shapes.require(params["position"] < shapes.rows("wpe"), f"there is no position {params['position']}")
    shapes.require(params["token"] < shapes.rows("wte"), f"there is no token {params['token']}")


def _oracle_token(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    wte, wpe = float64(inputs, ["wte", "wpe"])
    position, token = int(params["position"]), int(params["token"])
    if token < 0:
        token = best_candidate(np.asarray(inputs["picks"])[position - 1])
    return np.asarray((wte[token] + wpe[position]).reshape(size))


register(Op("embed_token", ("wte", "wpe", "picks"), (), _check_token, _oracle_token))


def embed_rows(
    name: str, rows: TensorSpec, wte: TensorSpec, wpe: TensorSpec, out: Dealt, *, slots: Extent, kernels: Kernels
) -> DrawSpec:
    """``out[r] = wte[token] + wpe[position]`` of the rows of the first ``slots`` slots, as the table rows says.

    wte [V, D] and wpe [S, D] are row tables; see :mod:`glinfer.ops.rows`.
    """
    if not isinstance(wte.layout, RowLayout) or not isinstance(wpe.layout, RowLayout):
        raise PlanError(f"draw {name}: expected tables of rows")
    return DrawSpec(
        name=name,
        kind=name,
        op="embed_rows",
        inputs=(("rows", rows.name), ("wte", wte.name), ("wpe", wpe.name)),
        outputs=out.names,
        size=(slots, out.cols),
        defines=(
            *table_layout(rows).defines("ROWS"),
            *wte.layout.defines("WTE"),
            *wpe.layout.defines("WPE"),
            *out.layout.defines("OUT"),
            ("ROWS", len(out.tensors)),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
            ("QUAD", 0),
        ),
        cover=kernels.cover,
        largest_cell=kernels.largest_cell,
    )


def _check_rows(shapes: Shapes, params: Params) -> None:
    shapes.expect("wpe", None, shapes.by_name["wte"][1])
    shapes.expect("output", None, shapes.by_name["wte"][1])
    slots = shapes.rows("output")
    shapes.require(shapes.rows("rows") >= slots * params["ROWS"], f"the table has {shapes.rows('rows')} rows")


def _oracle_rows(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    wte, wpe = float64(inputs, ["wte", "wpe"])
    table = inputs["rows"][: size[0] * int(params["ROWS"])]
    # Rows that only fill up the last slot may have positions behind the last one, and are worth nothing.
    positions = np.minimum(table[:, POSITION], len(wpe) - 1)
    return dealt(wte[table[:, TOKEN]] + wpe[positions], int(params["ROWS"]))


register(Op("embed_rows", ("rows", "wte", "wpe"), (), _check_rows, _oracle_rows, ("rows",)))
