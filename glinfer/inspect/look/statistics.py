"""Statistics of tensors and weights for ``look.json``: ranges, moments, counts of odd values, thumbnails, histograms.

Weights are read and unpacked a few rows at a time, so that even the largest needs little memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.formats import Checkpoint, weight_shapes
from glinfer.inspect.look.lens import weight_rows
from glinfer.limits import PIECE_ELEMENTS
from glinfer.models.choice import is_published, plan_for, reference_plans
from glinfer.models.oracle import MASK_LIMIT
from glinfer.models.plan import Plan
from glinfer.ops.kernels import KernelOptions

Floats = npt.NDArray[np.floating]
Stats = dict[str, float | int | None]

BINS = 64
"""Bars of a histogram."""
MAX_EDGE = 128
"""Maximum pixels of a thumbnail's longer edge."""


@dataclass
class RunningStats:
    """Counts, range, sum and sum of squares of an array that comes in parts."""

    count: int = 0
    zeros: int = 0
    nan: int = 0
    infinite: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    squares: float = 0.0

    def add(self, part: Floats) -> None:
        """Add a part."""
        known = np.isfinite(part)
        finite = np.asarray(part if known.all() else part[known], dtype=np.float64).reshape(-1)
        nan = 0 if finite.size == part.size else int(np.count_nonzero(np.isnan(part)))
        self.count += part.size
        self.nan += nan
        self.infinite += part.size - finite.size - nan
        self.zeros += finite.size - int(np.count_nonzero(finite))
        if finite.size:
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
            self.total += float(finite.sum())
            self.squares += float(np.dot(finite, finite))

    def stats(self) -> Stats:
        """Return the counts, and ``min``, ``max``, ``mean`` and ``std`` of the finite elements (None without any)."""
        found: Stats = {name: getattr(self, name) for name in ("count", "zeros", "nan", "infinite")}
        finite = self.count - self.nan - self.infinite
        if not finite:
            return found | dict.fromkeys(("min", "max", "mean", "std"))
        mean = self.total / finite
        spread = math.sqrt(max(0.0, self.squares / finite - mean * mean))
        return found | {"min": self.low, "max": self.high, "mean": mean, "std": spread}


def layer_of(name: str) -> int | None:
    """Find the block number in a tensor's name, such as ``model.layers.3.mlp.up_proj.weight``; None without one."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def statistics(name: str, array: Floats) -> dict[str, Any]:
    """Describe a captured tensor; attention scores masked to −1e30 count as ``masked`` only."""
    masked = np.isfinite(array) & (array <= -MASK_LIMIT)
    running = RunningStats()
    running.add(array[~masked])
    about = {"name": name, "layer": layer_of(name), "shape": list(array.shape)}
    return {**about, **running.stats(), "masked": int(np.count_nonzero(masked))}


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
    """Thumbnail, histogram and statistics of one weight.

    Attributes:
        name: the tensor's name.
        layer: its block; None for embeddings, the final norm and the vocabulary matrix.
        shape: rows and columns, [1, n] for a vector.
        format: its format in the file, ``F32`` or one of :data:`glinfer.formats.packed.PACKED_FORMATS`.
        texture: width, height and texel format of its texture in the reference plan.
        image: [h, w] thumbnail. A matrix's pixel is the mean of absolute values, because signed means are near 0
            everywhere; a vector's pixel is the signed mean.
        block: (rows, columns) averaged by a pixel.
        counts: [BINS] finite weights between neighbouring ``edges`` [BINS + 1].
        stats: see :meth:`RunningStats.stats`.
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
        plan = reference_plans(config, "file", formats, KernelOptions(), edge).of(1)
    layouts = {tensor.name: tensor.layout_within(edge) for tensor in plan.of_kind("weight")}
    return {name: (layout.width, layout.height, layout.format.name) for name, layout in layouts.items()}


def summarize_weight(checkpoint: Checkpoint, name: str, texture: tuple[int, int, str]) -> WeightSummary:
    """Read one weight twice: for its statistics, then for its histogram and thumbnail.

    Raises:
        InputError: the package gguf, which unpacks GGML's formats, is not installed.
    """
    running, shape = RunningStats(), _shape(checkpoint, name)
    for _, part in _parts(checkpoint, name):
        running.add(part)
    stats = running.stats()
    low, high = stats["min"], stats["max"]
    edges = _edges(0.0 if low is None else float(low), 0.0 if high is None else float(high))
    counts = np.zeros(BINS, dtype=np.int64)
    block = block_of(shape)
    size = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    sums, pixels = np.zeros(size), np.zeros(size)
    starts = np.arange(0, shape[1], block[1])
    for first, part in _parts(checkpoint, name):
        finite = np.isfinite(part)
        counts += np.histogram(part[finite], BINS, (edges[0], edges[-1]))[0]
        part = np.where(finite, np.abs(part) if shape[0] > 1 else part, 0.0).astype(np.float64)
        lines = np.arange(first, first + len(part)) // block[0]
        begins = np.flatnonzero(np.diff(lines, prepend=-1))
        for into, values in ((sums, part), (pixels, finite.astype(np.float64))):
            across = np.add.reduceat(values, starts, axis=1)
            into[lines[begins]] += np.add.reduceat(across, begins, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        image = sums / pixels  # NaN if nothing is finite
    return WeightSummary(
        name, layer_of(name), shape, checkpoint.formats()[name], texture, image, block, counts, edges, stats
    )


def block_of(shape: tuple[int, int]) -> tuple[int, int]:
    """Choose how many (rows, columns) a thumbnail's pixel averages: a square, unless the matrix is very thin."""
    per = -(-max(shape) // MAX_EDGE)
    rows, cols = (min(per, max(1, edge * 4 // MAX_EDGE)) for edge in shape)
    return rows, cols


def _shape(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    shape = weight_shapes(checkpoint.config)[name]
    return (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])


def _parts(checkpoint: Checkpoint, name: str) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield a few rows at a time with the number of the first."""
    rows, cols = _shape(checkpoint, name)
    step = max(1, PIECE_ELEMENTS // cols)
    for first in range(0, rows, step):
        yield first, weight_rows(checkpoint, name, first, min(first + step, rows))


def _edges(low: float, high: float) -> npt.NDArray[np.float64]:
    """Return histogram edges; a single value gets a range as wide as its magnitude."""
    if low == high:
        reach = abs(low) / 2 or 1.0
        low, high = low - reach, high + reach
    return np.linspace(low, high, BINS + 1)
