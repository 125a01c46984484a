"""The language model in a vision-language model, as in Gemma 3 from 4B on.

Its settings are ``text_config`` in config.json, and its tensors have other names. The vision encoder is ignored, so
images are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from glinfer.errors import FormatError
from glinfer.families import FAMILIES
from glinfer.families.record import HuggingFace
from glinfer.formats.json_files import quoted

_Found = TypeVar("_Found")
_KEPT = ("quantization_config", "architectures", "tie_word_embeddings")  # of the whole model
_TEXT = (("language_model.model.", "model."), ("language_model.", ""), ("model.language_model.", "model."))
_PICTURES = ("vision_tower.", "multi_modal_projector.", "visual.")


def text_settings(values: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The settings of the language model; those of a text-only model are returned unchanged.

    Raises:
        FormatError: ``text_config`` is missing.
    """
    name = values.get("model_type")
    around = [each.name for each in FAMILIES.values() if each.huggingface and name in each.huggingface.wrapped]
    if not around:
        return dict(values)
    own = values.get("text_config")
    if not isinstance(own, dict):
        raise FormatError(
            f"{label}: model_type is {quoted(name)} and text_config is {quoted(own)}; expected the settings of its "
            f"language model, of family {around[0]}"
        )
    kept = {key: values[key] for key in _KEPT if key in values}
    return {"model_type": around[0], **own, **kept}


def text_tensors(found: Mapping[str, _Found], form: HuggingFace) -> dict[str, _Found]:
    """The tensors of the language model, under the names of a text-only model."""
    if not form.wrapped or not any(name.startswith(before) for name in found for before, _ in _TEXT):
        return dict(found)
    renamed = {}
    for name, tensor in found.items():
        if name.removeprefix("model.").startswith(_PICTURES):
            continue
        before, after = next((pair for pair in _TEXT if name.startswith(pair[0])), ("", ""))
        renamed[after + name.removeprefix(before)] = tensor
    return renamed
