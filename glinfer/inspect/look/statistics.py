"""Statistics of tensors and weights for ``look.json``: ranges, counts of odd values, thumbnails, histograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.formats import Checkpoint
from glinfer.inspect.pieces import Rows, WeightRows, spans
from glinfer.kernels.options import KernelOptions
from glinfer.lower.options import PlanOptions
from glinfer.lower.plans import is_published, plan_for, reference_plans
from glinfer.program.oracle import MASK_LIMIT
from glinfer.program.plan import Plan

Floats = npt.NDArray[np.floating]
Stats = dict[str, float | int | None]

BINS = 64
"""Bars of a histogram."""
MAX_EDGE = 128
"""Maximum pixels of a thumbnail's longer edge."""


def stats_of(pieces: Sequence[slice], rows: Rows) -> Stats:
    """Count the elements; ``min``, ``max``, ``mean`` and ``std`` are of the finite ones, None without any.

    The rows are read twice, in the given pieces.
    """
    counts: dict[str, int] = dict.fromkeys(("count", "zeros", "nan", "infinite"), 0)
    number, total, ends = 0, 0.0, list[float]()
    for values in map(rows.__getitem__, pieces):
        finite, nan = values[np.isfinite(values)], int(np.count_nonzero(np.isnan(values)))
        found = (values.size, finite.size - int(np.count_nonzero(finite)), nan, values.size - finite.size - nan)
        counts = {name: counts[name] + count for name, count in zip(counts, found, strict=True)}
        number, total = number + finite.size, total + float(finite.sum(dtype=np.float64))
        ends += [float(finite.min()), float(finite.max())] if finite.size else []
    if not number:
        return counts | dict.fromkeys(("min", "max", "mean", "std"))
    mean, squares = total / number, 0.0
    for values in map(rows.__getitem__, pieces):
        squares += float(np.square(values[np.isfinite(values)].astype(np.float64) - mean).sum())
    return counts | {"min": min(ends), "max": max(ends), "mean": mean, "std": math.sqrt(squares / number)}


def layer_of(name: str) -> int | None:
    """Find the block number in a tensor's name, such as ``model.layers.3.mlp.up_proj.weight``; None without one."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def statistics(name: str, array: Floats) -> dict[str, Any]:
    """Describe a captured tensor; attention scores masked to −1e30 count as ``masked`` only."""
    masked = np.isfinite(array) & (array <= -MASK_LIMIT)
    about = {"name": name, "layer": layer_of(name), "shape": list(array.shape)}
    return {**about, **stats_of([slice(None)], array[~masked]), "masked": int(np.count_nonzero(masked))}


def attention_numbers(probs: Floats) -> list[dict[str, float | None]]:
    """Describe where each attention head [heads, S, S] looks, as means over the queries.

    ``entropy_bits`` is 0 if every query looks at one token. ``to_first``, ``to_itself`` and ``to_previous`` are
    probabilities; ``to_first`` and ``to_previous`` exclude the first query, and are None for a single token.
    """
    found: list[dict[str, float | None]] = []
    for head in probs.astype(np.float64):
        with np.errstate(divide="ignore", invalid="ignore"):
            bits = np.where(head > 0, -head * np.log2(head), 0.0).sum(axis=1)
        later = head[1:]
        values: Mapping[str, float] = {
            "entropy_bits": float(bits.mean()),
            "to_first": float(later[:, 0].mean()) if len(later) else math.nan,
            "to_itself": float(np.diagonal(head).mean()),
            "to_previous": float(np.diagonal(later).mean()) if len(later) else math.nan,
        }
        found.append({name: value if math.isfinite(value) else None for name, value in values.items()})
    return found


@dataclass(frozen=True, eq=False)
class WeightSummary:
    """Thumbnail, histogram and statistics of one weight, whose shape is [1, n] if it is a vector.

    ``texture`` is width, height and texel format in the reference plan. ``image`` [h, w] averages ``block`` (rows,
    columns) a pixel: absolute values of a matrix, because signed means are near 0 everywhere, and signed ones of a
    vector. ``counts`` [BINS] are the finite weights between neighbouring ``edges`` [BINS + 1]; for ``stats`` see
    :func:`stats_of`.
    """

    name: str
    layer: int | None
    shape: tuple[int, int]
    format: str
    texture: tuple[int, int, str]
    image: npt.NDArray[np.float64]
    block: tuple[int, int]
    counts: npt.NDArray[np.int64]
    edges: npt.NDArray[np.float64]
    stats: Stats

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, without the thumbnail."""
        width, height, texels = self.texture
        return {
            "name": self.name,
            "layer": self.layer,
            "shape": list(self.shape),
            "format": self.format,
            "texture": {"width": width, "height": height, "format": texels},
            **self.stats,
            "histogram": {"from": float(self.edges[0]), "to": float(self.edges[-1]), "counts": self.counts.tolist()},
        }


