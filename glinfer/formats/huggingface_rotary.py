"""``config.json`` of the families with rotary positions: Llama, Mistral, Qwen2, Qwen3, Gemma.

Names, defaults and what they mean are those of LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config and GemmaConfig in
Hugging Face's transformers 5, and of its modelling code, which ignores some settings of some families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats.families import FAMILIES, GEMMA, LLAMA, MISTRAL, QWEN2, QWEN3
from glinfer.formats.huggingface_json import Settings, quoted
from glinfer.formats.huggingface_rope import rope_settings

_TANH = "gelu_pytorch_tanh"
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", _TANH: "gelu_new"}
# The first official Gemma files say "gelu", and mean its tanh form; transformers reads them so.
_GEMMA_ACTIVATIONS = {**_ACTIVATIONS, "gelu": "gelu_new"}
# Settings that ask for other maths unless they are left out, null, or what is here.
_ONLY: Mapping[str, tuple[object, ...]] = {
    "partial_rotary_factor": (1,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "per_layer_config": (),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class _Defaults:
    """What a family's configuration has for what a file leaves out.

    Attributes:
        key_value_heads: 0 for as many as heads.
        head_dim: 0 for the width divided by the heads.
        null_heads: whether heads of keys and values may be null, which means as many as heads.
    """

    vocab: int
    width: int
    inner: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    positions: int
    activation: str = "silu"
    tied: bool = False
    null_heads: bool = True


_DEFAULTS = {
    LLAMA: _Defaults(32000, 4096, 11008, 32, 32, 0, 0, 2048),
    MISTRAL: _Defaults(32000, 4096, 14336, 32, 32, 8, 0, 4096 * 32),
    QWEN2: _Defaults(151936, 4096, 22016, 32, 32, 32, 0, 32768),
    QWEN3: _Defaults(151936, 4096, 22016, 32, 32, 32, 128, 32768),
    GEMMA: _Defaults(256000, 3072, 24576, 28, 16, 16, 256, 8192, _TANH, tied=True, null_heads=False),
}
ROTARY_FAMILIES = tuple(_DEFAULTS)
"""What ``model_type`` may be here."""


def rotary_config(family: str, settings: Settings) -> ModelConfig:
    """The model that a ``config.json`` of one of :data:`ROTARY_FAMILIES` describes.

    Raises:
        FormatError: a setting is not what it should be, or asks for maths that is not done here.
        ConfigError: the settings together describe no possible model.
    """
    _refuse_other_maths(settings)
    usual = _DEFAULTS[family]
    layers, positions = (
        settings.whole("num_hidden_layers", usual.layers),
        settings.whole("max_position_embeddings", usual.positions),
    )
    window, full_layers = _windows(family, settings, layers, positions)
    head_dim = _head_dim(settings, usual)
    theta, scaling = rope_settings(settings, positions, head_dim)
    return ModelConfig(
        vocab_size=settings.whole("vocab_size", usual.vocab),
        hidden_size=settings.whole("hidden_size", usual.width),
        num_attention_heads=settings.whole("num_attention_heads", usual.heads),
        num_hidden_layers=layers,
        max_position_embeddings=positions,
        intermediate_size=settings.whole("intermediate_size", usual.inner),
        layer_norm_eps=settings.number("rms_norm_eps", 1e-6),
        hidden_act=_activation(family, settings, usual),
        model_type=family,
        tie_word_embeddings=settings.flag("tie_word_embeddings", default=usual.tied),
        num_key_value_heads=_key_value_heads(settings, usual),
        head_dim=head_dim,
        rope_theta=theta,
        rope_scaling=tuple(scaling.items()),
        sliding_window=window,
        max_window_layers=full_layers,
        attention_bias=_attention_bias(family, settings),
        # Of these families only Llama's has the setting.
        mlp_bias=bool(FAMILIES[family].mlp_biases) and settings.flag("mlp_bias"),
    )


def _refuse_other_maths(settings: Settings) -> None:
    for name, harmless in _ONLY.items():
        if settings.given(name) and settings.values[name] not in harmless:
            raise FormatError(
                f"{settings.label}: {name} is {quoted(settings.values[name])}, which is not supported; expected "
                + (f"{str(harmless[0]).lower()}, or none" if harmless else "none")
            )
    for name in _EXPERTS:
        if settings.values.get(name):
            raise FormatError(
                f"{settings.label}: {name} is {quoted(settings.values[name])}: a mixture of experts, which is not "
                "supported; expected a model whose layers have one MLP each"
            )


def _attention_bias(family: str, settings: Settings) -> bool:
    """Qwen2's queries, keys and values always have a bias, Mistral's never, whatever the file says."""
    return family == QWEN2 or (family != MISTRAL and settings.flag("attention_bias"))


def _key_value_heads(settings: Settings, usual: _Defaults) -> int:
    name = "num_key_value_heads"
    if usual.null_heads and name in settings.values and not settings.given(name):
        return 0
    return settings.whole(name, usual.key_value_heads, least=1 if name in settings.values else 0)


def _head_dim(settings: Settings, usual: _Defaults) -> int:
    """Elements of a head; null, or left out by most families, for the width divided by the heads."""
    if not usual.head_dim and not settings.given("head_dim"):
        heads = settings.whole("num_attention_heads", usual.heads)
        width, rest = divmod(settings.whole("hidden_size", usual.width), heads)
        if rest or not width:
            return 0  # refused, in better words, by ModelConfig
        found, name = width, "hidden_size / num_attention_heads"
    else:
        found, name = settings.whole("head_dim", usual.head_dim), "head_dim"
    if found % 2:
        raise FormatError(
            f"{settings.label}: {name} is {found}; expected an even number, as elements of a head turn in pairs"
        )
    return found


def _activation(family: str, settings: Settings, usual: _Defaults) -> str:
    known = _GEMMA_ACTIVATIONS if family == GEMMA else _ACTIVATIONS
    found = settings.one_of("hidden_act", known, usual.activation)
    # Gemma's files may have both; of the two transformers 4 took the second, transformers 5 takes the first.
    if family == GEMMA and settings.given("hidden_activation"):
        other = settings.one_of("hidden_activation", _ACTIVATIONS, usual.activation)
        if other != found:
            raise FormatError(
                f"{settings.label}: hidden_activation is {quoted(settings.values['hidden_activation'])} and hidden_act "
                f"{quoted(settings.values.get('hidden_act', usual.activation))}, which is read as another function; "
                "expected them to agree; remove the wrong one"
            )
    return found


def _windows(family: str, settings: Settings, layers: int, positions: int) -> tuple[int, int]:
    """How many positions a token sees, 0 for all, and how many layers at the beginning see all nevertheless."""
    if family in (QWEN2, QWEN3):
        return _qwen_windows(settings, layers)
    window = 0
    if settings.given("sliding_window"):
        window = settings.whole("sliding_window", 0)
    elif family == MISTRAL and "sliding_window" not in settings.values:
        window = 4096
    if family != MISTRAL:
        if 0 < window < positions:
            raise settings.refused("sliding_window", f"none in a model of family {family}, which sees all positions")
        window = 0
    kinds = _layer_kinds(settings, layers)
    if kinds is not None and set(kinds) != {_SLIDING if window else _FULL}:
        raise FormatError(
            f"{settings.label}: layer_types is {quoted(kinds)}; expected {_SLIDING if window else _FULL} in every "
            f"layer of this {family} model, or no layer_types"
        )
    return window, 0


def _qwen_windows(settings: Settings, layers: int) -> tuple[int, int]:
    window = 0
    if settings.flag("use_sliding_window") and (
        "sliding_window" not in settings.values or settings.given("sliding_window")
    ):
        window = settings.whole("sliding_window", 4096)
    kinds = _layer_kinds(settings, layers)
    if kinds is None:
        full_layers = settings.whole("max_window_layers", 28, least=0)
    else:
        full_layers = kinds.index(_SLIDING) if _SLIDING in kinds else layers
        if _FULL in kinds[full_layers:]:
            raise FormatError(
                f"{settings.label}: layer_types is {quoted(kinds)}; expected all of {_FULL} before all of {_SLIDING}, "
                "as other patterns are not supported"
            )
        if not window and full_layers < layers:
            raise FormatError(
                f"{settings.label}: layer_types has {_SLIDING}, but there is no window; expected use_sliding_window "
                "and a sliding_window"
            )
    return (window, full_layers) if window and full_layers < layers else (0, 0)


def _layer_kinds(settings: Settings, layers: int) -> list[str] | None:
    """What ``layer_types`` says of each layer, None where there is none; "attention" is an older name."""
    if not settings.given("layer_types"):
        return None
    found = settings.values["layer_types"]
    if not isinstance(found, list) or len(found) != layers:
        raise settings.refused("layer_types", f"a list of {layers} names, one a layer")
    kinds = [_FULL if kind == "attention" else kind for kind in found]
    for kind in kinds:
        if kind not in (_FULL, _SLIDING):
            raise FormatError(
                f"{settings.label}: layer_types has {quoted(kind)}, which is not supported; expected {_FULL} or "
                f"{_SLIDING}"
            )
    return kinds
