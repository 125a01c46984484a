"""GLM-4.5 Air and its kind (Z.ai 2025): after the first layers many small MLPs, and one more that all tokens use.

Experts are chosen by sigmoids plus a learned number (Wang et al. 2024), and a half of each head is rotated.
"""

from dataclasses import replace

from glinfer.families import experts
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, HuggingFace
from glinfer.families.names import GGUF_EXPERT_NAMES, GGUF_NAMES
from glinfer.families.record import Family

FAMILY = Family(
    "glm4_moe",
    names=experts.NAMES,
    sigmoid_router=True,
    share_eps=1e-20,
    attention_biases=("q", "k", "v"),
    usual={
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "norm_topk_prob": True,
        "num_dense_layers": 1,
        "dense_intermediate_size": 10944,
        "shared_intermediate_size": 1408,
    },
    huggingface=HuggingFace(
        sizes=(151552, 4096, 1408, 46, 96, 8, 0, 131072),
        eps=1e-5,
        keys={"intermediate_size": ("moe_intermediate_size",)},
        only={**SAME_MATHS, "use_qk_norm": (False,)},
        unused=("n_shared_experts",),
        experts=(128, 8, True),
        more=experts.from_settings,
    ),
    gguf=Gguf(
        "glm4moe",
        partial_rotary=True,
        names=replace(GGUF_EXPERT_NAMES, mlp_norm=GGUF_NAMES.attention_post_norm),
        inner_key="expert_feed_forward_length",
        more=experts.from_metadata,
        further=experts.to_metadata,
    ),
)