def texture_sizes(checkpoint: Checkpoint, edge: int) -> dict[str, tuple[int, int, str]]:
    """Map tensor names to (width, height, format) of their textures in the reference plan; needs no OpenGL.

    ``edge`` is the renderer's largest texture size.

    Raises:
        PlanError: a tensor does not fit a texture.
    """
    config, formats = checkpoint.config, checkpoint.formats()
    plan: Plan
    if is_published(config, formats):
        plan = plan_for(config, "reference", max_texture_size=edge)
    else:  # the layout of weights does not depend on the number of rows
        plan = reference_plans(PlanOptions(config, "file", KernelOptions(), edge, formats)).of(1)
    layouts = {tensor.name: tensor.layout_within(edge) for tensor in plan.of_kind("weight")}
    return {name: (layout.width, layout.height, layout.format.name) for name, layout in layouts.items()}


def summarize_weight(checkpoint: Checkpoint, name: str, texture: tuple[int, int, str]) -> WeightSummary:
    """Summarize one weight, unpacked to floats a few rows at a time; some GGML formats need the package gguf."""
    rows: Rows = WeightRows(checkpoint, name)
    if len(rows.shape) == 1:
        rows = rows[:][None]
    shape = (rows.shape[0], rows.shape[1])
    block = block_of(shape)
    pieces = list(spans(shape, block[0]))
    stats = stats_of(pieces, rows)
    low, high = (float(stats[end] or 0.0) for end in ("min", "max"))
    if low == high:  # a single value gets a range as wide as its magnitude
        reach = abs(low) / 2 or 1.0
        low, high = low - reach, high + reach
    edges, counts, image = np.linspace(low, high, BINS + 1), np.zeros(BINS, dtype=np.int64), []
    for values in map(rows.__getitem__, pieces):
        known = np.isfinite(values)
        counts += np.histogram(values[known], BINS, (low, high))[0]
        shown = np.where(known, np.abs(values) if shape[0] > 1 else values, np.float32(0.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            image.append(_block_sums(shown, block) / _block_sums(known, block))  # NaN if nothing is finite
    thumbnail = np.concatenate(image)
    formats = checkpoint.formats()[name]
    return WeightSummary(name, layer_of(name), shape, formats, texture, thumbnail, block, counts, edges, stats)


def _block_sums(values: npt.NDArray[Any], block: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Sum blocks of (rows, columns)."""
    rows = np.add.reduceat(values, np.arange(0, values.shape[0], block[0]), axis=0, dtype=np.float64)
    return np.add.reduceat(rows, np.arange(0, values.shape[1], block[1]), axis=1)


def block_of(shape: tuple[int, int]) -> tuple[int, int]:
    """Choose how many (rows, columns) a thumbnail's pixel averages: a square, unless the matrix is very thin."""
    per = -(-max(shape) // MAX_EDGE)
    rows, cols = (min(per, max(1, edge * 4 // MAX_EDGE)) for edge in shape)
    return rows, cols
