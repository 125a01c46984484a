"""Gemma 4's dense text models (Gemma Team 2026): a Gemma 3 whose layers may have their own embeddings.

Layers without a window have wider heads, with a quarter of their pairs rotary, and perhaps one projection for keys and
values. The last layers use the keys and values of earlier ones.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from glinfer.families import gemma3
from glinfer.families.gemma2 import NAMES
from glinfer.families.gguf import WINDOW, windows
from glinfer.families.huggingface import Fields, angles_by_kind, listed_windows
from glinfer.families.layer import FULL, SLIDING, LayerConfig
from glinfer.families.settings import Keys, Settings

_GLOBAL_DIM, _SHARE = 512, 0.25
_HEADS = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}


def _layers(settings: Settings, fields: Fields) -> Fields:
    """Windows by ``layer_types``; the last layer has none."""
    kinds = settings.value("layer_types")
    if isinstance(kinds, list) and kinds and kinds[-1] == SLIDING:
        settings = replace(settings, values={**settings.values, "layer_types": [*kinds[:-1], FULL]})
    return listed_windows(settings, fields, period=6, usual=512, local=True)


def _heads(settings: Settings) -> Fields:
    """The heads of layers without a window, which files have in one of two forms."""
    own = settings.value("per_layer_config")
    one_projection = settings.flag("attention_k_eq_v")
    if own is None:
        heads = settings.integer("num_global_key_value_heads") if settings.given("num_global_key_value_heads") else 0
        return {
            "global_head_dim": settings.integer("global_head_dim", _GLOBAL_DIM),
            "num_global_key_value_heads": heads if one_projection else 0,
        }
    layers = list(own.values()) if isinstance(own, dict) else []
    if not layers or not isinstance(layers[0], dict) or any(each != layers[0] for each in layers):
        raise settings.refused("per_layer_config", "the same settings for every layer without a window")
    kinds = settings.value("layer_types")
    full = {str(layer) for layer, kind in enumerate(kinds) if kind == FULL} if isinstance(kinds, list) else set()
    if set(own) != full or not set(layers[0]) <= _HEADS.keys():
        raise settings.refused("per_layer_config", f"{' and '.join(_HEADS)} of every layer without a window")
    found = replace(settings, values=layers[0], label=f"{settings.label}: per_layer_config")
    return {ours: found.integer(name) if found.given(name) else 0 for name, ours in _HEADS.items()}


def heads_and_layers(settings: Settings, fields: Fields) -> Fields:
    """Heads, shared layers and embeddings of layers."""
    width = settings.integer("hidden_size_per_layer_input", 256, least=0)
    rows = settings.integer("vocab_size_per_layer_input", 262144)
    if width and rows != fields["vocab_size"]:
        raise settings.refused("vocab_size_per_layer_input", f"{fields['vocab_size']}, as vocab_size is")
    return {
        **_heads(settings),
        "attention_multiplier": 1.0,
        "attention_k_eq_v": settings.flag("attention_k_eq_v"),
        "num_kv_shared_layers": settings.integer("num_kv_shared_layers", 0, least=0),
        "use_double_wide_mlp": settings.flag("use_double_wide_mlp"),
        "hidden_size_per_layer_input": width,
    }


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """Windows, heads, shared layers and embeddings of layers."""
    found = windows(keys, fields, period=6, usual=512, local_theta=gemma3.LOCAL_THETA)
    layers = fields["num_hidden_layers"]
    wide, kinds = fields["head_dim"], found.get("layer_types", (FULL,))
    narrow = keys.integer("attention.key_length_swa", wide)
    for key, dim in (("attention.value_length_swa", narrow), ("rope.dimension_count_swa", narrow)):
        if keys.integer(key, dim) != dim:
            raise keys.refused(key, f"{dim}, the width of a head")
    shared = keys.integer("attention.shared_kv_layers", 0, least=0)
    inner = fields.get("shared_intermediate_size") or fields["intermediate_size"]
    widths = keys.listed("feed_forward_length")
    widths = widths if isinstance(widths, list) else [widths] * layers
    doubled = [inner] * max(0, layers - shared) + [2 * inner] * shared
    if widths not in ([inner] * layers, doubled):
        raise keys.refused("feed_forward_length", f"{inner}, or twice that in the last {shared} layers")
    return {
        **found,
        "head_dim": narrow,
        "global_head_dim": wide,
        **_key_heads(keys, [kinds[layer % len(kinds)] for layer in range(layers)]),
        "attention_multiplier": 1.0,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": shared > 0 and widths == doubled,
        "hidden_size_per_layer_input": keys.integer("embedding_length_per_layer_input", 0, least=0),
    }


def _key_heads(keys: Keys, kinds: list[str]) -> Fields:
    """The heads of keys; only models whose layers have different numbers use keys as values."""
    key = "attention.head_count_kv"
    found = keys.listed(key)
    if not isinstance(found, list) or len({*map(str, found)}) == 1:
        return {}
    heads = dict(zip(kinds, found, strict=False))
    if found != [heads[kind] for kind in kinds] or len(heads) < 2:
        raise keys.refused(key, "a list with one number for the layers of each kind")
    return {
        "num_key_value_heads": heads[SLIDING],
        "num_global_key_value_heads": heads[FULL],
        "attention_k_eq_v": True,
    }


def _metadata(config: Any) -> dict[str, Any]:
    """The keys of a configuration that other architectures lack, or have in another form."""
    layers = [config.layer(layer) for layer in range(config.num_hidden_layers)]
    wide, narrow = config.global_head_dim or config.head_dim, config.head_dim
    found: dict[str, Any] = {
        f"{WINDOW}_pattern": [layer.window > 0 for layer in layers],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
    }
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        found[key], found[f"{key}_swa"] = wide, narrow
    if config.use_double_wide_mlp:
        found["feed_forward_length"] = [layer.inner for layer in layers]
    if config.attention_k_eq_v:
        found["attention.head_count_kv"] = [layer.kv_heads for layer in layers]
    return found


_NAMES = replace(NAMES, per_layer_table="model.embed_tokens_per_layer.{}")

FAMILY = replace(
    gemma3.FAMILY,
    name="gemma4_text",
    names=_NAMES,
    layer=LayerConfig(norms="both", head_norms="head", value_norms=True, scaled=True),
    norm_offset=0.0,
    usual={
        **gemma3.FAMILY.usual,
        "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": _SHARE},
        "attention_multiplier": 1.0,
    },
    huggingface=replace(
        gemma3.FAMILY.in_huggingface,
        sizes=(262144, 2304, 9216, 30, 8, 4, 256, 131072),
        only={"is_causal": (True, None), "use_bidirectional_attention": (None, False, "vision")},
        windows=_layers,
        rope=partial(angles_by_kind, local_theta=gemma3.LOCAL_THETA, share=_SHARE),
        scalars={"final_logit_softcapping": 0.0},
        more=heads_and_layers,
        wrapped=("gemma4",),
        names=replace(_NAMES, per_layer_table="model.embed_tokens_per_layer"),
        # Files have keys and values of layers that use those of others.
        buffers=r"(.*\.)?rotary_emb\.inv_freq|layers\.\d+\.self_attn\.[kv]_(proj|norm)\.weight",
    ),
    gguf=replace(
        gemma3.FAMILY.in_gguf,
        architecture="gemma4",
        proportional=True,
        unused=r"blk\.\d+\.attn_(k|v|k_norm)\.weight",
        more=_of_metadata,
        further=_metadata,
    ),
)
