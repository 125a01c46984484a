"""The gated delta rule over many consecutive rows: all corrections by one product instead of one by one.

If row i were the first of its run, its correction would be ``a_i = beta_i (v_i - Sᵀ k_i)``. The rows j before it lower
that by ``L_ij u_j`` with ``L_ij = beta_i exp(decay) (k_j · k_i)``. So all corrections of a run solve
``(I + L) U = A``, with a triangular matrix of one row a token (Yang, Wang, Zhang, Shen and Kim 2024; Yang, Kautz and
Hatamizadeh 2024). L does not depend on values, so the inverse T of I + L is computed once for each head.

:func:`delta_solve` inverts the blocks on the diagonal, of CHUNK rows each, token after token. :func:`delta_join` merges
two neighbours into the inverse of both, with ``-T₂ L₂₁ T₁`` below the diagonal, where :func:`delta_lower` computes
``L₂₁ T₁``. Each level doubles the rows, so a run of n rows has log2(n / CHUNK) levels. ``U = T A`` is then a product in
:func:`glinfer.ops.fused.delta.delta_row`. If a span ends within the run, the state at the beginning of the next one is
a product with A too, whose matrix :func:`delta_carry` computes. Exponents of decays are never above 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from glinfer.gl.layouts.blocks import blocks_for
from glinfer.ops.fused.delta import Caches, Defines, DeltaHeads, check_rule, of_run, rows_of, rule_draw, unit
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Part, Shapes, TensorSpec, float64, register

MOST_ONE_BY_ONE = 4
"""Limit for the rows of a run whose corrections are computed one by one, which saves four draws.

With 8 rows llvmpipe was faster when it solved for them.
"""
CHUNK = 32
"""Rows of a block that is inverted token after token; a fragment holds all of them.

