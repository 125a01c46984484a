"""GPT-NeoX and Pythia (Black et al. 2022): attention and MLP in parallel, each after its own LayerNorm.

A part of each head is rotated, and files join queries, keys and values by head.
"""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace, angles
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings

_PARALLEL = "use_parallel_residual"
_OLD = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
NAMES = Names(
    embeddings="gpt_neox.embed_in",
    layer="gpt_neox.layers.{}.",
    projection="attention.{}_proj",
    output="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    final_norm="gpt_neox.final_layer_norm",
    head="embed_out",
)


def _angles(settings: Settings, fields: Fields) -> Fields:
    """The angles; older files have other names."""
    older = {name: settings.values[old] for old, name in _OLD.items() if settings.given(old)}
    return angles(replace(settings, values={**older, **settings.values}), fields)


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """Models whose branches follow each other are refused."""
    keys.only(_PARALLEL, (True,))
    return {}


FAMILY = Family(
    "gpt_neox",
    names=NAMES,
    norm="layer",
    layer=LayerConfig(parallel=True),
    gated=False,
    activation="gelu",
    biases=("q", "k", "v", "o", "up", "down"),
    usual={"partial_rotary_factor": 0.25},
    huggingface=HuggingFace(
        sizes=(50432, 6144, 24576, 44, 64, 0, 0, 2048),
        eps=1e-5,
        only={**SAME_MATHS, _PARALLEL: (True,), "attention_bias": (True,)},
        rope=_angles,
        names=replace(NAMES, projection="attention.query_key_value"),
        prefix="gpt_neox.",
        buffers=r"(.*\.)?(rotary_emb\.inv_freq|attention\.(masked_)?bias)",
        layouts={"projection": "by head"},
    ),
    gguf=Gguf(
        "gptneox",
        head="own",
        partial_rotary=True,
        names=replace(GGUF_NAMES, projection="attn_qkv"),
        more=_of_metadata,
        further=lambda config: {_PARALLEL: True},
    ),
)
