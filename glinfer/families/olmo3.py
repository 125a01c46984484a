"""OLMo 3 (OLMo Team 2025): an OLMo 2 with a window in three layers of four, whose angles are never scaled.

Its GGUF files are OLMo 2's with a window.
"""

from dataclasses import replace
from functools import partial

from glinfer.families import olmo2
from glinfer.families.gguf import WINDOW, windows
from glinfer.families.huggingface import angles_by_kind, listed_windows

_THETA, _WINDOW = 500_000.0, 4096
FAMILY = replace(
    olmo2.FAMILY,
    name="olmo3",
    rope_theta=_THETA,
    usual={
        **olmo2.FAMILY.usual,
        "rope_local_base_freq": _THETA,
        "sliding_window": _WINDOW,
        "layer_types": ("sliding_attention",) * 3 + ("full_attention",),
    },
    huggingface=replace(
        olmo2.FAMILY.in_huggingface,
        windows=partial(listed_windows, period=4, usual=_WINDOW, local=True),
        rope=partial(angles_by_kind, local_theta=_THETA),
    ),
    gguf=replace(olmo2.FAMILY.in_gguf, marked_by=WINDOW, more=partial(windows, period=4, local_theta=_THETA)),
)