llvmpipe took as long with 16, which needs two more draws, and longer with 64.
"""


def delta_unit(
    name: str,
    x: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    eps: float,
    rows: TensorSpec,
    kernels: KernelOptions,
) -> DrawSpec:
    """Divide queries and keys of each row by their norms, and copy the rest.

    x and out have rows of ``heads.mixed`` floats; x is the output of :func:`glinfer.ops.fused.delta.delta_conv` without
    ``unit``, in which each fragment would have to convolve its whole head for the norm.
    """
    defines: Defines = [("PIECE", 0), ("EPS", float(eps)), ("SCALE", heads.rule.key**-0.5)]
    return rule_draw(name, "unit", "delta_unit", {"x": x}, out, heads, rows, defines, kernels, placed=False)


def delta_ends(
    name: str,
    cache: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    rows: TensorSpec,
    piece: int,
    kernels: KernelOptions,
) -> DrawSpec:
    """The weights of the previous span's corrections in the state's row that each row keeps.

    out [rows, heads.ends] is zero if that span ends within the run; cache [slots, heads.kept] has the other tokens.
    """
    defines = [*of_run(piece), ("END_BLOCKS", blocks_for(heads.span))]
    return rule_draw(name, "ends", "delta_ends", {"cache": cache}, out, heads, rows, defines, kernels)


def delta_solve(
    name: str,
    x: TensorSpec,
    scores: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    rows: TensorSpec,
    piece: int,
    chunk: int = CHUNK,
    kernels: KernelOptions,
) -> DrawSpec:
    """The inverses of the blocks of I + L on the diagonal, of ``chunk`` rows each.

    x [rows, heads.mixed] and scores [rows, heads.scores] are those of :func:`glinfer.ops.fused.delta.delta_scores`; out
    [rows, heads.over_run(piece)] has a matrix for each head, zero outside of the blocks.
    """
    defines = [*of_run(piece), ("CHUNK", chunk)]
    return rule_draw(name, "solve", "delta_solve", {"x": x, "scores": scores}, out, heads, rows, defines, kernels)


def delta_lower(
    name: str,
    x: TensorSpec,
    scores: TensorSpec,
    solved: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    rows: TensorSpec,
    piece: int,
    size: int,
    kernels: KernelOptions,
) -> DrawSpec:
    """``L₂₁ T₁`` of neighbouring blocks of ``size`` rows, whose inverses are known; out is zero elsewhere."""
    defines, inputs = [*of_run(piece), ("SIZE", size)], {"x": x, "scores": scores, "solved": solved}
    return rule_draw(name, "lower", "delta_lower", inputs, out, heads, rows, defines, kernels)


def delta_join(
    name: str,
    solved: TensorSpec,
    product: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    rows: TensorSpec,
    piece: int,
    size: int,
    kernels: KernelOptions,
) -> DrawSpec:
    """The inverses of blocks of twice ``size`` rows: ``-T₂ (L₂₁ T₁)`` below the diagonal, and those of their halves.

    product is what :func:`delta_lower` gives for the same ``size``; all matrices are [rows, heads.over_run(piece)].
    """
    inputs, defines = {"solved": solved, "product": product}, [*of_run(piece), ("SIZE", size)]
    return rule_draw(name, "join", "delta_join", inputs, out, heads, rows, defines, kernels, placed=False)


def delta_carry(
    name: str,
    x: TensorSpec,
    solved: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    rows: TensorSpec,
    piece: int,
    kernels: KernelOptions,
) -> DrawSpec:
    """The weights of A in the rows of the state, out [rows, heads.over_run(piece)].

    Rows whose span did not begin within the run are zero.
    """
    defines = of_run(piece)
    return rule_draw(name, "carry", "delta_carry", {"x": x, "solved": solved}, out, heads, rows, defines, kernels)


def join_sizes(rows: int, chunk: int = CHUNK) -> Iterator[int]:
    """The sizes of the blocks that are joined until one block has all ``rows`` rows of a run."""
    while chunk < rows:
        yield chunk
        chunk *= 2


def _check_unit(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, check_rule(shapes, params).mixed)


def _check_ends(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, check_rule(shapes, params).ends)


def _check_matrix(shapes: Shapes, params: Params) -> None:
    heads = check_rule(shapes, params)
    columns = heads.over_run(int(params["PIECE"]))
    shapes.expect("product", shapes.rows("output"), columns)
    shapes.expect("output", None, columns)
    for size in (params[name] for name in ("CHUNK", "SIZE") if name in params):
        shapes.require(size > 0 and size % 4 == 0, f"blocks of {size} rows; expected a multiple of 4")


def _oracle_unit(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    heads, found = DeltaHeads.of(params), float64(inputs, ["x"])[0][: size[0]].copy()
    for start, scale in ((0, heads.rule.key**-0.5), (heads.k_at, 1.0)):
        part = slice(start, start + heads.rule.keys)
        found[:, part] = unit(found[:, part], heads.rule, scale, params)
    return found


def _oracle_ends(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    caches, found = Caches(inputs, params), np.zeros(size)
    by_token = found.reshape(size[0], caches.heads.rule.heads, -1)
    for row in rows_of(inputs, params, size[0]):
        if row.end <= row.begin and caches.keeps(row):
            by_token[row.number, :, : row.span] = caches.ended(row).T
    return found


class _Matrices:
    """The matrices [heads, rows, rows] of a run, for the oracles."""

    def __init__(self, inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> None:
        self.count, self.heads = size[0], DeltaHeads.of(params).rule.heads
        self.shape = self.count, self.heads, size[1] // self.heads
        self.inputs, self.params = inputs, params

    def of(self, name: str) -> Array:
        """The matrices of an input, without padding columns."""
        rows = float64(self.inputs, [name])[0][: self.count].reshape(self.shape)
        return np.asarray(rows.transpose(1, 0, 2)[:, :, : self.count])

    def tensor(self, matrices: Array) -> Array:
        """The rows of the output with these matrices."""
        found = np.zeros(self.shape)
        found[:, :, : self.count] = matrices.transpose(1, 0, 2)
        return found.reshape(self.count, -1)

    @property
    def lowering(self) -> Array:
        """The matrices L."""
        caches, found = Caches(self.inputs, self.params), np.zeros((self.heads, self.count, self.count))
        for row in rows_of(self.inputs, self.params, self.count):
            for other in range(row.first, row.number):
                found[:, row.number, other] = caches.lower(row, other)
        return found

    @property
    def below(self) -> Array:
        """Mask [rows, rows] of the elements left of the second of two neighbouring blocks."""
        size = int(self.params["SIZE"])
        return np.tri(self.count, dtype=bool) & _blocks(self.count, 2 * size) & ~_blocks(self.count, size)


def _blocks(rows: int, size: int) -> Array:
    """Mask [rows, rows] of the blocks of ``size`` rows on the diagonal."""
    number = np.arange(rows) // size
    return np.asarray(number[:, None] == number)


def _oracle_solve(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    run = _Matrices(inputs, params, size)
    return run.tensor(np.linalg.inv(np.eye(size[0]) + run.lowering * _blocks(size[0], int(params["CHUNK"]))))


def _oracle_lower(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    run = _Matrices(inputs, params, size)
    return run.tensor((run.lowering * run.below) @ (run.of("solved") * _blocks(size[0], int(params["SIZE"]))))


def _oracle_join(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    run = _Matrices(inputs, params, size)
    inverse = run.of("solved")
    second = (inverse * _blocks(size[0], int(params["SIZE"]))) @ (run.of("product") * run.below)
    return run.tensor(np.where(run.below, -second, inverse))


def _oracle_carry(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    run, caches = _Matrices(inputs, params, size), Caches(inputs, params)
    inverse = run.of("solved")
    found = np.zeros_like(inverse)
    for row in rows_of(inputs, params, size[0]):
        for place, weight in enumerate(caches.carried(row)):
            found[:, row.number] += weight[:, None] * inverse[:, row.first + place]
    return run.tensor(found)


def _parts_of_ends(params: Params) -> Mapping[str, Part]:
    """The keys and decays of the span before the run."""
    heads = DeltaHeads.of(params)
    return {"cache": Part(heads.span, heads.u_at / heads.kept)}


_TABLE: dict[str, Any] = {"integers": ("rows",)}
register(Op("delta_unit", ("x",), (), _check_unit, _oracle_unit))
register(Op("delta_ends", ("cache",), ("rows",), _check_ends, _oracle_ends, ("rows",), parts=_parts_of_ends))
register(Op("delta_solve", ("x", "scores"), ("rows",), _check_matrix, _oracle_solve, **_TABLE))
register(Op("delta_lower", ("x", "scores", "solved"), ("rows",), _check_matrix, _oracle_lower, **_TABLE))
register(Op("delta_join", ("solved", "product"), (), _check_matrix, _oracle_join))
register(Op("delta_carry", ("x", "solved"), ("rows",), _check_matrix, _oracle_carry, **_TABLE))
