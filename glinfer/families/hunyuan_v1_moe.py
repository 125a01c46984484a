"""Hunyuan with experts (Tencent 2025): many MLPs in a layer, and next to them one as wide that all tokens use.

Its files have a number for each layer in some settings; all are the same.
"""

from dataclasses import replace

from glinfer.families import hunyuan_v1_dense
from glinfer.families.huggingface import SAME_MATHS, Fields
from glinfer.families.names import EXPERT_NAMES, GGUF_EXPERT_NAMES
from glinfer.families.settings import Settings

_DENSE = hunyuan_v1_dense.FAMILY
_NO = (False, None)


def _alike(settings: Settings, name: str, usual: int) -> int:
    """A number, or that of all layers."""
    found = settings.value(name)
    if not isinstance(found, list):
        return settings.integer(name, usual)
    if not found or any(each != found[0] for each in found):
        raise settings.refused(name, "the same number for every layer")
    return replace(settings, values={name: found[0]}).integer(name)


def _experts(settings: Settings, fields: Fields) -> Fields:
    """How many experts a token uses, and the width of the MLP next to them, which is theirs."""
    width = fields["intermediate_size"]
    for name, only in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        if _alike(settings, name, only) != only:
            raise settings.refused(name, str(only))
    return {
        "num_experts_per_tok": _alike(settings, "moe_topk", fields["num_experts_per_tok"]),
        "shared_intermediate_size": width,
    }


FAMILY = replace(
    _DENSE,
    name="hunyuan_v1_moe",
    names=replace(
        EXPERT_NAMES,
        head_norm=_DENSE.names.head_norm,
        letters=_DENSE.names.letters,
        router="mlp.gate.wg",
        shared_gate="mlp.shared_mlp.gate_proj",
        shared_up="mlp.shared_mlp.up_proj",
        shared_down="mlp.shared_mlp.down_proj",
    ),
    usual={**_DENSE.usual, "norm_topk_prob": True, "shared_intermediate_size": 3072},
    huggingface=replace(
        _DENSE.in_huggingface,
        sizes=(290943, 4096, 11008, 32, 32, 0, 0, 2048),
        only={
            **SAME_MATHS,
            **{"use_cla": _NO, "use_mla": _NO, "position_embedding_xdrope": _NO, "use_qk_norm": (True,)},
            **{"use_mixed_mlp_moe": (True,), "moe_layer_num_skipped": (0,), "mlp_bias": _NO},
            **{"norm_topk_prob": (True,), "routed_scaling_factor": (1,), "group_limited_greedy": _NO},
        },
        experts=(1, 1, None),
        more=_experts,
    ),
    gguf=replace(
        _DENSE.in_gguf,
        architecture="hunyuan-moe",
        names=GGUF_EXPERT_NAMES,
        inner_key="expert_feed_forward_length",
    ),
)
