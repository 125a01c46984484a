"""The settings specific to LFM2, as Lfm2Config of Hugging Face's transformers reads them."""

from __future__ import annotations

from typing import Any

from glinfer.config import CONV, FULL, LONGEST_CONVOLUTION, shortest_pattern
from glinfer.formats.huggingface.around import listed_kinds
from glinfer.formats.json_files import Settings, is_whole

_INNER, _OLD_INNER = "intermediate_size", "block_ff_dim"
_OLD_TIED = "tie_embedding"
_ATTENTION = "full_attn_idxs"


def convolved_fields(settings: Settings, layers: int) -> dict[str, Any]:
    """The layers with a convolution, and its length in positions.

    Raises:
        FormatError: a setting is invalid.
    """
    kinds = _kinds(settings, layers)
    if CONV not in kinds:
        return {}
    length = settings.whole("conv_L_cache", 3, most=LONGEST_CONVOLUTION)
    biased = settings.flag("conv_bias")
    return {"layer_types": shortest_pattern(kinds), "conv_L_cache": length, "conv_bias": biased}


def _kinds(settings: Settings, layers: int) -> list[str]:
    """The type of each layer: listed, or from the numbers of attention layers; all attention if neither is given."""
    kinds = listed_kinds(settings, layers, CONV)
    if kinds is not None:
        return kinds
    if not settings.given(_ATTENTION):
        return [FULL] * layers
    numbers = settings.values[_ATTENTION]
    if not isinstance(numbers, list) or not all(is_whole(each, 0) and each < layers for each in numbers):
        raise settings.refused(_ATTENTION, f"a list of numbers of layers, from 0 to {layers - 1}")
    with_attention = set(numbers)
    return [FULL if layer in with_attention else CONV for layer in range(layers)]


def convolved_inner(settings: Settings, usual: int) -> int:
    """The width of the MLP; the file has it before the adjustment."""
    found = settings.whole(_OLD_INNER if _OLD_INNER in settings.values else _INNER, usual)
    if not settings.flag("block_auto_adjust_ff_dim", default=True):
        return found
    found = 2 * found // 3
    name = "block_ffn_dim_multiplier"
    if name in settings.values and not settings.given(name):
        return found
    multiple = settings.whole("block_multiple_of", 256)
    found = int(settings.number(name, 1.0) * found)
    return -(-found // multiple) * multiple


def convolved_tied(settings: Settings, *, usual: bool) -> bool:
    """Whether the head is tied to the embeddings."""
    name = _OLD_TIED if _OLD_TIED in settings.values else "tie_word_embeddings"
    return settings.flag(name, default=usual)
