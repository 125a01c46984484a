"""``config.json`` of a Hugging Face model: what its settings mean here, and which of them cannot be run.

Names and defaults are those of the configurations in Hugging Face's transformers: GPT2Config here, those of families
with rotary positions in :mod:`glinfer.formats.huggingface_rotary`.
"""

from __future__ import annotations

import json
from pathlib import Path

from glinfer.config import ModelConfig
from glinfer.errors import ConfigError, FormatError
from glinfer.formats.families import GPT2
from glinfer.formats.files import shown
from glinfer.formats.huggingface_json import Settings, is_whole, quoted, read_json
from glinfer.formats.huggingface_rope import check_scaling
from glinfer.formats.huggingface_rotary import ROTARY_FAMILIES, rotary_config

__all__ = ["CONFIG_FAMILIES", "quoted", "read_config", "read_json"]

CONFIG_FAMILIES = (GPT2, *ROTARY_FAMILIES)
"""What ``model_type`` may be."""
_LONGEST_CONFIG = 1 << 20  # bytes; a real one has about a thousand
_ACTIVATIONS = {"gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "gelu": "gelu"}
# What each setting has to be, and what it is when the file leaves it out, for the maths to be GPT-2's own.
# (reorder_and_upcast_attn only says in which precision and order the same numbers are computed.)
_ONLY = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def read_config(path: Path) -> ModelConfig:
    """The model that a ``config.json`` describes; what the file leaves out is as in its family's configuration.

    Raises:
        FormatError: the file cannot be read or is no JSON object, the model is of an unknown family, or a setting
            is out of range or asks for maths that is not done here; the setting is named as in the file.
    """
    label = shown(path)
    values = read_json(path, _LONGEST_CONFIG)
    known = ", ".join(map(repr, CONFIG_FAMILIES))
    if "model_type" not in values:
        raise FormatError(f"{label}: found no model_type; expected one of the families known: {known}")
    family = values["model_type"]
    if family not in CONFIG_FAMILIES:
        near = [name for name in CONFIG_FAMILIES if isinstance(family, str) and family.startswith(name)]
        hint = f" ({near[0]} is another family)" if near else ""
        raise FormatError(
            f"{label}: found model_type {quoted(family)}; expected one of the families known: {known}{hint}"
        )
    if values.get("quantization_config") is not None:
        raise FormatError(
            f"{label}: quantization_config is set; expected a model that is not quantised; "
            "get its float32, float16 or bfloat16 weights, or quantised ones in a GGUF file"
        )
    settings = Settings(values, label)
    try:
        config = _gpt2(settings) if family == GPT2 else rotary_config(family, settings)
    except ConfigError as error:
        raise FormatError(f"{label}: it describes no possible model: {error}") from None
    check_scaling(config, label)
    return config


def _gpt2(settings: Settings) -> ModelConfig:
    values, label = settings.values, settings.label
    for name, needed in _ONLY.items():
        if values.get(name, needed) is not needed:
            raise FormatError(
                f"{label}: {name} is {quoted(values[name])}, which is not supported; "
                f"expected {json.dumps(needed)}, GPT-2's own"
            )
    width = _whole(settings, "n_embd", "hidden_size", default=768)
    inner_is_given = values.get("n_inner") is not None
    return ModelConfig(
        vocab_size=_whole(settings, "vocab_size", default=50257),
        hidden_size=width,
        num_attention_heads=_whole(settings, "n_head", "num_attention_heads", default=12),
        num_hidden_layers=_whole(settings, "n_layer", "num_hidden_layers", default=12),
        max_position_embeddings=_positions(settings),
        intermediate_size=_whole(settings, "n_inner", default=0) if inner_is_given else 4 * width,
        layer_norm_eps=values.get("layer_norm_epsilon", 1e-5),
        hidden_act=settings.one_of("activation_function", _ACTIVATIONS, "gelu_new"),
        model_type=GPT2,
        tie_word_embeddings=values.get("tie_word_embeddings", True),
    )


def _positions(settings: Settings) -> int:
    """How many positions; old files have ``n_ctx`` too, which only counts where there is no other."""
    fallback = _whole(settings, "n_ctx", default=1024)
    return _whole(settings, "n_positions", "max_position_embeddings", default=fallback)


def _whole(settings: Settings, name: str, alias: str = "", *, default: int) -> int:
    """The whole number under ``name``, or under ``alias``, its name in other families, which GPT2Config takes too."""
    values = settings.values
    present = [key for key in (name, alias) if key in values]
    for key in present:
        if not is_whole(values[key], 1):
            raise settings.refused(key, "a whole number of at least 1")
    if len(present) == 2 and values[name] != values[alias]:
        raise FormatError(
            f"{settings.label}: {name} is {quoted(values[name])} but {alias} is {quoted(values[alias])}; "
            "expected them to agree, as they mean the same; remove the wrong one"
        )
    return int(values[present[0]]) if present else default
