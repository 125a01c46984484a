"""What a weight's texture holds, in little: a thumbnail, a histogram, and counts of what is odd.

Weights are read a few rows at a time, and unpacked where they are packed, so that a matrix of any size takes no more
memory than its thumbnail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.formats import Checkpoint, weight_shapes
from glinfer.inspect.look.lens import weight_rows
from glinfer.inspect.look.numbers import Numbers, Tally, layer_of
from glinfer.models.choice import is_published, plan_for, reference_plans
from glinfer.models.plan import Plan
from glinfer.ops.kernels import KernelOptions

BINS = 64
EDGE = 128
"""Pixels of a thumbnail's longer edge, at most."""
_CHUNK = 1 << 22  # weights that are in memory together


@dataclass(frozen=True, eq=False)
class WeightLook:
    """One weight.

    Attributes:
        name: the tensor's.
        layer: the block that it belongs to; None for embeddings, the last norm and the vocabulary's matrix.
        shape: of the matrix, [1, n] for a vector.
        format: in the file, ``F32`` or one of :data:`glinfer.formats.packed.PACKED_FORMATS`.
        texture: width, height and texel format of its texture in the reference plan.
        image: [h, w], the weight in its rows and columns. Of a matrix a pixel is the mean of absolute values, since
            means of both signs are near 0 everywhere; of a vector it is the mean as it is.
        block: (rows, columns) that a pixel is the mean of.
        counts: [BINS], how many finite weights lie in each part of ``edges`` [BINS + 1].
        numbers: ``count``, ``zeros``, ``nan``, ``infinite``, and of those that are finite ``min``, ``max``, ``mean``
            and ``std``, None where there are none.
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
    numbers: Numbers

    def to_json(self) -> dict[str, Any]:
        """Everything but the picture."""
        width, height, texels = self.texture
        return {
            "name": self.name,
            "layer": self.layer,
            "shape": list(self.shape),
            "format": self.format,
            "texture": {"width": width, "height": height, "format": texels},
            **self.numbers,
            "histogram": {"from": float(self.edges[0]), "to": float(self.edges[-1]), "counts": self.counts.tolist()},
        }


def textures_of(checkpoint: Checkpoint, edge: int) -> dict[str, tuple[int, int, str]]:
    """Width and height in texels, and format, of the textures of the reference plan, by tensor name.

    ``edge`` is the largest texture of the renderer. No OpenGL is needed.

    Raises:
        PlanError: something does not fit a texture.
    """
    config, formats = checkpoint.config, checkpoint.formats()
    plan: Plan
    if is_published(config, formats):
        plan = plan_for(config, "reference", max_texture_size=edge)
    else:  # weights lie alike whatever the number of rows is, which caches take memory for
        plan = reference_plans(config, "file", formats, KernelOptions(), edge).of(1)
    layouts = {tensor.name: tensor.layout_within(edge) for tensor in plan.of_kind("weight")}
    return {name: (layout.width, layout.height, layout.format.name) for name, layout in layouts.items()}


def look_at_weight(checkpoint: Checkpoint, name: str, texture: tuple[int, int, str]) -> WeightLook:
    """Read one weight twice: for its range and counts first, then for its histogram and thumbnail.

    Raises:
        InputError: the package gguf, which unpacks GGML's formats, is not installed.
    """
    numbers, shape = _numbers(checkpoint, name), _shape(checkpoint, name)
    low, high = numbers["min"], numbers["max"]
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
        image = sums / pixels  # NaN where nothing is finite
    return WeightLook(
        name, layer_of(name), shape, checkpoint.formats()[name], texture, image, block, counts, edges, numbers
    )


def block_of(shape: tuple[int, int]) -> tuple[int, int]:
    """How many rows and columns of a matrix go into a pixel of its thumbnail.

    As many of both, unless the matrix is so long and thin that its shorter edge would be next to nothing.
    """
    per = -(-max(shape) // EDGE)
    rows, cols = (min(per, max(1, edge * 4 // EDGE)) for edge in shape)
    return rows, cols


def _shape(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    shape = weight_shapes(checkpoint.config)[name]
    return (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])


def _parts(checkpoint: Checkpoint, name: str) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """The weight a few rows at a time, with the number of the first of them."""
    rows, cols = _shape(checkpoint, name)
    step = max(1, _CHUNK // cols)
    for first in range(0, rows, step):
        yield first, weight_rows(checkpoint, name, first, min(first + step, rows))


def _numbers(checkpoint: Checkpoint, name: str) -> Numbers:
    tally = Tally()
    for _, part in _parts(checkpoint, name):
        tally.add(part)
    return tally.numbers()


def _edges(low: float, high: float) -> npt.NDArray[np.float64]:
    """Edges of the bars of a histogram; around a single value they are as wide as it is large."""
    if low == high:
        reach = abs(low) / 2 or 1.0
        low, high = low - reach, high + reach
    return np.linspace(low, high, BINS + 1)
