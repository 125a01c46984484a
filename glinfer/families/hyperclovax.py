"""HyperCLOVA X SEED Think (NAVER 2025): a Granite with norms after its branches too, and logits that are multiplied."""

from dataclasses import replace

from glinfer.families import granite
from glinfer.families.huggingface import SAME_MATHS, Fields
from glinfer.families.layer import LayerConfig
from glinfer.families.names import Names
from glinfer.families.settings import Settings


def _factors(settings: Settings, fields: Fields) -> Fields:
    """The factors of scores, by default the usual one, and of logits."""
    scores = settings.number("attention_multiplier") if settings.given("attention_multiplier") else 0.0
    return {"attention_multiplier": scores, "logits_scaling": 1 / settings.number("logits_scaling", 1.0)}


FAMILY = replace(
    granite.FAMILY,
    name="hyperclovax",
    names=Names(attention_post_norm="post_norm1", mlp_post_norm="post_norm2"),
    layer=LayerConfig(norms="both"),
    huggingface=replace(
        granite.FAMILY.in_huggingface,
        scalars={"embedding_multiplier": 1.0, "residual_multiplier": 1.0},
        only={**SAME_MATHS, "use_post_norm": (True, None)},
        more=_factors,
    ),
    gguf=None,
)
