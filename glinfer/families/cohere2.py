"""Command R7B and Command A (Cohere 2024): windows in three layers of four, which alone have rotary positions."""

from dataclasses import replace
from functools import partial

from glinfer.families import cohere
from glinfer.families.gguf import windows
from glinfer.families.huggingface import Fields, listed_windows
from glinfer.families.layer import SLIDING, every
from glinfer.families.settings import Keys, Settings

_PERIOD, _WINDOW = 4, 4096


def _rotary_windows(fields: Fields) -> Fields:
    """The layers with rotary positions: those with a window."""
    kinds = fields.get("layer_types", (SLIDING if fields.get("sliding_window") else "",))
    return {"rotary_layers": tuple(int(kind == SLIDING) for kind in kinds)}


def _more(settings: Settings, fields: Fields) -> Fields:
    return {**cohere.divided_logits(settings, fields), **_rotary_windows(fields)}


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    found = windows(keys, fields, period=_PERIOD, usual=_WINDOW)
    return {**found, **_rotary_windows(found)}


FAMILY = replace(
    cohere.FAMILY,
    name="cohere2",
    rope_theta=10000.0,
    usual={
        **cohere.FAMILY.usual,
        "sliding_window": _WINDOW,
        "layer_types": every(_PERIOD, _PERIOD, SLIDING, "full_attention"),
        "rotary_layers": every(_PERIOD, _PERIOD, 1, 0),
    },
    huggingface=replace(
        cohere.FAMILY.in_huggingface,
        windows=partial(listed_windows, period=_PERIOD, usual=_WINDOW, period_key="sliding_window_pattern"),
        more=_more,
    ),
    gguf=replace(cohere.FAMILY.in_gguf, architecture="cohere2", more=_of_metadata),
)
