"""A model's weights under their usual names, whatever file they came from."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats.gab_layout import FloatArray, StoredArray, stored_arrays, tensor_count

GAB, GPT2 = FAMILIES = ("gab", "gpt2")
"""The families of models, as ``model_type`` names them."""
_CHUNK = 1 << 16  # floats looked at together by check_finite: small enough to stay in a CPU's cache


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model: its configuration and its named tensors.

    Attributes:
        config: the model's shape.
        tensors: float32 arrays by name, shapes as :func:`weight_shapes` gives them. They may be read-only
            views of a memory-mapped file and need not be contiguous.
        source: where they came from, for messages: a path, or words such as ``random weights (seed 0)``.
    """

    config: ModelConfig
    tensors: Mapping[str, FloatArray]
    source: str

    @property
    def parameter_count(self) -> int:
        """How many numbers all tensors have together."""
        return sum(tensor.size for tensor in self.tensors.values())

    def check_finite(self) -> None:
        """Look at every number, a few at a time.

        Raises:
            FormatError: a tensor has NaN or infinite values; names the first such tensor, how many such
                values it has and the index of the first.
        """
        for name, tensor in self.tensors.items():
            count, first = _not_finite(tensor)
            if count:
                index = ", ".join(str(int(i)) for i in np.unravel_index(first, tensor.shape))
                values = "value is" if count == 1 else "values are"
                raise FormatError(
                    f"{self.source}: {count} {values} NaN or infinite in tensor {name!r}, first at "
                    f"[{index}]; expected finite numbers only; the weights are damaged, get them again"
                )


