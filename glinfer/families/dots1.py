"""dots.llm1 (rednote-hilab 2025): experts as in GLM-4.5, normalised heads, and wholly rotary heads."""

from dataclasses import replace
from functools import partial

from glinfer.families import experts, glm4_moe
from glinfer.families.huggingface import later_windows
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_EXPERT_NAMES

_FORM, _GGUF = glm4_moe.FAMILY.in_huggingface, glm4_moe.FAMILY.in_gguf


FAMILY = replace(
    glm4_moe.FAMILY,
    name="dots1",
    layer=LayerConfig(head_norms="head"),
    attention_biases=("q", "k", "v", "o"),
    usual={
        **{key: value for key, value in glm4_moe.FAMILY.usual.items() if key != "partial_rotary_factor"},
        "attention_bias": False,
        "shared_intermediate_size": 2816,
    },
    huggingface=replace(
        _FORM,
        sizes=(152064, 4608, 1408, 62, 32, 32, 0, 2048),
        eps=1e-6,
        only={key: value for key, value in _FORM.only.items() if key != "use_qk_norm"},
        windows=later_windows,
        experts=(128, 6, False),
        more=partial(experts.from_settings, shared=0, dense=0),
    ),
    gguf=replace(
        _GGUF, architecture="dots1", head="own", partial_rotary=False, attention_bias=False, names=GGUF_EXPERT_NAMES
    ),
)
