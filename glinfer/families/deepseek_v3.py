"""DeepSeek-V3 and its kind (DeepSeek-AI 2024), such as Moonlight: keys and values are products of a latent.

Experts are those of GLM-4.5, in groups, of which a token uses the best.
"""

from dataclasses import replace
from typing import Any

from glinfer.families import experts
from glinfer.families.gguf import SIGMOID, Gguf
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.names import GGUF_EXPERT_NAMES, Names
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings

_LETTERS = {f"projection.{letter}": f"{letter}_proj" for letter in ("q", "q_a", "q_b", "kv_b")}
_KEY, _VALUE = "attention.key_length", "attention.value_length"
USUAL = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 192}


def with_latents(names: Names) -> Names:
    """The names of a family with latents."""
    letters = {**_LETTERS, "projection.kv_a": "kv_a_proj_with_mqa"}
    return replace(names, projection="self_attn.{}", head_norm="self_attn.{}_layernorm", letters=letters)


def latents(settings: Settings, fields: Fields, usual: dict[str, int] = USUAL) -> Fields:
    """The widths of latents and of heads."""
    found = {name: settings.integer(name, usual[name]) for name in ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim")}
    null = "q_lora_rank" in settings.values and not settings.given("q_lora_rank")
    stays = settings.integer("qk_nope_head_dim", usual["head_dim"] - usual["qk_rope_head_dim"])
    return {
        **found,
        "q_lora_rank": 0 if null else settings.integer("q_lora_rank", usual["q_lora_rank"]),
        "head_dim": stays + found["qk_rope_head_dim"],
    }


def _more(settings: Settings, fields: Fields) -> Fields:
    return experts.from_settings(settings, fields, dense=3, scale=2.5, grouping=(8, 4)) | latents(settings, fields)


def latents_of_metadata(keys: Keys, fields: Fields) -> Fields:
    """The widths of latents in a GGUF file; in newer ones those of heads have their own names."""
    newer, usual = keys.given(f"{_KEY}_mla"), fields["hidden_size"] // fields["num_attention_heads"]
    return {
        "kv_lora_rank": keys.integer("attention.kv_lora_rank"),
        "q_lora_rank": keys.integer("attention.q_lora_rank", 0, least=0),
        "qk_rope_head_dim": keys.integer("rope.dimension_count"),
        "head_dim": keys.integer(f"{_KEY}_mla" if newer else _KEY),
        "v_head_dim": keys.integer(f"{_VALUE}_mla" if newer else _VALUE, usual),
        "num_key_value_heads": fields["num_attention_heads"],
        "partial_rotary_factor": 1.0,
    }


def metadata_of_latents(config: Any) -> dict[str, Any]:
    """The keys of latents for a GGUF file."""
    low = {"attention.q_lora_rank": config.q_lora_rank} if config.q_lora_rank else {}
    return {"attention.kv_lora_rank": config.kv_lora_rank, _VALUE: config.v_head_dim, **low}


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    return {**experts.from_metadata(keys, fields), **latents_of_metadata(keys, fields)}


def _metadata(config: Any) -> dict[str, Any]:
    return {**experts.to_metadata(config), **metadata_of_latents(config)}


GGUF_LETTERS = {"projection.kv_a": "kv_a_mqa"}
FAMILY = Family(
    "deepseek_v3",
    names=with_latents(experts.NAMES),
    positions="neighbours",
    sigmoid_router=True,
    share_eps=1e-20,
    usual={
        **USUAL,
        "norm_topk_prob": True,
        "num_dense_layers": 3,
        "dense_intermediate_size": 18432,
        "shared_intermediate_size": 2048,
        "routed_scaling_factor": 2.5,
    },
    huggingface=HuggingFace(
        sizes=(129280, 7168, 2048, 61, 128, 0, 192, 4096),
        keys={"intermediate_size": ("moe_intermediate_size",), "head_dim": ("qk_head_dim",)},
        only={
            **SAME_MATHS,
            "moe_layer_freq": (1,),
            "rope_interleave": (True, None),
            "attention_bias": (False, None),
        },
        unused=("n_shared_experts",),
        experts=(256, 8, True),
        more=_more,
    ),
    gguf=Gguf(
        "deepseek2",
        attention_bias=False,
        names=replace(GGUF_EXPERT_NAMES, letters=GGUF_LETTERS),
        inner_key="expert_feed_forward_length",
        marked_by="expert_gating_func",
        marks=(SIGMOID,),
        more=_of_metadata,
        further=_metadata,
    ),
)
