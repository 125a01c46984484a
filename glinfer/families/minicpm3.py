"""MiniCPM3 (Hu et al. 2024): attention over a latent, and three factors, of embeddings, branches and logits.

llama.cpp computes its GGUF files with the published factors, which they do not name.
"""

import math
from dataclasses import replace

from glinfer.families import deepseek_v3
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace, angles
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings

_USUAL = {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_rope_head_dim": 32, "v_head_dim": 64, "head_dim": 96}


def _factors(fields: Fields, embeddings: float = 12.0, depth: float = 1.4, base: float = 256.0) -> Fields:
    return {
        "embedding_multiplier": embeddings,
        "residual_multiplier": depth / math.sqrt(fields["num_hidden_layers"]),
        "logits_scaling": fields["hidden_size"] / base,
    }


def _more(settings: Settings, fields: Fields) -> Fields:
    values = fields["hidden_size"] // fields["num_attention_heads"]
    usual = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256.0}
    factors = [settings.number(name, number) for name, number in usual.items()]
    return {**deepseek_v3.latents(settings, fields, {**_USUAL, "v_head_dim": values}), **_factors(fields, *factors)}


def _angles(settings: Settings, fields: Fields) -> Fields:
    """The angles, of the rotary elements alone."""
    return angles(settings, {**fields, "head_dim": settings.integer("qk_rope_head_dim", _USUAL["qk_rope_head_dim"])})


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    return {**deepseek_v3.latents_of_metadata(keys, fields), **_factors(fields)}


FAMILY = Family(
    "minicpm3",
    names=deepseek_v3.with_latents(Names()),
    usual=_USUAL,
    huggingface=HuggingFace(
        sizes=(73448, 2560, 6400, 62, 40, 0, 96, 32768),
        eps=1e-5,
        tied=True,
        keys={"head_dim": ("qk_head_dim",)},
        only={**SAME_MATHS, **dict.fromkeys(("attention_bias", "mlp_bias"), (False, None))},
        rope=_angles,
        more=_more,
    ),
    gguf=Gguf(
        "minicpm3",
        attention_bias=False,
        partial_rotary=True,
        names=replace(GGUF_NAMES, letters=deepseek_v3.GGUF_LETTERS),
        more=_of_metadata,
        further=deepseek_v3.metadata_of_latents,
    ),
)
