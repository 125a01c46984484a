"""ModernBERT (Warner et al. 2024): norms before the branches, rotary positions, gated GELU, and mostly local layers.

Its norms have no biases.
"""

from dataclasses import replace

from glinfer.families.gguf import WINDOW, Gguf
from glinfer.families.huggingface import ACTIVATIONS, Classifier, Fields, HuggingFace, layer_kinds
from glinfer.families.layer import FULL, LONGEST_PERIOD, SLIDING
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings

_NAMES = Names(
    embeddings="model.embeddings.tok_embeddings",
    embedding_norm="model.embeddings.norm",
    layer="model.layers.{}.",
    attention_norm="attn_norm",
    projection="attn.{}",
    output="attn.Wo",
    mlp_norm="mlp_norm",
    gate="mlp.gate",
    up="mlp.up",
    down="mlp.Wo",
    final_norm="model.final_norm",
    head="",
)
_EVERY, _TOKENS = 3, 128
_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def _local_layers(settings: Settings, fields: Fields) -> Fields:
    """The layers with a window, and its positions on both sides."""
    kinds = layer_kinds(settings, fields)
    if kinds is None:
        each = settings.integer("global_attn_every_n_layers", _EVERY)
        kinds = [SLIDING if layer % each else FULL for layer in range(fields["num_hidden_layers"])]
    return {"layer_types": tuple(kinds), "sliding_window": settings.integer("local_attention", _TOKENS, least=2)}


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """The same in a GGUF file; the layers without a window are the first of each period."""
    each = keys.integer(f"{WINDOW}_pattern", _EVERY, most=LONGEST_PERIOD)
    return {
        "layer_types": tuple(SLIDING if layer % each else FULL for layer in range(fields["num_hidden_layers"])),
        "sliding_window": keys.integer(WINDOW, _TOKENS, least=2),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", _THETAS[SLIDING][1]),
    }


def _angles(settings: Settings, fields: Fields) -> Fields:
    return {"rope_theta": _theta(settings, FULL), "rope_local_base_freq": _theta(settings, SLIDING)}


def _theta(settings: Settings, kind: str) -> float:
    """The base of the angles of one layer type, from older or newer files."""
    name, usual = _THETAS[kind]
    found = settings.value("rope_parameters")
    own = found.get(kind) if isinstance(found, dict) else None
    if own is None:
        return settings.number(name, usual)
    if not isinstance(own, dict) or own.get("rope_type", "default") != "default":
        raise settings.refused("rope_parameters", f"angles of {kind} that are not scaled")
    return Settings(own, f"{settings.label}: rope_parameters of {kind}").number("rope_theta", usual)


FAMILY = Family(
    "modernbert",
    names=_NAMES,
    norm="layer",
    norm_biases=False,
    activation="gelu",
    rope_theta=160000.0,
    encodes=True,
    huggingface=HuggingFace(
        sizes=(50368, 768, 1152, 22, 12, 0, 0, 8192),
        activations={"hidden_activation": ACTIVATIONS},
        eps=1e-5,
        tied=True,
        keys={"layer_norm_eps": ("norm_eps",)},
        windows=_local_layers,
        rope=_angles,
        only={"norm_bias": (False,), "attention_bias": (False,), "mlp_bias": (False,)},
        names=replace(_NAMES, projection="attn.Wqkv", gate="mlp.Wi", up="mlp.Wi"),
        buffers=r"(.*\.)?rotary_emb\..*|head\..*|decoder\..*",
        classifier=Classifier(("head.dense", "classifier"), "gelu", norm="head.norm", biased=False),
    ),
    gguf=Gguf(
        "modern-bert",
        attention_bias=False,
        names=replace(GGUF_NAMES, embedding_norm="token_embd_norm", gate="ffn_up", up="ffn_up", head=""),
        classifier=("mean", "gelu"),
        more=_of_metadata,
    ),
)
