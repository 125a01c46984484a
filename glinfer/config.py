"""The shape of a model, with the names of Hugging Face configurations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from reprlib import repr as shown
from typing import Any

import numpy as np

from glinfer.errors import ConfigError
from glinfer.families import DEFAULT, FAMILIES, TOWERS
from glinfer.families.layer import (
    ALL_AHEAD,
    BOTH,
    CONV,
    DELTA,
    FULL,
    LONGEST_CONVOLUTION,
    MLP,
    MOE,
    SLIDING,
    DeltaRule,
    Experts,
    Latent,
    LayerConfig,
    Rope,
    latent_scale,
)
from glinfer.families.options import option_fields
from glinfer.families.record import Family
from glinfer.limits import MAX_CONFIG_NUMBER

_SHOWN_FIELDS = 6  # known fields that a message lists
_FILLED_IN = ("intermediate_size", "num_key_value_heads", "head_dim")  # other integers with a default may be 0
MAX_EXPERTS = 1024
"""Limit for the experts of a layer, since each has its own tensor names."""
MAX_GROUPS = 32
"""Limit for the groups of experts, since a shader compares each with every other."""
LARGEST_DELTA_KEY = 256
"""Limit for the elements of a delta rule's key; each is a row of the state."""
_CHECKED_APART = ("layer_norm_eps", "rope_theta", "rope_local_base_freq")
_MAX_SCALE = 1e6  # limit for factors and caps, beyond which float32 overflows
ACTIVATIONS = ("gelu", "gelu_new", "silu", "relu2")
"""Valid values of ``hidden_act``."""
POOLINGS = ("", "mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean")
"""Valid values of ``pooling``, with the names of sentence-transformers."""
DENSE_ACTIVATIONS = ("none", "tanh", "gelu", "silu")
"""Valid activations of ``dense``."""
_ACTIVATION_OF_GELU = {"tanh": "gelu_new", "erf": "gelu"}


