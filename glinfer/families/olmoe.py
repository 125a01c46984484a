"""OLMoE (Muennighoff et al. 2024): a Llama with experts, and all heads normalised together.

Defaults follow OlmoeConfig in Hugging Face's transformers 5.
"""

from glinfer.families.qwen3_moe import EXPERT_NAMES, GGUF_EXPERT_NAMES
from glinfer.families.record import SAME_MATHS, ExpertSettings, Family, Gguf, HuggingFace

FAMILY = Family(
    "olmoe",
    names=EXPERT_NAMES,
    head_norms="width",
    experts=True,
    attention_biases=("q", "k", "v", "o"),
    usual={"hidden_act": "silu"},
    huggingface=HuggingFace(
        sizes=(50304, 2048, 2048, 16, 16, 0, 0, 4096),
        eps=1e-5,
        only={**SAME_MATHS, "clip_qkv": (None,)},
        experts=ExpertSettings(64, 8),
    ),
    gguf=Gguf("olmoe", attention_bias=False, names=GGUF_EXPERT_NAMES, normed_experts=False),
)
