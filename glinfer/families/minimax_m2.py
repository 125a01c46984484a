"""MiniMax-M2 (MiniMax 2025): heads normalised together, a half of each rotated, and experts weighted by sigmoids."""

from dataclasses import replace

from glinfer.families import mixtral
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import Fields, HuggingFace, angles
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_EXPERT_NAMES
from glinfer.families.record import Family
from glinfer.families.settings import Settings


def _angles(settings: Settings, fields: Fields) -> Fields:
    """The angles; published files name the rotated elements of a head."""
    share = settings.integer("rotary_dim", fields["head_dim"]) / max(1, fields["head_dim"])
    return angles(settings, {**fields, "partial_rotary_factor": share})


FAMILY = Family(
    "minimax_m2",
    names=replace(mixtral.NAMES, expert_bias="block_sparse_moe.e_score_correction_bias"),
    layer=LayerConfig(head_norms="width"),
    rope_theta=5e6,
    sigmoid_router=True,
    usual={"partial_rotary_factor": 0.5, "norm_topk_prob": True},
    huggingface=HuggingFace(
        sizes=(200064, 3072, 1536, 62, 48, 8, 128, 196608),
        rope=_angles,
        experts=(256, 8, None),
    ),
    gguf=Gguf(
        "minimax-m2",
        head="own",
        partial_rotary=True,
        attention_bias=False,
        names=GGUF_EXPERT_NAMES,
        inner_key="expert_feed_forward_length",
    ),
)
