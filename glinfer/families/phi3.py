"""Phi-3 and Phi-4-mini (Microsoft 2024): a Llama whose files join matrices, and whose heads may be rotated in part."""

from dataclasses import replace
from functools import partial

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace, window_of_all
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family

FAMILY = Family(
    "phi3",
    usual={"partial_rotary_factor": 1.0},
    huggingface=HuggingFace(
        sizes=(32064, 3072, 8192, 32, 32, 0, 0, 4096),
        eps=1e-5,
        windows=partial(window_of_all, usual=0),
        names=replace(Names(), projection="self_attn.qkv_proj", gate="mlp.gate_up_proj", up="mlp.gate_up_proj"),
    ),
    gguf=Gguf(
        "phi3",
        attention_bias=False,
        partial_rotary=True,
        names=replace(GGUF_NAMES, projection="attn_qkv", gate="ffn_up"),
    ),
)
