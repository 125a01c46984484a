"""The k largest elements of each row, by a merge sort in passes that keeps at most k elements of a list.

The sort compares whole numbers in the order of the elements, see :func:`sort_keys`, each with its column. The lists
of all rows follow each other in matrices of one texel a row: list l of row r is number ``l * rows + r``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.gl.layouts.flat import LANES
from glinfer.ops.flat.draws import Define, flat_draw
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, register

CHUNK = 16
"""Elements of the first pass's lists."""


@dataclass(frozen=True)
class Lists:
    """The sorted lists of each row after a pass: their number, and the texels kept of each."""

    count: int
    texels: int


def lists_of(cols: int, k: int) -> tuple[Lists, ...]:
    """The lists after each pass over rows of ``cols`` columns; the last pass leaves one of ``ceil(k / 4)`` texels."""
    kept = -(-k // LANES)
    texels = CHUNK // LANES
    found = [Lists(-(-cols // CHUNK), min(texels, kept))]
    while found[-1].count > 1:
        texels *= 2
        found.append(Lists(-(-found[-1].count // 2), min(texels, kept)))
    return tuple(found)


def scratch_rows(rows: int, cols: int, k: int) -> int:
    """Rows of :func:`top_k`'s scratch matrices [scratch_rows, 4] of keys and of columns."""
    return rows * max(lists.count * lists.texels for lists in lists_of(cols, k))


def top_k(
    name: str,
    kind: str,
    x: TensorSpec,
    scratch: Sequence[tuple[TensorSpec, TensorSpec]],
    values: TensorSpec,
    places: TensorSpec,
    *,
    kernels: KernelOptions,
) -> tuple[DrawSpec, ...]:
    """``values`` [R, k] of x [R, C], largest first, and their columns ``places``.

    ``scratch`` is two pairs (columns, keys) of matrices of whole numbers [:func:`scratch_rows`, 4]; the second pair is
    unused if C is at most :data:`CHUNK`. The last pass of the sort does not write the keys.

    Raises:
        PlanError: a tensor has another layout.
    """
    rows, cols = x.shape
    k = values.shape[1]
    first, *others = lists_of(cols, k)
    source, out = scratch[0], scratch[-1]
    draws = [sort_chunks(f"{name}.chunks", kind, x, source if others else source[:1], lists=first, kernels=kernels)]
    for number, merged in enumerate(others):
        draws.append(
            merge_sorted(
                f"{name}.merge.{number}",
                kind,
                source,
                out if number + 1 < len(others) else out[:1],
                rows=rows,
                k=k,
                lists=first,
                merged=merged,
                kernels=kernels,
            )
        )
        source, out = out, source
        first = merged
    draws.append(sorted_pairs(f"{name}.pairs", kind, x, source[0], values, places, kernels=kernels))
    return tuple(draws)


def sort_chunks(
    name: str, kind: str, x: TensorSpec, out: Sequence[TensorSpec], *, lists: Lists, kernels: KernelOptions
) -> DrawSpec:
    """Sort x [R, C] in lists of 16 elements; ``out`` is their columns, or columns and keys.

    Raises:
        PlanError: a tensor has another layout.
    """
    rows, cols = x.shape
    defines: list[Define] = [("ROWS", rows), ("COLS", cols), ("LIST_TEXELS", lists.texels)]
    written = rows * lists.count * lists.texels
    return flat_draw(name, kind, "sort_chunks", [("x", x)], out, kernels=kernels, rows=written, defines=defines)


def merge_sorted(
    name: str,
    kind: str,
    source: tuple[TensorSpec, TensorSpec],
    out: Sequence[TensorSpec],
    *,
    rows: int,
    k: int,
    lists: Lists,
    merged: Lists,
    kernels: KernelOptions,
) -> DrawSpec:
    """Merge the lists ``source`` of each of ``rows`` rows in pairs; ``out`` is their columns, or columns and keys.

    Raises:
        PlanError: a tensor has another layout.
    """
    kept = -(-k // LANES)
    shift = -1 if merged.texels == kept else merged.texels.bit_length() - 1
    return flat_draw(
        name,
        kind,
        "merge_sorted",
        [("keys", source[1]), ("columns", source[0])],
        out,
        kernels=kernels,
        rows=rows * merged.count * merged.texels,
        defines=[("ROWS", rows), ("KEPT", kept)],
        # No defines, so that all passes share a program.
        uniforms=[("list_count", lists.count), ("list_texels", lists.texels), ("merged_shift", shift)],
    )


def sorted_pairs(
    name: str,
    kind: str,
    x: TensorSpec,
    columns: TensorSpec,
    values: TensorSpec,
    places: TensorSpec,
    *,
    kernels: KernelOptions,
) -> DrawSpec:
    """The largest ``values`` [R, k] of x [R, C] and their columns ``places``, from each row's single sorted list.

    Raises:
        PlanError: a tensor has another layout.
    """
    defines: list[Define] = [("ROWS", x.shape[0]), ("COLS", x.shape[1])]
    inputs = [("x", x), ("columns", columns)]
    return flat_draw(name, kind, "sorted_pairs", inputs, [values, places], kernels=kernels, defines=defines)


def sort_keys(x: Array) -> Array:
    """Whole numbers of 32 bits in the order of float32 numbers, where −0 is 0 and every NaN is the largest."""
    floats = np.asarray(x, dtype=np.float32)
    bits = np.where(floats == 0, np.float32(0), floats).view(np.uint32)
    keys = np.where(bits >> 31 == 0, bits ^ np.uint32(1 << 31), ~bits)
    return np.where(np.isnan(floats), np.uint32(0xFFFFFFFF), keys)


def _check_chunks(shapes: Shapes, params: Params) -> None:
    rows, cols = int(params["ROWS"]), int(params["COLS"])
    shapes.expect("x", rows, cols)
    _expect_lists(shapes, "output", rows * -(-cols // CHUNK) * int(params["LIST_TEXELS"]))


def _check_merge(shapes: Shapes, params: Params) -> None:
    texels = int(params["ROWS"]) * int(params["list_count"]) * int(params["list_texels"])
    for name in ("keys", "columns"):
        _expect_lists(shapes, name, texels)
    merged_texels, count = _merged(params)
    _expect_lists(shapes, "output", int(params["ROWS"]) * count * merged_texels)
    wanted = merged_texels <= 2 * int(params["list_texels"])
    shapes.require(wanted, f"two lists of {params['list_texels']} texels have no {merged_texels} texels")


def _check_pairs(shapes: Shapes, params: Params) -> None:
    rows, cols = int(params["ROWS"]), int(params["COLS"])
    shapes.expect("x", rows, cols)
    shapes.expect("output", rows, None)
    k = shapes.by_name["output"][1]
    shapes.require(k <= cols, f"there are no {k} largest of {cols} columns")
    _expect_lists(shapes, "columns", rows * -(-k // LANES))


def _expect_lists(shapes: Shapes, name: str, texels: int) -> None:
    """Require a matrix of one texel a row with at least ``texels`` rows."""
    shapes.expect(name, None, LANES)
    shapes.require(shapes.rows(name) >= texels, f"{name} has {shapes.rows(name)} rows for lists of {texels} texels")


def _merged(params: Params) -> tuple[int, int]:
    """Texels of a merged list, and the number of merged lists of a row."""
    shift = int(params["merged_shift"])
    return int(params["KEPT"]) if shift < 0 else 1 << shift, -(-int(params["list_count"]) // 2)


def _sorted(keys: Array, columns: Array, kept: int) -> Array:
    """[2, lists, kept]: the first columns and keys of lists [lists, elements], largest first, ties in list order."""
    order = np.argsort(-keys.astype(np.int64), axis=1, kind="stable")[:, :kept]
    return np.stack([np.take_along_axis(part, order, axis=1) for part in (columns, keys)]).astype(np.float64)


def _oracle_chunks(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, cols, texels = int(params["ROWS"]), int(params["COLS"]), int(params["LIST_TEXELS"])
    count = -(-cols // CHUNK)
    keys, columns = (np.zeros((rows, count * CHUNK), dtype=np.int64) for _ in range(2))
    keys[:, :cols], columns[:, :cols] = sort_keys(inputs["x"]), np.arange(cols)
    by_list = [part.reshape(rows, count, CHUNK).swapaxes(0, 1).reshape(-1, CHUNK) for part in (keys, columns)]
    return _sorted(by_list[0], by_list[1], texels * LANES).reshape(2, *size)


def _oracle_merge(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, count, texels = int(params["ROWS"]), int(params["list_count"]), int(params["list_texels"])
    merged_texels, merged_count = _merged(params)
    pairs = []
    for name in ("keys", "columns"):
        lists = np.zeros((2 * merged_count, rows, texels * LANES), dtype=np.int64)
        lists[:count] = np.asarray(inputs[name])[: count * rows * texels].reshape(count, rows, -1)
        pairs.append(lists.reshape(merged_count, 2, rows, -1).swapaxes(1, 2).reshape(merged_count * rows, -1))
    return _sorted(pairs[0], pairs[1], merged_texels * LANES).reshape(2, *size)


def _oracle_pairs(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, k = size
    columns = np.asarray(inputs["columns"], dtype=np.int64)[: rows * -(-k // LANES)].reshape(rows, -1)[:, :k]
    values = np.take_along_axis(np.asarray(inputs["x"], dtype=np.float64)[:rows], columns, axis=1)
    return np.stack([values, columns.astype(np.float64)])


register(Op("sort_chunks", ("x",), (), _check_chunks, _oracle_chunks, ("output",)))
register(Op("merge_sorted", ("keys", "columns"), (), _check_merge, _oracle_merge, ("keys", "columns", "output")))
register(Op("sorted_pairs", ("x", "columns"), (), _check_pairs, _oracle_pairs, ("columns",), ("output",)))
