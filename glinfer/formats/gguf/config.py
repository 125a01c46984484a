"""Configurations from GGUF metadata, and back.

Sources: docs/gguf.md of the ggml project, and how llama.cpp (llama-model.cpp, llama-context.cpp) interprets the keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.families import FAMILIES
from glinfer.families.gguf import SHARED_WIDTH, SIGMOID, WINDOW, Gguf
from glinfer.families.huggingface import PROPORTIONAL, Fields
from glinfer.families.layer import BOTH, QUERY_BETA, one_side, yarn_attention
from glinfer.families.record import Family
from glinfer.families.settings import Keys, is_integer, quoted, shortest
from glinfer.formats.files import described_by
from glinfer.formats.gguf.embedders import embedding_fields, names_in
from glinfer.formats.gguf.file import GgufFile, GgufTensor, keys_of
from glinfer.formats.huggingface.config import check_scaling
from glinfer.formats.tensors import StoredTensor, stored_tensors

ROPE_FREQS = "rope_freqs.weight"
"""The tensor of frequency factors in some files: the divisor of each pair's frequency, float32 [pairs]."""
LONG_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
"""The names of two such tensors in other files, for short and for long contexts."""

_KEY_HEADS = "attention.head_count_kv"
_YARN_LOG, _QUERY_BETA = "rope.scaling.yarn_log_multiplier", "attention.temperature_scale"
_EPSILONS = {"layer": "attention.layer_norm_epsilon", "rms": "attention.layer_norm_rms_epsilon"}
# Keys that change the computation, with their neutral values.
USUAL_SETTINGS: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "use_parallel_residual": (False,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    _YARN_LOG: (0.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.alpha": (0.0, 1.0),
}


_DELTA_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
_STILL = 1e20  # least factor of the frequency of a pair that stays
_GUESSING = "nextn_predict_layers"
_NEUTRAL = {
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
"""The neutral values of scalars of all layers."""


def family_of(file: GgufFile) -> Family:
    """The family of the model in a file, by its architecture."""
    found, label = file.metadata.get("general.architecture"), file.source
    known = ", ".join(dict.fromkeys(family.gguf.architecture for family in FAMILIES.values() if family.gguf))
    if found is None:
        raise FormatError(f"{label}: found no general.architecture; expected one of those known: {known}")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise FormatError(f"{label}: its general.type is {quoted(kind)}; expected a model")
    families = [family for family in FAMILIES.values() if family.gguf and family.gguf.architecture == found]
    marked = [each for each in families if _is_marked(each.in_gguf, file.metadata)]
    families = marked or [each for each in families if not each.in_gguf.marked_by]
    if not families:
        raise FormatError(
            f"{label}: found architecture {quoted(found)}, which is not supported; expected one of: {known}"
        )
    return families[0]


def _is_marked(form: Gguf, metadata: Mapping[str, Any]) -> bool:
    """Whether a file has the mark of a family among those of its architecture."""
    value = metadata.get(f"{form.architecture}.{form.marked_by}")
    return value in form.marks if form.marks else bool(value)


def block_counts(keys: Keys) -> tuple[int, int]:
    """The blocks of the model and of the file, whose last ones may predict further tokens and are ignored."""
    every_block, guessing = keys.integer("block_count"), keys.value(_GUESSING) or 0
    if not is_integer(guessing, 0) or guessing >= every_block:
        raise keys.refused(_GUESSING, f"an integer below the {every_block} blocks")
    return every_block - guessing, every_block


def config_of(file: GgufFile) -> ModelConfig:
    """The configuration that a file's metadata and list of tensors describe.

    Raises:
        FormatError: the architecture is unknown, or a key is missing, out of range or not supported; names the key as
            in the file.
    """
    family, label = family_of(file), file.source
    form, keys = family.in_gguf, keys_of(file, family)
    computed = {key for key, _ in form.scalars.values()}
    computed |= {"expert_count"} if family.experts else set()
    computed |= {"use_parallel_residual"} if family.layer.parallel else set()
    computed |= {_YARN_LOG} if family.scaled_queries or family.latent else set()
    for key, usual in USUAL_SETTINGS.items():
        if key not in computed:
            keys.only(key, usual)
    keys.only("attention.causal", (not family.encodes,))
    embeddings, head = f"{form.names.embeddings}.weight", f"{form.names.head}.weight"
    if embeddings not in file.tensors:
        raise FormatError(f"{label}: tensor {embeddings!r} is missing; expected a whole model; get another file")
    fields: Fields = {
        "vocab_size": file.tensors[embeddings].shape[0],
        "hidden_size": keys.integer("embedding_length"),
        "num_attention_heads": keys.integer("attention.head_count") if family.attends else 1,
        "num_hidden_layers": block_counts(keys)[0],
        "max_position_embeddings": keys.integer("context_length"),
        "intermediate_size": 0 if family.single else keys.smallest(form.inner_key),
        "layer_norm_eps": keys.number(_EPSILONS[family.norm]),
        "hidden_act": family.activation,
        "model_type": family.name,
        "tie_word_embeddings": head not in file.tensors,
    }
    if family.experts:
        fields |= _expert_fields(family, keys, fields["intermediate_size"])
    if family.rotary:
        fields.update(_rotary_fields(family, keys, file, fields))
    elif keys.integer(_KEY_HEADS, fields["num_attention_heads"]) != fields["num_attention_heads"]:
        raise keys.refused(_KEY_HEADS, str(fields["num_attention_heads"]))
    fields.update(embedding_fields(family, keys, file))
    for field, (key, scalar) in form.scalars.items():
        value = keys.value(key)
        fields[field] = scalar if value is None else keys.number(key) if value else _NEUTRAL.get(field, 0.0)
        fields[field] = 1 / fields[field] if field in form.inverted and value else fields[field]
    with described_by(f"{label}: it"):
        config = ModelConfig(**fields)
    check_scaling(config, label)
    return config


def _expert_fields(family: Family, keys: Keys, width: int) -> Fields:
    """The settings of experts of this ``width``."""
    found: Fields = {
        "num_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "norm_topk_prob": True,
        "use_expert_bias": bool(family.names.expert_bias),
    }
    if family.sigmoid_router:
        keys.only("expert_gating_func", (SIGMOID,))
    if "num_dense_layers" in family.usual:
        found["num_dense_layers"] = keys.integer("leading_dense_block_count", 0, least=0)
        found["dense_intermediate_size"] = keys.integer("feed_forward_length")
    if family.shared_expert:
        found["shared_expert_intermediate_size"] = keys.integer(SHARED_WIDTH, width)
    if "shared_intermediate_size" in family.usual:
        count = keys.integer("expert_shared_count", 0, least=0)
        none = keys.given("expert_shared_count") and not count
        found["shared_intermediate_size"] = (
            0 if none else keys.integer(family.in_gguf.shared_key, count * width or None)
        )
    return found


def _rotary_fields(family: Family, keys: Keys, file: GgufFile, fields: Fields) -> Fields:
    form, names, heads = family.in_gguf, names_in(file, family), fields["num_attention_heads"]
    head_dim = keys.integer("attention.key_length", max(1, fields["hidden_size"] // heads))
    rotary = keys.integer("rope.dimension_count", head_dim)
    for key in () if family.latent else ("attention.value_length", "rope.dimension_count"):
        in_part = form.partial_rotary and key == "rope.dimension_count" and rotary < head_dim and rotary % 2 == 0
        if keys.integer(key, head_dim) != head_dim and not in_part:
            raise keys.refused(key, f"{head_dim}, the width of a head")
    if head_dim % 2:
        raise keys.refused(
            "attention.key_length", f"an even number, as the {head_dim} elements of a head turn in pairs"
        )
    found: Fields = {
        # 0 unless the file has it, so that ModelConfig refuses a width that the heads do not divide.
        "head_dim": head_dim if keys.given("attention.key_length") else 0,
        "rope_theta": keys.number("rope.freq_base", family.rope_theta),
        "rope_scaling": _scaling(family, keys, file, rotary, fields["max_position_embeddings"]),
        "partial_rotary_factor": _share(rotary, head_dim),
        "attention_bias": bool(family.attention_biases) and f"{names.of('projection', 0, 'q')}.bias" in file.tensors,
        "mlp_bias": bool(family.mlp_biases) and f"{names.of('up', 0)}.bias" in file.tensors,
    }
    found.update(form.more(keys, {**fields, **found}))
    if family.encodes and found.get("sliding_window"):
        found["sliding_window"] = one_side(found["sliding_window"])
    if found.get("linear_num_value_heads"):
        found["linear_keys_in_turn"] = form.keys_in_turn and len({found[name] for name in _DELTA_HEADS}) > 1
    if BOTH in found.get("layer_types", ()) and f"{names.of('delta_norm', 0)}.weight" not in file.tensors:
        found["linear_norm_groups"] = 0
    if "num_key_value_heads" not in found:
        found["num_key_value_heads"] = keys.integer(_KEY_HEADS, heads)
    return found


def _share(rotary: int, head_dim: int) -> float:
    """The rotary share of a head, for which int(head_dim · share) is ``rotary``."""
    share = rotary / head_dim
    return share if int(head_dim * share) == rotary else math.nextafter(share, 1.0)


def _scaling(family: Family, keys: Keys, file: GgufFile, head_dim: int, context: int) -> dict[str, Any]:
    """RoPE scaling in the form of Hugging Face's settings; see :mod:`glinfer.kernels.rotary`."""
    if set(LONG_FACTORS.values()) <= file.tensors.keys():
        return {
            "rope_type": "longrope",
            **{field: _factors(file, name, head_dim) for field, name in LONG_FACTORS.items()},
            "attention_factor": keys.number("rope.scaling.attn_factor", 1.0),
            "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length", context),
            "max_position_embeddings": context,
        }
    kind = keys.value("rope.scaling.type") or "linear"  # llama.cpp's choice if there is only a factor
    old = keys.value("rope.scale_linear")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear") if old else 1.0)
    if kind != "linear":
        keys.only("rope.scaling.type", ("none", "linear", "yarn"))
    if kind != "yarn" and family.scaled_queries and keys.value(_QUERY_BETA):
        raise keys.refused("rope.scaling.type", f"yarn, as {_QUERY_BETA} is set")
    found = _yarn(family, keys, factor, context) if kind == "yarn" else {}
    if kind == "linear" and factor != 1:
        found = {"rope_type": "linear", "factor": factor}
    proportional = family.in_gguf.proportional
    if not proportional and ROPE_FREQS not in file.tensors:  # check_names refuses it where none belongs
        return found
    if found:
        raise keys.refused("rope.scaling.type", f"none of them, as {ROPE_FREQS} scales the pairs of this model")
    if proportional:
        return {"rope_type": PROPORTIONAL, "partial_rotary_factor": _rotary_share(file, head_dim)}
    factors = _factors(file, ROPE_FREQS, head_dim)
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _yarn(family: Family, keys: Keys, factor: float, context: int) -> dict[str, Any]:
    """The settings of YaRN.

    llama.cpp multiplies YaRN's usual attention factor by the file's. The betas, and the ends of the ramp between them,
    are the model's own, as in the file. llama.cpp uses betas of 32 and 1 for all of these architectures, and ends the
    ramp at whole pairs.
    """
    original = keys.integer("rope.scaling.original_context_length", context)
    found: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    for side in ("fast", "slow"):
        if keys.value(f"rope.scaling.yarn_beta_{side}") is not None:
            found[f"beta_{side}"] = keys.number(f"rope.scaling.yarn_beta_{side}")
    if family.scaled_queries and keys.value(_QUERY_BETA):
        found[QUERY_BETA] = keys.number(_QUERY_BETA)
    by, log = keys.number("rope.scaling.attn_factor", 1.0), keys.value(_YARN_LOG) and keys.number(_YARN_LOG)
    if log and family.latent:
        return found | dict.fromkeys(("mscale", "mscale_all_dim"), shortest(10 * log))
    by = by / yarn_attention(factor, log) if log else by
    return found if by == 1 else {**found, "attention_factor": by * yarn_attention(factor)}


def _rotary_share(file: GgufFile, head_dim: int) -> float:
    """The share of pairs that rotate, the first ones, whose factors are 1."""
    factors = _factors(file, ROPE_FREQS, head_dim) if ROPE_FREQS in file.tensors else (1.0,)
    rotary = factors.count(1.0)
    if not rotary or factors[:rotary] != (1.0,) * rotary or min(factors[rotary:], default=_STILL) < _STILL:
        raise FormatError(
            f"{file.source}: tensor {ROPE_FREQS!r} has other factors than 1 for the first pairs and {_STILL:g} or "
            "more for the others, which is not supported; get another conversion"
        )
    return rotary / len(factors)


def _factors(file: GgufFile, name: str, head_dim: int) -> tuple[float, ...]:
    tensor = file.tensors[name]
    if tensor.type != "F32" or tensor.shape != (head_dim // 2,):
        raise FormatError(
            f"{file.source}: tensor {name!r} is {tensor.type} {list(tensor.shape)}; expected F32 "
            f"[{head_dim // 2}], one for each pair"
        )
    numbers = tensor.data.view("<f4").astype(np.float64)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        raise FormatError(f"{file.source}: tensor {name!r} has numbers not above 0; the file is damaged, get it again")
    return tuple(numbers.tolist())


Factors = dict[str, npt.NDArray[np.float32]]
"""Tensors of frequency factors, by their names in a file."""


def metadata_of(config: ModelConfig) -> tuple[dict[str, Any], Factors]:
    """The metadata that describes a model, and the tensors of frequency factors that it needs."""
    family, form = config.family, config.family.gguf
    if config.embeds:
        raise _refused("it embeds texts; expected one that generates text")
    if form is None:
        known = ", ".join(name for name, each in FAMILIES.items() if each.gguf is not None)
        raise _refused(f"its family is {config.model_type!r}; expected one of {known}")
    if form.head == "tied" and not config.tie_word_embeddings:
        raise _refused(f"it has a head of its own; {config.model_type} in GGUF has the embeddings as its head")
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.dense_intermediate_size or config.intermediate_size,
        "attention.head_count": config.num_attention_heads if family.attends else 0,
        _EPSILONS[family.norm]: config.layer_norm_eps,
    }
    factors: Factors = {}
    if family.experts:
        values |= _expert_metadata(config)
    if family.rotary:
        values |= _rotary_metadata(config)
        try:
            scaling, factors = _scaling_metadata(config)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            given = quoted(dict(config.rope_scaling))
            raise _refused(f"the settings of its rope scaling cannot be right: {given}") from None
        values |= scaling
    for field, (key, _) in form.scalars.items():
        values[key] = 1 / getattr(config, field) if field in form.inverted else getattr(config, field)
    values.update(form.further(config))
    found = {f"{form.architecture}.{key}": value for key, value in values.items()}
    _check_read_back(config, found, factors)
    return found, factors


def _refused(words: str) -> InputError:
    return InputError(f"a GGUF file cannot hold this model: {words}")


def _expert_metadata(config: ModelConfig) -> dict[str, Any]:
    """The metadata for experts."""
    family, form = config.family, config.family.in_gguf
    values = {
        form.inner_key: config.intermediate_size,
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
    }
    if family.sigmoid_router:
        values["expert_gating_func"] = SIGMOID
    if family.names.expert_bias or "num_dense_layers" in family.usual:
        values["leading_dense_block_count"] = config.num_dense_layers
    if family.shared_expert:
        values[SHARED_WIDTH] = config.shared_expert_intermediate_size or config.intermediate_size
    elif config.shared_intermediate_size:
        values[form.shared_key] = config.shared_intermediate_size
    return values


def _rotary_metadata(config: ModelConfig) -> dict[str, Any]:
    """The metadata for layers with rotary positions, and for those beside them without attention."""
    family, layers = config.family, [config.layer(layer) for layer in range(config.num_hidden_layers)]
    values: dict[str, Any] = {
        _KEY_HEADS: config.num_key_value_heads,
        **dict.fromkeys(("attention.key_length", "attention.value_length"), config.head_dim),
        "rope.dimension_count": config.rotary_dim,
        "rope.freq_base": config.rope_theta,
    }
    if family.convolves:
        values["shortconv.l_cache"] = max(1, config.conv_L_cache)
    if any(each.convolves or each.mixing == "ssm" for each in layers):
        values[_KEY_HEADS] = [config.num_key_value_heads if each.attends else 0 for each in layers]
    if family.single:
        values[_EPSILONS["layer"]] = config.layer_norm_eps  # llama.cpp asks for both
        values["feed_forward_length"] = [config.intermediate_size if each.mlp else 0 for each in layers]
    if family.scans:
        values["rope.scaling.finetuned"] = any(each.rope is not None for each in layers)
    if sections := family.in_gguf.sections:
        pairs = config.rotary_dim // 2
        rows, cols = (round(pairs * each / sum(sections)) for each in sections[1:])
        values["rope.dimension_sections"] = [pairs - rows - cols, rows, cols, 0]
    if family.delta_rule:
        values |= _delta_metadata(config)
    if config.sliding_window and config.max_window_layers < config.num_hidden_layers:
        values[WINDOW] = config.sliding_window
    if config.rope_local_base_freq:
        values["rope.freq_base_swa"] = config.rope_local_base_freq
    return values


def _delta_metadata(config: ModelConfig) -> dict[str, Any]:
    """The metadata for layers with the delta rule or a scan."""
    layers, scans = range(config.num_hidden_layers), config.family.scans
    name = f"the architecture {config.family.in_gguf.architecture}"
    if config.linear_key_head_dim != config.linear_value_head_dim and not scans:
        raise _refused(f"{name} has values as long as keys")
    attending = [layer for layer in layers if config.layer(layer).delta is None]
    if len(attending) == len(layers):
        raise _refused(f"{name} has {'a scan' if scans else 'the delta rule'} in some layers")
    interval = attending[0] + 1 if attending else config.num_hidden_layers + 1
    return {
        **({} if scans else {"full_attention_interval": interval}),
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
    }


def _check_read_back(config: ModelConfig, values: Mapping[str, Any], factors: Factors) -> None:
    """Check that a file with this metadata is read as the same model."""
    form, family = config.family.in_gguf, config.family
    name = f"the architecture {form.architecture}"
    if config.hidden_act != family.activation:
        near = "; config.with_gelu('tanh') is near it" if family.activation == "gelu_new" else ""
        raise _refused(f"hidden_act is {config.hidden_act!r}, and {name} computes {family.activation!r}{near}")
    if config.attention_bias and not form.attention_bias:
        raise _refused(f"{name} has no biases in its attention")
    if config.conv_bias != (family.scans and bool(config.linear_num_value_heads)):
        raise _refused(f"{name} has {'no' if config.conv_bias else 'always'} biases in its convolutions")
    for field, (_, usual) in form.scalars.items():
        if usual and not getattr(config, field):
            raise _refused(f"{name} always has {field}")
    try:
        found = config_from(values, family, stored_tensors(config, form.names), factors, name)
    except FormatError as error:
        raise _refused(str(error)) from None
    for number in range(config.num_hidden_layers):
        ours, theirs = _layer(config, number), _layer(found, number)
        for field in {**ours, **theirs}:
            value, other = ours.get(field), theirs.get(field)
            if value != other and not (isinstance(value, float) and math.isclose(value, other or 0.0, rel_tol=1e-6)):
                where = "" if field in _NEUTRAL else f"layer {number}: "
                raise _refused(f"{where}{field} is {value}, but {other} in {name}")


def config_from(
    values: Mapping[str, Any], family: Family, stored: Iterable[StoredTensor], factors: Factors, source: str
) -> ModelConfig:
    """The configuration that a file with this metadata and these tensors has; errors as of :func:`config_of`."""
    none = np.zeros(0, np.uint8)
    tensors = {each.name: GgufTensor(each.name, "F32", each.outer_shape, none) for each in stored}
    for key, numbers in factors.items():
        tensors[key] = GgufTensor(key, "F32", numbers.shape, numbers.view(np.uint8))
    return config_of(GgufFile({"general.architecture": family.in_gguf.architecture, **values}, tensors, source))


def _layer(config: ModelConfig, number: int) -> Fields:
    """What a layer computes by the names of its settings, and what all layers share."""
    layer, scaling = config.layer(number), dict(config.rope_scaling)
    found: Fields = {name: getattr(config, name) for name in _NEUTRAL}
    found[QUERY_BETA] = scaling.get(QUERY_BETA) or 0.0  # files may have the rest of the scaling in another form
    found["truncate"] = bool(scaling.get("truncate", True)) or scaling.get("rope_type") != "yarn"
    for name, value in asdict(layer).items():
        parts = value.items() if isinstance(value, dict) else ()
        found.update({f"{name}.{part}": each for part, each in parts if part != "scaling"} or {name: value})
    if layer.delta is not None and layer.delta.heads == layer.delta.key_heads:
        del found["delta.in_turn"]
    return found


def _scaling_metadata(config: ModelConfig) -> tuple[dict[str, Any], Factors]:
    scaling = dict(config.rope_scaling)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return {}, {}
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}, {}
    longest = config.max_position_embeddings
    original = scaling.get("original_max_position_embeddings") or longest
    if kind == "yarn":
        factor = scaling.get("factor") or longest / original
        return _yarn_metadata(scaling, original, factor, latent=config.family.latent), {}
    form = config.family.in_gguf
    if form.proportional and kind == PROPORTIONAL and scaling.get("factor", 1.0) == 1.0:
        pairs = (config.global_head_dim or config.head_dim) // 2
        rotates = np.arange(pairs) < int(scaling.get("partial_rotary_factor", 1.0) * pairs)
        return {}, {ROPE_FREQS: np.where(rotates, 1.0, 1e30).astype(np.float32)}
    if form.has_factors:
        if kind == "llama3":
            return {}, {ROPE_FREQS: _llama3_factors(config, scaling)}
        same = scaling.get("short_factor") == scaling.get("long_factor")
        if kind == "longrope" and same and scaling.get("attention_factor") == 1:
            return {}, {ROPE_FREQS: np.asarray(scaling["short_factor"], dtype=np.float32)}
    if form.partial_rotary and kind == "longrope":
        factor = scaling.get("factor") or longest / original
        usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        values = {
            "rope.scaling.original_context_length": int(original),
            "rope.scaling.attn_factor": float(scaling.get("attention_factor") or usual),
        }
        return values, {name: np.asarray(scaling[field], np.float32) for field, name in LONG_FACTORS.items()}
    raise _refused(f"the architecture {form.architecture} has no such rope scaling of type {kind!r}")


def _yarn_metadata(scaling: Mapping[str, Any], original: int, factor: float, *, latent: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(factor),
        "rope.scaling.original_context_length": int(original),
    }
    if scaling.get(QUERY_BETA):
        values[_QUERY_BETA] = scaling[QUERY_BETA]
    for side in ("fast", "slow"):
        if scaling.get(f"beta_{side}"):
            values[f"rope.scaling.yarn_beta_{side}"] = float(scaling[f"beta_{side}"])
    if scaling.get("mscale_all_dim") and latent:
        if scaling.get("mscale") != scaling["mscale_all_dim"]:
            raise ValueError("mscale")
        return {**values, _YARN_LOG: 0.1 * scaling["mscale_all_dim"]}
    usual = yarn_attention(factor)
    attention = scaling.get("attention_factor") or usual
    if not scaling.get("attention_factor") and scaling.get("mscale") and scaling.get("mscale_all_dim"):
        attention = yarn_attention(factor, scaling["mscale"]) / yarn_attention(factor, scaling["mscale_all_dim"])
    if attention != usual:
        values["rope.scaling.attn_factor"] = attention / usual
    return values


def _llama3_factors(config: ModelConfig, scaling: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """The divisor of each pair's frequency, as in transformers' modeling_rope_utils.py."""
    angles = config.rope_theta ** (-np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    original = scaling.get("original_max_position_embeddings") or config.max_position_embeddings
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original * angles / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
    factors: npt.NDArray[np.float32] = (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32)
    return factors
