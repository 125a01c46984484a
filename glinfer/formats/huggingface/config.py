"""Configurations from the ``config.json`` of Hugging Face models; unsupported settings are refused.

What a family's files have is in its record, see :mod:`glinfer.families.huggingface`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families import FAMILIES
from glinfer.families.huggingface import SHARED_WIDTH, SIZES, Fields
from glinfer.families.layer import one_side
from glinfer.families.record import Family
from glinfer.families.settings import Settings, quoted
from glinfer.formats.files import described_by, shown
from glinfer.formats.huggingface.layouts import has_blocks
from glinfer.formats.huggingface.ternary import check_quantization, is_ternary
from glinfer.formats.json_files import read_json
from glinfer.limits import MAX_CONFIG_BYTES, MAX_CONFIG_NUMBER

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
_SHARED_EXPERTS = ("n_shared_experts", SHARED_WIDTH, "shared_intermediate_size")
_CLASSIFIER = "ForSequenceClassification"
_BETWEEN = {"gelu": "gelu", "silu": "silu", "tanh": "tanh"}
_POOLED = {"cls": "cls", "bos": "cls", "mean": "mean"}
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_NULLS = (
    *_CAPS,
    "sliding_window",
    "num_key_value_heads",
    "block_ffn_dim_multiplier",
    "factor",
    "mamba_d_ssm",
    "q_lora_rank",
)
"""Settings for which transformers distinguishes null from missing."""
_LACKING: Mapping[str, str] = {
    "longcat_flash": "two attentions in a layer, and experts that pass their input on",
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "sparse attention, which chooses keys for each token"),
    "phimoe": "experts chosen one after the other (SparseMixer)",
    "llama4_text": "attention in chunks, and experts whose weights multiply their inputs",
    "kimi_linear": "Kimi's delta attention, with a decay for each element",
    "minimax": "lightning attention, whose decays are fixed",
    "bloom": "positions as biases of scores (ALiBi)",
    **dict.fromkeys(("jamba", "mamba", "falcon_mamba"), "the scan of Mamba-1"),
}
"""What some families need that glinfer lacks."""
_NESTED = 3  # text_config may have rope settings by layer type
_EPSILONS = {"layer": "layer_norm_eps", "rms": "rms_norm_eps"}
_OF_HEADS = ("num_key_value_heads", "head_dim")  # sizes of families with rotary positions
_WHOLE = ("quantization_config", "architectures", "tie_word_embeddings")  # settings of a multimodal model
_MIN_NUMBER, _MAX_NUMBER = 1e-9, 1e9  # of every number of a scaling; beyond these, angles overflow


def recognised() -> list[str]:
    """The supported values of ``model_type``."""
    forms = ((family.name, family.huggingface) for family in FAMILIES.values())
    return [name for name, form in forms if form is not None and not form.variant[0]]


def read_config(path: Path) -> ModelConfig:
    """Read the configuration in a ``config.json``; missing settings take the defaults of the family.

    Raises:
        FormatError: the file cannot be read or is not a JSON object, the family is unknown, or a setting is out of
            range or not supported; names the setting as in the file.
    """
    label = shown(path)
    values = _text_settings(_without_nulls(read_json(path, MAX_CONFIG_BYTES)), label)
    known = ", ".join(recognised())
    if "model_type" not in values:
        raise FormatError(f"{label}: found no model_type; expected one of the families known: {known}")
    name = values["model_type"]
    if isinstance(name, str) and name in _LACKING:
        raise FormatError(
            f"{label}: found model_type {quoted(name)}, which is not supported, as it needs {_LACKING[name]}; expected "
            "another family; docs/models.md lists them"
        )
    if name not in recognised():
        near = [other for other in recognised() if isinstance(name, str) and name.startswith(other)]
        hint = f" ({near[0]} is another family)" if near else ""
        raise FormatError(
            f"{label}: found model_type {quoted(name)}, which is not supported; expected one of the families known: "
            f"{known}{hint}"
        )
    family, settings = FAMILIES[name], Settings(values, label)
    for other in FAMILIES.values():
        if other.huggingface and other.huggingface.variant[0] == name and other.huggingface.variant[1](settings):
            family = other
    quantized, method = values.get("quantization_config"), "mxfp4" if has_blocks(family.in_huggingface) else ""
    found = quantized.get("quant_method") if isinstance(quantized, dict) else None
    if is_ternary(family.in_huggingface):
        check_quantization(settings, family.name)
    elif quantized is not None and not (method and found == method):
        raise FormatError(
            f"{label}: quantization_config is set, which is not supported; expected a model that is not quantised"
            f"{f', or quantised by the method {method}' if method else ''}; "
            "get its float32, float16 or bfloat16 weights, or quantised ones in a GGUF file"
        )
    with described_by(f"{label}: it"):
        config = ModelConfig(**_fields(family, settings))
    check_scaling(config, label)
    return config


def _text_settings(values: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The settings of the language model in a multimodal one, ``text_config``; others are returned unchanged."""
    name = values.get("model_type")
    around = [each.name for each in FAMILIES.values() if each.huggingface and name in each.huggingface.wrapped]
    if not around:
        return dict(values)
    own = values.get("text_config")
    if not isinstance(own, dict):
        raise FormatError(
            f"{label}: model_type is {quoted(name)} and text_config is {quoted(own)}; expected the settings of its "
            f"language model, of family {around[0]}"
        )
    return {"model_type": around[0], **own, **{key: values[key] for key in _WHOLE if key in values}}


