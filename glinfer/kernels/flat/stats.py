"""Statistics of rows: sums, largest elements, means and variances, sums of exponents; and results derived from them.

If every fragment of a result read its whole row, the cost would grow with the square of the row's length. So a first
draw writes one texel of statistics for every row, or for every part of a long row; further draws merge parts if they
are many; and the last draw, the reader, merges the few remaining parts. :func:`summarize` chooses the parts and makes
all draws but the reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES, texels_for
from glinfer.kernels.flat.draws import Define, Scratch, flat_draw
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, op

STATS = {"sum": 0, "squares": 1, "moments": 2, "largest": 3, "exponents": 4}
"""The statistics, and their numbers in shaders/common/stats.glsl."""

_MIN_PART, _MERGED_PART, _MAX_PART = 32, 64, 256
"""Texels of a part: the fewest, the number if a separate draw merges the parts, and the most."""
_MAX_FAN = 256
"""Limit for the parts that one fragment merges."""
_MAX_READS = 16384
"""Limit for the texels of parts that all readers merge; beyond it a merging draw costs less."""


def summarize(
    draw: Pass,
    x: TensorSpec,
    *,
    stat: str,
    readers: int,
    scratch: Scratch,
    residual: TensorSpec | None = None,
) -> tuple[TensorSpec, list[DrawSpec]]:
    """The statistics of each row of x [R, C], or of x + residual, in few parts, and the draws that compute them.

    ``readers`` is the number of fragments that will read statistics: if they are few, they merge some parts themselves.
    ``scratch`` declares the tensors in between, [R, 4 · parts].

    Raises:
        PlanError: there are no such statistics, or a tensor has another layout.
    """
    if stat not in STATS:
        raise PlanError(f"draw {draw.name}: there are no statistics {stat!r}; known: {', '.join(STATS)}")
    texels, free = texels_for(x.shape[1]), max(1, _MAX_READS // readers)
    parts = _parts(texels, free)
    step = draw._replace(name=f"{draw.name}.stats", kind=draw.group)
    stats = scratch(step.name, x.shape[0], LANES * parts)
    inputs = {"x": x, "residual": residual}
    defines: list[Define] = [("STAT", STATS[stat]), ("COLS", x.shape[1]), ("PART_TEXELS", -(-texels // parts))]
    defines.append(("ADDS", int(residual is not None)))
    draws = [flat_draw(step, "row_stats", inputs, [stats], defines=defines)]
    while parts > min(free, _MAX_FAN):
        fewer = -(-parts // _MAX_FAN)
        step = step._replace(name=f"{draw.name}.stats.{fewer}")
        merged = scratch(step.name, x.shape[0], LANES * fewer)
        defines = [("STAT", STATS[stat]), ("FAN", -(-parts // fewer))]
        draws.append(flat_draw(step, "merge_stats", {"stats": stats}, [merged], defines=defines))
        stats, parts = merged, fewer
    return stats, draws


def _parts(texels: int, free: int) -> int:
    """Number of parts of a row of ``texels`` texels; readers can merge up to ``free`` parts.

    Short parts keep many fragments busy for a short time; if a draw has to merge parts anyway, there are more of them.
    """
    parts = min(-(-texels // _MIN_PART), math.isqrt(texels), free)
    if texels > parts * _MAX_PART:
        parts = -(-texels // _MERGED_PART)
        if parts > _MAX_FAN and texels <= _MAX_FAN * _MAX_PART:
            parts = _MAX_FAN
    longest = -(-texels // parts)
    return -(-texels // longest)  # the fewest parts of that length


def merged(stat: int, parts: Array) -> Array:
    """Statistics [R, 4] of whole rows from those of their parts, [R, parts, 4], in float64."""
    first = parts[:, 0]
    found = np.zeros_like(first)
    a, b, c, d = (parts[:, :, number] for number in range(LANES))
    with np.errstate(invalid="ignore", over="ignore"):
        if stat == STATS["moments"]:
            count = d.sum(axis=1)
            means = (a - first[:, :1]) + b
            mean = (means * d).sum(axis=1) / count
            found[:] = np.stack([first[:, 0], mean, (c + d * (means - mean[:, None]) ** 2).sum(axis=1), count], axis=1)
        elif stat == STATS["largest"]:
            best = np.argmax(a, axis=1)[:, None]
            found[:, 0], found[:, 1] = (np.take_along_axis(part, best, axis=1)[:, 0] for part in (a, b))
        elif stat == STATS["exponents"]:
            found[:, 0] = a.max(axis=1)
            found[:, 1] = (b * np.exp(a - found[:, :1])).sum(axis=1)
        else:
            found[:] = parts.sum(axis=1)
    return found


def stats_of(inputs: Mapping[str, Array], params: Params, rows: int) -> Array:
    """The statistics [rows, 4] of whole rows from an oracle's input ``stats``."""
    (stats,) = float64(inputs, ["stats"])
    return merged(int(params["STAT"]), stats[:rows].reshape(rows, -1, LANES))


def row_values(inputs: Mapping[str, Array], rows: int) -> Array:
    """An oracle's input ``x``, plus ``residual`` if given, as the shaders read it."""
    (x,) = float64(inputs, ["x"])
    return x[:rows] + float64(inputs, ["residual"])[0][:rows] if "residual" in inputs else x[:rows]


def _part_stats(stat: int, x: Array, start: int) -> Array:
    """Statistics [R, 4] of a part of rows, x [R, C], that begins at column ``start``."""
    found = np.zeros((len(x), LANES))
    with np.errstate(invalid="ignore", over="ignore"):
        if stat == STATS["moments"]:
            mean = x.mean(axis=1)
            away = x - mean[:, None]
            found[:] = np.stack([x[:, 0], mean - x[:, 0], (away**2).sum(axis=1), np.full(len(x), x.shape[1])], axis=1)
        elif stat == STATS["largest"]:
            best = np.argmax(x, axis=1)
            found[:, 0], found[:, 1] = x[np.arange(len(x)), best], start + best
        elif stat == STATS["exponents"]:
            found[:, 0] = np.maximum(x.max(axis=1), -float(np.finfo(np.float32).max))
            found[:, 1] = np.exp(x - found[:, :1]).sum(axis=1)
        else:
            found[:, 0] = x.sum(axis=1) if stat == STATS["sum"] else (x**2).sum(axis=1)
    return found


def _check_row_stats(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["COLS"])
    shapes.expect("residual", *shapes.by_name["x"])
    parts = -(-texels_for(int(params["COLS"])) // int(params["PART_TEXELS"]))
    shapes.expect("output", shapes.rows("x"), LANES * parts)


@op("row_stats", ("x",), ("residual",), _check_row_stats)
def _oracle_row_stats(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, stat, step = row_values(inputs, size[0]), int(params["STAT"]), LANES * int(params["PART_TEXELS"])
    starts = range(0, x.shape[1], step)
    return np.concatenate([_part_stats(stat, x[:, start : start + step], start) for start in starts], axis=1)


def _check_merge(shapes: Shapes, params: Params) -> None:
    parts = -(-texels_for(shapes.by_name["stats"][1]) // int(params["FAN"]))
    shapes.expect("output", shapes.rows("stats"), LANES * parts)


@op("merge_stats", ("stats",), (), _check_merge)
def _oracle_merge(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (stats,) = float64(inputs, ["stats"])
    parts, fan = stats[: size[0]].reshape(size[0], -1, LANES), int(params["FAN"])
    found = [merged(int(params["STAT"]), parts[:, start : start + fan]) for start in range(0, parts.shape[1], fan)]
    return np.concatenate(found, axis=1)