def _is_number(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _pairs(settings: object) -> tuple[tuple[str, Any], ...]:
    """Settings as hashable pairs, sorted by name."""
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


def _dense(layers: object) -> tuple[tuple[int, bool, str], ...]:
    """Check the matrices after the pooling."""
    try:
        found = tuple((outputs, biased, activation) for outputs, biased, activation in layers)  # type: ignore[attr-defined]
        good = all(
            _is_number(outputs, int)
            and 1 <= outputs <= MAX_CONFIG_NUMBER
            and isinstance(biased, bool)
            and activation in DENSE_ACTIVATIONS
            for outputs, biased, activation in found
        )
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ConfigError(
            f"dense is {shown(layers)}; expected [outputs, whether there is a bias, activation] of each matrix, the "
            f"activation one of {', '.join(DENSE_ACTIVATIONS)}"
        )
    return found


def _listed(value: object) -> Any:
    return list(map(_listed, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model; immutable, hashable, checked when it is made.

    The names are those of Hugging Face's configurations. ``hidden_act`` is ``gelu_new`` for the tanh form of Gab's
    browser engine (the default), or ``gelu`` for the erf form of Gab's training. ``model_type`` is the family, a key of
    :data:`glinfer.families.FAMILIES`. With ``tie_word_embeddings`` the output projection uses the embedding matrix.
    ``layer_norm_eps`` also applies to RMSNorm.

    The fields after ``tie_word_embeddings`` are for families with rotary positions:

    * ``num_key_value_heads`` (0: as many as heads), ``head_dim`` (0: ``hidden_size / num_attention_heads``).
    * ``rope_theta``, ``rope_scaling`` (Hugging Face's mapping, kept as sorted pairs). ``partial_rotary_factor`` is the
      rotated share of a head. ``rope_local_base_freq`` is theta of layers with a window, without scaling (0: as in the
      others).
    * ``sliding_window``: positions that a token attends to, its own included (0: all). The first ``max_window_layers``
      layers have no window.
    * ``layer_types`` and ``rotary_layers``: patterns that repeat over the layers; empty means all are alike. The first
      has the kind of each layer (with ``sliding_attention``, ``max_window_layers`` is 0), the second whether it rotates
      queries and keys (1 or 0).
    * ``attention_multiplier`` scales scores (0: ``head_dim ** -0.5``). ``attn_logit_softcapping`` and
      ``final_logit_softcapping`` bound scores and logits by c · tanh(x / c) (0: no bound).
    * ``embedding_multiplier`` scales embeddings, ``residual_multiplier`` the output of each branch; ``logits_scaling``
      divides the logits.
    * ``type_vocab_size``, ``pooling`` and ``dense`` are for embedding models: the number of token types, one of
      :data:`POOLINGS` (empty in models that generate text), and (outputs, has bias, activation) of each later matrix,
      the last of them after a norm if ``dense_norm``.
    * ``conv`` layers: a gated convolution over ``conv_L_cache`` positions, with biases if ``conv_bias``.
    * ``num_experts`` (0: 8) experts of width ``intermediate_size``, of which a token uses ``num_experts_per_tok``
      (0: 2). With ``norm_topk_prob`` their weights add up to 1. ``routed_scaling_factor`` multiplies weights. With
      ``use_expert_bias`` learned numbers are added for the choice. Experts in ``n_group`` groups (0: none) are chosen
      from ``topk_group`` of these. The first ``num_dense_layers`` layers have one MLP
      of width ``dense_intermediate_size`` (0: ``intermediate_size``). A shared expert, in families that have one, is
      ``shared_expert_intermediate_size`` wide (0: as the others). ``swiglu_limit`` and ``swiglu_alpha`` are bound and
      slope of their gates (0: the plain product), see :class:`glinfer.families.layer.Experts`. All tokens also use an
      MLP of width ``shared_intermediate_size`` (0: none), whose result has no weight.
    * ``linear_attention`` layers have the gated delta rule: ``linear_num_value_heads`` value heads of
      ``linear_value_head_dim`` elements share ``linear_num_key_heads`` heads of queries and keys of
      ``linear_key_head_dim``, after a convolution over ``linear_conv_kernel_dim`` positions. Value heads that share a
      key head are consecutive, or, with ``linear_keys_in_turn`` (GGUF files), interleaved. In families with the scan of
      Mamba-2 a key head is a group, keys have the elements of its state, ``conv_bias`` is the convolution's, and
      results are normalised in ``linear_norm_groups`` parts (0: not). Layers of some families have one branch, which is
      an MLP in those of kind ``mlp``, and experts in those of kind ``moe``; in other families a layer ``moe`` has
      attention, then experts. Layers of kind ``hybrid`` have attention and a scan, which read the same stream.
    * ``global_head_dim`` and ``num_global_key_value_heads`` are the heads of layers without a window (0: as in the
      others); with ``attention_k_eq_v`` their values are the keys before their norm. The last ``num_kv_shared_layers``
      layers use the keys and values of the last layer of their kind before them; ``use_double_wide_mlp`` doubles the
      width of their MLPs. ``hidden_size_per_layer_input`` is the width of the token embeddings of each layer.
    * A latent (:class:`glinfer.families.layer.Latent`) has ``kv_lora_rank`` elements, that of queries ``q_lora_rank``
      (0: none). The last ``qk_rope_head_dim`` of ``head_dim`` elements are rotated, and values have ``v_head_dim``.
    * In an image encoder the rows are patches of ``patch_size`` × ``patch_size`` pixels (0: tokens of text), the
      vocabulary is their positions, and ``patches_per_token`` neighbours together make a token of the language model.
      Each of ``deepstack_layers`` gives further vectors of these tokens.

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
    layer_types: tuple[str, ...] = ()
    rotary_layers: tuple[int, ...] = ()
    rope_local_base_freq: float = 0.0
    partial_rotary_factor: float = 1.0
    attention_multiplier: float = 0.0
    attn_logit_softcapping: float = 0.0
    final_logit_softcapping: float = 0.0
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    type_vocab_size: int = 0
    pooling: str = ""
    dense: tuple[tuple[int, bool, str], ...] = ()
    conv_L_cache: int = 0  # noqa: N815 (the name in Hugging Face's configurations)
    conv_bias: bool = False
    num_experts: int = 0
    num_experts_per_tok: int = 0
    norm_topk_prob: bool = False
    swiglu_limit: float = 0.0
    swiglu_alpha: float = 1.0
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0
    linear_keys_in_turn: bool = False
    linear_norm_groups: int = 0
    shared_intermediate_size: int = 0
    global_head_dim: int = 0
    num_global_key_value_heads: int = 0
    attention_k_eq_v: bool = False
    num_kv_shared_layers: int = 0
    use_double_wide_mlp: bool = False
    hidden_size_per_layer_input: int = 0
    num_dense_layers: int = 0
    dense_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    use_expert_bias: bool = False
    routed_scaling_factor: float = 1.0
    patch_size: int = 0
    patches_per_token: int = 0
    deepstack_layers: tuple[int, ...] = ()
    dense_norm: bool = False
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    n_group: int = 0
    topk_group: int = 0

    def __post_init__(self) -> None:
        """Fill in defaults, then check every field."""
        if not isinstance(self.model_type, str):
            raise self._error("model_type", "a name")
        family, given_head_dim = FAMILIES.get(self.model_type), self.head_dim != 0
        self._fill_in(family)
        self._check_numbers()
        if not given_head_dim and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}; every head needs the same width"
            )
        for name in ("num_key_value_heads", "num_global_key_value_heads"):
            if self.num_attention_heads % (getattr(self, name) or 1):
                raise ConfigError(
                    f"num_attention_heads {self.num_attention_heads} is not a multiple of {name} "
                    f"{getattr(self, name)}; as many heads have to share each"
                )
        if self.attention_multiplier == self.head_dim**-0.5:
            self._set("attention_multiplier", 0.0)
        if self.shared_expert_intermediate_size == self.intermediate_size:
            self._set("shared_expert_intermediate_size", 0)
        self._check_layers(family)
        if family is not None:
            self._check_experts(family)
            self._check_latent(family)
        if self.hidden_act not in (*ACTIVATIONS, *([family.activation] if family is not None else [])):
            raise self._error("hidden_act", f"one of {', '.join(ACTIVATIONS)}")
        if self.pooling not in POOLINGS:
            raise self._error("pooling", f"one of {', '.join(POOLINGS[1:])}, or nothing")
        if self.dense_norm and len(self.dense) < 2:
            raise ConfigError(f"dense_norm is true and dense is {shown(self.dense)}; expected two matrices or more")

    def _fill_in(self, family: Family | None) -> None:
        """Set fields that are 0 to their usual numbers, and make the others hashable."""
        usual = {"num_key_value_heads": self.num_attention_heads}
        if _is_number(self.hidden_size, int):
            usual["intermediate_size"] = 4 * self.hidden_size
            if _is_number(self.num_attention_heads, int):  # too many heads raise an error later
                usual["head_dim"] = max(1, self.hidden_size // max(1, self.num_attention_heads))
        if family is not None and family.experts:
            usual |= {"num_experts": 8, "num_experts_per_tok": 2}
        for name, number in usual.items():
            if getattr(self, name) == 0:
                self._set(name, number)
        if self.kv_lora_rank:
            self._set("num_key_value_heads", self.num_attention_heads)
        self._set("rope_scaling", _pairs(self.rope_scaling))
        self._set("dense", _dense(self.dense))

    def _check_numbers(self) -> None:
        """Check the type and range of every number, and the type of every flag."""
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            least = int(field.default is dataclasses.MISSING or name in _FILLED_IN)
            if field.type == "int" and not (_is_number(value, int) and least <= value <= MAX_CONFIG_NUMBER):
                raise self._error(name, f"an integer from {least} to {MAX_CONFIG_NUMBER}")
            if field.type == "bool" and not isinstance(value, bool):
                raise self._error(name, "true or false")
            if field.type == "float" and name not in _CHECKED_APART:
                if not (_is_number(value, (float, int)) and (0 < value <= _MAX_SCALE or value == field.default)):
                    raise self._error(name, f"a number above 0, at most {_MAX_SCALE:g}")
                self._set(name, float(value))
        if not _is_number(self.layer_norm_eps, float) or not 0.0 < self.layer_norm_eps < 1.0:
            raise self._error("layer_norm_eps", "a number between 0 and 1")
        for name in ("rope_theta", *(("rope_local_base_freq",) if self.rope_local_base_freq else ())):
            base = getattr(self, name)
            if not _is_number(base, float) or not 1.0 < base < 1e30:
                raise self._error(name, "a number above 1, such as 10000.0")
        if self.partial_rotary_factor > 1:
            raise self._error("partial_rotary_factor", "at most 1")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _error(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"{name} is {shown(getattr(self, name))}; expected {expected}")

    def _check_experts(self, family: Family) -> None:
        if not family.experts:
            if self.num_experts or self.num_experts_per_tok:
                raise ConfigError(
                    f"num_experts is {self.num_experts} in a model of family {self.model_type}; expected none"
                )
            for name in ("shared_intermediate_size", "swiglu_limit", "n_group"):
                if value := getattr(self, name):
                    raise ConfigError(f"{name} is {value:.12g}; no layer of {self.model_type} has experts")
        elif self.num_dense_layers >= self.num_hidden_layers:
            raise self._error("num_dense_layers", f"fewer than the {self.num_hidden_layers} layers")
        elif not 2 <= self.num_experts <= MAX_EXPERTS:
            raise self._error("num_experts", f"an integer from 2 to {MAX_EXPERTS}")
        elif family.names.expert_norm and not self.shared_intermediate_size:
            raise self._error("shared_intermediate_size", "the width of the MLP next to the experts")
        elif self.num_experts_per_tok > self.num_experts:
            raise self._error("num_experts_per_tok", f"at most {self.num_experts}, the number of experts")
        elif groups := self.n_group:
            size, least = self.num_experts // groups, 2 if self.use_expert_bias else 1
            if groups > MAX_GROUPS or self.num_experts % groups or size < least:
                several = "two or more of" if least == 2 else "equally many of"
                raise self._error("n_group", f"at most {MAX_GROUPS} groups, with {several} {self.num_experts} experts")
            if not self.num_experts_per_tok <= self.topk_group * size <= self.num_experts:
                used = f"the {self.num_experts_per_tok} experts of a token"
                raise self._error("topk_group", f"enough of the {groups} groups for {used}, {size} in each")

    def _check_layers(self, family: Family | None) -> None:
        """Check the patterns of layers."""
        for name, known in (("layer_types", (FULL, SLIDING, CONV, DELTA, BOTH, MLP, MOE)), ("rotary_layers", (0, 1))):
            found = getattr(self, name)
            found = tuple(found) if isinstance(found, list) else found
            if not isinstance(found, tuple) or any(isinstance(each, bool) or each not in known for each in found):
                raise self._error(name, f"a list of {' and '.join(map(str, known))}")
            self._set(name, found)
        if self._check_kind(CONV, "conv_L_cache", "convolves", may_have=family is None or family.convolves):
            self._check_taps("conv_L_cache")
        for kind, may_have in ((MLP, "single"), (MOE, "listed_experts")):
            if kind in self.layer_types and family is not None and not getattr(family, may_have):
                words = "have two branches" if not family.single else "have no experts"
                raise ConfigError(f"layer_types has {kind!r}; layers of {self.model_type} {words}")
        self._check_delta_rule(family)
        self._check_shared_layers(family)
        if self.layer_types and self.max_window_layers:
            raise ConfigError(
                "layer_types and max_window_layers both say which layers have a window; expected one of them"
            )

    def _check_kind(self, kind: str, size: str, words: str, *, may_have: bool) -> bool:
        """Whether layers of a kind have to be checked; without any, a field of their sizes has to be 0."""
        found = kind in self.layer_types
        if not may_have and (found or getattr(self, size)):
            given = f"layer_types has {kind!r}" if found else f"{size} is {getattr(self, size)}"
            raise ConfigError(f"{given}; no layer of {self.model_type} {words}")
        if found and self.pooling:
            raise ConfigError(
                f"layer_types has {kind!r}, and pooling is {self.pooling!r}; a model that embeds texts can have "
                "attention alone here"
            )
        return found

    def _check_taps(self, name: str) -> None:
        if not 2 <= getattr(self, name) <= LONGEST_CONVOLUTION:
            raise self._error(name, f"an integer from 2 to {LONGEST_CONVOLUTION}")

    def _check_delta_rule(self, family: Family | None) -> None:
        kind = BOTH if BOTH in self.layer_types else DELTA
        may_have = family is None or (family.both if kind == BOTH else family.delta_rule)
        if not self._check_kind(kind, "linear_num_value_heads", "has the delta rule", may_have=may_have):
            return
        key_heads, heads = self.linear_num_key_heads, self.linear_num_value_heads
        if not key_heads or not heads or heads % key_heads:
            raise ConfigError(
                f"linear_num_value_heads is {heads} and linear_num_key_heads {key_heads}; expected a multiple of the "
                "heads of keys, at least one of each"
            )
        for name, most in (("linear_key_head_dim", LARGEST_DELTA_KEY), ("linear_value_head_dim", MAX_CONFIG_NUMBER)):
            value = getattr(self, name)
            if not 4 <= value <= most or value % 4:
                raise self._error(name, f"a multiple of 4 from 4 to {most}")
        self._check_taps("linear_conv_kernel_dim")
        width, groups = self.linear_value_head_dim, self.linear_norm_groups
        if groups and heads * width % (4 * groups):
            raise self._error("linear_norm_groups", f"parts of whole fours of the {heads} heads of {width} elements")

    def _check_latent(self, family: Family) -> None:
        """Check the widths of latents; other families have none."""
        for name in ("kv_lora_rank", "v_head_dim", "qk_rope_head_dim", "q_lora_rank"):
            value = getattr(self, name)
            if value and not family.latent:
                raise ConfigError(f"{name} is {value}; no layer of {self.model_type} has latents")
            if not value and family.latent and name != "q_lora_rank":
                raise self._error(name, "the elements of a latent, of a value, or of the rotary part")
        if (rotary := self.qk_rope_head_dim) and (rotary >= self.head_dim or rotary % 4):
            raise self._error("qk_rope_head_dim", f"a multiple of 4 below head_dim, {self.head_dim}")

    def _check_shared_layers(self, family: Family | None) -> None:
        """Check the layers that use keys and values of others, and the embeddings of layers."""
        if self.hidden_size_per_layer_input and family is not None and not family.names.per_layer_table:
            raise ConfigError(
                f"hidden_size_per_layer_input is {self.hidden_size_per_layer_input}; no layer of {self.model_type} has "
                "embeddings of its own"
            )
        shared = range(self.producing_layers, self.num_hidden_layers)
        pattern = self.layer_types or (FULL,)
        kinds = {pattern[layer % len(pattern)] for layer in shared[: len(pattern)]}
        if shared and not kinds <= {pattern[layer % len(pattern)] for layer in range(shared.start)[: len(pattern)]}:
            raise ConfigError(
                f"num_kv_shared_layers is {self.num_kv_shared_layers} of {self.num_hidden_layers} layers; expected a "
                "layer of each kind before these, whose keys and values they use"
            )

    @property
    def producing_layers(self) -> int:
        """The number of layers that keep something for later tokens; the last ones may use keys and values of these."""
        return max(0, self.num_hidden_layers - self.num_kv_shared_layers)

    @property
    def family(self) -> Family:
        """The record of the model's family.

        Raises:
            KeyError: the family is unknown, which readers of files refuse earlier.
        """
        return TOWERS[self.model_type] if self.model_type in TOWERS else FAMILIES[self.model_type]

    @property
    def embeds(self) -> bool:
        """Whether this is an embedding model, which does not generate text."""
        return bool(self.pooling)

    @property
    def patch_floats(self) -> int:
        """Numbers of a patch of an image, three for each pixel and frame; 0 in a model of text."""
        return 3 * self.patch_size**2 * (2 if self.family.by_grid else 1)

    @property
    def rotary_dim(self) -> int:
        """The number of rotated elements of a head."""
        return self.qk_rope_head_dim or int(self.head_dim * self.partial_rotary_factor)

    @property
    def embedding_scale(self) -> float:
        """The factor of embeddings, rounded to float32 as in training."""
        root = np.float32(self.hidden_size) ** np.float32(0.5) if self.family.scaled_embeddings else 1.0
        return float(root) * self.embedding_multiplier

    @cached_property
    def _layers(self) -> dict[int, LayerConfig]:
        """The records of layers made so far: plans and weights ask for each a dozen times."""
        return {}

    def layer(self, index: int) -> LayerConfig:
        """The record of one layer, from the family's and the fields of all layers."""
        if index not in self._layers:
            self._layers[index] = self._layer(index)
        return self._layers[index]

    def _layer(self, index: int) -> LayerConfig:
        family, kind = self.family, self._kind(index)
        dense = kind != MOE if family.listed_experts else index < self.num_dense_layers
        inner = (self.dense_intermediate_size if dense else 0) or self.intermediate_size
        wide = self.use_double_wide_mlp and index >= self.producing_layers
        layer = dataclasses.replace(
            family.layer,
            branch_scale=self.residual_multiplier,
            experts=None if dense else self.experts,
            head_dim=self.head_dim,
            kv_heads=self.num_key_value_heads,
            inner=2 * inner if wide else inner,
            mlp=kind in (MLP, MOE) if family.single else family.layer.mlp,
            per_layer=self.hidden_size_per_layer_input,
        )
        if family.single and layer.mlp:
            return dataclasses.replace(layer, mixing="none", head_norms="")
        if kind == CONV:
            return dataclasses.replace(layer, mixing="conv", taps=self.conv_L_cache, head_norms="", head_gates=False)
        if kind in (DELTA, BOTH):
            layer = dataclasses.replace(layer, taps=self.linear_conv_kernel_dim, delta=self._delta)
        if kind == DELTA:
            return dataclasses.replace(layer, mixing="ssm" if family.scans else "delta", head_norms="", gated=False)
        if rank := self.kv_lora_rank:
            latent = Latent(rank, self.q_lora_rank, self.head_dim - self.qk_rope_head_dim, self.v_head_dim)
            scale = self.attention_multiplier or latent_scale(self.head_dim, *self._scaling)
            rows, rope = rank + self.qk_rope_head_dim, self._rope(index, local=False)
            return dataclasses.replace(layer, head_dim=rows, kv_heads=1, rope=rope, score_scale=scale, latent=latent)
        return self._attention(layer, index)

    def _attention(self, layer: LayerConfig, index: int) -> LayerConfig:
        """Add attention over the layer's own keys and values, or those of an earlier layer."""
        kind, producing = self._kind(index), self.producing_layers
        slides = kind == SLIDING if kind else index >= self.max_window_layers and self.sliding_window > 0
        window = self.sliding_window if slides else 0
        before = range(producing - 1, -1, -1) if index >= producing else ()
        return dataclasses.replace(
            layer,
            head_dim=(0 if slides else self.global_head_dim) or self.head_dim,
            kv_heads=(0 if slides else self.num_global_key_value_heads) or self.num_key_value_heads,
            source=next((each for each in before if self._kind(each) == kind), None),
            one_projection=self.attention_k_eq_v and not slides,
            window=window,
            ahead=0 if not self.family.encodes else window - 1 if window else ALL_AHEAD,
            rope=self._rope(index, local=slides),
            score_scale=self.attention_multiplier or self.head_dim**-0.5,
            score_cap=self.attn_logit_softcapping,
        )

    def _kind(self, index: int) -> str:
        """The kind of a layer in ``layer_types``; empty without them."""
        return self.layer_types[index % len(self.layer_types)] if self.layer_types else ""

    @property
    def _delta(self) -> DeltaRule:
        return DeltaRule(
            self.linear_num_key_heads,
            self.linear_num_value_heads,
            self.linear_key_head_dim,
            self.linear_value_head_dim,
            self.linear_keys_in_turn,
            self.family.scans,
            self.linear_norm_groups,
        )

    @property
    def experts(self) -> Experts | None:
        """The experts of the layers that have some; None in a family without."""
        if not self.family.experts:
            return None
        limit, slope = (self.swiglu_limit, self.swiglu_alpha) if self.swiglu_limit else (0.0, 1.0)
        return Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.norm_topk_prob,
            limit,
            slope,
            shared=self.family.shared_expert,
            apart=self.shared_expert_intermediate_size > 0,
            sigmoid=self.family.sigmoid_router,
            share_eps=self.family.share_eps,
            biased=self.use_expert_bias,
            scale=self.routed_scaling_factor,
            own_norms=bool(self.family.names.expert_norm),
            groups=self.n_group,
            kept=self.topk_group,
        )

    def _rope(self, index: int, *, local: bool) -> Rope | None:
        if not self.family.rotary or (self.rotary_layers and not self.rotary_layers[index % len(self.rotary_layers)]):
            return None
        if local and self.rope_local_base_freq:
            return Rope(self.rope_local_base_freq, self.rotary_dim)
        head_dim = (0 if local else self.global_head_dim) or self.head_dim
        rotary = self.qk_rope_head_dim or int(head_dim * self.partial_rotary_factor)
        return Rope(self.rope_theta, rotary, self.rope_scaling)

    @property
    def _scaling(self) -> tuple[dict[str, Any], Any]:
        """The settings of ``rope_scaling``, and its type."""
        scaling = dict(self.rope_scaling)
        return scaling, scaling.get("rope_type", scaling.get("type"))

    @property
    def long_after(self) -> int:
        """Tokens of the longest text that uses the first of two sets of rotary angles; 0 for models with one set.

        Scaling of types ``longrope`` and ``dynamic`` has two sets, unless the context ends before the second. An
        embedding model uses the set of its context length.
        """
        scaling, kind = self._scaling
        if kind not in ("longrope", "dynamic") or self.embeds or not self.family.rotary:
            return 0
        original = scaling.get("original_max_position_embeddings") or scaling.get("max_position_embeddings") or 0
        known = isinstance(original, (int, float)) and 0 < original < self.max_position_embeddings
        return int(original) if known else 0  # any other value is refused where angles are computed

    @property
    def angle_rows(self) -> int:
        """Rows of the table of rotary angles: one for each position, the second set after the first."""
        return self.max_position_embeddings * (2 if self.long_after else 1)

    @property
    def most_positions(self) -> int:
        """Tokens of the longest context; scaling of type ``dynamic`` multiplies the trained context by its factor."""
        (scaling, kind), longest = self._scaling, self.max_position_embeddings
        trained, factor = scaling.get("max_position_embeddings"), scaling.get("factor")
        if (
            kind != "dynamic"
            or self.embeds
            or not (isinstance(trained, (int, float)) and isinstance(factor, (int, float)))
        ):
            return longest
        return max(longest, int(min(MAX_CONFIG_NUMBER, trained * factor)))

    def with_context(self, positions: int | None) -> ModelConfig:
        """The same model for sequences of at most ``positions`` tokens; None changes nothing.

        Raises:
            ConfigError: ``positions`` is above :attr:`most_positions`.
        """
        if positions is None:
            return self
        if not _is_number(positions, int) or not 1 <= positions <= self.most_positions:
            raise ConfigError(
                f"the context is {shown(positions)}; expected 1 to {self.most_positions}, the positions of this model"
            )
        return dataclasses.replace(self, max_position_embeddings=positions)

    def with_gelu(self, form: str | None) -> ModelConfig:
        """The same model with the ``tanh`` or the ``erf`` form of GELU; None changes nothing."""
        if form is None:
            return self
        if form not in list(_ACTIVATION_OF_GELU):  # any value, a dict too
            raise ConfigError(f"gelu is {form!r}; expected 'tanh' or 'erf'")
        return dataclasses.replace(self, hidden_act=_ACTIVATION_OF_GELU[form])

    def to_json(self) -> str:
        """The configuration as one line of JSON, for :meth:`from_json`."""
        return json.dumps(self.to_dict(), sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Field names and values as JSON values, without optional fields that have their defaults."""
        names = list(values := dataclasses.asdict(self))
        needed = names[: names.index("num_key_value_heads")]
        if (family := FAMILIES.get(self.model_type)) and family.experts and family.names.expert_norm:
            needed.append("shared_intermediate_size")
        divides = self.hidden_size % self.num_attention_heads == 0  # without, head_dim has no default
        kind = DEFAULT if self.kv_lora_rank else self.model_type  # families with latents have no usual widths
        usual = ModelConfig(**{n: values[n] for n in needed} | {"model_type": kind}, head_dim=int(not divides))
        given = (name for name in names if name in needed or values[name] != getattr(usual, name))
        found = {name: _listed(values[name]) for name in given}
        return {**found, "rope_scaling": dict(found["rope_scaling"])} if "rope_scaling" in found else found

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """Read the text of :meth:`to_json`; a ConfigError names unknown and missing fields."""
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
            first, more = list(fields)[:_SHOWN_FIELDS], len(fields) - _SHOWN_FIELDS
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
        """Read ``blocks=6,heads=8,dim=512``: names of the GAB1 header, with Gab's values as defaults.

        ``gab`` or ``gift_of_gab`` sets the whole shape of that model, which later parts change.
        Further names: ``family`` (sets that family's usual values), ``inner`` (width of the MLP), ``kv_heads``,
        ``head_dim``, ``window``, ``tied`` (0 or 1), ``experts`` and ``experts_used``.
        """
        return cls(**option_fields(text))