def _without_nulls(values: Mapping[str, Any], depth: int = _NESTED) -> dict[str, Any]:
    """Drop settings that are null, which count as missing, except those of :data:`_NULLS`."""
    return {
        name: _without_nulls(value, depth - 1) if depth and isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None or name in _NULLS
    }


def _fields(family: Family, settings: Settings) -> Fields:
    """The fields of :class:`glinfer.config.ModelConfig` that a ``config.json`` describes."""
    form = family.in_huggingface
    _refuse_other_maths(family, settings)
    fields: Fields = {name: _size(family, settings, name) for name in SIZES if family.rotary or name not in _OF_HEADS}
    fields.update(model_type=family.name, **_scalars(form.scalars, settings))
    if family.rotary:
        fields.update(head_dim=_head_dim(fields, settings), rope_theta=family.rope_theta)
        fields.update({name: value for name, value in family.usual.items() if name == "partial_rotary_factor"})
        fields.update(form.windows(settings, fields))
        if family.encodes and fields.get("sliding_window"):
            fields["sliding_window"] = one_side(fields["sliding_window"])
        fields.update(form.rope(settings, fields))
        fields["attention_bias"] = bool(family.attention_biases) and settings.flag("attention_bias")
        fields["mlp_bias"] = bool(family.mlp_biases) and settings.flag("mlp_bias")
    (eps,) = form.keys.get("layer_norm_eps", (_EPSILONS[family.norm],))
    fields["layer_norm_eps"] = settings.number(eps, form.eps)
    fields["hidden_act"] = _activation(family, settings)
    alone = family.encodes or classifies(family, settings.values)
    fields["tie_word_embeddings"] = alone or settings.flag("tie_word_embeddings", default=form.tied)
    if family.token_types:
        fields["type_vocab_size"] = settings.integer("type_vocab_size", 2, least=0)
    fields.update(_embedding_fields(family, settings, fields["hidden_size"]))
    fields.update(_expert_fields(family, settings))
    return {**fields, **form.more(settings, fields)}


def _size(family: Family, settings: Settings, field: str) -> int:
    """A size, which may have several names in the file."""
    form = family.in_huggingface
    default = form.sizes[SIZES.index(field)]
    if field == "num_key_value_heads" and form.null_heads and field in settings.values and not settings.given(field):
        return 0
    present = [key for key in form.keys.get(field, (field,)) if settings.given(key)]
    found = [settings.integer(key, default) for key in present]
    for key, value in zip(present[1:], found[1:], strict=True):
        if value != found[0]:
            raise FormatError(
                f"{settings.label}: {present[0]} is {quoted(found[0])} but {key} is {quoted(value)}; "
                "expected them to agree, as they mean the same; remove the wrong one"
            )
    return found[0] if found else default


def _head_dim(fields: Fields, settings: Settings) -> int:
    """The elements of a head; if missing or null, the width divided by the number of heads."""
    found, name = fields["head_dim"], "head_dim"
    if not found:
        width, rest = divmod(fields["hidden_size"], fields["num_attention_heads"])
        if rest or not width:
            return 0  # ModelConfig refuses it with a better message
        found, name = width, "hidden_size / num_attention_heads"
    if found > MAX_CONFIG_NUMBER:
        raise FormatError(f"{settings.label}: {name} is {quoted(found)}; expected at most {MAX_CONFIG_NUMBER}")
    if found % 2:
        raise FormatError(
            f"{settings.label}: {name} is {found}; expected an even number, as elements of a head turn in pairs"
        )
    return int(found)


def _activation(family: Family, settings: Settings) -> str:
    usual = family.activation
    (name, known), *others = family.in_huggingface.activations.items()
    found = settings.one_of(name, {usual: usual, **known}, usual) if settings.given(name) else usual
    for other, meanings in others:
        if settings.given(other) and settings.one_of(other, meanings, usual) != found:
            raise FormatError(
                f"{settings.label}: {other} is {quoted(settings.values[other])} and {name} "
                f"{quoted(settings.values.get(name, usual))}, which is read as another function; expected them to "
                "agree; remove the wrong one"
            )
    return found


