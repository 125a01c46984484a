"""K-EXAONE (LG AI Research 2025): windows and heads of EXAONE 4, norms before the branches, and experts of GLM-4.5."""

from dataclasses import replace

from glinfer.families import exaone4, experts, glm4_moe
from glinfer.families.huggingface import SAME_MATHS, Fields
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_EXPERT_NAMES
from glinfer.families.settings import Keys, Settings

_WINDOWS, _FORM = exaone4.FAMILY, glm4_moe.FAMILY.in_huggingface


def _more(settings: Settings, fields: Fields) -> Fields:
    """Experts; ``mlp_layer_types`` may list the layers without them, the first ones."""
    count = settings.integer("num_shared_experts", 1, least=0)
    return {
        **experts.from_settings(settings, fields, scale=2.5),
        **experts.dense_layers(settings, fields),
        "shared_intermediate_size": count * fields["intermediate_size"],
    }


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    return {**_WINDOWS.in_gguf.more(keys, fields), **experts.from_metadata(keys, fields)}


FAMILY = replace(
    glm4_moe.FAMILY,
    name="exaone_moe",
    layer=LayerConfig(head_norms="head"),
    attention_biases=(),
    usual={
        **_WINDOWS.usual,
        "norm_topk_prob": True,
        "num_dense_layers": 1,
        "dense_intermediate_size": 16384,
        "shared_intermediate_size": 1024,
        "routed_scaling_factor": 2.5,
    },
    huggingface=replace(
        _FORM,
        sizes=(102400, 4096, 1024, 32, 32, 32, 0, 2048),
        only=SAME_MATHS,
        windows=_WINDOWS.in_huggingface.windows,
        experts=(64, 8, True),
        more=_more,
    ),
    gguf=replace(
        glm4_moe.FAMILY.in_gguf,
        architecture="exaone-moe",
        head="own",
        partial_rotary=False,
        attention_bias=False,
        names=GGUF_EXPERT_NAMES,
        more=_of_metadata,
    ),
)
