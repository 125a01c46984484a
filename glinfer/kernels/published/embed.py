"""Token and position embedding of the whole sequence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, TensorSpec, float64, looked_up, op


def embed(name: str, tokens: TensorSpec, wte: TensorSpec, wpe: TensorSpec, out: TensorSpec) -> DrawSpec:
    """``out[r] = wte[tokens[r]] + wpe[r]`` for the rows in use.

    tokens [S, 1] int32, wte [V, D], wpe [S, D], out [S, D].
    """
    inputs = (("tokens", tokens.name), ("token_embedding", wte.name), ("position_embedding", wpe.name))
    defines = (("VOCAB", wte.shape[0]), ("DIM", wte.shape[1]))
    return DrawSpec(name, name, "embed", inputs, (out.name,), ("rows", out.shape[1]), defines)


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("tokens", None, 1)
    shapes.expect("token_embedding", params["VOCAB"], params["DIM"])
    shapes.expect("position_embedding", shapes.rows("output"), params["DIM"])
    shapes.expect("output", shapes.rows("tokens"), params["DIM"])


_TABLES = ("token_embedding", "position_embedding")


@op("embed", ("tokens", *_TABLES), (), _check, ("tokens",), parts=looked_up(*_TABLES))
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    ids = np.asarray(inputs["tokens"])[: size[0], 0]
    wte, wpe = float64(inputs, ["token_embedding", "position_embedding"])
    known = (ids >= 0) & (ids < params["VOCAB"])
    rows = np.where(known[:, None], wte[np.where(known, ids, 0)], 0.0)
    return rows + wpe[: size[0]]
