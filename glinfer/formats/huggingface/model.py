"""Hugging Face models: a directory with config.json and safetensors weights.

The record of a family has the names of tensors in its files, which of them are joined, and whether they are [in, out].
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families.huggingface import TERNARY
from glinfer.families.names import Names
from glinfer.families.settings import Settings, is_integer, quoted
from glinfer.formats.checkpoint import Checkpoint, check_blocks, check_names
from glinfer.formats.embedding import Embedding
from glinfer.formats.files import AnyPath, shown
from glinfer.formats.huggingface.config import classifies, read_config, squashes
from glinfer.formats.huggingface.files import find_tensors, locate, text_tensors
from glinfer.formats.huggingface.layouts import (
    ALTERNATING,
    TRANSPOSED,
    file_shape,
    layout_of,
    mapped_parts,
    parts_in,
    with_blocks,
)
from glinfer.formats.huggingface.sentence import Sentence, read_sentence, with_tokenizers_length
from glinfer.formats.huggingface.ternary import with_ternary
from glinfer.formats.json_files import read_json
from glinfer.formats.packed import PackedTensor
from glinfer.formats.reranker import of_two_tokens
from glinfer.formats.safetensors_file import FoundTensor, ScaledTensor, check_stored, load_tensor, map_bytes, same_bytes
from glinfer.formats.tensors import StoredTensor, stored_tensors
from glinfer.graph.nodes import ModelTensor
from glinfer.limits import MAX_CONFIG_BYTES

Array = npt.NDArray[np.float32]
_MOST_GUESSING = 16  # layers after the model's that are looked for
NO_FACTORS: Mapping[str, Array] = MappingProxyType({})


def read_huggingface(path: AnyPath) -> Checkpoint:
    """Read a model that ``save_pretrained`` of Hugging Face's transformers wrote.

    Args:
        path: the model's directory, or a file in it: config.json, a safetensors file, or the index of its shards.

    The families are those of :func:`glinfer.formats.huggingface.config.recognised`. The tensors have the names and
    shapes of :func:`glinfer.formats.tensors.weight_shapes`: matrices are [out, in], query, key and value are separate,
    and there is a head only if it is not tied to the embeddings. As in transformers 5, a head in the file that differs
    from the embeddings is not tied to them, whatever config.json says. In the file, names may lack ``transformer.`` or
    ``model.``, and numbers are float32, float16 or bfloat16. Other tensors that some versions store are ignored: masks
    (``attn.bias``, ``attn.masked_bias``), angles (``rotary_emb.inv_freq``), and vision encoders.

    Matrices that are not float32 stay packed (``F16``, ``BF16`` or ``MXFP4``), as read-only views of the memory-mapped
    files unless they are reordered; vectors are widened, and in families with published passes matrices too. Everything
    is checked before the first number is read.

    Raises:
        FormatError: a file is missing, unreadable, damaged or in another directory; the family or a setting is not
            supported; a tensor is missing, unknown, of another type or shape.
    """
    config_file, weights = locate(path)
    values = read_json(config_file, MAX_CONFIG_BYTES)
    config, settings, behind = _with_sentence(read_config(config_file), values, config_file.parent)
    form = config.family.in_huggingface
    names = _names(config, behind)
    label = shown(weights)
    found = with_blocks(text_tensors(find_tensors(weights)) if form.wrapped else find_tensors(weights), form)
    found = with_ternary(found, form)
    check_blocks(config.num_hidden_layers, found, f"{_layers(config)} of {shown(config_file)}", label)
    prefixed = 2 * sum(name.startswith(form.prefix) for name in found) >= len(found)
    buffer = re.compile("|".join((form.buffers, *_guessing(config, names, values))))
    stored = stored_tensors(replace(config, dense=()) if behind.dense else config, names)
    if not prefixed:
        stored = [replace(each, name=each.name.removeprefix(form.prefix)) for each in stored]
    wanted = {each.name for each in stored}
    unused = {f"{names.head}.weight"} if config.embeds else set()  # embeddings do not need it
    found = {
        name: found[name]
        for name in found
        if name in wanted or (name not in unused and not buffer.fullmatch(name.removeprefix(form.prefix)))
    }
    embedding, head_name = stored[0], f"{names.head}.weight"
    if config.tie_word_embeddings and head_name in found and not config.embeds:
        head = replace(embedding, name=head_name)
        if embedding.name not in found:
            stored[0] = head  # some software stores tied tensors under the head's name
        else:
            stored.append(replace(head, tensors=(replace(embedding.tensors[0], role="head"),)))
    check_tensors(config, stored, found, head_name, label)
    if config.tie_word_embeddings and len(stored) > 1 and stored[-1].name == head_name:
        if same_bytes((found[embedding.name], found[head_name])):
            stored.pop()
        else:
            config = replace(config, tie_word_embeddings=False)
    files = (config_file, weights, *{each.file: None for each in found.values()}, *behind.files)
    read = loaded(config, stored, found, shown(path), _factors(config, Settings(values, shown(config_file))))
    name_of = config.family.names.of
    dense = {f"{name_of('dense', None, str(n))}.{part}": load_tensor(each) for n, part, each in behind.tensors()}
    tensors = MappingProxyType({**read.tensors, **dense})
    read = replace(read, tensors=tensors, files=files, embedding=settings)
    return read if behind.tokens is None else of_two_tokens(read, *behind.tokens)


def _with_sentence(
    config: ModelConfig, values: Mapping[str, Any], folder: Path
) -> tuple[ModelConfig, Embedding, Sentence]:
    """The configuration with pooling and dense layers, the embedding settings, and the modules next to the weights."""
    ranks, sentence = classifies(config.family, values), read_sentence(folder)
    if config.embeds or ranks or sentence.pooling or sentence.tokens is not None:
        sentence = with_tokenizers_length(sentence, folder)
    if ranks:  # the classifier replaces pooling and dense layers
        embedding = replace(sentence.embedding, ranks=True, squashes=squashes(values))
        return config, embedding, Sentence(files=sentence.files)
    if sentence.pooling:
        shapes = tuple(each.shape for each in sentence.dense)
        config = replace(config, pooling=sentence.pooling, dense=shapes, tie_word_embeddings=True)
    return config, sentence.embedding, sentence


def _names(config: ModelConfig, behind: Sentence) -> Names:
    """The names of tensors in the file, including a classifier's."""
    form = config.family.in_huggingface
    names = form.names or config.family.names
    if not config.dense or behind.dense:
        return names
    assert form.classifier is not None
    found = {str(number): name for number, name in enumerate(form.classifier.matrices)}
    return replace(names, dense="{}", dense_norm=form.classifier.norm, letters={**names.letters, **found})


