"""Solar Open (Upstage 2025): experts of GLM-4.5 in all layers. Its GGUF files are GLM-4.5's, and read as such."""

from dataclasses import replace
from functools import partial

from glinfer.families import experts, glm4_moe
from glinfer.families.huggingface import SAME_MATHS

FAMILY = replace(
    glm4_moe.FAMILY,
    name="solar_open",
    rope_theta=1e6,
    usual={"norm_topk_prob": True, "shared_intermediate_size": 1280},
    huggingface=replace(
        glm4_moe.FAMILY.in_huggingface,
        sizes=(196608, 4096, 1280, 48, 64, 8, 128, 131072),
        only={**SAME_MATHS, "use_qk_norm": (False,), "first_k_dense_replace": (0, None)},
        more=partial(experts.from_settings, dense=0),
    ),
)
