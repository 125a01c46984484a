"""Models with random weights, for tests and benchmarks."""

from __future__ import annotations

import functools
import math

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.families.names import Names
from glinfer.families.record import Family
from glinfer.formats.checkpoint import Checkpoint, FloatArray
from glinfer.formats.gab.file import StoredArray, stored_arrays
from glinfer.formats.packed import F16, GatheredTensor, PackedTensor, block_weights
from glinfer.formats.tensors import EXPERT_ROLES, tensors_of
from glinfer.graph.nodes import ModelTensor
from glinfer.quant.block_bytes import Bytes
from glinfer.quant.ggml import pack
from glinfer.quant.threads import in_threads

_PIECE = 1 << 20  # weights that one generator draws
_PACKED_ROWS = 256  # distinct rows that a packed matrix repeats


def random_checkpoint(config: ModelConfig, seed: int = 0, scale: float = 0.04) -> Checkpoint:
    """A model with seeded random weights, the same on every machine: for tests and benchmarks.

    Every tensor is drawn with ``numpy.random.default_rng(seed)`` from a normal distribution of standard deviation
    ``scale``; the mean of gains is the gain that changes nothing. Tensors of more than a million weights are drawn in
    pieces on several cores, each piece with its own generator. If GAB1 files hold the model, arrays are drawn in file
    order; token embeddings are multiplied by 4, and output weights by 3.

    Raises:
        InputError: ``seed`` is negative or ``scale`` is not a finite number of at least 0.
    """
    if seed < 0:
        raise InputError(f"the seed is {seed}; expected an integer of at least 0")
    if not (math.isfinite(scale) and scale >= 0):
        raise InputError(f"the scale is {scale}; expected a finite number of at least 0")
    generator = np.random.default_rng(seed)
    tensors: dict[str, FloatArray] = {}
    family = config.family
    if not family.gab1:
        for number, tensor in enumerate(tensors_of(config)):
            around = _usual(tensor, family)
            if math.prod(tensor.shape) > _PIECE:
                drawn = _large(tensor.shape, (seed, number), np.float32(scale), np.float32(around))
            else:
                drawn = generator.standard_normal(tensor.shape, dtype=np.float32)
                drawn = drawn * np.float32(scale) + np.float32(around)
            tensors[tensor.name(family.names)] = drawn
        return Checkpoint(config, tensors, f"random weights (seed {seed})")
    for array in stored_arrays(config):
        drawn = (generator.standard_normal(array.shape) * scale).astype(np.float32)
        tensors.update(array.split(_around(array, drawn, family.names)))
    return Checkpoint(config, tensors, f"random weights (seed {seed})")


def random_packed_checkpoint(
    config: ModelConfig, form: str, experts: str | None = None, seed: int = 0, scale: float = 0.04
) -> Checkpoint:
    """A random model with packed matrices, for benchmarks of models whose files would be too large.

    The rows of each matrix are sampled from 256 packed rows. This takes little memory, makes texels differ, and keeps
    the distribution of :func:`random_checkpoint`. Vectors and convolutions are floats.

    Args:
        config: the shape, of a family that GAB1 files cannot hold.
        form: the format of the matrices, one of :data:`glinfer.formats.packed.PACKED_FORMATS`.
        experts: the format of the experts' matrices; None for ``form``.
        seed: the seed of weights and of the choice of rows.
        scale: the standard deviation of the weights.

    Raises:
        InputError: GAB1 files hold the model, or a row of a matrix is not a whole number of blocks.
    """
    family = config.family
    if family.gab1:
        raise InputError(f"models of {config.model_type} have no packed matrices; leave out the file formats")
    tensors: dict[str, FloatArray] = {}
    packed: dict[str, PackedTensor] = {}
    drawn_rows = functools.cache(lambda kept, inputs: _packed_rows(kept, inputs, seed, scale))
    for number, tensor in enumerate(tensors_of(config)):
        name, generator = tensor.name(family.names), np.random.default_rng((seed, number))
        if len(tensor.shape) == 2:
            kept = experts if experts is not None and tensor.role in EXPERT_ROLES and tensor.letter else form
            rows, inputs = tensor.shape
            if inputs % block_weights(kept):
                raise InputError(f"a row of {name} has {inputs} weights, which are not whole blocks of {kept}")
            packed[name] = _by_lot(kept, (rows, inputs), drawn_rows(kept, inputs), generator)
        else:
            drawn = generator.standard_normal(tensor.shape, dtype=np.float32) * np.float32(scale)
            tensors[name] = drawn + np.float32(_usual(tensor, family))
    return Checkpoint(config, tensors, f"random weights (seed {seed})", packed)


def _packed_rows(form: str, inputs: int, seed: int, scale: float) -> Bytes:
    """Random packed rows, uint8 [256, bytes of a row]."""
    rows = np.random.default_rng((seed, inputs)).standard_normal((_PACKED_ROWS, inputs), dtype=np.float32)
    rows *= np.float32(scale)
    return rows.astype("<f2").view(np.uint8) if form == F16 else pack(rows, form)


def _by_lot(form: str, shape: tuple[int, int], rows: Bytes, generator: np.random.Generator) -> PackedTensor:
    """A matrix whose rows are sampled from ``rows``."""
    chosen = generator.integers(0, len(rows), shape[0])
    return GatheredTensor(form, shape, lambda part: rows[chosen[part]])


def _large(shape: tuple[int, ...], seed: tuple[int, int], scale: np.float32, around: np.float32) -> FloatArray:
    """A tensor drawn in pieces, each seeded with ``seed`` and its number."""
    drawn = np.empty(shape, dtype=np.float32)
    flat = drawn.reshape(-1)

    def draw(start: int) -> None:
        piece = flat[start : start + _PIECE]
        np.random.default_rng((*seed, start // _PIECE)).standard_normal(dtype=np.float32, out=piece)
        piece *= scale
        piece += around

    in_threads(draw, range(0, len(flat), _PIECE))
    return drawn


def _usual(tensor: ModelTensor, family: Family) -> float:
    """The mean that a tensor is drawn around; for decays, one that keeps a state for about twenty tokens."""
    if tensor.role == "decay_rate":
        return -3.0
    if tensor.role in ("delta_norm", "layer_scale"):
        return 1.0
    return 1.0 - family.norm_offset if tensor.is_gain else 0.0


def _around(array: StoredArray, drawn: FloatArray, names: Names) -> FloatArray:
    """Shift or scale ``drawn`` by the role of the tensor; see :func:`random_checkpoint`."""
    name = array.names[0]
    is_gain = len(array.shape) == 1 and name.endswith(".weight")
    stretch = {f"{names.embeddings}.weight": 4, f"{names.head}.weight": 3}.get(name, 1)
    moved: FloatArray = drawn * np.float32(stretch) + np.float32(1) if is_gain else drawn * np.float32(stretch)
    return moved
