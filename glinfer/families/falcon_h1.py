"""Falcon-H1 (TII 2025): each layer has attention and a scan of Mamba-2, which read the same stream.

Its configurations have factors of activations. Here they are in the matrices, as in GGUF files.
"""

from dataclasses import replace
from typing import Any

from glinfer.families.gguf import Gguf, windows
from glinfer.families.granitemoehybrid import scan_heads
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.layer import BOTH
from glinfer.families.names import GGUF_SCAN_NAMES, Names, scanning
from glinfer.families.record import Family
from glinfer.families.scans import USUAL, sizes_of_metadata
from glinfer.families.settings import Keys, Settings

NAMES = scanning(
    Names(
        mlp_norm="pre_ff_layernorm",
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        final_norm="model.final_layernorm",
    )
)
_ENDS = ("embedding_multiplier", "lm_head_multiplier")


def _scans(settings: Settings, fields: Fields) -> Fields:
    """The sizes of the scans."""
    name = "mamba_d_ssm"
    missing = name in settings.values and not settings.given(name)
    usual = settings.integer("mamba_expand", 2) * fields["hidden_size"] if missing else 1024
    found = scan_heads(settings, settings.integer(name, usual), name)
    normed = settings.flag("mamba_rms_norm")
    if normed and settings.flag("mamba_norm_before_gate", default=True):
        raise settings.refused("mamba_norm_before_gate", "false, as norms before the gate are not supported")
    return {"layer_types": (BOTH,), **found, **({} if normed else {"linear_norm_groups": 0})}


def _more(settings: Settings, fields: Fields) -> Fields:
    """Check the factors, of which those of embeddings and logits must be equal if the two share a matrix."""
    _factors(settings, {**fields, "linear_key_head_dim": 1, "linear_num_key_heads": 1})
    for name in _ENDS if fields["tie_word_embeddings"] else ():
        settings.only(name, (1, None))
    return {}


def _factors(settings: Settings, fields: dict[str, Any]) -> Fields:
    """The factor of each matrix; of the channels before a scan one for each row."""
    names = ("attention_in", "attention_out", "key", "ssm_in", "ssm_out")
    into, out, key, ssm_in, ssm_out = (settings.number(f"{each}_multiplier", 1.0) for each in names)
    gate, down = settings.numbers("mlp_multipliers", 2, [1.0] * 2)
    z, x, b, c, step = (ssm_in * each for each in settings.numbers("ssm_multipliers", 5, [1.0] * 5))
    values = fields["linear_num_value_heads"] * fields["linear_value_head_dim"]
    keys = fields["linear_num_key_heads"] * fields["linear_key_head_dim"]
    return {
        **{"projection.q": into, "projection.k": into * key, "projection.v": into, "output.o": out},
        **{"delta_in.z": z, "delta_in.qkv": [x] * values + [b] * keys + [c] * keys, "delta_in.a": step},
        **{"delta_out": ssm_out, "gate": gate, "down": down},
        **dict(zip(("embeddings", "head"), (settings.number(each, 1.0) for each in _ENDS), strict=True)),
    }


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    return {**windows(keys, fields), "layer_types": (BOTH,), **sizes_of_metadata(keys)}


FAMILY = Family(
    "falcon_h1",
    names=NAMES,
    scans=True,
    usual={
        "layer_types": (BOTH,),
        "rope_theta": 1e11,
        **USUAL,
        "linear_num_value_heads": 24,
    },
    huggingface=HuggingFace(
        sizes=(128000, 4096, 14336, 32, 32, 8, 0, 8192),
        eps=1e-5,
        only={
            **SAME_MATHS,
            **dict.fromkeys(("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"), (False, None)),
        },
        activations={"hidden_act": {"silu": "silu", "swish": "silu"}},
        windows=_scans,
        more=_more,
        names=replace(NAMES, delta_in="mamba.in_proj"),
        buffers=r"(.*\.)?(rotary_emb\.inv_freq|mup_vector)",
        factors=_factors,
    ),
    gguf=Gguf(
        "falcon-h1",
        attention_bias=False,
        keys_in_turn=False,
        names=replace(GGUF_SCAN_NAMES, endings={"mlp_norm.weight": ""}),
        more=_of_metadata,
    ),
)
