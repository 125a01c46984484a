"""Qwen 3 with experts (Qwen Team 2025): a Qwen 3 whose layers have many small MLPs, of which each token uses a few."""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, HuggingFace, later_windows
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family

EXPERT_NAMES = Names(
    gate="mlp.experts.{}.gate_proj",
    up="mlp.experts.{}.up_proj",
    down="mlp.experts.{}.down_proj",
    router="mlp.gate",
)
GGUF_EXPERT_NAMES = replace(
    GGUF_NAMES,
    gate="ffn_gate_exps",
    up="ffn_up_exps",
    down="ffn_down_exps",
    router="ffn_gate_inp",
    shared_router="ffn_gate_inp_shexp",
    shared_gate="ffn_gate_shexp",
    shared_up="ffn_up_shexp",
    shared_down="ffn_down_shexp",
)
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
