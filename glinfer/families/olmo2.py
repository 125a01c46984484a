"""OLMo 2 (OLMo Team 2024): a Llama with norms after the branches, and all heads normalised together."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.families.layer import LayerConfig
from glinfer.families.record import Family

FAMILY = Family(
    "olmo2",
    layer=LayerConfig(norms="after", head_norms="width"),
    attention_biases=("q", "k", "v", "o"),
    huggingface=HuggingFace(sizes=(50304, 4096, 11008, 32, 32, 0, 0, 2048), eps=1e-5),
    gguf=Gguf("olmo2", head="own", attention_bias=False),
)
