"""EXAONE 4 (LG AI Research 2025): norms after the branches and of each head; a window in three layers of four.

Where layers have a window, the others have no rotary positions.
"""

from glinfer.families.gguf import Gguf, windows
from glinfer.families.huggingface import Fields, HuggingFace, listed_windows
from glinfer.families.layer import FULL, SLIDING, LayerConfig
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings

_PERIOD, _WINDOW = 4, 4096


def _rotary_windows(fields: Fields) -> Fields:
    """The rotary layers of these windows: those that have one."""
    kinds = fields.get("layer_types", ())
    return {**fields, "rotary_layers": tuple(int(kind == SLIDING) for kind in kinds)} if FULL in kinds else fields


def _layers(settings: Settings, fields: Fields) -> Fields:
    """Windows by ``layer_types`` or by a period, if there is a window."""
    if settings.values.get("sliding_window", _WINDOW) is None:
        return listed_windows(settings, fields)
    return _rotary_windows(listed_windows(settings, fields, _PERIOD, _WINDOW, "sliding_window_pattern"))


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    return _rotary_windows(windows(keys, fields, period=_PERIOD))


FAMILY = Family(
    "exaone4",
    layer=LayerConfig(norms="after", head_norms="head"),
    usual={"sliding_window": _WINDOW, "layer_types": (SLIDING,) * 3 + (FULL,), "rotary_layers": (1, 1, 1, 0)},
    huggingface=HuggingFace(sizes=(102400, 4096, 16384, 32, 32, 32, 0, 2048), eps=1e-5, windows=_layers),
    gguf=Gguf("exaone4", attention_bias=False, more=_of_metadata),
)
