"""Configurations from the metadata of GGUF files, and back.

Source: docs/gguf.md of the ggml project, and what llama.cpp (llama-model.cpp, llama-context.cpp) makes of the keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import ConfigError, FormatError, InputError
from glinfer.families import FAMILIES
from glinfer.families.record import Family, Gguf
from glinfer.formats.gguf.file import GgufFile
from glinfer.formats.huggingface.rope import check_scaling
from glinfer.formats.json_files import quoted

ROPE_FREQS = "rope_freqs.weight"
"""The name of a tensor in some files: the factor by which each pair of a head turns slower, float32 [head_dim / 2]."""

_EPSILONS = {"layer": "attention.layer_norm_epsilon", "rms": "attention.layer_norm_rms_epsilon"}
# Keys that change the maths, and the values with which they do not.
_ONLY: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.alpha": (0.0, 1.0),
}


class _Keys:
    """The metadata whose keys begin with the name of the architecture."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file, self._architecture = file, architecture

    def refuse(self, key: str, words: str) -> NoReturn:
        raise FormatError(f"{self._file.source}: {self._architecture}.{key} {words}")

    def get(self, key: str) -> Any:
        """A value, or None; of an array with one value for each layer, the value that all share."""
        value = self._file.metadata.get(f"{self._architecture}.{key}")
        if not isinstance(value, list):
            return value
        if not value or any(other != value[0] for other in value):
            self.refuse(key, f"is {quoted(value)}; expected the same for all layers; such models are not supported")
        return value[0]

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(key)
        if value is None:
            return int(self._default(key, default))
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(key, f"is {quoted(value)}; expected a whole number of at least 1")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key)
        if value is None:
            return float(self._default(key, default))
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            self.refuse(key, f"is {quoted(value)}; expected a number above 0")
        return _decimal(value)

    def _default(self, key: str, default: float | None) -> float:
        if default is None:
            self.refuse(key, "is not among the metadata, and is needed; the file is damaged, get it again")
        return default


