"""A family's form in Hugging Face's files, and what several families share in reading a ``config.json``.

Names and meanings follow the configurations and the modelling code of transformers 5, which ignores some settings of
some families. Older files have ``rope_theta`` and ``rope_scaling``; transformers 5 has both in ``rope_parameters``.
Precedence, and the source of the original context for each type, follow its modeling_rope_utils.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from glinfer.errors import FormatError
from glinfer.families.layer import FULL, LONGEST_PERIOD, QUERY_BETA, SLIDING, every, shortest_pattern
from glinfer.families.names import Names
from glinfer.families.settings import Settings, is_integer, quoted

Fields = dict[str, Any]
"""Fields of :class:`glinfer.config.ModelConfig` by name."""
Hook = Callable[[Settings, Fields], Fields]
"""Reads more fields from a file, given those that were read before."""
TANH = "gelu_pytorch_tanh"
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings"),
)
"""Fields of :class:`glinfer.config.ModelConfig` that have defaults in a ``config.json``."""
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", TANH: "gelu_new"}
"""The ``hidden_act`` of :class:`glinfer.config.ModelConfig` for each name of an activation in ``config.json``."""
SAME_MATHS: Mapping[str, tuple[object, ...]] = {
    "is_causal": (True, None),
    "use_bidirectional_attention": (False, None),
    "per_layer_config": (None,),
}
"""Settings that would change the computation, and their neutral values."""
SHARED_WIDTH = "shared_expert_intermediate_size"
"""The width of an expert that all tokens share."""
UNUSED_POSITIONS = 2
"""Rows before the first one that texts use, in learned positions that are ``padded``."""
_FULL_LAYERS = 28  # the usual max_window_layers
_SHARE = "partial_rotary_factor"
TERNARY = "ternary"
"""The layout of matrices that BitNet quantises, see :mod:`glinfer.formats.huggingface.ternary`."""
PROPORTIONAL = "proportional"
"""The type of angles of which the first pairs of a head are rotated, by its whole width, and the others stay."""
_OLD_LONGROPE = ("su", "yarn")  # its names in the first Phi-3 files
_ORIGINAL, _POSITIONS = "original_max_position_embeddings", "max_position_embeddings"
# The required and the optional numbers of each type.
_NUMBERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": (("factor",), ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", QUERY_BETA)),
    "longrope": ((), ("factor", "attention_factor")),
}
_TYPES = ("default", *_NUMBERS)
_WITH_ORIGINAL = ("llama3", "yarn", "longrope")
_WITH_POSITIONS = ("dynamic", "yarn", "longrope")
_MAY_BE_0 = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", QUERY_BETA)  # 0 counts as missing


def no_window(settings: Settings, fields: Fields) -> Fields:
    """No sliding windows; one as long as the context changes nothing."""
    window = settings.integer("sliding_window") if settings.given("sliding_window") else 0
    if 0 < window < fields["max_position_embeddings"]:
        raise settings.refused(
            "sliding_window", f"none in a model of family {fields['model_type']}, which sees all positions"
        )
    return _alike(settings, fields, 0)


def window_of_all(settings: Settings, fields: Fields, usual: int = 4096) -> Fields:
    """The same sliding window in all layers, by default ``usual``; null for none."""
    return _alike(settings, fields, _window(settings, usual))


def _window(settings: Settings, usual: int) -> int:
    """The file's window, or the usual one; null for none."""
    missing = "sliding_window" not in settings.values
    given = settings.given("sliding_window")
    return settings.integer("sliding_window") if given else usual if missing else 0


def _alike(settings: Settings, fields: Fields, window: int) -> Fields:
    kind, kinds = SLIDING if window else FULL, layer_kinds(settings, fields)
    if kinds is not None and set(kinds) != {kind}:
        raise FormatError(
            f"{settings.label}: layer_types is {quoted(kinds)}; expected {kind} in every layer of this "
            f"{fields['model_type']} model, or no layer_types"
        )
    return {"sliding_window": window}


