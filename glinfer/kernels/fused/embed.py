"""Token embeddings, with learned positions if any: of one token, and of many rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.gl.layouts.blocks import BLOCK_FLOATS
from glinfer.gl.layouts.grouped import GroupedLayout, rounds_for
from glinfer.kernels.fused.dense import grouped_defines
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw, expect_table
from glinfer.kernels.fused.rows import CHOSEN, LEARNED, POSITION, TOKEN, X_ROWS, RowInterleaved, check_listed, gathered
from glinfer.kernels.fused.sample import best_candidate
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Pass, Shapes, TensorSpec, float64, given, looked_up, op
from glinfer.quant.formats import block_format
from glinfer.quant.ggml import table_of


def table_defines(
    name: str, wte: TensorSpec, wpe: TensorSpec | None, width: int, scale: float
) -> tuple[Inputs, Defines]:
    """The inputs and the defines of shaders/common/table.glsl for a table of embeddings, [V, width]."""
    defines: Defines = [
        ("DIM_TEXELS", -(-width // 4)),
        ("EMBEDDING_SCALE", float(scale)),
        ("POSITIONS", int(wpe is not None)),
    ]
    if isinstance(wte.layout, GroupedLayout):
        inputs: Inputs = {"weight": wte.name}
        defines += [
            *wte.layout.defines("WEIGHT"),
            *grouped_defines(wte.layout),
            ("STEPS", rounds_for(width)),
            ("TABLE_FORMAT", block_format(wte.layout.weights).number),
            ("QUAD_TABLE", int(wte.layout.quad)),
            ("INPUTS", width),
        ]
    else:
        inputs = {"wte": expect_table(name, wte)}
        defines.append(("TABLE_FORMAT", 0))
    return {**inputs, "wpe": None if wpe is None else expect_table(name, wpe)}, defines


def table_in(inputs: Mapping[str, Array], params: Params) -> Array:
    """For an oracle: the table of embeddings [V, width], scaled."""
    if params["TABLE_FORMAT"]:
        table = table_of(inputs["weight"], int(params["TABLE_FORMAT"]), int(params["INPUTS"]))
    else:
        (table,) = float64(inputs, ["wte"])
    return table * params["EMBEDDING_SCALE"]


def _check_table(shapes: Shapes, params: Params) -> int:
    """Require tables of one width; returns the number of tokens."""
    cols = shapes.by_name["output"][1]
    shapes.expect(("wte", "wpe"), None, cols)
    shapes.require(("wpe" in shapes.by_name) == bool(params["POSITIONS"]), "POSITIONS does not fit its tables")
    shapes.require(("weight" in shapes.by_name) == bool(params["TABLE_FORMAT"]), "TABLE_FORMAT does not fit its tables")
    return shapes.rows("weight" if params["TABLE_FORMAT"] else "wte")


def embed(
    draw: Pass,
    wte: TensorSpec,
    wpe: TensorSpec | None,
    picks: TensorSpec | None,
    out: RowInterleaved,
    rows: TensorSpec | None = None,
    *,
    images: TensorSpec | None = None,
    scale: float = 1.0,
    typed: bool = False,
) -> DrawSpec:
    """``out[r] = scale · wte[token] + wpe[position]``, out [rows, D].

    wte [V, D] is a table of rows or a packed matrix, wpe [S, D] a table of rows or None. The table ``rows`` gives token
    and position (see :mod:`glinfer.kernels.fused.rows`), and the token CHOSEN stands for the best candidate in slot r
    of ``picks`` [rows, 64] (see :mod:`glinfer.kernels.fused.sample`). With ``typed`` the word
    :data:`glinfer.kernels.fused.rows.LEARNED` selects the row of wpe, not the position. Where a token is beyond the
    vocabulary, ``out[r] = images[r]``, a table [rows, D].

    Without ``rows`` there is one row. Run values: position; token, or -1 for the best candidate in slot position - 1.
    """
    inputs, defines = table_defines(draw.name, wte, wpe, out.cols, scale)
    if rows is None:
        per_run = ("token", "token"), ("position", "position")
        return block_draw(draw, "embed_token", {**inputs, "picks": picks}, out.tensors, defines, per_run=per_run)
    if images is not None:
        expect_table(draw.name, images)
        defines.append(("TOKENS", wte.shape[0]))
    defines += given(TYPED=typed)
    inputs = {"rows": rows, **inputs, "picks": picks, "images": images}
    return block_draw(draw, "embed_rows", inputs, out, defines, cells=True)


def _check_token(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", 1, None)
    tokens = _check_table(shapes, params)
    positions = shapes.rows("wpe") if params["POSITIONS"] else shapes.rows("picks")
    shapes.require(params["position"] < positions, f"there is no position {params['position']}")
    shapes.require(params["token"] < tokens, f"there is no token {params['token']}")


def _check_rows(shapes: Shapes, params: Params) -> None:
    _check_table(shapes, params)
    check_listed(shapes, params)
    if "picks" in shapes.by_name:
        shapes.expect("picks", shapes.rows("rows"), BLOCK_FLOATS)
    shapes.expect("images", None, shapes.by_name["output"][1])


def tokens_in(inputs: Mapping[str, Array], params: Params, rows: int) -> Array:
    """For an oracle: the tokens of the first rows of the table of rows, or without it that of the run values."""
    if "rows" not in inputs:
        token = int(params["token"])
        return np.array([best_candidate(inputs["picks"][int(params["position"]) - 1]) if token < 0 else token])
    tokens = inputs["rows"][:rows, TOKEN].astype(np.intp)
    for row in np.flatnonzero(tokens == CHOSEN):
        tokens[row] = best_candidate(inputs["picks"][row])
    return tokens


def _parts_of_token(params: Params) -> Mapping[str, Part]:
    return {**dict.fromkeys(_TABLES, Part(1)), "picks": Part(int(params["token"] < 0))}


_TABLES, _WORDS = ("wte", "weight", "wpe"), ("weight",)
_OF_ROWS = (*_TABLES, "picks", "images")


@op("embed_token", ("picks",), _TABLES, _check_token, _WORDS, regions=("output",), parts=_parts_of_token)
@op("embed_rows", ("rows",), _OF_ROWS, _check_rows, ("rows", *_WORDS), parts=looked_up(*_OF_ROWS))
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows = size[0] * int(params.get("ROWS", 1))
    table, tokens = table_in(inputs, params), tokens_in(inputs, params, rows)
    found = table[np.minimum(tokens, len(table) - 1)]
    if "images" in inputs:
        found = np.where(tokens[:, None] < len(table), found, float64(inputs, ["images"])[0][:rows])
    if params["POSITIONS"]:
        (wpe,), word = float64(inputs, ["wpe"]), LEARNED if params.get("TYPED") else POSITION
        learned = inputs["rows"][:rows, word] if "rows" in inputs else int(params["position"])
        # Padding rows of the last slot may have positions beyond the table; their results are ignored.
        found = found + wpe[np.minimum(learned, len(wpe) - 1)]
    return found


def add_images(
    draw: Pass, rows: TensorSpec, x: RowInterleaved, images: TensorSpec, out: RowInterleaved, *, tokens: int
) -> DrawSpec:
    """``out[r] = x[r] + images[r]`` for rows whose token is not below ``tokens``, otherwise x[r].

    x and out are interleaved alike; images is a table [rows, D].
    """
    inputs: Inputs = {"x": x, "rows": rows, "images": expect_table(draw.name, images)}
    defines = [("TOKENS", tokens), ("DIM_TEXELS", -(-images.shape[1] // 4))]
    return block_draw(draw, "add_images", inputs, out, defines, cells=True)


def _check_added(shapes: Shapes, params: Params) -> None:
    shapes.expect((*X_ROWS, "images"), None, shapes.by_name["output"][1])
    check_listed(shapes, params)


@op("add_images", ("rows", "images"), X_ROWS, _check_added, ("rows",), parts=looked_up("images"))
def _oracle_added(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, (images,) = gathered(inputs, params, size[0]), float64(inputs, ["images"])
    pictured = inputs["rows"][: len(x), TOKEN, None] >= params["TOKENS"]
    return np.asarray(x + np.where(pictured, images[: len(x)], 0.0))
