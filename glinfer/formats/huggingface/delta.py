"""The settings of layers with the delta rule, as Qwen3_5TextConfig of Hugging Face's transformers reads them."""

from __future__ import annotations

from typing import Any

from glinfer.config import DELTA, FULL, LONGEST_PERIOD, every, shortest_pattern
from glinfer.formats.json_files import Settings

_SIZES = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_PERIOD = "full_attention_interval"


def delta_fields(settings: Settings, layers: int) -> dict[str, Any]:
    """Which layers have the delta rule, and its sizes.

    Raises:
        FormatError: a setting is something else.
    """
    if settings.given("layer_types"):
        kinds = settings.values["layer_types"]
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (FULL, DELTA) for kind in kinds):
            raise settings.refused("layer_types", f"{layers} names, each {FULL} or {DELTA}")
        pattern = shortest_pattern(kinds)
    else:
        period = settings.whole(_PERIOD, 4)
        if period > LONGEST_PERIOD:
            raise settings.refused(_PERIOD, f"a whole number from 1 to {LONGEST_PERIOD}")
        pattern = every(period, layers, DELTA, FULL)
    if DELTA not in pattern:
        return {}
    return {"layer_types": pattern, **{name: settings.whole(name, usual) for name, usual in _SIZES.items()}}
