"""Mamba-2 (Dao and Gu 2024), and Codestral Mamba: each layer is a scan, and none has attention or an MLP.

Files name no context, so it is 8,192 tokens here.
"""

from dataclasses import replace

from glinfer.families import nemotron_h
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.layer import DELTA
from glinfer.families.names import GGUF_SCAN_NAMES
from glinfer.families.scans import scan_metadata, scan_sizes
from glinfer.families.settings import Keys, Settings

_SIZES = ("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel", "use_conv_bias")


def _scans(settings: Settings, fields: Fields) -> Fields:
    """The sizes of the scans."""
    return {"layer_types": (DELTA,), **scan_sizes(settings, _SIZES, FAMILY.usual)}


def _metadata(keys: Keys, fields: Fields) -> Fields:
    """The sizes of the scans in a GGUF file."""
    return {**scan_metadata(keys, fields), "rotary_layers": (0,)}


FAMILY = replace(
    nemotron_h.FAMILY,
    name="mamba2",
    activation="silu",
    mlp_biases=(),
    usual={**nemotron_h.FAMILY.usual, "layer_types": (DELTA,)},
    huggingface=HuggingFace(
        sizes=(32768, 4096, 0, 64, 1, 0, 0, 8192),
        activations={"hidden_act": {"silu": "silu"}},
        eps=1e-5,
        keys={"layer_norm_eps": ("layer_norm_epsilon",), "head_dim": ()},
        only={**SAME_MATHS, "use_bias": (False,)},
        windows=_scans,
        rope=nemotron_h.unrotated,
        names=replace(nemotron_h.NAMES, delta_in="mixer.in_proj"),
        prefix="backbone.",
    ),
    gguf=replace(nemotron_h.FAMILY.in_gguf, architecture="mamba2", names=GGUF_SCAN_NAMES, more=_metadata),
)
