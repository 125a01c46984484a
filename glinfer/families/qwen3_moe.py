"""Qwen 3 with experts (Qwen Team 2025): a Qwen 3 whose layers have many small MLPs, of which each token uses a few.

Defaults follow Qwen3MoeConfig in Hugging Face's transformers 5.
"""

from dataclasses import replace

from glinfer.families.record import GGUF_NAMES, SAME_MATHS, ExpertSettings, Family, Gguf, HuggingFace, Names

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
    head_norms="head",
    experts=True,
    attention_biases=("q", "k", "v", "o"),
    usual={"hidden_act": "silu", "norm_topk_prob": True},
    huggingface=HuggingFace(
        sizes=(151936, 2048, 768, 24, 32, 4, 0, 32768),
        keys={"intermediate_size": ("moe_intermediate_size",)},
        window="later",
        only={
            **SAME_MATHS,
            "use_sliding_window": (False, None),
            "decoder_sparse_step": (1,),
            "mlp_only_layers": ([], None),
        },
        experts=ExpertSettings(128, 8),
    ),
    gguf=Gguf("qwen3moe", attention_bias=False, names=GGUF_EXPERT_NAMES, inner_key="expert_feed_forward_length"),
)
