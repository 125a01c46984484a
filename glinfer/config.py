"""The shape of a model, under the names that Hugging Face configurations use."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from glinfer.errors import ConfigError
from glinfer.families import DEFAULT, DEFAULT_SHAPE, FAMILIES
from glinfer.families.record import Family
from glinfer.limits import MAX_CONFIG_NUMBER

_SHOWN_FIELDS = 6  # of those known, in a message
_MAY_BE_ZERO = ("sliding_window", "max_window_layers")
ACTIVATIONS = ("gelu", "gelu_new", "silu")
"""Valid values of ``hidden_act``."""
_ACTIVATION_OF_GELU = {"tanh": "gelu_new", "erf": "gelu"}


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _pairs(settings: object) -> tuple[tuple[str, Any], ...]:
    """Settings as pairs that can be hashed, sorted by name."""
    found = settings.items() if isinstance(settings, Mapping) else () if settings is None else settings
    try:
        return tuple(sorted((str(name), _hashable(value)) for name, value in found))  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ConfigError(
            f"rope_scaling is {shown(settings)}; expected settings such as {{'rope_type': 'linear', 'factor': 2}}"
        ) from None


def _hashable(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, (str, int, float)) or value is None:
        return value
    raise TypeError(value)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class ModelConfig:
    """One model's shape; immutable, hashable, checked when it is made.

    The names are those of Hugging Face's configurations. ``hidden_act``: ``gelu_new`` is the tanh form (what Gab's
    browser engine computes, and so the default), ``gelu`` the erf form (what Gab was trained with). ``model_type`` is
    the family, a key of :data:`glinfer.families.FAMILIES`. With ``tie_word_embeddings`` the vocabulary's matrix
    is that of the embeddings. ``layer_norm_eps`` is RMSNorm's too, where the family has that.

    The fields behind ``tie_word_embeddings`` are for families with rotary positions: ``num_key_value_heads`` (0: as
    many as heads), ``head_dim`` (0: ``hidden_size / num_attention_heads``), ``rope_theta``, ``rope_scaling`` (a mapping
    as in Hugging Face's configurations, kept as sorted pairs), ``sliding_window`` (the number of positions that a token
    sees, its own included; 0: all) with ``max_window_layers`` (the number of layers at the beginning that see all
    positions), and whether there are biases in the attention and in the MLP.

    Raises:
        ConfigError: a field is out of range, or the heads do not divide the width.
    """

    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    max_position_embeddings: int
    intermediate_size: int = 0
    layer_norm_eps: float = 1e-5
    hidden_act: str = "gelu_new"
    model_type: str = DEFAULT
    tie_word_embeddings: bool = False
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    sliding_window: int = 0
    max_window_layers: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        """Fill in what was left out, then check every field."""
        if self.intermediate_size == 0 and _is_number(self.hidden_size, int):
            object.__setattr__(self, "intermediate_size", 4 * self.hidden_size)
        if self.num_key_value_heads == 0:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        given_head_dim = self.head_dim != 0
        if not given_head_dim and _is_number(self.hidden_size, int) and _is_number(self.num_attention_heads, int):
            # Too many heads are told below.
            object.__setattr__(self, "head_dim", max(1, self.hidden_size // max(1, self.num_attention_heads)))
        object.__setattr__(self, "rope_scaling", _pairs(self.rope_scaling))
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 0 if field.name in _MAY_BE_ZERO else 1
            if field.type == "int" and not (_is_number(value, int) and least <= value <= MAX_CONFIG_NUMBER):
                raise ConfigError(
                    f"{field.name} is {shown(value)}; expected a whole number from {least} to {MAX_CONFIG_NUMBER}"
                )
            if field.type == "bool" and not isinstance(value, bool):
                raise ConfigError(f"{field.name} is {shown(value)}; expected true or false")
        if not given_head_dim and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}; every head needs the same width"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}; as many heads have to share each"
            )
        if not _is_number(self.layer_norm_eps, float) or not 0.0 < self.layer_norm_eps < 1.0:
            raise ConfigError(f"layer_norm_eps is {shown(self.layer_norm_eps)}; expected a number between 0 and 1")
        if not _is_number(self.rope_theta, float) or not 1.0 < self.rope_theta < 1e30:
            raise ConfigError(f"rope_theta is {shown(self.rope_theta)}; expected a number above 1, such as 10000.0")
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act is {shown(self.hidden_act)}; expected one of {', '.join(ACTIVATIONS)}")
        if not isinstance(self.model_type, str):
            raise ConfigError(f"model_type is {shown(self.model_type)}; expected a name")

    @property
    def family(self) -> Family:
        """The record of the model's family.

        Raises:
            KeyError: there is no such family; readers of files refuse it before.
        """
        return FAMILIES[self.model_type]

    def window_of(self, layer: int) -> int:
        """The number of positions that a token sees in a layer, its own included; 0 for all before it."""
        return 0 if layer < self.max_window_layers else self.sliding_window

    def with_context(self, positions: int | None) -> ModelConfig:
        """The same model for sequences of at most ``positions`` tokens; None leaves it as it is.

        Raises:
            ConfigError: the model has no such positions.
        """
        if positions is None:
            return self
        if not _is_number(positions, int) or not 1 <= positions <= self.max_position_embeddings:
            raise ConfigError(
                f"a context of {shown(positions)} was asked for; this model has "
                f"1 to {self.max_position_embeddings} positions"
            )
        return dataclasses.replace(self, max_position_embeddings=positions)

    def with_gelu(self, form: str | None) -> ModelConfig:
        """The same model with the ``tanh`` or the ``erf`` form of GELU; None leaves the form it has."""
        if form is None:
            return self
        if form not in _ACTIVATION_OF_GELU:
            raise ConfigError(f"gelu is {form!r}; expected 'tanh' or 'erf'")
        return dataclasses.replace(self, hidden_act=_ACTIVATION_OF_GELU[form])

    def to_json(self) -> str:
        """The configuration as one line of JSON, readable back with :meth:`from_json`."""
        return json.dumps(self.to_dict(), sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Field names and values as plain JSON, without those that have their defaults."""
        values = dataclasses.asdict(self)
        usual = ModelConfig(
            **{name: values[name] for name in list(values)[: list(values).index("num_key_value_heads")]},
        )
        for name in list(values)[list(values).index("num_key_value_heads") :]:
            if values[name] == getattr(usual, name):
                del values[name]
        if "rope_scaling" in values:
            values["rope_scaling"] = {name: _listed(value) for name, value in self.rope_scaling}
        return values

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """Read what :meth:`to_json` wrote; unknown and missing fields are named in the ConfigError."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the configuration is not JSON ({error})") from None
        if not isinstance(values, dict):
            raise ConfigError(f"the configuration is a JSON {type(values).__name__}; expected an object")
        return cls.from_mapping(values)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build a configuration from a mapping of field names; see :meth:`from_json` for the errors."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            first = list(fields)[:_SHOWN_FIELDS]
            more = len(fields) - len(first)
            raise ConfigError(
                f"unknown configuration field {shown(unknown[0])}; known: {', '.join(first)} and {more} more"
            )
        required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigError(f"the configuration has no {missing[0]!r}; required: {', '.join(required)}")
        return cls(**values)

    @classmethod
    def from_options(cls, text: str) -> ModelConfig:
        """Read ``blocks=6,heads=8,dim=512``: the GAB1 header's names, anything left out as in Gab itself.

        Further names: ``family`` (what is left out is then as usual in that family), ``inner`` (width of the MLP),
        ``kv_heads``, ``head_dim``, ``window`` and ``tied`` (0 or 1).
        """
        values: dict[str, Any] = {_OPTIONS[name]: number for name, number in DEFAULT_SHAPE.items()}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, number = part.partition("=")
            if name == "family":
                if number not in FAMILIES:
                    raise ConfigError(f"family={shown(number)} in --config; expected one of {', '.join(FAMILIES)}")
                values = {**values, **FAMILIES[number].usual, "model_type": number}
                continue
            if name not in _OPTIONS:
                raise ConfigError(f"unknown name {shown(name)} in --config; known: {', '.join(_OPTIONS)}, family")
            try:
                values[_OPTIONS[name]] = int(number)
            except ValueError:
                raise ConfigError(f"{name}={shown(number)} in --config; expected a whole number") from None
        if values.get("tie_word_embeddings", False) in (0, 1):
            values["tie_word_embeddings"] = bool(values.get("tie_word_embeddings", False))
        return cls(**values)


_OPTIONS = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "heads": "num_attention_heads",
    "blocks": "num_hidden_layers",
    "context": "max_position_embeddings",
    "inner": "intermediate_size",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "window": "sliding_window",
    "tied": "tie_word_embeddings",
}