def listed_windows(
    settings: Settings, fields: Fields, period: int = 0, usual: int = 4096, period_key: str = "", *, local: bool = False
) -> Fields:
    """A window in the layers that the file lists, or in all but every ``period``-th.

    The file may have another period at ``period_key``. With ``local`` angles of these layers, layers are listed even if
    all have a window.
    """
    window = _window(settings, usual)
    kinds, layers = layer_kinds(settings, fields), fields["num_hidden_layers"]
    if kinds is not None:
        pattern = shortest_pattern(kinds)
    elif period:
        period = settings.integer(period_key, period, most=LONGEST_PERIOD) if period_key else period
        pattern = every(period, layers, SLIDING, FULL)
    else:
        pattern = (SLIDING,) if window else ()
    if pattern == (SLIDING,) and not local:
        return {"sliding_window": window}
    return {} if SLIDING not in pattern else {"sliding_window": window, "layer_types": pattern}


def later_windows(settings: Settings, fields: Fields) -> Fields:
    """A window in the layers after the first ``max_window_layers``, if ``use_sliding_window`` says so."""
    layers = fields["num_hidden_layers"]
    window = _window(settings, 4096) if settings.flag("use_sliding_window") else 0
    kinds = layer_kinds(settings, fields)
    if kinds is None:
        full_layers = settings.integer("max_window_layers", _FULL_LAYERS, least=0)
    else:
        full_layers = kinds.index(SLIDING) if SLIDING in kinds else layers
        if FULL in kinds[full_layers:]:
            raise FormatError(
                f"{settings.label}: layer_types is {quoted(kinds)}; expected all of {FULL} before all of {SLIDING}, as "
                "other patterns are not supported"
            )
        if not window and full_layers < layers:
            raise FormatError(
                f"{settings.label}: layer_types has {SLIDING}, but there is no window; expected use_sliding_window "
                "and a sliding_window"
            )
    return {"sliding_window": window, "max_window_layers": full_layers} if window and full_layers < layers else {}


def layer_kinds(settings: Settings, fields: Fields, other: str = SLIDING) -> list[str] | None:
    """The kind of each layer in ``layer_types``, full attention or the ``other`` one; None if the file lists none.

    Raises:
        FormatError: the setting is something else.
    """
    kinds, layers = settings.value("layer_types"), fields["num_hidden_layers"]
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise settings.refused("layer_types", f"a list of {layers} names, one a layer")
    kinds = [FULL if kind == "attention" else kind for kind in kinds]  # an older name
    for kind in kinds:
        if kind not in (FULL, other):
            raise FormatError(
                f"{settings.label}: layer_types has {quoted(kind)}, which is not supported; expected {FULL} or {other}"
            )
    return kinds


def angles(settings: Settings, fields: Fields, usual: Mapping[str, Any] | None = None, *, beta: bool = False) -> Fields:
    """The angles of rotary positions, which all layers share.

    Args:
        settings: the file.
        fields: those read before; ``rope_theta`` is the family's, and so is ``partial_rotary_factor``, the usual share
            of a head that is rotated; families without it rotate whole heads.
        usual: the scaling of a file that has none.
        beta: whether queries may grow with their position.

    Raises:
        FormatError: the type is unknown, or one of its settings is missing, invalid or not supported.
    """
    name = "rope_scaling" if settings.values.get("rope_scaling") else "rope_parameters"
    values = settings.value(name)
    values = usual if values is None else values
    if values is not None and not isinstance(values, dict):
        raise settings.refused(name, "settings such as {'rope_type': 'linear', 'factor': 2.0}")
    scaling = Settings(values or {}, f"{settings.label}: {name}")
    nested = [key for key, value in scaling.values.items() if isinstance(value, dict)]
    if nested:
        raise FormatError(
            f"{scaling.label}: found settings of its own for {quoted(nested[0])}; expected the same settings for "
            "every layer, as others are not supported"
        )
    return _angles(scaling, settings, fields, beta=beta)


