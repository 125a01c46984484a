"""DeepSeek-V2 (DeepSeek-AI 2024), such as V2-Lite: DeepSeek-V3 with a softmax over all experts."""

from dataclasses import replace

from glinfer.families import deepseek_v3, experts
from glinfer.families.huggingface import SAME_MATHS, Fields
from glinfer.families.settings import Settings

_FORM, _GGUF = deepseek_v3.FAMILY.in_huggingface, deepseek_v3.FAMILY.in_gguf
_IN_GROUPS = "group_limited_greedy"


def _more(settings: Settings, fields: Fields) -> Fields:
    grouping = (1, 1) if settings.value("topk_method") == _IN_GROUPS else None
    found = experts.from_settings(settings, fields, shared=2, dense=0, grouping=grouping)
    return found | deepseek_v3.latents(settings, fields)


FAMILY = replace(
    deepseek_v3.FAMILY,
    name="deepseek_v2",
    names=replace(deepseek_v3.FAMILY.names, expert_bias=""),
    sigmoid_router=False,
    share_eps=0.0,
    usual={
        **deepseek_v3.USUAL,
        "num_dense_layers": 0,
        "dense_intermediate_size": 11008,
        "shared_intermediate_size": 2814,
    },
    huggingface=replace(
        _FORM,
        sizes=(102400, 4096, 1407, 32, 32, 0, 192, 2048),
        only={
            **SAME_MATHS,
            "topk_method": ("greedy", _IN_GROUPS, None),
            "moe_layer_freq": (1,),
            **dict.fromkeys(("norm_topk_prob", "attention_bias", "mlp_bias"), (False, None)),
        },
        experts=(64, 6, False),
        more=_more,
    ),
    gguf=replace(_GGUF, marked_by="expert_count", marks=()),
)
