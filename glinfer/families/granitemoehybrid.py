"""Granite 4 (IBM 2025) with one MLP a layer: a Granite with scans of Mamba-2 in place of most attention.

Hybrids do not rotate queries and keys.
"""

from dataclasses import replace

from glinfer.families import granite
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace, angles
from glinfer.families.layer import DELTA, shortest_pattern
from glinfer.families.names import GGUF_SCAN_NAMES, Names, scanning
from glinfer.families.record import Family
from glinfer.families.scans import KINDS, USUAL, kinds_of, scan_metadata, scan_sizes
from glinfer.families.settings import Keys, Settings

NAMES = scanning(Names())
_IN_FILE = replace(
    NAMES,
    delta_in="mamba.in_proj",
    gate="shared_mlp.input_linear",
    up="shared_mlp.input_linear",
    down="shared_mlp.output_linear",
)
_SIZES = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias")
_HEAD = "mamba_d_head"
_IN_FILES = {"linear_num_value_heads": 128, "linear_key_head_dim": 256}
"""The sizes of files that leave them out, where those of a shape given as options are others."""


def scan_layers(settings: Settings, fields: Fields) -> Fields:
    """The layers with a scan, and its sizes."""
    layers = fields["num_hidden_layers"]
    pattern = shortest_pattern(kinds_of(settings, "layer_types", layers, KINDS, [DELTA] * layers))
    if DELTA not in pattern:
        return {}
    return {"layer_types": pattern, **scan_heads(settings, settings.integer("mamba_expand", 2) * fields["hidden_size"])}


def scan_heads(settings: Settings, inner: int, words: str = "mamba_expand · hidden_size") -> Fields:
    """The sizes of a scan whose heads have ``inner`` elements together."""
    heads = settings.integer("mamba_n_heads", _IN_FILES["linear_num_value_heads"])
    automatic = settings.value(_HEAD) in (None, "auto")
    known = Settings({**settings.values, _HEAD: max(1, inner // heads)}, settings.label) if automatic else settings
    found = scan_sizes(known, _SIZES, {**FAMILY.usual, **_IN_FILES})
    if heads * found["linear_value_head_dim"] != inner:
        raise settings.refused("mamba_n_heads", f"heads of {_HEAD} elements that make {inner}, {words}")
    return found


def rotates(settings: Settings, fields: Fields) -> Fields:
    """The angles of rotary positions, where the file asks for them."""
    kind = settings.one_of("position_embedding_type", {"rope": "rope", "nope": ""}, "nope")
    return {**angles(settings, fields), **({} if kind else {"rotary_layers": (0,)})}


def hybrid_metadata(keys: Keys, fields: Fields) -> Fields:
    """The layers with a scan in a GGUF file, and whether queries and keys are rotated."""
    rotates = keys.value("rope.scaling.finetuned")
    return {**scan_metadata(keys, fields), **({} if rotates is None or rotates else {"rotary_layers": (0,)})}


FAMILY = Family(
    "granitemoehybrid",
    names=NAMES,
    scans=True,
    attention_biases=("q", "k", "v", "o"),
    usual={
        "layer_types": ("linear_attention",) * 5 + ("full_attention",) + ("linear_attention",) * 4,
        "rotary_layers": (0,),
        **USUAL,
        "linear_num_value_heads": 48,
        "linear_norm_groups": 1,
    },
    huggingface=HuggingFace(
        sizes=(32000, 4096, 1024, 32, 32, 0, 0, 2048),
        keys={"intermediate_size": ("shared_intermediate_size",)},
        scalars=granite.FAMILY.in_huggingface.scalars,
        only={**SAME_MATHS, "mamba_proj_bias": (False,)},
        activations={"hidden_act": {"silu": "silu", "swish": "silu"}},
        unused=("num_experts_per_tok",),
        windows=scan_layers,
        rope=rotates,
        names=_IN_FILE,
    ),
    gguf=replace(
        granite.FAMILY.in_gguf,
        architecture="granitehybrid",
        names=GGUF_SCAN_NAMES,
        keys_in_turn=False,
        attending="granite",
        more=hybrid_metadata,
    ),
)
