"""GPT-2 models as Hugging Face lays them out: a directory with config.json and safetensors weights.

Source of the layout: GPT2LMHeadModel in Hugging Face's transformers. Its "Conv1D" matrices are [in, out], and the
attention's query, key and value lie side by side in one, ``c_attn``.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.files import AnyPath, shown
from glinfer.formats.huggingface_config import quoted, read_config
from glinfer.formats.huggingface_files import STORED, FoundTensor, find_tensors, load_tensor, locate

_PREFIX = "transformer."
_HEAD = "lm_head.weight"
_NAMES_TRIED = 2000  # of very many names only so many are tried for the nearest


@dataclass(frozen=True)
class _Stored:
    """One array of the file: its name there, its shape there, and the tensors that it becomes.

    Several tensors lie side by side in the last dimension. ``transposed``: the file has [in, out].
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    transposed: bool = False

    def split(self, stored: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
        """The tensors in ``stored``, as views of it."""
        parts = np.split(stored, len(self.tensors), axis=-1)
        return {name: part.T if self.transposed else part for name, part in zip(self.tensors, parts, strict=True)}


def read_huggingface(path: AnyPath) -> Checkpoint:
    """Read a GPT-2 model that ``save_pretrained`` of Hugging Face's transformers wrote.

    Args:
        path: the model's directory, or a file in it: config.json, a safetensors file, or the index of its shards.

    The tensors have the names and shapes of :func:`glinfer.formats.checkpoint.weight_shapes`: matrices are [out, in],
    query, key and value are apart, and ``lm_head.weight`` is there only when it is not tied to the embeddings. In the
    file, names may do without ``transformer.``, numbers are float32, float16 or bfloat16, and masks
    (``attn.bias``, ``attn.masked_bias``) and a tied ``lm_head.weight`` are passed over.
    Memory taken is the weights as float32 and one tensor more; everything is checked before the first is loaded.

    Raises:
        FormatError: a file is missing, unreadable, damaged or not beside the others; the model is of another family
            or has a setting that is not supported; a tensor is missing, unknown, of another type or shape.
    """
    config_file, weights = locate(path)
    config = read_config(config_file)
    label = shown(weights)
    found = find_tensors(weights)
    prefix = _PREFIX if 2 * sum(name.startswith(_PREFIX) for name in found) >= len(found) else ""
    # Before any list of names is made: the block count comes from a file and may be absurd.
    if config.num_hidden_layers > len(found):
        raise FormatError(
            f"{label}: found {len(found)} tensors; expected more for the {config.num_hidden_layers} blocks (n_layer) "
            f"of {shown(config_file)}; these weights do not go with it"
        )
    stored = list(_gpt2_arrays(config, prefix, embedding=_embedding(config, prefix, found)))
    _check(config, stored, _without_masks(config, prefix, found), label)
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for array in stored:
        tensors.update(array.split(load_tensor(found[array.name])))
    return Checkpoint(config, MappingProxyType(tensors), shown(path))


def _embedding(config: ModelConfig, prefix: str, found: Mapping[str, FoundTensor]) -> str:
    """The name of the token embedding: of two tied tensors, some software keeps the head's name."""
    usual = f"{prefix}wte.weight"
    return _HEAD if config.tie_word_embeddings and usual not in found and _HEAD in found else usual


def _without_masks(config: ModelConfig, prefix: str, found: Mapping[str, FoundTensor]) -> dict[str, FoundTensor]:
    """The tensors less the attention masks, which some versions of transformers stored as if they were weights."""
    mask = re.compile(re.escape(prefix) + r"h\.\d+\.attn\.(masked_)?bias")
    return {name: tensor for name, tensor in found.items() if not mask.fullmatch(name)}


def _gpt2_arrays(config: ModelConfig, prefix: str, embedding: str) -> Iterator[_Stored]:
    """Every array that the file of such a model has to have, under its name there."""
    width = config.hidden_size
    yield _Stored(embedding, (config.vocab_size, width), (f"{_PREFIX}wte.weight",))
    yield _Stored(f"{prefix}wpe.weight", (config.max_position_embeddings, width), (f"{_PREFIX}wpe.weight",))
    for index in range(config.num_hidden_layers):
        yield from _block(config, f"{prefix}h.{index}", f"{_PREFIX}h.{index}")
    yield from _layer_norm(f"{prefix}ln_f", f"{_PREFIX}ln_f", width)
    if not config.tie_word_embeddings:
        yield _Stored(_HEAD, (config.vocab_size, width), (_HEAD,))


def _block(config: ModelConfig, stored: str, block: str) -> Iterator[_Stored]:
    width, inner = config.hidden_size, config.intermediate_size
    yield from _layer_norm(f"{stored}.ln_1", f"{block}.ln_1", width)
    yield from _conv1d(f"{stored}.attn.c_attn", tuple(f"{block}.attn.{letter}_proj" for letter in "qkv"), width, width)
    yield from _conv1d(f"{stored}.attn.c_proj", (f"{block}.attn.out_proj",), width, width)
    yield from _layer_norm(f"{stored}.ln_2", f"{block}.ln_2", width)
    yield from _conv1d(f"{stored}.mlp.c_fc", (f"{block}.mlp.fc_in",), width, inner)
    yield from _conv1d(f"{stored}.mlp.c_proj", (f"{block}.mlp.fc_out",), inner, width)


def _layer_norm(stored: str, name: str, width: int) -> Iterator[_Stored]:
    for part in ("weight", "bias"):
        yield _Stored(f"{stored}.{part}", (width,), (f"{name}.{part}",))


def _conv1d(stored: str, layers: tuple[str, ...], columns: int, rows: int) -> Iterator[_Stored]:
    """Linear layers of ``columns`` inputs and ``rows`` outputs each, side by side in one Conv1D."""
    weights, biases = (tuple(f"{layer}.{part}" for layer in layers) for part in ("weight", "bias"))
    yield _Stored(f"{stored}.weight", (columns, rows * len(layers)), weights, transposed=True)
    yield _Stored(f"{stored}.bias", (rows * len(layers),), biases)


def _check(config: ModelConfig, stored: list[_Stored], found: Mapping[str, FoundTensor], label: str) -> None:
    """Compare names, types and shapes with what the model needs; every message has the file's own names."""
    expected = {array.name: array for array in stored}
    passed_over = {_HEAD} if config.tie_word_embeddings else set()
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected and name not in passed_over]
    counts = f"found {len(found)} tensors, expected {len(expected)} for {config.num_hidden_layers} blocks (n_layer)"
    if missing:
        hint = _nearest(missing[0], unknown, "found")
        raise FormatError(f"{label}: tensor {quoted(missing[0])} is missing{hint}; {counts}")
    if unknown:
        hint = _nearest(unknown[0], list(expected), "expected")
        raise FormatError(f"{label}: unknown tensor {quoted(unknown[0])}{hint}; {counts}")
    for name, array in expected.items():
        tensor = found[name]
        where = f"{shown(tensor.file)}: tensor {quoted(name)}"
        if tensor.dtype not in STORED:
            raise FormatError(f"{where} is {tensor.dtype}; expected one of {', '.join(STORED)}; convert it first")
        if tensor.shape != array.shape:
            transposed = array.transposed and tensor.shape == array.shape[::-1]
            hint = "; it is stored transposed, but GPT-2's files have [in, out]" if transposed else ""
            raise FormatError(
                f"{where} has shape {list(tensor.shape)}; expected {list(array.shape)} from config.json{hint}"
            )


def _nearest(name: str, others: list[str], verb: str) -> str:
    """A hint at the most similar of ``others``, if one is similar."""
    close = difflib.get_close_matches(name, itertools.islice(others, _NAMES_TRIED), n=1)
    return f" ({verb} {quoted(close[0])}, the nearest name)" if close else ""
