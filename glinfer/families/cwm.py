"""Code World Model (Meta 2025): a Llama with a window in all layers but the first of each four."""

from functools import partial

from glinfer.families.huggingface import Fields, HuggingFace, angles, listed_windows
from glinfer.families.layer import FULL, SLIDING
from glinfer.families.record import Family
from glinfer.families.settings import Settings

_PERIOD = 4
_SCALING = {
    **{"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 8192,
}


def _windows(settings: Settings, fields: Fields) -> Fields:
    """The layers with a window, which files list, or the usual ones."""
    if not settings.given("layer_types"):
        layers = range(fields["num_hidden_layers"])
        kinds = [SLIDING if layer % _PERIOD else FULL for layer in layers]
        settings = Settings({**settings.values, "layer_types": kinds}, settings.label)
    return listed_windows(settings, fields, usual=8192)


FAMILY = Family(
    "cwm",
    rope_theta=1e6,
    mlp_biases=("gate", "up", "down"),
    huggingface=HuggingFace(
        sizes=(128256, 6144, 21504, 64, 48, 8, 128, 131072),
        eps=1e-5,
        windows=_windows,
        rope=partial(angles, usual=_SCALING),
    ),
)
