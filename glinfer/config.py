"""The shape of a model, under the names that Hugging Face configurations use."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from glinfer.errors import ConfigError

# What each number may be at most: far above any model, far below what would overflow a 32-bit texel index.
_MAX_FIELD = 1 << 24
_ACTIVATION_OF_GELU = {"tanh": "gelu_new", "erf": "gelu"}


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True)
class ModelConfig:
    """One model's shape; immutable, hashable, checked when it is made.

    The names are those of Hugging Face's configurations. ``hidden_act``: ``gelu_new`` is the tanh form (what Gab's
    browser engine computes, and so the default), ``gelu`` the erf form (what Gab was trained with). ``model_type`` is
    the family, ``gab`` or ``gpt2``. With ``tie_word_embeddings`` the vocabulary's matrix is that of the embeddings.

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
    model_type: str = "gab"
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        """Fill ``intermediate_size`` with 4 × ``hidden_size`` when it was left out, then check every field."""
        if self.intermediate_size == 0 and _is_number(self.hidden_size, int):
            object.__setattr__(self, "intermediate_size", 4 * self.hidden_size)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and not (_is_number(value, int) and 1 <= value <= _MAX_FIELD):
                raise ConfigError(f"{field.name} is {shown(value)}; expected a whole number from 1 to {_MAX_FIELD}")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}; every head needs the same width"
            )
        if not _is_number(self.layer_norm_eps, float) or not 0.0 < self.layer_norm_eps < 1.0:
            raise ConfigError(f"layer_norm_eps is {shown(self.layer_norm_eps)}; expected a number between 0 and 1")
        if self.hidden_act not in _ACTIVATION_OF_GELU.values():
            known = ", ".join(sorted(_ACTIVATION_OF_GELU.values()))
            raise ConfigError(f"hidden_act is {shown(self.hidden_act)}; expected one of {known}")
        if not isinstance(self.tie_word_embeddings, bool):
            raise ConfigError(f"tie_word_embeddings is {shown(self.tie_word_embeddings)}; expected true or false")
        if not isinstance(self.model_type, str):
            raise ConfigError(f"model_type is {shown(self.model_type)}; expected a name")

    @property
    def head_dim(self) -> int:
        """Width of one attention head: ``hidden_size / num_attention_heads``."""
        return self.hidden_size // self.num_attention_heads

    def with_gelu(self, form: str | None) -> ModelConfig:
        """The same model with the ``tanh`` or the ``erf`` form of GELU; None leaves the form it has."""
        if form is None:
            return self
        if form not in _ACTIVATION_OF_GELU:
            raise ConfigError(f"gelu is {form!r}; expected 'tanh' or 'erf'")
        return dataclasses.replace(self, hidden_act=_ACTIVATION_OF_GELU[form])

    def to_json(self) -> str:
        """The configuration as one line of JSON, readable back with :meth:`from_json`."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

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
            raise ConfigError(f"unknown configuration field {shown(unknown[0])}; known: {', '.join(fields)}")
        required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigError(f"the configuration has no {missing[0]!r}; required: {', '.join(required)}")
        return cls(**values)

    @classmethod
    def from_options(cls, text: str) -> ModelConfig:
        """Read ``blocks=6,heads=8,dim=512``: the GAB1 header's names, anything left out as in Gab itself."""
        values = dict(GAB_SHAPE)
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, number = part.partition("=")
            if name not in values:
                raise ConfigError(f"unknown name {shown(name)} in --config; known: {', '.join(values)}")
            try:
                values[name] = int(number)
            except ValueError:
                raise ConfigError(f"{name}={shown(number)} in --config; expected a whole number") from None
        return cls(
            vocab_size=values["vocab"],
            hidden_size=values["dim"],
            num_attention_heads=values["heads"],
            num_hidden_layers=values["blocks"],
            max_position_embeddings=values["context"],
        )


GAB_SHAPE: Mapping[str, int] = {"vocab": 5256, "dim": 512, "heads": 8, "blocks": 6, "context": 2048}
"""Gab's own shape under the names of the GAB1 header."""
