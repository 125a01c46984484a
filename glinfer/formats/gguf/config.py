"""Configurations from GGUF metadata, and back.

Sources: docs/gguf.md of the ggml project, and how llama.cpp (llama-model.cpp, llama-context.cpp) interprets the keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import CONV, DELTA, FULL, LONGEST_PERIOD, SLIDING, ModelConfig, every, one_side, shortest_pattern
from glinfer.errors import ConfigError, FormatError, InputError
from glinfer.families import FAMILIES
from glinfer.families.layer import QUERY_BETA
from glinfer.families.record import Family, Gguf
from glinfer.formats.gguf.embedders import embedding_fields, names_in
from glinfer.formats.gguf.file import GgufFile
from glinfer.formats.gguf.keys import Keys
from glinfer.formats.huggingface.rope import check_scaling
from glinfer.formats.json_files import is_whole, quoted

ROPE_FREQS = "rope_freqs.weight"
"""The tensor of frequency factors in some files: the divisor of each pair's frequency, float32 [pairs]."""
LONG_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
"""The names of two such tensors in other files, for short and for long contexts."""

_YARN_LOG, _QUERY_BETA = "rope.scaling.yarn_log_multiplier", "attention.temperature_scale"
_EPSILONS = {"layer": "attention.layer_norm_epsilon", "rms": "attention.layer_norm_rms_epsilon"}
# Keys that change the computation, with their neutral values.
_ONLY: dict[str, tuple[Any, ...]] = {
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


_PERIOD = "full_attention_interval"
_GUESSING = "nextn_predict_layers"
_SHARED_WIDTH = "expert_shared_feed_forward_length"
_NEUTRAL = {
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "partial_rotary_factor": 1.0,
}
"""The neutral values of a configuration's scalars."""


def family_of(file: GgufFile) -> Family:
    """The family of the model in a file, by its architecture.

    Raises:
        FormatError: the architecture is unknown, or the file is not a whole model.
    """
    found, label = file.metadata.get("general.architecture"), file.source
    known = ", ".join(dict.fromkeys(family.gguf.architecture for family in FAMILIES.values() if family.gguf))
    if found is None:
        raise FormatError(f"{label}: found no general.architecture; expected one of those known: {known}")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise FormatError(f"{label}: its general.type is {quoted(kind)}; expected a model")
    families = {
        bool(family.gguf.marked_by): family
        for family in reversed(FAMILIES.values())
        if family.gguf and family.gguf.architecture == found
        if not family.gguf.marked_by or file.metadata.get(f"{found}.{family.gguf.marked_by}")
    }
    if not families:
        raise FormatError(
            f"{label}: found architecture {quoted(found)}, which is not supported; expected one of those known: {known}"
        )
    return families[max(families)]


def block_counts(keys: Keys) -> tuple[int, int]:
    """The blocks of the model and of the file, whose last ones may predict further tokens and are ignored."""
    every_block, guessing = keys.whole("block_count"), keys.get(_GUESSING) or 0
    if not is_whole(guessing, 0) or guessing >= every_block:
        keys.refuse(_GUESSING, f"is {quoted(guessing)}; expected a whole number below the {every_block} blocks")
    return every_block - guessing, every_block


def config_of(file: GgufFile) -> ModelConfig:
    """The configuration that a file's metadata and list of tensors describe.

    Raises:
        FormatError: the architecture is unknown, or a key is missing, out of range or not supported; names the key as
            in the file.
    """
    family = family_of(file)
    form = family.in_gguf
    embeddings, head = f"{form.names.embeddings}.weight", f"{form.names.head}.weight"
    keys = Keys(file, form.architecture)
    computed = {key for key, _ in form.scalars.values()}
    for key, usual in _ONLY.items():
        if (
            key in computed
            or (key == "expert_count" and family.experts)
            or (key == _YARN_LOG and family.scaled_queries)
        ):
            continue
        keys.only(key, usual)
    keys.only("attention.causal", (not family.encodes,))
    if embeddings not in file.tensors:
        raise FormatError(f"{file.source}: tensor {embeddings!r} is missing; expected a whole model; get another file")
    heads, width = keys.whole("attention.head_count"), keys.whole("embedding_length")
    fields: dict[str, Any] = {
        "vocab_size": file.tensors[embeddings].shape[0],
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": block_counts(keys)[0],
        "max_position_embeddings": keys.whole("context_length"),
        "intermediate_size": keys.whole(form.inner_key),
        "layer_norm_eps": keys.number(_EPSILONS[family.norm]),
        "hidden_act": form.activation,
        "model_type": family.name,
        "tie_word_embeddings": head not in file.tensors,
    }
    if not family.rotary:
        if keys.whole("attention.head_count_kv", heads) != heads:
            keys.refuse("attention.head_count_kv", f"is {keys.whole('attention.head_count_kv')}; expected {heads}")
    else:
        fields.update(_rotary_fields(family, keys, file, heads, width, fields["max_position_embeddings"]))
    fields.update(embedding_fields(family, keys, file))
    if family.experts:
        fields["num_experts"], fields["num_experts_per_tok"] = (
            keys.whole("expert_count"),
            keys.whole("expert_used_count"),
        )
        fields["norm_topk_prob"] = form.normed_experts
        if family.shared_expert and keys.whole(_SHARED_WIDTH, inner := fields["intermediate_size"]) != inner:
            keys.refuse(_SHARED_WIDTH, f"is {keys.whole(_SHARED_WIDTH)}; expected {inner}, the width of other experts")
        fields.update(form.fixed)
    for field, (key, scalar) in form.scalars.items():
        value = keys.get(key)
        fields[field] = scalar if value is None else keys.number(key) if value else _NEUTRAL.get(field, 0.0)
    try:
        config = ModelConfig(**fields)
    except ConfigError as error:
        raise FormatError(f"{file.source}: it describes no possible model: {error}") from None
    check_scaling(config, file.source)
    return config


def _rotary_fields(family: Family, keys: Keys, file: GgufFile, heads: int, width: int, context: int) -> dict[str, Any]:
    names = names_in(file, family)
    head_dim = keys.whole("attention.key_length", max(1, width // heads))
    form, layers = family.in_gguf, block_counts(keys)[0]
    turned = keys.whole("rope.dimension_count", head_dim)
    for key in ("attention.value_length", "rope.dimension_count"):
        in_part = form.partial_rotary and key == "rope.dimension_count" and turned < head_dim and turned % 2 == 0
        if keys.whole(key, head_dim) != head_dim and not in_part:
            keys.refuse(key, f"is {keys.whole(key)}; expected {head_dim}, the width of a head")
    if head_dim % 2:
        keys.refuse("attention.key_length", f"is {head_dim}; expected an even number, as elements turn in pairs")
    windows, local = _windows(form, keys, layers), form.local_theta
    if family.encodes and windows.get("sliding_window"):
        windows["sliding_window"] = one_side(windows["sliding_window"])
    by_width = layers == form.scaled_by_width
    rotary = every(form.no_rope, layers, 1, 0) if form.no_rope else ()
    return {
        **_key_heads(family, keys, layers, heads),
        # 0 unless the file has it, so that ModelConfig refuses a width that the heads do not divide.
        "head_dim": 0 if keys.get("attention.key_length") is None else head_dim,
        "rope_theta": keys.number("rope.freq_base", family.rope_theta),
        "rope_scaling": tuple(_scaling(family, keys, file, turned, context).items()),
        "partial_rotary_factor": _share(turned, head_dim),
        **windows,
        **(_delta_fields(form, keys, layers) if family.delta_rule else {}),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", local) if local and "layer_types" in windows else 0.0,
        "rotary_layers": rotary if 0 in rotary else (),
        **({"attention_multiplier": (width // heads) ** -0.5} if by_width else {}),
        "attention_bias": bool(family.attention_biases) and f"{names.of('projection', 0, 'q')}.bias" in file.tensors,
        "mlp_bias": bool(family.mlp_biases) and f"{names.of('up', 0)}.bias" in file.tensors,
    }


def _key_heads(family: Family, keys: Keys, layers: int, heads: int) -> dict[str, Any]:
    """The number of key-value heads; a layer with 0 is a convolution."""
    name = "attention.head_count_kv"
    found = keys.listed(name)
    if not family.convolves or not isinstance(found, list):
        return {"num_key_value_heads": keys.whole(name, heads)}
    counts = {each for each in found if is_whole(each, 1)}
    if len(found) != layers or len(counts) > 1 or any(each not in (0, *counts) for each in found):
        keys.refuse(name, f"is {quoted(found)}; expected {layers} numbers, 0 or the same one")
    if 0 not in found:
        return {"num_key_value_heads": found[0]}
    if keys.get("attention.sliding_window"):
        keys.refuse("attention.sliding_window", "is set; expected none in a model whose layers convolve")
    return {
        "num_key_value_heads": max(found),
        "layer_types": shortest_pattern([FULL if each else CONV for each in found]),
        "conv_L_cache": keys.whole("shortconv.l_cache", 3),
    }


def _delta_fields(form: Gguf, keys: Keys, layers: int) -> dict[str, Any]:
    """The layers with the delta rule, and its sizes."""
    pattern = every(keys.whole(_PERIOD, 4, most=LONGEST_PERIOD), layers, DELTA, FULL)
    if DELTA not in pattern:
        return {}
    key_heads, heads, inner = (keys.whole(f"ssm.{each}") for each in ("group_count", "time_step_rank", "inner_size"))
    if heads % key_heads:
        keys.refuse("ssm.time_step_rank", f"is {heads}; expected a multiple of the {key_heads} of ssm.group_count")
    if inner % heads:
        keys.refuse("ssm.inner_size", f"is {inner}; expected a multiple of the {heads} heads of ssm.time_step_rank")
    return {
        "layer_types": pattern,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": keys.whole("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": keys.whole("ssm.conv_kernel"),
        "linear_keys_in_turn": form.keys_in_turn and heads != key_heads,
    }


def _share(turned: int, head_dim: int) -> float:
    """The rotary share of a head, for which int(head_dim · share) is ``turned``."""
    share = turned / head_dim
    return share if int(head_dim * share) == turned else math.nextafter(share, 1.0)


def _windows(form: Gguf, keys: Keys, layers: int) -> dict[str, Any]:
    """The fields for sliding windows: their length and layers."""
    given = keys.get("attention.sliding_window")
    window = keys.whole("attention.sliding_window") if given else 0 if given is not None else form.window
    if not form.period:
        return {"sliding_window": window}
    pattern = _window_pattern(form, keys, layers)
    if SLIDING not in pattern or not window:
        return {}
    return {"sliding_window": window, "layer_types": pattern}


def _window_pattern(form: Gguf, keys: Keys, layers: int) -> tuple[str, ...]:
    """The layers with a window: as the file lists them, or all but every n-th, with n from file or family."""
    key = "attention.sliding_window_pattern"
    found = keys.listed(key)
    if isinstance(found, list):
        if len(found) != layers or any(not isinstance(each, bool) for each in found):
            keys.refuse(key, f"is {quoted(found)}; expected {layers} times true or false, or one whole number")
        return shortest_pattern([SLIDING if each else FULL for each in found])
    return every(keys.whole(key, form.period, most=LONGEST_PERIOD), layers, SLIDING, FULL)


def _scaling(family: Family, keys: Keys, file: GgufFile, head_dim: int, context: int) -> dict[str, Any]:
    """RoPE scaling in the form of Hugging Face's settings; see :mod:`glinfer.ops.rotary`.

    llama.cpp multiplies YaRN's usual attention factor by the file's. The betas, and the ends of the ramp between them,
    are the model's own, as in the file. llama.cpp uses betas of 32 and 1 for all of these architectures, and ends the
    ramp at whole pairs.
    """
    if set(LONG_FACTORS.values()) <= file.tensors.keys():
        return {
            "rope_type": "longrope",
            **{field: _factors(file, name, head_dim) for field, name in LONG_FACTORS.items()},
            "attention_factor": keys.number("rope.scaling.attn_factor", 1.0),
            "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length", context),
            "max_position_embeddings": context,
        }
    kind = keys.get("rope.scaling.type") or "linear"  # llama.cpp's choice if there is only a factor
    old = keys.get("rope.scale_linear")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear") if old else 1.0)
    found: dict[str, Any] = {}
    if kind == "yarn":
        original = keys.whole("rope.scaling.original_context_length", context)
        found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for side in ("fast", "slow"):
            if keys.get(f"rope.scaling.yarn_beta_{side}") is not None:
                found[f"beta_{side}"] = keys.number(f"rope.scaling.yarn_beta_{side}")
        if not family.in_gguf.whole_pairs:
            found["truncate"] = False
        by = keys.number("rope.scaling.attn_factor", 1.0)
        if keys.get(_YARN_LOG):
            by /= yarn_attention(factor, keys.number(_YARN_LOG))
        if by != 1:
            found["attention_factor"] = by * yarn_attention(factor)
    elif kind == "linear" and factor != 1:
        found = {"rope_type": "linear", "factor": factor}
    elif kind not in ("none", "linear"):
        keys.refuse("rope.scaling.type", f"is {quoted(kind)}, which is not supported; expected none, linear or yarn")
    if family.scaled_queries and keys.get(_QUERY_BETA):
        if kind != "yarn":
            keys.refuse("rope.scaling.type", f"is {quoted(kind)}; expected yarn, as {_QUERY_BETA} is set")
        found[QUERY_BETA] = keys.number(_QUERY_BETA)
    if ROPE_FREQS not in file.tensors:  # if the architecture has no such tensor, check_names refuses it
        return found
    if found:
        keys.refuse("rope.scaling.type", f"is {quoted(kind)}, and there is {ROPE_FREQS} too; expected one of the two")
    factors = _factors(file, ROPE_FREQS, head_dim)
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "factor": 1.0,
        "original_max_position_embeddings": context,
    }


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


def yarn_attention(factor: float, by: float = 1.0) -> float:
    """YaRN's attention factor, which multiplies cosines and sines."""
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


# The reverse


Factors = dict[str, npt.NDArray[np.float32]]
"""Tensors of frequency factors, by their names in a file."""


def metadata_of(config: ModelConfig) -> tuple[dict[str, Any], Factors]:
    """The metadata that describes a model, and the tensors of frequency factors that it needs.

    Raises:
        InputError: no GGUF architecture computes this model.
    """
    refused = _refusal(config)
    if refused:
        raise InputError(f"a GGUF file cannot hold this model: {refused}")
    family = config.family
    architecture = family.in_gguf.architecture
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        _EPSILONS[family.norm]: config.layer_norm_eps,
    }
    factors: Factors = {}
    if family.experts:
        values[family.in_gguf.inner_key] = config.intermediate_size
        values["expert_count"], values["expert_used_count"] = config.num_experts, config.num_experts_per_tok
        if family.shared_expert:
            values[_SHARED_WIDTH] = config.intermediate_size
    if family.rotary:
        values["attention.head_count_kv"] = config.num_key_value_heads
        convolving = [config.layer(layer).convolves for layer in range(config.num_hidden_layers)]
        if family.convolves:
            values["shortconv.l_cache"] = max(1, config.conv_L_cache)
        if any(convolving):
            values["attention.head_count_kv"] = [0 if each else config.num_key_value_heads for each in convolving]
        for key in ("attention.key_length", "attention.value_length"):
            values[key] = config.head_dim
        values["rope.dimension_count"] = config.rotary_dim
        if family.in_gguf.sections:
            pairs = config.rotary_dim // 2
            values["rope.dimension_sections"] = [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]
        if family.delta_rule:
            values.update(_delta_metadata(config))
        values["rope.freq_base"] = config.rope_theta
        if config.sliding_window and config.max_window_layers < config.num_hidden_layers:
            values["attention.sliding_window"] = config.sliding_window
        if config.rope_local_base_freq:
            values["rope.freq_base_swa"] = config.rope_local_base_freq
        try:
            scaling, factors = _scaling_metadata(config)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            raise InputError(
                "a GGUF file cannot hold this model: the settings of its rope scaling cannot be right: "
                f"{quoted(dict(config.rope_scaling))}"
            ) from None
        values.update(scaling)
    for field, (key, _) in family.in_gguf.scalars.items():
        values[key] = getattr(config, field)
    return {f"{architecture}.{key}": value for key, value in values.items()}, factors


def _delta_metadata(config: ModelConfig) -> dict[str, Any]:
    """The metadata for layers with the delta rule."""
    layers = range(config.num_hidden_layers)
    attending = [layer for layer in layers if config.layer(layer).attends]
    return {
        _PERIOD: attending[0] + 1 if attending else config.num_hidden_layers + 1,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
    }


def _refusal(config: ModelConfig) -> str:
    """The reason no architecture computes this model; empty if one does."""
    form = config.family.gguf
    if config.embeds:
        return "it embeds texts; expected one that generates text"
    if form is None:
        known = ", ".join(name for name, family in FAMILIES.items() if family.gguf is not None)
        return f"its family is {config.model_type!r}; expected one of {known}"
    if config.hidden_act != form.activation:
        near = "; config.with_gelu('tanh') is near it" if form.activation == "gelu_new" else ""
        return (
            f"hidden_act is {config.hidden_act!r}, and the architecture {form.architecture} computes "
            f"{form.activation!r}{near}"
        )
    if config.family.delta_rule:
        refused = _other_delta_rule(config, form)
        if refused:
            return refused
    if config.conv_bias:
        return f"the architecture {form.architecture} has no biases in its convolutions"
    if config.family.experts and config.norm_topk_prob != form.normed_experts:
        found = "add up to 1" if form.normed_experts else "are those of a softmax over all experts"
        return f"the weights of the experts of the architecture {form.architecture} always {found} (norm_topk_prob)"
    for name, value in form.fixed.items():
        found = getattr(config, name)
        if found != value:
            return f"{name} is {found:g}, and the architecture {form.architecture} always has {value:g}"
    if config.attention_bias and not form.attention_bias:
        return f"the architecture {form.architecture} has no biases in its attention"
    if config.sliding_window and 0 < config.max_window_layers < config.num_hidden_layers:
        return "only some of its layers have a sliding window"
    return _other_layers(config, form)


def _other_delta_rule(config: ModelConfig, form: Gguf) -> str:
    """How an architecture's delta rules differ from this model's; empty if they do not."""
    layers, name = config.num_hidden_layers, form.architecture
    attends = [config.layer(layer).attends for layer in range(layers)]
    period = attends.index(True) + 1 if True in attends else layers + 1
    if all(attends) or attends != [(layer + 1) % period == 0 for layer in range(layers)]:
        return f"the architecture {name} has attention in every n-th layer, and the delta rule in all others"
    shared = config.linear_num_key_heads != config.linear_num_value_heads
    if shared and config.linear_keys_in_turn != form.keys_in_turn:
        return f"the architecture {name} has value heads that share keys in another order, which is not supported"
    if config.linear_key_head_dim != config.linear_value_head_dim:
        return f"the architecture {name} has values as long as keys in its delta rules"
    return ""


def _other_layers(config: ModelConfig, form: Gguf) -> str:
    """How an architecture's layers differ from this model's; empty if they do not."""
    layers, name = config.num_hidden_layers, form.architecture
    windows = every(form.period, layers, SLIDING, FULL) if form.period else (SLIDING,)
    kinds = config.layer_types or (SLIDING,)
    if config.sliding_window and any(
        kinds[index % len(kinds)] != windows[index % len(windows)] for index in range(layers)
    ):
        return f"the architecture {name} has its windows in other layers"
    turning = every(form.no_rope, layers, 1, 0) if form.no_rope else (1,)
    turns = config.rotary_layers or (1,)
    if any(turns[index % len(turns)] != turning[index % len(turning)] for index in range(layers)):
        return f"the architecture {name} rotates queries and keys in other layers"
    usual = config.head_dim**-0.5
    if layers == form.scaled_by_width:
        usual = (config.hidden_size // config.num_attention_heads) ** -0.5
    computed = {**_NEUTRAL, "attention_multiplier": usual}
    found = {field: getattr(config, field) for field in _NEUTRAL}
    found["attention_multiplier"] = config.attention_multiplier or config.head_dim**-0.5
    for field, value in found.items():
        if field in form.scalars and not value and form.scalars[field][1]:
            return f"the architecture {name} always has {field}"
        if field == "partial_rotary_factor" and form.partial_rotary:
            continue
        if field not in form.scalars and not math.isclose(value, computed[field], rel_tol=1e-6):
            return f"the architecture {name} has no {field} of {value:g}"
    if bool(config.rope_local_base_freq) != bool(form.local_theta and config.layer_types):
        return f"the architecture {name} differs in whether layers with a window have their own rotary base"
    return ""


def _scaling_metadata(config: ModelConfig) -> tuple[dict[str, Any], Factors]:
    scaling = dict(config.rope_scaling)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return {}, {}
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}, {}
    longest = config.max_position_embeddings
    original = scaling.get("original_max_position_embeddings") or longest
    computed = config.family.scaled_queries or not scaling.get(QUERY_BETA)
    if kind == "yarn" and computed and bool(scaling.get("truncate", True)) == config.family.in_gguf.whole_pairs:
        return _yarn_metadata(scaling, original, scaling.get("factor") or longest / original), {}
    form = config.family.in_gguf
    if form.pairs_together:
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
    raise InputError(
        f"a GGUF file cannot hold this model: the architecture {form.architecture} has no such rope scaling of "
        f"type {kind!r}"
    )


def _yarn_metadata(scaling: Mapping[str, Any], original: int, factor: float) -> dict[str, Any]:
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
