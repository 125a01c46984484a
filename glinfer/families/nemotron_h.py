"""Nemotron-H (NVIDIA 2025), and Nemotron Nano 2: a layer is a scan of Mamba-2, attention, or an MLP with ReLU squared.

transformers also raises steps to ``time_step_min``; NVIDIA's kernels and llama.cpp do not, and neither does glinfer.
Queries and keys are not rotated.
"""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.layer import DELTA, FULL, MLP, MOE, shortest_pattern
from glinfer.families.names import GGUF_SCAN_NAMES, Names, scanning
from glinfer.families.record import Family
from glinfer.families.scans import KINDS, USUAL, kinds_of, scan_metadata, scan_sizes
from glinfer.families.settings import Keys, Settings, is_integer

_LETTERS = {"M": DELTA, "*": FULL, "-": MLP, "E": MOE}
_LISTED, _PATTERN = "layers_block_type", "hybrid_override_pattern"
_SIZES = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "use_conv_bias")
NAMES = scanning(
    Names(
        embeddings="backbone.embeddings",
        layer="backbone.layers.{}.",
        attention_norm="norm",
        projection="mixer.{}_proj",
        output="mixer.o_proj",
        mlp_norm="norm",
        up="mixer.up_proj",
        down="mixer.down_proj",
        final_norm="backbone.norm_f",
    ),
    "mixer",
)


def layers_of(settings: Settings, fields: Fields) -> Fields:
    """The kind of each layer, and the sizes of scans."""
    values = settings.values
    if not settings.given(_LISTED) and isinstance(values.get(_PATTERN), str) and values[_PATTERN]:
        listed = Settings({_PATTERN: list(values[_PATTERN])}, settings.label)
        kinds = kinds_of(listed, _PATTERN, len(values[_PATTERN]), _LETTERS, [])
    else:
        found = settings.value(_LISTED)
        if not found or not isinstance(found, list):
            raise settings.missing(_LISTED, "the kind of each layer")
        kinds = kinds_of(settings, _LISTED, len(found), {**KINDS, MLP: MLP, MOE: MOE}, [])
    sizes = scan_sizes(settings, _SIZES, FAMILY.usual) if DELTA in kinds else {}
    return {"num_hidden_layers": len(kinds), "layer_types": shortest_pattern(kinds), **sizes}


def unrotated(settings: Settings, fields: Fields) -> Fields:
    """No layer rotates queries and keys."""
    return {"rotary_layers": (0,)}


def metadata_of_layers(keys: Keys, fields: Fields, wide: str = MLP) -> Fields:
    """The kind of each layer in a GGUF file: a ``wide`` one has a width, and attention heads of keys."""
    name, layers = "feed_forward_length", fields["num_hidden_layers"]
    widths = keys.listed(name)
    widths = widths if isinstance(widths, list) else [widths] * layers
    if len(widths) != layers or not all(is_integer(each, 0) for each in widths) or len({*widths} - {0}) > 1:
        raise keys.refused(name, f"{layers} numbers, 0 or the same one")
    found = scan_metadata(keys, fields)
    pattern = found.get("layer_types", (FULL,))
    kinds = [wide if width else pattern[layer % len(pattern)] for layer, width in enumerate(widths)]
    inner = {"intermediate_size": max(widths)} if any(widths) else {}
    return {**found, **inner, "layer_types": shortest_pattern(kinds), "rotary_layers": (0,)}


FAMILY = Family(
    "nemotron_h",
    names=NAMES,
    single=True,
    scans=True,
    gated=False,
    activation="relu2",
    mlp_biases=("up", "down"),
    usual={
        "layer_types": tuple(_LETTERS[each] for each in f"M-M-M-M{4 * '*-M-M-M-M-M'}-"),
        "rotary_layers": (0,),
        **USUAL,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 128,
        "linear_norm_groups": 8,
    },
    huggingface=HuggingFace(
        sizes=(131072, 4096, 21504, 52, 32, 8, 128, 4096),
        activations={"mlp_hidden_act": {"relu2": "relu2"}},
        eps=1e-5,
        keys={"layer_norm_eps": ("layer_norm_epsilon",)},
        only={
            **SAME_MATHS,
            "mamba_hidden_act": ("silu",),
            "attention_bias": (False,),
            "mamba_proj_bias": (False,),
            "use_bias": (False,),
            "num_nextn_predict_layers": (0,),
        },
        unused=("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
        windows=layers_of,
        rope=unrotated,
        names=replace(NAMES, delta_in="mixer.in_proj"),
        prefix="backbone.",
    ),
    gguf=Gguf(
        "nemotron_h",
        attention_bias=False,
        keys_in_turn=False,
        names=replace(GGUF_SCAN_NAMES, mlp_norm="attn_norm"),
        more=metadata_of_layers,
    ),
)
