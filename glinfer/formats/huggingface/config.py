"""Configurations from the ``config.json`` of Hugging Face models; settings that cannot be run are refused.

Names and what they mean are those of the configurations in Hugging Face's transformers 5 and of its modelling code,
which ignores some settings of some families; defaults and what differs by family are in its record,
:class:`glinfer.families.record.HuggingFace`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import ConfigError, FormatError
from glinfer.families import FAMILIES
from glinfer.families.record import SIZES, Family, HuggingFace
from glinfer.formats.files import shown
from glinfer.formats.huggingface.rope import check_scaling, rope_settings
from glinfer.formats.json_files import Settings, quoted, read_json
from glinfer.limits import MAX_CONFIG_BYTES

__all__ = ["quoted", "read_config", "read_json", "recognised"]

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_USUAL_WINDOW, _USUAL_FULL_LAYERS = 4096, 28


def recognised() -> list[str]:
    """The values of ``model_type`` that can be run."""
    return [name for name, family in FAMILIES.items() if family.huggingface is not None]


def form_of(family: Family) -> HuggingFace:
    """The Hugging Face part of the record of a family that has one."""
    assert family.huggingface is not None
    return family.huggingface


def read_config(path: Path) -> ModelConfig:
    """The model that a ``config.json`` describes; what the file leaves out is as in its family's configuration.

    Raises:
        FormatError: the file cannot be read or is no JSON object, the model is of an unknown family, or a setting
            is out of range or asks for maths that is not done here; the setting is named as in the file.
    """
    label = shown(path)
    values = read_json(path, MAX_CONFIG_BYTES)
    known = ", ".join(map(repr, recognised()))
    if "model_type" not in values:
        raise FormatError(f"{label}: found no model_type; expected one of the families known: {known}")
    name = values["model_type"]
    if name not in recognised():
        near = [other for other in recognised() if isinstance(name, str) and name.startswith(other)]
        hint = f" ({near[0]} is another family)" if near else ""
        raise FormatError(
            f"{label}: found model_type {quoted(name)}; expected one of the families known: {known}{hint}"
        )
    if values.get("quantization_config") is not None:
        raise FormatError(
            f"{label}: quantization_config is set; expected a model that is not quantised; "
            "get its float32, float16 or bfloat16 weights, or quantised ones in a GGUF file"
        )
    try:
        config = _Reader(FAMILIES[name], Settings(values, label)).config()
    except ConfigError as error:
        raise FormatError(f"{label}: it describes no possible model: {error}") from None
    check_scaling(config, label)
    return config


class _Reader:
    """Reads the settings of one file by the record of its family."""

    def __init__(self, family: Family, settings: Settings) -> None:
        self.family, self.form, self.settings = family, form_of(family), settings

    def config(self) -> ModelConfig:
        """The model.

        Raises:
            FormatError: a setting is not what it should be, or asks for maths that is not done here.
            ConfigError: the settings together describe no possible model.
        """
        self.refuse_other_maths()
        sizes = ("vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")
        fields: dict[str, Any] = {field: self.whole(field) for field in sizes}
        if self.family.rotary:
            fields.update(self.rotary_fields(fields["num_hidden_layers"], fields["max_position_embeddings"]))
        return ModelConfig(
            **fields,
            intermediate_size=self.whole("intermediate_size"),
            layer_norm_eps=self.settings.number(self.form.eps_key, self.form.eps),
            hidden_act=self.activation(),
            model_type=self.family.name,
            tie_word_embeddings=self.settings.flag("tie_word_embeddings", default=self.form.tied),
        )

    def rotary_fields(self, layers: int, positions: int) -> dict[str, Any]:
        """The fields of models with rotary positions."""
        window, full_layers = self.windows(layers, positions)
        head_dim = self.head_dim()
        theta, scaling = rope_settings(self.settings, positions, head_dim, self.family.rope_theta)
        flag, family = self.settings.flag, self.family
        return {
            "num_key_value_heads": self.key_value_heads(),
            "head_dim": head_dim,
            "rope_theta": theta,
            "rope_scaling": tuple(scaling.items()),
            "sliding_window": window,
            "max_window_layers": full_layers,
            "attention_bias": bool(family.attention_biases) and (self.form.always_biased or flag("attention_bias")),
            "mlp_bias": bool(family.mlp_biases) and flag("mlp_bias"),
        }

    def refuse_other_maths(self) -> None:
        settings = self.settings
        for name, harmless in self.form.only.items():
            if name in settings.values and settings.values[name] not in harmless:
                raise FormatError(
                    f"{settings.label}: {name} is {quoted(settings.values[name])}, which is not supported; expected "
                    + ", or ".join(str(value).lower() for value in harmless)
                )
        for name in _EXPERTS:
            if settings.values.get(name):
                raise FormatError(
                    f"{settings.label}: {name} is {quoted(settings.values[name])}: a mixture of experts, which is not "
                    "supported; expected a model whose layers have one MLP each"
                )

    def whole(self, field: str) -> int:
        """Read a size under all of its names in the file."""
        settings, default = self.settings, self.form.sizes[SIZES.index(field)]
        if field in self.form.old_keys:
            default = settings.whole(self.form.old_keys[field], default)
        name, *others = self.form.keys.get(field, (field,))
        present = [key for key in (name, *others) if key in settings.values]
        if default == 0 and not any(map(settings.given, present)):
            return 0
        found = [settings.whole(key, default) for key in present]
        for key, value in zip(present[1:], found[1:], strict=True):
            if value != found[0]:
                raise FormatError(
                    f"{settings.label}: {present[0]} is {quoted(found[0])} but {key} is {quoted(value)}; "
                    "expected them to agree, as they mean the same; remove the wrong one"
                )
        return found[0] if found else default

    def key_value_heads(self) -> int:
        name = "num_key_value_heads"
        if self.form.null_heads and name in self.settings.values and not self.settings.given(name):
            return 0
        return self.whole(name)

    def head_dim(self) -> int:
        """The elements of a head; a missing one, or null, is the width divided by the heads."""
        found, name = self.whole("head_dim"), "head_dim"
        if not found:
            width, rest = divmod(self.whole("hidden_size"), self.whole("num_attention_heads"))
            if rest or not width:
                return 0  # refused, in better words, by ModelConfig
            found, name = width, "hidden_size / num_attention_heads"
        if found % 2:
            raise FormatError(
                f"{self.settings.label}: {name} is {found}; expected an even number, as elements of a head turn in "
                "pairs"
            )
        return found

    def activation(self) -> str:
        settings, usual = self.settings, self.form.activation
        (name, known), *others = self.form.activations.items()
        found = settings.one_of(name, known, usual)
        for other, meanings in others:
            if settings.given(other) and settings.one_of(other, meanings, usual) != found:
                raise FormatError(
                    f"{settings.label}: {other} is {quoted(settings.values[other])} and {name} "
                    f"{quoted(settings.values.get(name, usual))}, which is read as another function; expected them to "
                    "agree; remove the wrong one"
                )
        return found

    def windows(self, layers: int, positions: int) -> tuple[int, int]:
        """The number of positions that a token sees (0: all), and of layers at the beginning that see all of them."""
        settings = self.settings
        if self.form.window == "later":
            return self.later_windows(layers)
        window = 0
        if settings.given("sliding_window"):
            window = settings.whole("sliding_window", 0)
        elif self.form.window == "all" and "sliding_window" not in settings.values:
            window = _USUAL_WINDOW
        if self.form.window == "none":
            if 0 < window < positions:
                name = self.family.name
                raise settings.refused("sliding_window", f"none in a model of family {name}, which sees all positions")
            window = 0
        kinds = self.layer_kinds(layers)
        if kinds is not None and set(kinds) != {_SLIDING if window else _FULL}:
            raise FormatError(
                f"{settings.label}: layer_types is {quoted(kinds)}; expected {_SLIDING if window else _FULL} in every "
                f"layer of this {self.family.name} model, or no layer_types"
            )
        return window, 0

    def later_windows(self, layers: int) -> tuple[int, int]:
        settings, window = self.settings, 0
        if settings.flag("use_sliding_window") and (
            "sliding_window" not in settings.values or settings.given("sliding_window")
        ):
            window = settings.whole("sliding_window", _USUAL_WINDOW)
        kinds = self.layer_kinds(layers)
        if kinds is None:
            full_layers = settings.whole("max_window_layers", _USUAL_FULL_LAYERS, least=0)
        else:
            full_layers = kinds.index(_SLIDING) if _SLIDING in kinds else layers
            if _FULL in kinds[full_layers:]:
                raise FormatError(
                    f"{settings.label}: layer_types is {quoted(kinds)}; expected all of {_FULL} before all of "
                    f"{_SLIDING}, as other patterns are not supported"
                )
            if not window and full_layers < layers:
                raise FormatError(
                    f"{settings.label}: layer_types has {_SLIDING}, but there is no window; expected "
                    "use_sliding_window and a sliding_window"
                )
        return (window, full_layers) if window and full_layers < layers else (0, 0)

    def layer_kinds(self, layers: int) -> list[str] | None:
        """The kind of attention of each layer in ``layer_types``, or None; "attention" is an older name for full."""
        settings = self.settings
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
