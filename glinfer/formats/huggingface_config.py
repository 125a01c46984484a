"""``config.json`` of a Hugging Face model: what its settings mean here, and which of them cannot be run.

Names and defaults are those of GPT2Config in Hugging Face's transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from reprlib import Repr
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import ConfigError, FormatError
from glinfer.formats.files import opened, shown

_LONGEST_CONFIG = 1 << 20  # bytes; a real one has about a thousand
_FAMILIES = ("gpt2",)
_ACTIVATIONS = {"gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "gelu": "gelu"}
# What each setting has to be, and what it is when the file leaves it out, for the maths to be GPT-2's own.
# (reorder_and_upcast_attn only says in which precision and order the same numbers are computed.)
_ONLY = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}

_quoting = Repr()
_quoting.maxstring = _quoting.maxother = 120
quoted = _quoting.repr
"""A value or name out of a file for a message: in quotes, and shortened when it is absurdly long."""


def read_json(path: Path, longest: int) -> dict[str, Any]:
    """The JSON object in a file of at most ``longest`` bytes.

    Raises:
        FormatError: the file cannot be read, is longer, is no JSON, or holds something other than an object.
    """
    label = shown(path)
    with opened(path) as (file, size):
        text = file.read(longest + 1)
    if len(text) > longest:
        raise FormatError(f"{label}: found {max(size, len(text))} bytes; expected JSON of at most {longest} bytes")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise FormatError(f"{label}: found no JSON in its {len(text)} bytes ({words}); get the file again") from None
    if not isinstance(values, dict):
        raise FormatError(f"{label}: found a JSON {type(values).__name__}; expected an object with names and values")
    return values


def read_config(path: Path) -> ModelConfig:
    """The model that a ``config.json`` describes; what the file leaves out is as in GPT2Config.

    Raises:
        FormatError: the file cannot be read or is no JSON object, the model is of an unknown family, or a setting
            is out of range or asks for maths that GPT-2 here does not do; the setting is named as in the file.
    """
    label = shown(path)
    values = read_json(path, _LONGEST_CONFIG)
    known = ", ".join(map(repr, _FAMILIES))
    if "model_type" not in values:
        raise FormatError(f"{label}: found no model_type; expected one of the families known: {known}")
    if values["model_type"] not in _FAMILIES:
        raise FormatError(
            f"{label}: found model_type {quoted(values['model_type'])}; expected one of the families known: {known}"
        )
    return _gpt2(values, label)


def _gpt2(values: Mapping[str, Any], label: str) -> ModelConfig:
    for name, needed in _ONLY.items():
        if values.get(name, needed) is not needed:
            raise FormatError(
                f"{label}: {name} is {quoted(values[name])}, which is not supported; "
                f"expected {json.dumps(needed)}, GPT-2's own"
            )
    if values.get("quantization_config") is not None:
        raise FormatError(
            f"{label}: quantization_config is set; expected a model that is not quantised; "
            "get its float32, float16 or bfloat16 weights"
        )
    activation = values.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise FormatError(
            f"{label}: activation_function is {quoted(activation)}, which is not supported; "
            f"expected one of {', '.join(_ACTIVATIONS)}"
        )
    width = _whole(values, label, "n_embd", "hidden_size", default=768)
    inner_is_given = values.get("n_inner") is not None
    try:
        return ModelConfig(
            vocab_size=_whole(values, label, "vocab_size", default=50257),
            hidden_size=width,
            num_attention_heads=_whole(values, label, "n_head", "num_attention_heads", default=12),
            num_hidden_layers=_whole(values, label, "n_layer", "num_hidden_layers", default=12),
            max_position_embeddings=_positions(values, label),
            intermediate_size=_whole(values, label, "n_inner", default=0) if inner_is_given else 4 * width,
            layer_norm_eps=values.get("layer_norm_epsilon", 1e-5),
            hidden_act=_ACTIVATIONS[activation],
            model_type="gpt2",
            tie_word_embeddings=values.get("tie_word_embeddings", True),
        )
    except ConfigError as error:
        raise FormatError(f"{label}: it describes no possible model: {error}") from None


def _positions(values: Mapping[str, Any], label: str) -> int:
    """How many positions; old files have ``n_ctx`` too, which only counts where there is no other."""
    fallback = _whole(values, label, "n_ctx", default=1024)
    return _whole(values, label, "n_positions", "max_position_embeddings", default=fallback)


def _whole(values: Mapping[str, Any], label: str, name: str, alias: str = "", *, default: int) -> int:
    """The whole number under ``name``, or under ``alias``, its name in other families, which GPT2Config takes too."""
    present = [key for key in (name, alias) if key in values]
    for key in present:
        value = values[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise FormatError(f"{label}: {key} is {quoted(value)}; expected a whole number of at least 1")
    if len(present) == 2 and values[name] != values[alias]:
        raise FormatError(
            f"{label}: {name} is {quoted(values[name])} but {alias} is {quoted(values[alias])}; "
            "expected them to agree, as they mean the same; remove the wrong one"
        )
    return int(values[present[0]]) if present else default