def angles_by_kind(settings: Settings, fields: Fields, local_theta: float, share: float = 0) -> Fields:
    """The angles of a family whose layers with a window have their own base, by default ``local_theta``.

    A file has the settings of each kind of layer, or those of the others and the base of these. With a ``share``,
    that share of the pairs is rotated in the other layers of a file without settings.
    """
    listed: dict[str, dict[str, Any]] = {FULL: {}, SLIDING: {}}
    if share:
        listed[FULL] = {"rope_type": PROPORTIONAL, _SHARE: share}
    if settings.given("rope_parameters"):
        found = settings.values["rope_parameters"]
        if not isinstance(found, dict) or any(
            kind not in listed or not isinstance(values, dict) for kind, values in found.items()
        ):
            raise settings.refused("rope_parameters", f"settings for {FULL} and for {SLIDING}")
        listed.update(found)
    if settings.values.get("rope_scaling"):
        if not isinstance(settings.values["rope_scaling"], dict):
            raise settings.refused("rope_scaling", "settings such as {'rope_type': 'linear', 'factor': 2.0}")
        listed[FULL] = {**listed[FULL], **settings.values["rope_scaling"]}
    full, sliding = (Settings(listed[kind], f"{settings.label}: {kind}") for kind in (FULL, SLIDING))
    found = _angles(full, settings, fields)
    if sliding.values.get("rope_type", "default") != "default":
        raise sliding.refused("rope_type", "default, as scaled angles of layers with a window are not supported")
    if "rope_theta" in sliding.values:
        local = sliding.number("rope_theta")
    else:
        local = settings.number("rope_local_base_freq", local_theta)
    return {**found, "rope_local_base_freq": local if "layer_types" in fields else 0.0}


def _angles(scaling: Settings, settings: Settings, fields: Fields, *, beta: bool = False) -> Fields:
    """The settings of one layer type."""
    holder = scaling if "rope_theta" in scaling.values else settings
    found: Fields = {"rope_theta": holder.number("rope_theta", fields["rope_theta"])}
    head_dim = fields["head_dim"]
    kind = scaling.values.get("rope_type", scaling.values.get("type", "default"))
    if kind == PROPORTIONAL:
        factor = scaling.number("factor", 1.0)
        found["rope_scaling"] = {
            "rope_type": kind,
            _SHARE: _share(scaling),
            **({} if factor == 1 else {"factor": factor}),
        }
        return found
    if share := fields.get(_SHARE):
        share = (scaling if scaling.given(_SHARE) else settings).number(_SHARE, share)  # older files have it outside
        if share > 1 or int(head_dim * share) % 2 or (head_dim and not int(head_dim * share)):
            raise settings.refused(_SHARE, f"at most 1, for an even number of the {head_dim} elements of a head")
        found[_SHARE], head_dim = share, int(head_dim * share)
        kind = "longrope" if kind in _OLD_LONGROPE else kind
    else:
        settings.only(_SHARE, (1, None))
        if scaling.given(_SHARE) and scaling.values[_SHARE] != 1:
            raise scaling.refused(_SHARE, "1, as this family rotates whole heads")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise FormatError(
            f"{scaling.label}: rope_type is {quoted(kind)}, which is not supported; expected one of {', '.join(_TYPES)}"
        )
    if beta and scaling.values.get(QUERY_BETA) and kind != "yarn":
        raise scaling.refused("rope_type", f"yarn, as {QUERY_BETA} is given")
    if kind != "default":
        scaled = _scaling(kind, scaling, settings, fields["max_position_embeddings"], head_dim)
        found["rope_scaling"] = {name: value for name, value in scaled.items() if beta or name != QUERY_BETA}
    return found


def _share(scaling: Settings) -> float:
    """The share of rotary pairs."""
    share = scaling.number(_SHARE, 1.0)
    if share > 1:
        raise scaling.refused(_SHARE, "at most 1")
    return share


