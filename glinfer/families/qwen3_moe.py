"""Qwen 3 with experts (Qwen Team 2025): a Qwen 3 whose layers have many small MLPs, of which each token uses a few."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, HuggingFace, later_windows
from glinfer.families.layer import LayerConfig
from glinfer.families.names import EXPERT_NAMES, GGUF_EXPERT_NAMES
from glinfer.families.record import Family

FAMILY = Family(
    "qwen3_moe",
    names=EXPERT_NAMES,
    layer=LayerConfig(head_norms="head"),
    attention_biases=("q", "k", "v", "o"),
    usual={"norm_topk_prob": True},
    huggingface=HuggingFace(
        sizes=(151936, 2048, 768, 24, 32, 4, 0, 32768),
        keys={"intermediate_size": ("moe_intermediate_size",)},
        windows=later_windows,
        only={
            **SAME_MATHS,
            "use_sliding_window": (False, None),
            "decoder_sparse_step": (1,),
            "mlp_only_layers": ([], None),
        },
        experts=(128, 8, False),
    ),
    gguf=Gguf("qwen3moe", attention_bias=False, names=GGUF_EXPERT_NAMES, inner_key="expert_feed_forward_length"),
)
