"""The weights of the reference plan of models without a published one, in the formats of their files.

Tensors lie four elements a texel (:mod:`glinfer.gl.layouts.flat`), so a matrix may be floats, half floats or blocks of
any of GGML's formats, which the shaders unpack as they multiply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.formats.tensors import weight_shapes
from glinfer.kernels.spec import Array
from glinfer.lower.ropes import QUERIES, rope_names, rope_of
from glinfer.quant.formats import F16, F32, FROM_FILE
from glinfer.quant.ggml import words_of


def stored_formats(config: ModelConfig, weights: str, formats: Mapping[str, str] | None = None) -> dict[str, str]:
    """The format of each tensor of a model in textures: ``F32``, ``F16`` or a packed one.

    ``weights`` is ``file`` for the ``formats`` of the file, float32 where it is left out, or ``f32``. Raises PlanError
    for another one.
    """
    if weights not in ("f32", FROM_FILE):
        raise PlanError(f"there is no weight format {weights!r} for a reference plan; expected f32 or {FROM_FILE}")
    found, positions = {}, f"{config.family.names.positions}.weight"
    for name, shape in weight_shapes(config).items():
        # Positions are few, so they are floats.
        floats = weights == "f32" or len(shape) != 2 or name == positions or formats is None
        found[name] = F32 if floats or formats is None else formats.get(name, F32)
    return found


class DecoderWeights(Mapping[str, Array]):
    """The arrays that a reference plan uploads, by tensor name; each is made on demand, and not kept."""

    def __init__(self, checkpoint: Checkpoint, stored: Mapping[str, str]) -> None:
        """Make the arrays from a checkpoint, in the formats ``stored``."""
        self._checkpoint, self._stored = checkpoint, stored
        self._ropes = {
            name + end: (rope, bool(end))
            for rope, name in rope_names(checkpoint.config).items()
            for end in ("", QUERIES)[: 1 + rope.scales_queries]
        }

    def __getitem__(self, name: str) -> Array:
        """A vector [n], floats [rows, inputs], or the words [rows, words] of packed rows.

        The weights of a convolution are [positions, D], a position a row.

        Raises:
            KeyError: there is no such tensor.
        """
        if name in self._ropes:
            rope, queries = self._ropes[name]
            return rope_of(self._checkpoint.config, rope, queries=queries)
        kept = self._stored[name]
        if kept == F32:
            floats = self._checkpoint.floats(name)
            return np.ascontiguousarray(floats[:, 0].T) if floats.ndim == 3 else floats
        packed = self._checkpoint.packed[name]
        return packed.halves() if kept == F16 else words_of(np.ascontiguousarray(packed.blocks), kept)

    def packed_tensor(self, name: str) -> PackedTensor | None:
        """The tensor whose bits an array keeps; None for floats and the table of rotary positions."""
        return None if self._stored.get(name, F32) == F32 else self._checkpoint.packed[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor."""
        return name in self._ropes or name in self._stored

    def __iter__(self) -> Iterator[str]:
        """The names of the checkpoint's tensors."""
        return iter(self._stored)

    def __len__(self) -> int:
        """Number of the checkpoint's tensors."""
        return len(self._stored)