def _decimal(value: float) -> float:
    """The shortest decimal number that rounds to a float32: 1e-05 for 9.99999974737875e-06."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else float(value)


def _architectures() -> dict[str, Family]:
    """The family for each architecture of files."""
    return {family.gguf.architecture: family for family in reversed(FAMILIES.values()) if family.gguf is not None}


def form_of(family: Family) -> Gguf:
    """The GGUF part of the record of a family that has one."""
    assert family.gguf is not None
    return family.gguf


def family_of(file: GgufFile) -> Family:
    """The family of the model in a file, by its architecture.

    Raises:
        FormatError: it is none that is known, or the file is not a whole model.
    """
    found, label = file.metadata.get("general.architecture"), file.source
    families = _architectures()
    known = ", ".join(dict.fromkeys(family.gguf.architecture for family in FAMILIES.values() if family.gguf))
    if found is None:
        raise FormatError(f"{label}: found no general.architecture; expected one of those known: {known}")
    kind, parts = file.metadata.get("general.type", "model"), file.metadata.get("split.count", 1)
    if kind != "model":
        raise FormatError(f"{label}: its general.type is {quoted(kind)}; expected a model")
    if parts not in (0, 1):
        raise FormatError(f"{label}: this is one of {quoted(parts)} parts of a model; join them (gguf-split --merge)")
    if not isinstance(found, str) or found not in families:
        raise FormatError(f"{label}: found architecture {quoted(found)}; expected one of those known: {known}")
    return families[found]


def config_of(file: GgufFile) -> ModelConfig:
    """The model that a file describes, by its metadata and by which tensors there are.

    Raises:
        FormatError: the architecture is unknown, a key is missing, out of range or asks for maths that is not done
            here; the key is named as in the file.
    """
    family = family_of(file)
    form = form_of(family)
    embeddings, head = f"{form.names.embeddings}.weight", f"{form.names.head}.weight"
    keys = _Keys(file, form.architecture)
    for key, usual in _ONLY.items():
        value = keys.get(key)
        if value is not None and value not in usual:
            keys.refuse(key, f"is {quoted(value)}, which is not supported; expected {quoted(usual[-1])}")
    if embeddings not in file.tensors:
        raise FormatError(f"{file.source}: tensor {embeddings!r} is missing; the file is damaged, get it again")
    heads, width = keys.whole("attention.head_count"), keys.whole("embedding_length")
    fields: dict[str, Any] = {
        "vocab_size": file.tensors[embeddings].shape[0],
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": keys.whole("block_count"),
        "max_position_embeddings": keys.whole("context_length"),
        "intermediate_size": keys.whole("feed_forward_length"),
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
    try:
        config = ModelConfig(**fields)
    except ConfigError as error:
        raise FormatError(f"{file.source}: it describes no possible model: {error}") from None
    check_scaling(config, file.source)
    return config


def _rotary_fields(family: Family, keys: _Keys, file: GgufFile, heads: int, width: int, context: int) -> dict[str, Any]:
    names = form_of(family).names
    head_dim = keys.whole("attention.key_length", max(1, width // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.whole(key, head_dim) != head_dim:
            keys.refuse(key, f"is {keys.whole(key)}; expected {head_dim}, the width of a head")
    if head_dim % 2:
        keys.refuse("attention.key_length", f"is {head_dim}; expected an even number, as elements turn in pairs")
    window = keys.get("attention.sliding_window")
    return {
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        # Told only where it does not follow from the width, so that a width that heads do not divide is refused.
        "head_dim": 0 if keys.get("attention.key_length") is None else head_dim,
        "rope_theta": keys.number("rope.freq_base", family.rope_theta),
        "rope_scaling": tuple(_scaling(keys, file, head_dim, context).items()),
        "sliding_window": keys.whole("attention.sliding_window") if window else 0,
        "attention_bias": f"{names.of('projection', 0, 'q')}.bias" in file.tensors,
        "mlp_bias": f"{names.of('up', 0)}.bias" in file.tensors,
    }


def _scaling(keys: _Keys, file: GgufFile, head_dim: int, context: int) -> dict[str, Any]:
    """The scaling of angles, as Hugging Face's settings have it; see :mod:`glinfer.ops.rotary`.

    llama.cpp multiplies YaRN's usual attention factor with the file's. The betas are taken as the file has them, which
    are the model's own; llama.cpp itself has 32 and 1 for all of these architectures.
    """
    kind = keys.get("rope.scaling.type") or "linear"  # what llama.cpp takes where there is a factor alone
    old = keys.get("rope.scale_linear")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear") if old else 1.0)
    found: dict[str, Any] = {}
    if kind == "yarn":
        original = keys.whole("rope.scaling.original_context_length", context)
        found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for side in ("fast", "slow"):
            if keys.get(f"rope.scaling.yarn_beta_{side}") is not None:
                found[f"beta_{side}"] = keys.number(f"rope.scaling.yarn_beta_{side}")
        by = keys.number("rope.scaling.attn_factor", 1.0)
        if by != 1:
            found["attention_factor"] = by * yarn_attention(factor)
    elif kind == "linear" and factor != 1:
        found = {"rope_type": "linear", "factor": factor}
    elif kind not in ("none", "linear"):
        keys.refuse("rope.scaling.type", f"is {quoted(kind)}, which is not supported; expected none, linear or yarn")
    if ROPE_FREQS not in file.tensors:  # where there may be none, that is told later
        return found
    if found:
        keys.refuse("rope.scaling.type", f"is {quoted(kind)}, and there is {ROPE_FREQS} too; expected one of the two")
    factors = _factors(file, head_dim)
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _factors(file: GgufFile, head_dim: int) -> tuple[float, ...]:
    tensor = file.tensors[ROPE_FREQS]
    if tensor.type != "F32" or tensor.shape != (head_dim // 2,):
        raise FormatError(
            f"{file.source}: tensor {ROPE_FREQS!r} is {tensor.type} {list(tensor.shape)}; expected F32 "
            f"[{head_dim // 2}], one for each pair"
        )
    numbers = tensor.data.view("<f4").astype(np.float64)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        raise FormatError(f"{file.source}: tensor {ROPE_FREQS!r} has numbers that are not above 0; the file is damaged")
    return tuple(numbers.tolist())


def yarn_attention(factor: float, by: float = 1.0) -> float:
    """The factor of cosines and sines in YaRN."""
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


# The reverse


def metadata_of(config: ModelConfig) -> tuple[dict[str, Any], npt.NDArray[np.float32] | None]:
    """The metadata that describe a model, and the numbers of ``rope_freqs.weight`` if it needs that tensor.

    Raises:
        InputError: GGUF has no architecture that computes what this model does.
    """
    refused = _refusal(config)
    if refused:
        raise InputError(f"a GGUF file cannot hold this model: {refused}")
    family = config.family
    architecture = form_of(family).architecture
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        _EPSILONS[family.norm]: config.layer_norm_eps,
    }
    factors = None
    if family.rotary:
        values["attention.head_count_kv"] = config.num_key_value_heads
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            values[key] = config.head_dim
        values["rope.freq_base"] = config.rope_theta
        if config.sliding_window and config.max_window_layers < config.num_hidden_layers:
            values["attention.sliding_window"] = config.sliding_window
        try:
            scaling, factors = _scaling_metadata(config)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            raise InputError(
                "a GGUF file cannot hold this model: the settings of its rope scaling cannot be right: "
                f"{quoted(dict(config.rope_scaling))}"
            ) from None
        values.update(scaling)
    return {f"{architecture}.{key}": value for key, value in values.items()}, factors


def _refusal(config: ModelConfig) -> str:
    """The reason why no architecture computes this model; empty if one does."""
    form = config.family.gguf
    if form is None:
        known = ", ".join(name for name, family in FAMILIES.items() if family.gguf is not None)
        return f"its family is {config.model_type!r}; expected one of {known}"
    if config.hidden_act != form.activation:
        near = "; config.with_gelu('tanh') is near it" if form.activation == "gelu_new" else ""
        return (
            f"hidden_act is {config.hidden_act!r}, and the architecture {form.architecture} computes "
            f"{form.activation!r}{near}"
        )
    if config.attention_bias and not form.attention_bias:
        return f"the architecture {form.architecture} has no biases in its attention"
    if config.sliding_window and 0 < config.max_window_layers < config.num_hidden_layers:
        return "only some of its layers have a sliding window"
    return ""


def _scaling_metadata(config: ModelConfig) -> tuple[dict[str, Any], npt.NDArray[np.float32] | None]:
    scaling = dict(config.rope_scaling)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return {}, None
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}, None
    longest = config.max_position_embeddings
    original = scaling.get("original_max_position_embeddings") or longest
    if kind == "yarn" and scaling.get("truncate", True):
        return _yarn_metadata(scaling, original, scaling.get("factor") or longest / original), None
    form = form_of(config.family)
    if form.pairs_together:
        if kind == "llama3":
            return {}, _llama3_factors(config, scaling)
        same = scaling.get("short_factor") == scaling.get("long_factor")
        if kind == "longrope" and same and scaling.get("attention_factor") == 1:
            return {}, np.asarray(scaling["short_factor"], dtype=np.float32)
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
    """The factor by which each pair turns slower; the maths is that of transformers' modeling_rope_utils.py."""
    angles = config.rope_theta ** (-np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    original = scaling.get("original_max_position_embeddings") or config.max_position_embeddings
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original * angles / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
    factors: npt.NDArray[np.float32] = (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32)
    return factors
