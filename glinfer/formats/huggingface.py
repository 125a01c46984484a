"""Models as Hugging Face lays them out: a directory with config.json and safetensors weights.

Source of the layouts: GPT2LMHeadModel, and LlamaForCausalLM with its relatives, in Hugging Face's transformers. GPT-2's
"Conv1D" matrices are [in, out], and the attention's query, key and value lie side by side in one, ``c_attn``. The
others have the names and shapes of :func:`glinfer.formats.families.weight_shapes` in their files too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats.checkpoint import Checkpoint, nearest
from glinfer.formats.families import FAMILIES, weight_shapes
from glinfer.formats.files import AnyPath, shown
from glinfer.formats.huggingface_config import read_config
from glinfer.formats.huggingface_files import (
    STORED,
    FoundTensor,
    find_tensors,
    floats_of,
    load_tensor,
    locate,
    map_bytes,
    same_bytes,
)
from glinfer.formats.huggingface_json import quoted
from glinfer.formats.packed import PackedTensor

_GPT2_PREFIX, _ROTARY_PREFIX = "transformer.", "model."
_HEAD = "lm_head.weight"
_BUFFER = re.compile(r"(.*\.)?rotary_emb\.inv_freq")


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
    """Read a model that ``save_pretrained`` of Hugging Face's transformers wrote.

    Args:
        path: the model's directory, or a file in it: config.json, a safetensors file, or the index of its shards.

    The families are those of :data:`glinfer.formats.huggingface_config.CONFIG_FAMILIES`. The tensors have the names
    and shapes of :func:`glinfer.formats.families.weight_shapes`: matrices are [out, in], query, key and value are
    apart, and ``lm_head.weight`` is there only when it is not tied to the embeddings. As in transformers 5, a head in
    the file that differs from the embeddings is not tied to them, whatever config.json says. In the file, names may do
    without ``transformer.`` or ``model.``, numbers are float32, float16 or bfloat16, and what some versions stored
    beside the weights is passed over: masks (``attn.bias``, ``attn.masked_bias``), angles (``rotary_emb.inv_freq``).

    All of a GPT-2 is widened to float32; memory taken is that and one tensor more. Of other families, matrices are
    read-only views of the memory-mapped files, packed as ``F16`` or ``BF16`` where they are not float32, and vectors
    are widened. Everything is checked before the first number is read.

    Raises:
        FormatError: a file is missing, unreadable, damaged or not beside the others; the model is of another family
            or has a setting that is not supported; a tensor is missing, unknown, of another type or shape.
    """
    config_file, weights = locate(path)
    config = read_config(config_file)
    label = shown(weights)
    found = find_tensors(weights)
    # Before any list of names is made: the block count comes from a file and may be absurd.
    if config.num_hidden_layers > len(found):
        raise FormatError(
            f"{label}: found {len(found)} tensors; expected more for the {_counted(config)} "
            f"of {shown(config_file)}; these weights do not go with it"
        )
    rotary = FAMILIES[config.model_type].rotary
    usual = _ROTARY_PREFIX if rotary else _GPT2_PREFIX
    prefix = usual if 2 * sum(name.startswith(usual) for name in found) >= len(found) else ""
    found = _without_buffers(config, prefix, found)
    stored = list(_rotary_arrays(config, prefix) if rotary else _gpt2_arrays(config, prefix))
    embedding = stored[0]
    if config.tie_word_embeddings and _HEAD in found:
        head = replace(embedding, name=_HEAD)
        if embedding.name not in found:
            stored[0] = head  # of two tied tensors, some software keeps the head's name
        else:
            stored.append(replace(head, tensors=(_HEAD,)))
    _check(config, stored, found, label)
    if config.tie_word_embeddings and stored[-1].tensors == (_HEAD,):
        if same_bytes((found[embedding.name], found[_HEAD])):
            stored.pop()
        else:
            config = replace(config, tie_word_embeddings=False)
    return _loaded(config, stored, found, shown(path))


def _counted(config: ModelConfig) -> str:
    """How many layers there are, and what config.json calls that."""
    if FAMILIES[config.model_type].rotary:
        return f"{config.num_hidden_layers} layers (num_hidden_layers)"
    return f"{config.num_hidden_layers} blocks (n_layer)"


def _loaded(config: ModelConfig, stored: list[_Stored], found: Mapping[str, FoundTensor], source: str) -> Checkpoint:
    """The tensors out of arrays that have been checked."""
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    packed: dict[str, PackedTensor] = {}
    if not FAMILIES[config.model_type].rotary:
        for array in stored:
            tensors.update(array.split(load_tensor(found[array.name])))
        return Checkpoint(config, MappingProxyType(tensors), source)
    data = map_bytes({array.name: found[array.name] for array in stored})
    for array in stored:
        tensor, (name,) = found[array.name], array.tensors
        if len(tensor.shape) == 2 and tensor.dtype != "F32":
            packed[name] = PackedTensor(tensor.dtype, data[array.name].reshape(tensor.shape[0], -1))
        else:
            tensors[name] = floats_of(data[array.name], tensor)
    return Checkpoint(config, MappingProxyType(tensors), source, MappingProxyType(packed))


def _without_buffers(config: ModelConfig, prefix: str, found: Mapping[str, FoundTensor]) -> dict[str, FoundTensor]:
    """The tensors less the masks and angles that some versions of transformers stored as if they were weights."""
    mask = re.compile(re.escape(prefix) + r"h\.\d+\.attn\.(masked_)?bias")
    buffer = _BUFFER if FAMILIES[config.model_type].rotary else mask
    return {name: tensor for name, tensor in found.items() if not buffer.fullmatch(name)}


def _rotary_arrays(config: ModelConfig, prefix: str) -> Iterator[_Stored]:
    """Every array that the file of a model with rotary positions has to have, the embedding first."""
    for name, shape in weight_shapes(config).items():
        yield _Stored(prefix + name.removeprefix(_ROTARY_PREFIX) if name != _HEAD else name, shape, (name,))


def _gpt2_arrays(config: ModelConfig, prefix: str) -> Iterator[_Stored]:
    """Every array that the file of a GPT-2 has to have, under its name there, the embedding first."""
    width = config.hidden_size
    yield _Stored(f"{prefix}wte.weight", (config.vocab_size, width), (f"{_GPT2_PREFIX}wte.weight",))
    yield _Stored(f"{prefix}wpe.weight", (config.max_position_embeddings, width), (f"{_GPT2_PREFIX}wpe.weight",))
    for index in range(config.num_hidden_layers):
        yield from _block(config, f"{prefix}h.{index}", f"{_GPT2_PREFIX}h.{index}")
    yield from _layer_norm(f"{prefix}ln_f", f"{_GPT2_PREFIX}ln_f", width)
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
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    counts = f"found {len(found)} tensors, expected {len(expected)} for {_counted(config)}"
    if missing == [_HEAD] and not unknown:
        raise FormatError(
            f"{label}: tensor {quoted(_HEAD)} is missing, and config.json says that it is not tied to the embeddings "
            f"(tie_word_embeddings); {counts}; save the model together with its head"
        )
    if missing:
        hint = nearest(missing[0], unknown, "found")
        raise FormatError(f"{label}: tensor {quoted(missing[0])} is missing{hint}; {counts}")
    if unknown:
        hint = nearest(unknown[0], list(expected), "expected")
        raise FormatError(f"{label}: unknown tensor {quoted(unknown[0])}{hint}; {counts}")
    for name, array in expected.items():
        tensor = found[name]
        where = f"{shown(tensor.file)}: tensor {quoted(name)}"
        if tensor.dtype not in STORED:
            raise FormatError(f"{where} is {tensor.dtype}; expected one of {', '.join(STORED)}; convert it first")
        if tensor.shape != array.shape:
            turned = len(array.shape) == 2 and tensor.shape == array.shape[::-1]
            usual = "GPT-2's files have [in, out]" if array.transposed else "it has to be [out, in]"
            hint = f"; it is stored transposed, but {usual}" if turned else ""
            raise FormatError(
                f"{where} has shape {quoted(list(tensor.shape))}; expected {list(array.shape)} from config.json{hint}"
            )