def _scalars(usual: Mapping[str, float], settings: Settings) -> Fields:
    """The fields of multipliers and caps."""
    found: dict[str, float] = {}
    for name, default in usual.items():
        value = settings.values.get(name, default)
        found[name] = 0.0 if value == 0 or (value is None and name in _CAPS) else settings.number(name, default)
    if "query_pre_attn_scalar" in found:
        divisor = found.pop("query_pre_attn_scalar")
        if not divisor:
            raise settings.refused("query_pre_attn_scalar", "a number above 0")
        found["attention_multiplier"] = divisor**-0.5
    return found


def _refuse_other_maths(family: Family, settings: Settings) -> None:
    form = family.in_huggingface
    for name, harmless in form.only.items():
        settings.only(name, harmless)
    if _names_classifier(settings.values) and not form.classifier:
        able = ", ".join(each.name for each in FAMILIES.values() if each.huggingface and each.huggingface.classifier)
        raise settings.refused("architectures", f"no classifier, as only those of {able} are supported")
    for name in () if family.experts else _EXPERTS:
        if settings.values.get(name) and name not in form.unused:
            raise FormatError(
                f"{settings.label}: {name} is {quoted(settings.values[name])}: a mixture of experts, which is not "
                "supported; expected a model whose layers have one MLP each"
            )
    for name in _SHARED_EXPERTS if family.experts else ():
        known = (family.shared_expert and name == SHARED_WIDTH) or name in (*family.usual, *form.unused)
        if settings.values.get(name) and not known:
            raise settings.refused(name, "none, as experts that all tokens share are not supported here")


def classifies(family: Family, values: Mapping[str, Any]) -> bool:
    """Whether a model ends with a classifier, according to ``architectures`` in its file, which its family can have."""
    return _names_classifier(values) and bool(family.in_huggingface.classifier)


def _names_classifier(values: Mapping[str, Any]) -> bool:
    named = values.get("architectures")
    names = named if isinstance(named, list) else []
    return any(isinstance(name, str) and name.endswith(_CLASSIFIER) for name in names)


def squashes(values: Mapping[str, Any]) -> bool:
    """Whether the scores of a classifier go through a sigmoid.

    As in sentence-transformers' CrossEncoder: with a single label, unless the file names another function.
    """
    own = values.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else values.get("sbert_ce_default_activation_function")
    if isinstance(named, str):
        return named.rpartition(".")[2] == "Sigmoid"
    labels = values.get("id2label")
    return isinstance(labels, dict) and len(labels) == 1


def _embedding_fields(family: Family, settings: Settings, width: int) -> Fields:
    """The fields of embedding models: encoders, and models that end with a classifier."""
    if not classifies(family, settings.values):
        return {"pooling": "mean"} if family.encodes else {}
    named, own = settings.values.get("id2label"), family.in_huggingface.classifier
    assert own is not None
    labels = len(named) if isinstance(named, dict) and named else settings.integer("num_labels", 2)
    if len(own.matrices) == 1:
        return {"pooling": "lasttoken", "dense": ((labels, False, "none"),)}
    biased = settings.flag("classifier_bias", default=own.biased)
    inner = width, biased, settings.one_of("classifier_activation", _BETWEEN, own.activation)
    return {
        "pooling": settings.one_of("classifier_pooling", _POOLED, own.pooling),
        "dense": (inner, (labels, True, "none")),
        "dense_norm": bool(own.norm),
    }


def _expert_fields(family: Family, settings: Settings) -> Fields:
    """The fields of models whose layers have experts."""
    if not family.experts:
        return {}
    count, used, normed = family.in_huggingface.experts
    found = {key: settings.integer(key, count) for key in _EXPERTS[:3] if key in settings.values}
    (key, count), *others = list(found.items()) or [("num_experts", count)]
    for other, value in others:
        if value != count:
            raise settings.refused(other, f"{count}, as {key} says")
    width = family.usual.get("dense_intermediate_size")
    return {
        **({"dense_intermediate_size": settings.integer("intermediate_size", width)} if width else {}),
        "use_expert_bias": bool(family.names.expert_bias),
        "num_experts": count,
        "num_experts_per_tok": settings.integer("num_experts_per_tok", used),
        "norm_topk_prob": True if normed is None else settings.flag("norm_topk_prob", default=normed),
    }


def check_scaling(config: ModelConfig, label: str) -> None:
    """Refuse RoPE scaling with numbers out of range, from any format."""
    scaling = dict(config.rope_scaling)
    least = 2 if scaling.get("rope_type", scaling.get("type")) == "longrope" else 1
    for name, value in scaling.items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and number != 0 and not _MIN_NUMBER <= number <= _MAX_NUMBER:
                raise FormatError(
                    f"{label}: {quoted(name)} of the rope scaling is {quoted(number)}; "
                    f"expected {_MIN_NUMBER:g} to {_MAX_NUMBER:g}"
                )
    original = scaling.get("original_max_position_embeddings") or config.max_position_embeddings
    if isinstance(original, (int, float)) and original < least:
        raise FormatError(
            f"{label}: original_max_position_embeddings is {original}; expected {least} or more for longrope"
        )
