"""Ministral 3 (Mistral AI 2025): a Mistral with scaled angles, whose queries grow with their position.

Defaults follow Ministral3Config in Hugging Face's transformers 5.
"""

from glinfer.families.layer import QUERY_BETA
from glinfer.families.record import Family, Gguf, HuggingFace

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    QUERY_BETA: 0.1,
}
FAMILY = Family(
    "ministral3",
    scaled_queries=True,
    usual={
        "hidden_act": "silu",
        "rope_theta": 1e6,
        "rope_scaling": {name: value for name, value in _YARN.items() if name != "rope_theta"},
    },
    huggingface=HuggingFace(
        sizes=(131072, 4096, 14336, 34, 32, 8, 128, 262144),
        eps=1e-5,
        window="all",
        usual_window=0,
        usual_scaling=_YARN,
        wrapped=("mistral3",),
    ),
    gguf=Gguf("mistral3", pairs_together=True),
)
