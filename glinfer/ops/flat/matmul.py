"""Products of matrices by several strategies, and what is done to their sums in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES
from glinfer.ops.flat.draws import Define, Scratch, flat_draw
from glinfer.ops.flat.product import MASKED, PLAIN, Finish, Product, Strategy, seen_keys
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.published.linear import ACTIVATIONS, activate
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register
from glinfer.quant.formats import GROUP
from glinfer.quant.ggml import table_of

PARTS_SHADER = "common/parts.vert"


def matmul(
    name: str,
    kind: str,
    x: TensorSpec,
    weight: TensorSpec,
    out: TensorSpec,
    *,
    product: Product,
    strategy: Strategy,
    finish: Finish = PLAIN,
    kernels: KernelOptions,
    scratch: Scratch,
) -> list[DrawSpec]:
    """The draws of ``out = finish(x · weight)``, one or two.

    Where all that is done to the sums is to add a residual which is ``out`` itself, blending adds them to it.

    x [x matrices · M, K]; weight [matrices · K, N], or transposed [matrices · N, K] or the words of as many packed
    rows; out [products · M, N]: flat tensors (:mod:`glinfer.gl.layouts.flat`).

    Args:
        name: of the first draw; the second is ``<name>.finish``.
        kind: what tables group by.
        x, weight, out: see above.
        product: what is multiplied.
        strategy: how; ``matvec`` takes one row, ``split_k`` a renderer that blends floats.
        finish: what is done to the sums.
        kernels: how passes are shaped on the renderer.
        scratch: declares the tensors between two draws.

    Raises:
        PlanError: the strategy cannot compute this product, or a tensor is laid out in another way.
    """
    if finish.activation not in ACTIVATIONS:
        raise PlanError(f"draw {name}: activation {finish.activation!r}; known: {', '.join(ACTIVATIONS)}")
    if strategy.name == "matvec":
        return _matvec(name, kind, x, weight, out, product, strategy, finish, kernels, scratch)
    if strategy.targets > product.m:
        raise PlanError(f"draw {name}: {strategy.targets} targets take as many rows; found matrices of {product.m}")
    rows, groups = product.count * product.m, product.count * -(-product.m // strategy.targets)
    parts = strategy.parts_of(product.units)

    in_place = finish == Finish(residual=out)

    def multiply(outputs: Sequence[TensorSpec], inside: Finish, *, blended: bool = False) -> DrawSpec:
        return flat_draw(
            name,
            kind,
            "matmul",
            [("x", x), ("weight", weight), *inside.inputs()],
            outputs,
            kernels=kernels,
            defines=[
                *product.defines(mantissa=kernels.mantissa),
                *_shares(product, strategy.targets, parts, rows),
                ("PART_UNITS", strategy.part_units(product.units)),
                *inside.defines(),
                *([("BLENDED", 1)] if blended else []),
            ],
            uniforms=inside.uniforms(),
            instances=parts if blended else 1,
            adds=blended,
            clears=blended and not in_place,
            vertex=PARTS_SHADER if blended else "",
        )

    def put_together(sources: Sequence[TensorSpec], parts: int) -> DrawSpec:
        defines = [*_shares(product, len(sources), parts, rows), *finish.defines()]
        return _finish(name, kind, sources, out, defines, finish, kernels)

    if strategy.targets > 1:
        targets = [scratch(f"{name}.target{i}", groups, product.n) for i in range(strategy.targets)]
        return [multiply(targets, PLAIN), put_together(targets, 1)]
    if parts == 1:
        return [multiply([out], finish)]
    if strategy.name == "reduce":
        sums = scratch(f"{name}.parts", parts * rows, product.n)
        return [multiply([sums], PLAIN), put_together([sums], parts)]
    if finish.plain or in_place:
        return [multiply([out], PLAIN, blended=True)]
    sums = scratch(f"{name}.sums", rows, product.n)
    return [multiply([sums], PLAIN, blended=True), put_together([sums], 1)]


def _shares(product: Product, targets: int, parts: int, rows: int) -> list[Define]:
    """How rows are dealt to targets, and k to parts."""
    return [
        ("M", product.m),
        ("ROWS", targets),
        ("ROW_GROUPS", -(-product.m // targets)),
        ("PARTS", parts),
        ("PART_ROWS", rows),
    ]


def _matvec(
    name: str,
    kind: str,
    x: TensorSpec,
    weight: TensorSpec,
    out: TensorSpec,
    product: Product,
    strategy: Strategy,
    finish: Finish,
    kernels: KernelOptions,
    scratch: Scratch,
) -> list[DrawSpec]:
    parts = strategy.parts_of(product.units)
    if product.m > 1 or product.count > 1 or not kernels.quad or (parts > 1 and not product.transposed):
        raise PlanError(
            f"draw {name}: matvec takes one row, and exact derivatives, parts of k only of transposed weights; found "
            f"{product.count}×{product.m} rows in {parts} parts"
        )
    in_place = finish == Finish(residual=out)
    blended = parts > 1 or in_place
    finished = PLAIN if blended else finish
    sums = out if in_place or finished == finish else scratch(f"{name}.sums", 1, product.n)
    draw = flat_draw(
        name,
        kind,
        "matvec",
        [("x", x), ("weight", weight), *finished.inputs()],
        [sums],
        kernels=kernels,
        defines=[
            *product.defines(mantissa=kernels.mantissa),
            ("M", 1),
            *finished.defines(),
            *([("BLENDED", 1), ("PART_UNITS", strategy.part_units(product.units))] if blended else []),
        ],
        uniforms=finished.uniforms(),
        instances=parts,
        adds=blended,
        clears=blended and not in_place,
        vertex=PARTS_SHADER if blended else "",
    )
    if sums is out:
        return [draw]
    return [draw, _finish(name, kind, [sums], out, [*_shares(product, 1, 1, 1), *finish.defines()], finish, kernels)]


def _finish(
    name: str,
    kind: str,
    sources: Sequence[TensorSpec],
    out: TensorSpec,
    defines: Sequence[Define],
    finish: Finish,
    kernels: KernelOptions,
) -> DrawSpec:
    """The draw that puts targets together, or adds up parts, and finishes the sums."""
    return flat_draw(
        f"{name}.finish",
        kind,
        "finish",
        [*((f"x{i}", source) for i, source in enumerate(sources)), *finish.inputs()],
        [out],
        kernels=kernels,
        defines=defines,
        uniforms=finish.uniforms(),
    )


def _check(shapes: Shapes, params: Params) -> None:
    k, n = int(params["K"]), int(params["OUT_COLS"])
    count = _count(params, shapes)
    x_rows, x_cols = shapes.by_name["x"]
    weight_rows, weight_cols = shapes.by_name["weight"]
    shapes.require(x_cols == k, f"x has rows of {x_cols}; expected {k}")
    x_last, weight_last = (_last_matrix(params, which, count) for which in ("X", "WEIGHT"))
    shapes.require(x_rows >= (x_last + 1) * params["M"], f"x has {x_rows} rows; expected {(x_last + 1) * params['M']}")
    edge = n if params.get("TRANSPOSED") else k
    wanted = (weight_last + 1) * edge
    shapes.require(weight_rows >= wanted, f"weight has {weight_rows} rows; expected {wanted}")
    if not params.get("TRANSPOSED"):
        shapes.require(weight_cols == n, f"weight has rows of {weight_cols}; expected {n}")
    elif not params["FORMAT"]:
        shapes.require(weight_cols == k, f"weight has rows of {weight_cols}; expected {k}")
    _check_finish(shapes, params)


def _check_finish(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    shapes.expect("bias", 1, cols)
    shapes.expect("residual", rows, cols)


def _count(params: Params, shapes: Shapes) -> int:
    """How many products a draw computes, by the rows that it writes."""
    per_product = int(params.get("ROW_GROUPS", 1)) * (1 if params.get("BLENDED") else int(params.get("PARTS", 1)))
    return shapes.rows("output") // per_product


def _last_matrix(params: Params, which: str, count: int) -> int:
    return max(_matrices(params, which, count))


def _matrices(params: Params, which: str, count: int) -> list[int]:
    """Which matrix of x or weight each product of a draw takes."""
    if not params.get("BATCHED"):
        return [0] * count
    inner = int(params["BATCH1"]), int(params["BATCH2"])
    steps = [int(params[f"{which}_BATCH{axis}"]) for axis in range(3)]
    shape = count // (inner[0] * inner[1]), *inner
    return [int(np.dot(index, steps)) for index in np.ndindex(*shape)]


def _sums(inputs: Mapping[str, Array], params: Params, count: int) -> Array:
    """The sums [parts, products, M, N] of a draw, float64."""
    (x,) = float64(inputs, ["x"])
    weight = table_of(inputs["weight"], int(params.get("FORMAT", 0)), int(params["K"]))
    m, k, n = (int(params[name]) for name in ("M", "K", "OUT_COLS"))
    parts = int(params.get("PARTS", 1))
    form = int(params.get("FORMAT", 0))
    length = int(params.get("PART_UNITS", params["UNITS"])) * (GROUP if form else LANES)
    sums = np.zeros((parts, count, m, n))
    pairs = zip(_matrices(params, "X", count), _matrices(params, "WEIGHT", count), strict=True)
    for product, (x_matrix, weight_matrix) in enumerate(pairs):
        left = x[x_matrix * m : (x_matrix + 1) * m]
        if params.get("TRANSPOSED"):
            right = weight[weight_matrix * n : (weight_matrix + 1) * n].T
        else:
            right = weight[weight_matrix * k : (weight_matrix + 1) * k]
        for part in range(parts):
            end = k if part == parts - 1 else (part + 1) * length
            sums[part, product] = left[:, part * length : end] @ right[part * length : end]
    return sums


def _finished(sums: Array, inputs: Mapping[str, Array], params: Params) -> Array:
    """Sums [rows, N] with what is done to them in the end."""
    y = sums * params["SCALE"]
    if "bias" in inputs:
        y = y + float64(inputs, ["bias"])[0]
    y = activate(y, int(params["ACTIVATION"]))
    if "residual" in inputs:
        y = y + float64(inputs, ["residual"])[0][: len(y)]
    if params.get("CAUSAL"):
        rows = np.arange(len(y))[:, None] % int(params["M"])
        seen = seen_keys(np.arange(y.shape[1]), rows + params["offset"], int(params.get("WINDOW", 0)))
        y = np.where(seen, y, MASKED)
    return np.asarray(y)


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    targets, groups, parts = (int(params[name]) for name in ("ROWS", "ROW_GROUPS", "PARTS"))
    blended = bool(params.get("BLENDED"))
    sums = _sums(inputs, params, size[0] // (groups * (1 if blended else parts)))
    if blended:
        found = np.asarray(sums.sum(axis=0).reshape(size))
        return found + float64(inputs, ["output"])[0] if "output" in inputs else found
    if targets == 1:
        found = sums.reshape(size)
        return _finished(found, inputs, params) if parts == 1 else found
    m = int(params["M"])
    dealt = sums[0][:, np.minimum(np.arange(groups * targets), m - 1)].reshape(-1, groups, targets, size[1])
    return np.asarray(np.moveaxis(dealt, 2, 0).reshape(targets, *size))


def _oracle_matvec(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    whole = {**params, "PART_UNITS": params["UNITS"]}
    found = _finished(_sums(inputs, whole, 1).reshape(size), inputs, params)
    return found + float64(inputs, ["output"])[0] if "output" in inputs else found


def _check_parts(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    targets, parts = int(params["ROWS"]), int(params["PARTS"])
    wanted = rows // int(params["M"]) * int(params["ROW_GROUPS"]) if targets > 1 else parts * rows
    for i in range(targets):
        shapes.expect(f"x{i}", wanted, cols)
    _check_finish(shapes, params)


def _oracle_parts(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    targets, parts, m = (int(params[name]) for name in ("ROWS", "PARTS", "M"))
    sources = float64(inputs, [f"x{i}" for i in range(targets)])
    if targets == 1:
        return _finished(sources[0].reshape(parts, *size).sum(axis=0), inputs, params)
    groups = int(params["ROW_GROUPS"])
    dealt = np.stack(sources).reshape(targets, -1, groups, size[1])
    together = np.moveaxis(dealt, 0, 2).reshape(-1, groups * targets, size[1])[:, :m]
    return _finished(together.reshape(size), inputs, params)


_TARGETS = tuple(f"x{i}" for i in range(8))
register(Op("matmul", ("x", "weight"), ("bias", "residual"), _check, _oracle, either=("weight",)))
register(Op("matvec", ("x", "weight"), ("bias", "residual"), _check, _oracle_matvec, either=("weight",)))
register(Op("finish", ("x0",), (*_TARGETS[1:], "bias", "residual"), _check_parts, _oracle_parts))
