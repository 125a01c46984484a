"""SmolLM3 (Hugging Face 2025): a Llama without rotary positions in every fourth layer."""

from glinfer.families.gguf import Gguf, windows
from glinfer.families.huggingface import Fields, HuggingFace
from glinfer.families.layer import LONGEST_PERIOD, every, shortest_pattern
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings

_PERIOD = 4


def _rotary_layers(settings: Settings, fields: Fields) -> Fields:
    """The layers with rotary positions, as a pattern; empty for all."""
    name, layers = "no_rope_layers", fields["num_hidden_layers"]
    if settings.given(name):
        listed = settings.values[name]
        if not isinstance(listed, list) or len(listed) < layers or any(each not in (0, 1) for each in listed):
            raise settings.refused(name, f"a list of {layers} numbers, 0 for a layer without angles and 1 for others")
        pattern = shortest_pattern([int(each) for each in listed[:layers]])
    else:
        pattern = every(settings.integer("no_rope_layer_interval", _PERIOD, most=LONGEST_PERIOD), layers, 1, 0)
    return {"rotary_layers": pattern if 0 in pattern else ()}


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """GGUF files do not say which layers have no rotary positions."""
    pattern = every(_PERIOD, fields["num_hidden_layers"], 1, 0)
    return {**windows(keys, fields), "rotary_layers": pattern if 0 in pattern else ()}


FAMILY = Family(
    "smollm3",
    rope_theta=2e6,
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("gate", "up", "down"),
    usual={"rotary_layers": (1, 1, 1, 0)},
    huggingface=HuggingFace(sizes=(128256, 2048, 11008, 36, 16, 4, 0, 32768), tied=True, more=_rotary_layers),
    gguf=Gguf("smollm3", pairs_together=True, more=_of_metadata),
)
