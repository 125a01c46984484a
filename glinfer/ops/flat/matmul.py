"""Draws of matrix products by several strategies, and of the final step on their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES
from glinfer.ops.flat.draws import Define, Scratch, flat_draw
from glinfer.ops.flat.product import PLAIN, Finish, Product, Strategy, seen_keys
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.published.attention import MASKED
from glinfer.ops.published.linear import ACTIVATIONS, activate, soft_cap
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
    """The one or two draws of ``out = finish(x · weight)``.

    If the finish only adds ``out`` itself as the residual, blending adds the sums to it in place.

    x [x matrices · M, K]; weight [matrices · K, N], or transposed [matrices · N, K], whose rows may be packed words;
    out [products · M, N]: flat tensors (:mod:`glinfer.gl.layouts.flat`).

    Args:
        name: the first draw's name; the second is ``<name>.finish``.
        kind: the draws' group in tables.
        x, weight, out: see above.
        product: the product.
        strategy: the strategy; ``matvec`` needs x of one row, ``split_k`` a renderer that blends floats.
        finish: the finish of the sums.
        kernels: the renderer's kernel options.
        scratch: declares the tensors between two draws.

    Raises:
        PlanError: the strategy cannot compute this product, or a tensor has another layout.
    """
    if finish.activation not in ACTIVATIONS:
        raise PlanError(f"draw {name}: activation {finish.activation!r}; known: {', '.join(ACTIVATIONS)}")
    call = _Call(name, kind, x, weight, out, product, strategy, finish, kernels, scratch)
    return call.matvec() if strategy.name == "matvec" else call.by_fragments()


@dataclass(frozen=True)
class _Call:
    """One call of :func:`matmul`; the fields are its arguments."""

    name: str
    kind: str
    x: TensorSpec
    weight: TensorSpec
    out: TensorSpec
    product: Product
    strategy: Strategy
    finish: Finish
    kernels: KernelOptions
    scratch: Scratch

    @property
    def in_place(self) -> bool:
        """Whether blending adds the sums to ``out``, which is its own residual."""
        return self.finish == Finish(residual=self.out)

    def by_fragments(self) -> list[DrawSpec]:
        """The draws in which each fragment computes its own columns."""
        name, product, strategy, scratch = self.name, self.product, self.strategy, self.scratch
        if strategy.targets > product.m:
            raise PlanError(f"draw {name}: {strategy.targets} targets need as many rows; found matrices of {product.m}")
        rows, parts = product.count * product.m, strategy.parts_of(product.units)
        shares = [*self._shares(strategy.targets, parts), ("PART_UNITS", strategy.part_units(product.units))]
        if strategy.targets > 1:
            groups = product.count * -(-product.m // strategy.targets)
            targets = [scratch(f"{name}.target{i}", groups, product.n) for i in range(strategy.targets)]
            return [self._multiply("matmul", targets, PLAIN, shares), self._finish(targets, 1)]
        if parts == 1:
            return [self._multiply("matmul", [self.out], self.finish, shares)]
        if strategy.name == "reduce":
            sums = scratch(f"{name}.parts", parts * rows, product.n)
            return [self._multiply("matmul", [sums], PLAIN, shares), self._finish([sums], parts)]
        if self.finish.plain or self.in_place:
            return [self._multiply("matmul", [self.out], PLAIN, shares, instances=parts, blended=True)]
        sums = scratch(f"{name}.sums", rows, product.n)
        return [self._multiply("matmul", [sums], PLAIN, shares, instances=parts, blended=True), self._finish([sums], 1)]

    def matvec(self) -> list[DrawSpec]:
        """The draws in which the fragments of a quad share k."""
        name, product, strategy = self.name, self.product, self.strategy
        parts = strategy.parts_of(product.units)
        if product.m > 1 or product.count > 1 or not self.kernels.quad or (parts > 1 and not product.transposed):
            raise PlanError(
                f"draw {name}: matvec needs one row, exact derivatives, and for parts of k transposed weights; "
                f"found {product.count}×{product.m} rows in {parts} parts"
            )
        blended = parts > 1 or self.in_place
        finish = PLAIN if blended else self.finish
        shares: list[Define] = [("M", 1)]
        if blended:
            shares.append(("PART_UNITS", strategy.part_units(product.units)))
        whole = self.in_place or finish == self.finish
        sums = self.out if whole else self.scratch(f"{name}.sums", 1, product.n)
        draw = self._multiply("matvec", [sums], finish, shares, instances=parts, blended=blended)
        return [draw] if whole else [draw, self._finish([sums], 1)]

    def _shares(self, targets: int, parts: int) -> list[Define]:
        """The defines for the split of rows over targets, and of k over parts."""
        product = self.product
        return [
            ("M", product.m),
            ("ROWS", targets),
            ("ROW_GROUPS", -(-product.m // targets)),
            ("PARTS", parts),
            ("PART_ROWS", product.count * product.m),
        ]

    def _multiply(
        self,
        op: str,
        outputs: Sequence[TensorSpec],
        finish: Finish,
        shares: Sequence[Define],
        *,
        instances: int = 1,
        blended: bool = False,
    ) -> DrawSpec:
        """The draw that multiplies; with ``blended`` each instance computes a part of k, and blending adds them."""
        return flat_draw(
            self.name,
            self.kind,
            op,
            [("x", self.x), ("weight", self.weight), *finish.inputs()],
            outputs,
            kernels=self.kernels,
            defines=[
                *self.product.defines(mantissa=self.kernels.mantissa),
                *shares,
                *finish.defines(),
                *([("BLENDED", 1)] if blended else []),
            ],
            uniforms=finish.uniforms(),
            instances=instances,
            adds=blended,
            clears="all" if blended and not self.in_place else "",
            vertex=PARTS_SHADER if blended else "",
        )

    def _finish(self, sources: Sequence[TensorSpec], parts: int) -> DrawSpec:
        """The draw that joins the rows of targets, or adds up parts, and finishes the sums."""
        return flat_draw(
            f"{self.name}.finish",
            self.kind,
            "finish",
            [*((f"x{i}", source) for i, source in enumerate(sources)), *self.finish.inputs()],
            [self.out],
            kernels=self.kernels,
            defines=[*self._shares(len(sources), parts), *self.finish.defines()],
            uniforms=self.finish.uniforms(),
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
    """Number of products of a draw, from the rows that it writes."""
    per_product = int(params.get("ROW_GROUPS", 1)) * (1 if params.get("BLENDED") else int(params.get("PARTS", 1)))
    return shapes.rows("output") // per_product


def _last_matrix(params: Params, which: str, count: int) -> int:
    return max(_matrices(params, which, count))


def _matrices(params: Params, which: str, count: int) -> list[int]:
    """The matrix of x or weight that each product of a draw uses."""
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
    """Sums [rows, N] after the finish."""
    y = sums * params["SCALE"]
    if "bias" in inputs:
        y = y + float64(inputs, ["bias"])[0]
    y = activate(y, int(params["ACTIVATION"]))
    if "residual" in inputs:
        y = y + float64(inputs, ["residual"])[0][: len(y)]
    if params.get("CAP"):
        y = soft_cap(y, float(params["CAP"]))
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
    grouped = sums[0][:, np.minimum(np.arange(groups * targets), m - 1)].reshape(-1, groups, targets, size[1])
    return np.asarray(np.moveaxis(grouped, 2, 0).reshape(targets, *size))


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
    grouped = np.stack(sources).reshape(targets, -1, groups, size[1])
    together = np.moveaxis(grouped, 0, 2).reshape(-1, groups * targets, size[1])[:, :m]
    return _finished(together.reshape(size), inputs, params)


_TARGETS = tuple(f"x{i}" for i in range(8))
register(Op("matmul", ("x", "weight"), ("bias", "residual"), _check, _oracle, either=("weight",)))
register(Op("matvec", ("x", "weight"), ("bias", "residual"), _check, _oracle_matvec, either=("weight",)))
register(Op("finish", ("x0",), (*_TARGETS[1:], "bias", "residual"), _check_parts, _oracle_parts))
