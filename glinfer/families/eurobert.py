"""EuroBERT (Boizard et al. 2025): a Llama whose tokens also see later tokens."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, Classifier, HuggingFace
from glinfer.families.record import Family

FAMILY = Family(
    "eurobert",
    encodes=True,
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("gate", "up", "down"),
    huggingface=HuggingFace(
        sizes=(128256, 768, 3072, 12, 12, 0, 0, 8192),
        eps=1e-5,
        only={**SAME_MATHS, "is_causal": (False, None), "use_bidirectional_attention": (True, None)},
        buffers=r"(.*\.)?rotary_emb\.inv_freq|lm_head\..*",
        classifier=Classifier(("dense", "classifier"), "gelu", pooling="late"),
    ),
    gguf=Gguf("eurobert", attention_bias=False),
)