def _scaling(kind: str, scaling: Settings, settings: Settings, positions: int, head_dim: int) -> dict[str, Any]:
    needed, optional = _NUMBERS[kind]
    found: dict[str, Any] = {"rope_type": kind}
    for name in (*needed, *optional):
        # A factor of null is the ratio of the two contexts, but only these types have both.
        null = not scaling.given(name) and (name in optional or (kind == "yarn" and name in scaling.values))
        if not null and not (name in _MAY_BE_0 and scaling.values[name] == 0):
            found[name] = scaling.number(name)
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            found[name] = scaling.numbers(name, head_dim // 2)
    if kind in _WITH_ORIGINAL:
        # Some families have it outside the scaling settings, which takes precedence.
        holder = settings if _ORIGINAL in settings.values else scaling
        found[_ORIGINAL] = holder.integer(_ORIGINAL, positions)
    if kind in _WITH_POSITIONS:
        found[_POSITIONS] = positions
    if kind == "yarn" and "truncate" in scaling.values:
        found["truncate"] = bool(scaling.values["truncate"])
    return found


def shared_expert(settings: Settings, fields: Fields, usual: int) -> Fields:
    """The width of an expert that all tokens share, by default ``usual``."""
    return {"shared_expert_intermediate_size": settings.integer(SHARED_WIDTH, usual)}


def with_biases(settings: Settings, fields: Fields) -> Fields:
    """The biases of attention, which a file may turn off."""
    return {"attention_bias": settings.flag("attention_bias", default=True)}


def marked(name: str) -> Callable[[Settings], bool]:
    """Whether a setting is true or above 0."""
    return lambda settings: settings.value(name) is True or is_integer(settings.value(name), 1)


def nothing(settings: Settings, fields: Fields) -> Fields:
    """No further fields."""
    return {}


@dataclass(frozen=True)
class Classifier:
    """The matrices after the pooling of a ``…ForSequenceClassification``, and the defaults of its settings.

    Attributes:
        matrices: their names.
        activation: what ``classifier_activation`` is by default, between them.
        norm: the name of a norm before the last of them; empty without one.
        biased: what ``classifier_bias`` is by default, whether the first of two has a bias.
        pooling: what ``classifier_pooling`` is by default.
    """

    matrices: tuple[str, ...]
    activation: str = "tanh"
    norm: str = ""
    biased: bool = True
    pooling: str = "cls"


@dataclass(frozen=True)
class HuggingFace:
    """The ``config.json`` and the weights of a family in the form of Hugging Face's transformers.

    Attributes:
        sizes: defaults of the fields :data:`SIZES`; 0 if the value follows from other fields.
        activations: the settings that name the activation, with the names that each accepts; given ones must agree.
        eps: the default epsilon of norms.
        tied: default of ``tie_word_embeddings``.
        keys: the names of a field in the file, if they differ from ours; several are synonyms and must agree.
        null_heads: whether ``num_key_value_heads`` may be null, which means one for each head of queries.
        scalars: settings that scale or bound something, with their defaults; null and 0 bound nothing. Their names are
            fields of :class:`glinfer.config.ModelConfig`, or ``query_pre_attn_scalar``, whose root divides scores.
        experts: default number of experts of a layer, default number of a token, and the default of ``norm_topk_prob``;
            None if the weights of the chosen ones always add up to 1.
        unused: settings of experts, or of shared ones, that its files may have although no layer reads them.
        only: settings that would change the computation, with their neutral values; other values are refused.
        windows: reads the fields of sliding windows, or of layers without attention.
        rope: reads the fields of rotary positions.
        more: reads what only this family has; its fields replace those read before.
        variant: the ``model_type`` of its files, and whether settings are of this family, if it is another family's.
        wrapped: the ``model_type`` of multimodal models whose ``text_config`` describes a model of this family.
        names: the names of tensors in the file; None if they are those of the checkpoint.
        modules: the names of modules in transformers, which adapters have; None if they are those of tensors.
        prefix: the beginning of names that some files omit.
        buffers: a regular expression for tensors, without prefix, that are not weights of the model and are ignored.
        layouts: how the file stores the tensors of a role, see :mod:`glinfer.formats.huggingface.layouts`; by default
            as [out, in].
        classifier: what a classifier computes of the vector of a text; None if its models have none.
        factors: reads the factors that the family puts into its matrices, one a matrix or one a row, by role, or by
            role and letter.
    """

    sizes: tuple[int, ...]
    activations: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"hidden_act": ACTIVATIONS})
    eps: float = 1e-6
    tied: bool = False
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    null_heads: bool = True
    scalars: Mapping[str, float] = field(default_factory=dict)
    experts: tuple[int, int, bool | None] = (0, 0, None)
    unused: tuple[str, ...] = ()
    only: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: SAME_MATHS)
    windows: Hook = no_window
    rope: Hook = angles
    more: Hook = nothing
    variant: tuple[str, Callable[[Settings], bool]] = ("", lambda settings: False)
    wrapped: tuple[str, ...] = ()
    names: Names | None = None
    modules: Names | None = None
    prefix: str = "model."
    buffers: str = r"(.*\.)?rotary_emb\.inv_freq"
    layouts: Mapping[str, str] = field(default_factory=dict)
    classifier: Classifier | None = None
    factors: Hook = nothing
