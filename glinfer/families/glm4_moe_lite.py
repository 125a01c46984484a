"""GLM-4.7-Flash (Z.ai 2026): DeepSeek-V3 in a smaller size. Its GGUF files are DeepSeek's, and read as such."""

from dataclasses import replace

from glinfer.families import deepseek_v3, experts
from glinfer.families.huggingface import Fields
from glinfer.families.settings import Settings

_USUAL = {"kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "v_head_dim": 256, "head_dim": 256}


def _more(settings: Settings, fields: Fields) -> Fields:
    found = experts.from_settings(settings, fields, scale=1.8) | experts.dense_layers(settings, fields)
    return found | deepseek_v3.latents(settings, fields, _USUAL)


FAMILY = replace(
    deepseek_v3.FAMILY,
    name="glm4_moe_lite",
    usual={
        **deepseek_v3.FAMILY.usual,
        **_USUAL,
        "num_dense_layers": 1,
        "dense_intermediate_size": 10240,
        "shared_intermediate_size": 1536,
        "routed_scaling_factor": 1.8,
    },
    huggingface=replace(
        deepseek_v3.FAMILY.in_huggingface,
        sizes=(154880, 2048, 1536, 47, 20, 0, 256, 202752),
        eps=1e-5,
        experts=(64, 4, True),
        more=_more,
    ),
)
