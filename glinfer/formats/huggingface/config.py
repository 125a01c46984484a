"""Configurations from the ``config.json`` of Hugging Face models; unsupported settings are refused.

Names and meanings follow the configurations and the modelling code of Hugging Face's transformers 5, which ignores some
settings of some families. Defaults and differences between families are in their records,
:class:`glinfer.families.record.HuggingFace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glinfer.config import FULL, LONGEST_PERIOD, SLIDING, ModelConfig, every, one_side, shortest_pattern
from glinfer.errors import ConfigError, FormatError
from glinfer.families import FAMILIES
from glinfer.families.record import SIZES, Family, HuggingFace
from glinfer.formats.files import shown
from glinfer.formats.huggingface.around import around_fields
from glinfer.formats.huggingface.convolved import convolved_fields, convolved_inner, convolved_tied
from glinfer.formats.huggingface.delta import delta_fields
from glinfer.formats.huggingface.rope import check_scaling, rope_settings
from glinfer.formats.huggingface.wrapped import text_settings
from glinfer.formats.json_files import Settings, quoted, read_json
from glinfer.limits import MAX_CONFIG_BYTES, MAX_CONFIG_NUMBER

__all__ = ["quoted", "read_config", "read_json", "recognised"]

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
_SHARED = "shared_expert_intermediate_size"
_SHARED_EXPERTS = ("n_shared_experts", _SHARED, "shared_intermediate_size")
_USUAL_FULL_LAYERS = 28
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_NULLS = (*_CAPS, "sliding_window", "num_key_value_heads", "block_ffn_dim_multiplier", "factor")
"""Settings for which transformers distinguishes null from missing."""
_NESTED = 3  # text_config may have rope settings by layer type


def recognised() -> list[str]:
    """The supported values of ``model_type``."""
    forms = {name: family.huggingface for name, family in FAMILIES.items() if family.huggingface is not None}
    return [name for name in forms if name not in {form.both_ways for form in forms.values()}]


def classifies(values: Mapping[str, Any], form: HuggingFace) -> bool:
    """Whether a model ends with a classifier, according to ``architectures`` in its file."""
    named = values.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return bool(form.classifier) and any(name.endswith(form.classifier) for name in names)


def scores_of(values: Mapping[str, Any], form: HuggingFace) -> bool | None:
    """Whether the scores of a classifier go through a sigmoid; None if the model has no classifier.

    As in sentence-transformers' CrossEncoder: with a single label, unless the file names another function.
    """
    if not classifies(values, form):
        return None
    own = values.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else values.get("sbert_ce_default_activation_function")
    if isinstance(named, str):
        return named.rpartition(".")[2] == "Sigmoid"
    labels = values.get("id2label")
    return isinstance(labels, dict) and len(labels) == 1


def read_config(path: Path) -> ModelConfig:
    """Read the configuration in a ``config.json``; missing settings take the defaults of the family.

    Raises:
        FormatError: the file cannot be read or is not a JSON object, the family is unknown, or a setting is out of
            range or not supported; names the setting as in the file.
    """
    label = shown(path)
    values = text_settings(_without_nulls(read_json(path, MAX_CONFIG_BYTES)), label)
    known = ", ".join(map(repr, recognised()))
    if "model_type" not in values:
        raise FormatError(f"{label}: found no model_type; expected one of the families known: {known}")
    name = values["model_type"]
    if name not in recognised():
        near = [other for other in recognised() if isinstance(name, str) and name.startswith(other)]
        hint = f" ({near[0]} is another family)" if near else ""
        raise FormatError(
            f"{label}: found model_type {quoted(name)}, which is not supported; expected one of the families known: "
            f"{known}{hint}"
        )
    quantized = values.get("quantization_config")
    methods = FAMILIES[name].in_huggingface.quantized
    if quantized is not None and not (isinstance(quantized, dict) and quantized.get("quant_method") in methods):
        raise FormatError(
            f"{label}: quantization_config is set, which is not supported; expected a model that is not quantised"
            f"{''.join(f', or quantised by the method {method}' for method in methods)}; "
            "get its float32, float16 or bfloat16 weights, or quantised ones in a GGUF file"
        )
    family = FAMILIES[name]
    if values.get("use_bidirectional_attention") is True:
        family = FAMILIES.get(family.in_huggingface.both_ways, family)
    try:
        config = _Reader(family, Settings(values, label)).config()
    except ConfigError as error:
        raise FormatError(f"{label}: it describes no possible model: {error}") from None
    check_scaling(config, label)
    return config


def _without_nulls(values: Mapping[str, Any], depth: int = _NESTED) -> dict[str, Any]:
    """Drop settings that are null, which count as missing, except those of :data:`_NULLS`."""
    return {
        name: _without_nulls(value, depth - 1) if depth and isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None or name in _NULLS
    }


class _Reader:
    """Reads the settings of one file by the record of its family."""

    def __init__(self, family: Family, settings: Settings) -> None:
        self.family, self.form, self.settings = family, family.in_huggingface, settings

    def config(self) -> ModelConfig:
        """The configuration.

        Raises:
            FormatError: a setting is invalid or not supported.
            ConfigError: the settings together describe no possible model.
        """
        self.refuse_other_maths()
        sizes = ("vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")
        fields: dict[str, Any] = {field: self.whole(field) for field in sizes}
        if self.form.first_position:
            fields["max_position_embeddings"] -= self.form.first_position
        fields.update(self.scalars())
        if self.family.rotary:
            fields.update(self.rotary_fields(fields["num_hidden_layers"], fields["max_position_embeddings"]))
        return ModelConfig(
            **fields,
            intermediate_size=self.inner_size(),
            layer_norm_eps=self.settings.number(self.form.eps_key, self.form.eps),
            hidden_act=self.activation(),
            model_type=self.family.name,
            tie_word_embeddings=self.family.encodes or classifies(self.settings.values, self.form) or self.is_tied(),
            **self.embedding_fields(fields["hidden_size"]),
            **self.expert_fields(),
        )

    def inner_size(self) -> int:
        """The width of the MLP; 0 if it follows from other sizes."""
        if self.form.window == "conv":
            return convolved_inner(self.settings, self.form.sizes[SIZES.index("intermediate_size")])
        return self.whole("intermediate_size")

    def is_tied(self) -> bool:
        """Whether the file says that the head is tied to the embeddings."""
        if self.form.window == "conv":
            return convolved_tied(self.settings, usual=self.form.tied)
        return self.settings.flag("tie_word_embeddings", default=self.form.tied)

    def embedding_fields(self, width: int) -> dict[str, Any]:
        """The fields of embedding models: encoders, and models that end with a classifier."""
        fields: dict[str, Any] = {}
        if self.family.token_types:
            fields["type_vocab_size"] = self.settings.whole("type_vocab_size", 2, least=0)
        if classifies(self.settings.values, self.form):
            labels, names = self.labels(), self.form.classifier_names
            inner = [(width, True, activation) for activation in names[1::2]]
            return {**fields, "pooling": self.form.classifier_pooling, "dense": (*inner, (labels, bool(inner), "none"))}
        return {**fields, "pooling": "mean"} if self.family.encodes else fields

    def labels(self) -> int:
        """The number of scores that a classifier gives."""
        named = self.settings.values.get("id2label")
        return len(named) if isinstance(named, dict) and named else self.settings.whole("num_labels", 2)

    def rotary_fields(self, layers: int, positions: int) -> dict[str, Any]:
        """The fields of models with rotary positions."""
        head_dim = self.head_dim()
        form = self.form
        if form.window == "around":
            heads = {"num_key_value_heads": self.key_value_heads(), "head_dim": head_dim}
            return {**heads, **around_fields(self.settings, layers)}
        rope = rope_settings(self.settings, positions, head_dim, self.family)
        flag, family, windows = self.settings.flag, self.family, self.windows(layers, positions)
        return {
            "num_key_value_heads": self.key_value_heads(),
            "head_dim": head_dim,
            "rope_theta": rope.theta,
            "rope_scaling": tuple(rope.scaling.items()),
            "partial_rotary_factor": rope.share,
            "rope_local_base_freq": rope.local_theta if "layer_types" in windows else 0.0,
            **windows,
            "rotary_layers": self.rotary_layers(layers),
            "attention_bias": bool(family.attention_biases) and (self.form.always_biased or flag("attention_bias")),
            "mlp_bias": bool(family.mlp_biases) and flag("mlp_bias"),
        }

    def scalars(self) -> dict[str, Any]:
        """The fields of multipliers and caps."""
        found: dict[str, float] = {}
        for name, usual in self.form.scalars.items():
            value = self.settings.values.get(name, usual)
            found[name] = 0.0 if value == 0 or (value is None and name in _CAPS) else self.settings.number(name, usual)
        if "query_pre_attn_scalar" in found:
            divisor = found.pop("query_pre_attn_scalar")
            if not divisor:
                raise self.settings.refused("query_pre_attn_scalar", "a number above 0")
            found["attention_multiplier"] = divisor**-0.5
        return found

    def rotary_layers(self, layers: int) -> tuple[int, ...]:
        """The layers with rotary positions, as a pattern; empty for all."""
        if not self.form.no_rope:
            return ()
        settings, name = self.settings, "no_rope_layers"
        if settings.given(name):
            listed = settings.values[name]
            if not isinstance(listed, list) or len(listed) < layers or any(each not in (0, 1) for each in listed):
                raise settings.refused(
                    name, f"a list of {layers} numbers, 0 for a layer without angles and 1 for others"
                )
            pattern = shortest_pattern([int(each) for each in listed[:layers]])
        else:
            period = settings.whole("no_rope_layer_interval", self.form.no_rope, most=LONGEST_PERIOD)
            pattern = every(period, layers, 1, 0)
        return () if 0 not in pattern else pattern

    def refuse_other_maths(self) -> None:
        settings = self.settings
        for name, harmless in self.form.only.items():
            if name in settings.values and settings.values[name] not in harmless:
                raise FormatError(
                    f"{settings.label}: {name} is {quoted(settings.values[name])}, which is not supported; expected "
                    + ", or ".join(str(value).lower() for value in harmless)
                )
        for name in _EXPERTS if self.form.experts is None else ():
            if settings.values.get(name):
                raise FormatError(
                    f"{settings.label}: {name} is {quoted(settings.values[name])}: a mixture of experts, which is not "
                    "supported; expected a model whose layers have one MLP each"
                )
        for name in _SHARED_EXPERTS if self.form.experts is not None else ():
            if name == _SHARED and self.form.experts is not None and self.form.experts.shared:
                continue
            if settings.values.get(name):
                raise settings.refused(name, "none, as experts that all tokens share are not supported here")

    def expert_fields(self) -> dict[str, Any]:
        """The fields of models whose layers have experts."""
        form, settings = self.form.experts, self.settings
        if form is None:
            return {}
        counts = {key: settings.whole(key, form.count) for key in form.keys if key in settings.values}
        (key, count), *others = list(counts.items()) or [(form.keys[0], form.count)]
        for other, value in others:
            if value != count:
                raise settings.refused(other, f"{count}, as {key} says")
        used = settings.whole("num_experts_per_tok", form.used)
        normed = True if form.normed is None else settings.flag("norm_topk_prob", default=form.normed)
        if form.shared and settings.whole(_SHARED, form.shared) != self.inner_size():
            raise settings.refused(_SHARED, f"{self.inner_size()}, the width of the other experts")
        found = {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": normed}
        if not form.limit:
            return found
        gate = (("swiglu_limit", form.limit), ("swiglu_alpha", form.slope))
        return {**found, **{name: settings.number(name, usual) for name, usual in gate}}

    def whole(self, field: str) -> int:
        """Read a size, which may have several names in the file."""
        settings, default = self.settings, self.form.sizes[SIZES.index(field)]
        if field in self.form.old_keys:
            default = settings.whole(self.form.old_keys[field], default)
        name, *others = self.form.keys.get(field, (field,))
        present = [key for key in (name, *others) if settings.given(key)]
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
        """The elements of a head; if missing or null, the width divided by the number of heads."""
        found, name = self.whole("head_dim"), "head_dim"
        if not found:
            width, rest = divmod(self.whole("hidden_size"), self.whole("num_attention_heads"))
            if rest or not width:
                return 0  # ModelConfig refuses it with a better message
            found, name = width, "hidden_size / num_attention_heads"
        if found > MAX_CONFIG_NUMBER:
            raise FormatError(f"{self.settings.label}: {name} is {quoted(found)}; expected at most {MAX_CONFIG_NUMBER}")
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

    def windows(self, layers: int, positions: int) -> dict[str, Any]:
        """The fields for sliding windows: their length and layers."""
        settings = self.settings
        if self.form.window == "listed":
            return self.listed_windows(layers)
        if self.form.window == "conv":
            return convolved_fields(settings, layers)
        if self.form.window == "delta":
            return delta_fields(settings, layers)
        if self.form.window == "later":
            window, full_layers = self.later_windows(layers)
            return {"sliding_window": window, "max_window_layers": full_layers}
        window = 0
        if settings.given("sliding_window"):
            window = settings.whole("sliding_window", 0)
        elif self.form.window == "all" and "sliding_window" not in settings.values:
            window = self.form.usual_window
        if self.form.window == "none":
            if 0 < window < positions:
                name = self.family.name
                raise settings.refused("sliding_window", f"none in a model of family {name}, which sees all positions")
            window = 0
        kinds = self.layer_kinds(layers)
        if kinds is not None and set(kinds) != {SLIDING if window else FULL}:
            raise FormatError(
                f"{settings.label}: layer_types is {quoted(kinds)}; expected {SLIDING if window else FULL} in every "
                f"layer of this {self.family.name} model, or no layer_types"
            )
        return {"sliding_window": window}

    def listed_windows(self, layers: int) -> dict[str, Any]:
        """A window in the layers that the file lists, or in all but every ``period``-th."""
        settings, form = self.settings, self.form
        missing = "sliding_window" not in settings.values
        window = (
            settings.whole("sliding_window", form.usual_window) if missing or settings.given("sliding_window") else 0
        )
        window = one_side(window) if self.family.encodes else window
        kinds = self.layer_kinds(layers)
        if kinds is not None:
            pattern = shortest_pattern(kinds)
        elif form.period:
            key, usual = form.period_key, form.period
            period = settings.whole(key, usual, most=LONGEST_PERIOD) if key else usual
            pattern = every(period, layers, SLIDING, FULL)
        else:
            pattern = (SLIDING,) if window else ()
        if pattern == (SLIDING,) and not form.local_theta:
            return {"sliding_window": window}
        return {} if SLIDING not in pattern else {"sliding_window": window, "layer_types": pattern}

    def later_windows(self, layers: int) -> tuple[int, int]:
        settings, window = self.settings, 0
        if settings.flag("use_sliding_window") and (
            "sliding_window" not in settings.values or settings.given("sliding_window")
        ):
            window = settings.whole("sliding_window", self.form.usual_window)
        kinds = self.layer_kinds(layers)
        if kinds is None:
            full_layers = settings.whole("max_window_layers", _USUAL_FULL_LAYERS, least=0)
        else:
            full_layers = kinds.index(SLIDING) if SLIDING in kinds else layers
            if FULL in kinds[full_layers:]:
                raise FormatError(
                    f"{settings.label}: layer_types is {quoted(kinds)}; expected all of {FULL} before all of "
                    f"{SLIDING}, as other patterns are not supported"
                )
            if not window and full_layers < layers:
                raise FormatError(
                    f"{settings.label}: layer_types has {SLIDING}, but there is no window; expected "
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
        kinds = [FULL if kind == "attention" else kind for kind in found]
        for kind in kinds:
            if kind not in (FULL, SLIDING):
                raise FormatError(
                    f"{settings.label}: layer_types has {quoted(kind)}, which is not supported; expected {FULL} or "
                    f"{SLIDING}"
                )
        return kinds
