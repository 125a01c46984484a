"""LFM2 (Liquid AI 2025), and LFM2.5: most layers have a gated short convolution in place of attention.

The published models have 10 layers with a convolution over three tokens, and 6 with attention whose heads are
normalised.
"""

from dataclasses import replace

from glinfer.families.gguf import WINDOW, Gguf, other_layers
from glinfer.families.huggingface import Fields, HuggingFace, layer_kinds
from glinfer.families.layer import CONV, FULL, LONGEST_CONVOLUTION, LayerConfig, shortest_pattern
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings, is_integer

_ATTENTION = "full_attn_idxs"


def convolved_layers(settings: Settings, fields: Fields) -> Fields:
    """The layers with a convolution, and its length in positions."""
    kinds = _kinds(settings, fields)
    if CONV not in kinds:
        return {}
    length = settings.integer("conv_L_cache", 3, least=2, most=LONGEST_CONVOLUTION)
    return {
        "layer_types": shortest_pattern(kinds),
        "conv_L_cache": length,
        "conv_bias": settings.flag("conv_bias"),
    }


def _kinds(settings: Settings, fields: Fields) -> list[str]:
    """The type of each layer: listed, or from the numbers of attention layers; all attention if neither is given."""
    kinds, layers = layer_kinds(settings, fields, CONV), fields["num_hidden_layers"]
    if kinds is not None:
        return kinds
    if not settings.given(_ATTENTION):
        return [FULL] * layers
    numbers = settings.values[_ATTENTION]
    if not isinstance(numbers, list) or not all(is_integer(each, 0) and each < layers for each in numbers):
        raise settings.refused(_ATTENTION, f"a list of numbers of layers, from 0 to {layers - 1}")
    with_attention = set(numbers)
    return [FULL if layer in with_attention else CONV for layer in range(layers)]


def _old_settings(settings: Settings, fields: Fields) -> Fields:
    """The width of the MLP, which the file has before its adjustment, and the older name of tied embeddings."""
    inner = settings.integer("block_ff_dim", fields["intermediate_size"])
    if settings.flag("block_auto_adjust_ff_dim", default=True):
        inner, multiplier = 2 * inner // 3, "block_ffn_dim_multiplier"
        if multiplier not in settings.values or settings.given(multiplier):
            multiple = settings.integer("block_multiple_of", 256)
            inner = -(-int(settings.number(multiplier, 1.0) * inner) // multiple) * multiple
    tied = settings.flag("tie_embedding", default=fields["tie_word_embeddings"])
    return {"intermediate_size": inner, "tie_word_embeddings": tied}


def layers_of_metadata(keys: Keys, fields: Fields) -> Fields:
    """In a GGUF file, a layer without key-value heads is a convolution."""
    found = other_layers(keys, fields, CONV, fields["num_attention_heads"])
    if "layer_types" not in found:
        return found
    if keys.value(WINDOW):
        raise keys.refused(WINDOW, "none in a model whose layers convolve")
    return {**found, "conv_L_cache": keys.integer("shortconv.l_cache", 3)}


FAMILY = Family(
    "lfm2",
    names=Names(
        attention_norm="operator_norm",
        head_norm="self_attn.{}_layernorm",
        output="self_attn.out_proj",
        mlp_norm="ffn_norm",
        gate="feed_forward.w1",
        up="feed_forward.w3",
        down="feed_forward.w2",
        final_norm="model.embedding_norm",
    ),
    rope_theta=1e6,
    layer=LayerConfig(head_norms="head"),
    usual={"conv_L_cache": 3, "layer_types": ("conv", "conv", "full_attention") * 3 + ("conv", "full_attention") * 3},
    huggingface=HuggingFace(
        sizes=(65536, 2560, 12288, 32, 32, 8, 0, 128000),
        eps=1e-5,
        tied=True,
        keys={"layer_norm_eps": ("norm_eps",)},
        null_heads=False,
        windows=convolved_layers,
        more=_old_settings,
    ),
    gguf=Gguf(
        "lfm2", attention_bias=False, names=replace(GGUF_NAMES, final_norm="token_embd_norm"), more=layers_of_metadata
    ),
)
