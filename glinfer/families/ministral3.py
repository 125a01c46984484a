"""Ministral 3 (Mistral AI 2025): a Mistral with scaled angles, whose queries grow with their position."""

from functools import partial

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace, angles, window_of_all
from glinfer.families.layer import QUERY_BETA
from glinfer.families.record import Family

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
    usual={"rope_theta": 1e6, "rope_scaling": {name: value for name, value in _YARN.items() if name != "rope_theta"}},
    huggingface=HuggingFace(
        sizes=(131072, 4096, 14336, 34, 32, 8, 128, 262144),
        eps=1e-5,
        windows=partial(window_of_all, usual=0),
        rope=partial(angles, usual=_YARN, beta=True),
        wrapped=("mistral3",),
    ),
    gguf=Gguf("mistral3", pairs_together=True),
)