def _guessing(config: ModelConfig, names: Names, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Expressions for names in layers that predict later tokens, which follow those of the model, without prefix."""
    count, first = values.get("num_nextn_predict_layers"), config.num_hidden_layers
    layers = range(first, first + min(_MOST_GUESSING, int(count))) if count is not None and is_integer(count, 1) else ()
    prefix = config.family.in_huggingface.prefix
    return tuple(f"{re.escape(names.layer.format(each).removeprefix(prefix))}.*" for each in layers)


def _factors(config: ModelConfig, settings: Settings) -> Mapping[str, Array]:
    """The factors of tensors, by role and letter."""
    found = config.family.in_huggingface.factors(settings, dataclasses.asdict(config))
    return {name: np.asarray(factor, np.float32) for name, factor in found.items()}


def _layers(config: ModelConfig) -> str:
    """The word for layers, with the name of their number in config.json."""
    key, *_ = config.family.in_huggingface.keys.get("num_hidden_layers", ("num_hidden_layers",))
    return f"layers ({key})"


def loaded(
    config: ModelConfig,
    stored: list[StoredTensor],
    found: Mapping[str, FoundTensor],
    source: str,
    factors: Mapping[str, Array] = NO_FACTORS,
) -> Checkpoint:
    """Load tensors that have been checked, times their factors by role and letter, which make them float32."""
    data = map_bytes({k: v for each in stored for k, v in mapped_parts(each.name, found[each.name]).items()})
    parts = (part for each in stored for part in parts_in(config, each, found[each.name], data))
    names = config.family.names

    def scaled(tensor: ModelTensor, own: Array | PackedTensor) -> Array | PackedTensor:
        factor = factors.get(f"{tensor.role}.{tensor.letter}" if tensor.letter else tensor.role)
        if factor is None or (factor == 1).all():
            return own
        floats = own.floats() if isinstance(own, PackedTensor) else own
        return floats * (factor[:, None] if factor.ndim else factor)

    return Checkpoint.of_parts(config, ((tensor.name(names), scaled(tensor, own)) for tensor, own in parts), source)


def check_tensors(
    config: ModelConfig, stored: list[StoredTensor], found: Mapping[str, FoundTensor], head_name: str, label: str
) -> None:
    """Compare names, types and shapes with those that the model needs; messages use the file's names."""
    expected = {each.name: each for each in stored}
    counts = f"found {len(found)} tensors, expected {len(expected)} for {config.num_hidden_layers} {_layers(config)}"
    if expected.keys() - found.keys() == {head_name} and found.keys() <= expected.keys():
        raise FormatError(
            f"{label}: tensor {quoted(head_name)} is missing, and config.json says that it is not tied to the "
            f"embeddings (tie_word_embeddings); {counts}; save the model together with its head"
        )
    check_names(expected, found, counts, label)
    for name, each in expected.items():
        tensor = found[name]
        layout = layout_of(each, config.family.in_huggingface)
        may_be_packed = layout == TERNARY or (layout == ALTERNATING and len(each.shape) == 2)
        is_packed = isinstance(tensor, ScaledTensor) and may_be_packed
        where = f"{shown(tensor.file)}: tensor {quoted(name)}"
        if not is_packed:
            check_stored(tensor, where)
        shape = each.stacked_shape if is_packed else file_shape(config, each)
        if tensor.shape != shape:
            turned = len(shape) == 2 and tensor.shape == shape[::-1]
            usual = (
                f"files of {config.family.name} have [in, out]" if layout == TRANSPOSED else "it has to be [out, in]"
            )
            hint = f"; it is stored transposed, but {usual}" if turned else ""
            raise FormatError(
                f"{where} has shape {quoted(list(tensor.shape))}; expected {list(shape)} from config.json{hint}"
            )
