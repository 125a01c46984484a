"""Token and position embedding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.blocks import BlockLayout, RowLayout
from glinfer.ops.kernels import Kernels
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