def _not_finite(tensor: FloatArray) -> tuple[int, int]:
    """How many values are not finite, and the row-major index of the first (0 if there is none)."""
    count = first = seen = 0
    # nditer walks in row-major order whatever the strides and copies at most one chunk at a time.
    chunks = np.nditer(tensor, flags=["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=_CHUNK)
    for chunk in chunks:
        bad = ~np.isfinite(np.asarray(chunk))
        if bad.any():
            if not count:
                first = seen + int(bad.argmax())
            count += int(np.count_nonzero(bad))
        seen += bad.size
    return count, first


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a model, in the order of a GAB1 file.

    With width D, inner width I (4D in GAB1 files), vocabulary V and S positions: ``transformer.wte.weight``
    [V, D], ``transformer.wpe.weight`` [S, D]; for each block ``transformer.h.{i}`` ``.ln_1.weight`` and
    ``.bias`` [D], ``.attn.{q,k,v,out}_proj.weight`` [D, D], ``.ln_2.weight`` and ``.bias`` [D],
    ``.mlp.fc_in.weight`` [I, D] and ``.bias`` [I], ``.mlp.fc_out.weight`` [D, I] and ``.bias`` [D]; then
    ``transformer.ln_f.weight`` and ``.bias`` [D], ``lm_head.weight`` [V, D] and ``.bias`` [V].
    Matrices are [out, in]; the names are GPT-J's in Hugging Face's transformers. The family ``gpt2`` has biases in its
    attention too, ``.attn.{q,k,v,out}_proj.bias`` [D], and none in ``lm_head``. Where the embeddings are tied there
    is no ``lm_head.weight``.
    """
    shapes = {name: shape for array in stored_arrays(config) for name, shape in array.tensor_shapes().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    if config.model_type == GPT2:
        del shapes["lm_head.bias"]
        for name in [name for name in shapes if name.endswith("_proj.weight")]:
            shapes[name.removesuffix("weight") + "bias"] = (config.hidden_size,)
    return shapes


def head_weight(config: ModelConfig) -> str:
    """The name of the vocabulary's matrix: the token embedding where the two are tied."""
    return "transformer.wte.weight" if config.tie_word_embeddings else "lm_head.weight"


def check_tensors(config: ModelConfig, found: Mapping[str, tuple[str, tuple[int, ...]]], source: str) -> None:
    """Compare names, types and shapes with :func:`weight_shapes`.

    Args:
        config: the model that the tensors should make up.
        found: type (NumPy's name for it) and shape of each tensor there is.
        source: where they are, for the messages.

    Raises:
        FormatError: the model is of another family, or a tensor is missing, unknown, not float32 or of the
            wrong shape; names the first one and, for a wrong name, the nearest right one.
    """
    if config.model_type not in FAMILIES:
        raise FormatError(f"{source}: model_type is {config.model_type!r}; expected one of {', '.join(FAMILIES)}")
    expected = tensor_count(config) - config.tie_word_embeddings
    if config.model_type == GPT2:
        expected += 4 * config.num_hidden_layers - 1
    # Before any list of names is made: the block count comes from a file and may be absurd.
    if config.num_hidden_layers > len(found):
        raise FormatError(
            f"{source}: found {len(found)} tensors; expected {expected} for the {config.num_hidden_layers} "
            "blocks of its configuration; these weights do not go with it"
        )
    shapes = weight_shapes(config)
    missing = [name for name in shapes if name not in found]
    unknown = [name for name in found if name not in shapes]
    if missing:
        raise FormatError(
            f"{source}: tensor {missing[0]!r} is missing{_nearest(missing[0], unknown, 'found')}; "
            f"found {len(found)} tensors, expected {expected}"
        )
    if unknown:
        raise FormatError(
            f"{source}: unknown tensor {unknown[0]!r}{_nearest(unknown[0], list(shapes), 'expected')}; "
            f"found {len(found)} tensors, expected {expected}"
        )
    for name, shape in shapes.items():
        kind, found_shape = found[name]
        if kind != "float32":
            raise FormatError(f"{source}: tensor {name!r} is {kind}; expected float32; convert it first")
        if found_shape != shape:
            raise FormatError(
                f"{source}: tensor {name!r} has shape {list(found_shape)}; "
                f"expected {list(shape)} from the configuration"
            )


def _nearest(name: str, others: list[str], verb: str) -> str:
    """A hint at the most similar of ``others``, if one is similar (of many only the first few are tried)."""
    close = difflib.get_close_matches(name, itertools.islice(others, 2000), n=1)
    return f" ({verb} {close[0]!r}, the nearest name)" if close else ""


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Check a checkpoint's tensors with :func:`check_tensors`, before writing a file of them."""
    found = {name: (tensor.dtype.name, tensor.shape) for name, tensor in checkpoint.tensors.items()}
    check_tensors(checkpoint.config, found, checkpoint.source)


def random_checkpoint(config: ModelConfig, seed: int = 0, scale: float = 0.04) -> Checkpoint:
    """A model with seeded random weights, the same on every machine: for tests and for measuring speed.

    Every array of a GAB1 file, in file order, is drawn with ``numpy.random.default_rng(seed)`` from a normal
    distribution of standard deviation ``scale``; token embeddings are 4 times that, output weights 3 times,
    and LayerNorm's gains lie around 1.

    Raises:
        InputError: ``seed`` is negative or ``scale`` is not a finite number of at least 0.
    """
    if seed < 0:
        raise InputError(f"the seed is {seed}; expected a whole number of at least 0")
    if not (math.isfinite(scale) and scale >= 0):
        raise InputError(f"the scale is {scale}; expected a finite number of at least 0")
    generator = np.random.default_rng(seed)
    tensors: dict[str, FloatArray] = {}
    for array in stored_arrays(config):
        drawn = (generator.standard_normal(array.shape) * scale).astype(np.float32)
        tensors.update(array.split(_around(array, drawn)))
    return Checkpoint(config, tensors, f"random weights (seed {seed})")


def _around(array: StoredArray, drawn: FloatArray) -> FloatArray:
    """Move or stretch ``drawn`` as the tensor's role asks; see :func:`random_checkpoint`."""
    name = array.names[0]
    is_gain = ".ln_" in name and name.endswith(".weight")
    stretch = {"transformer.wte.weight": 4, "lm_head.weight": 3}.get(name, 1)
    moved: FloatArray = drawn * np.float32(stretch) + np.float32(1) if is_gain else drawn * np.float32(stretch)
    return moved
