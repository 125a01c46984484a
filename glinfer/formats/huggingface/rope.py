"""Rotary settings in ``config.json``: theta, and the RoPE scaling.

Older files have ``rope_theta`` and ``rope_scaling``; transformers 5 has both in ``rope_parameters``. Precedence, and
the source of the original context for each type, follow its modeling_rope_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from glinfer.config import FULL, SLIDING, ModelConfig
from glinfer.errors import FormatError
from glinfer.families.layer import QUERY_BETA
from glinfer.families.record import Family
from glinfer.formats.json_files import Settings, quoted

_SHARE = "partial_rotary_factor"
_OLD_LONGROPE = ("su", "yarn")  # its names in the first Phi-3 files
_ORIGINAL = "original_max_position_embeddings"
_POSITIONS = "max_position_embeddings"
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
_MIN_NUMBER, _MAX_NUMBER = 1e-9, 1e9  # of every number; beyond these, angles overflow
_MAY_BE_0 = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", QUERY_BETA)  # 0 counts as missing


class RopeSettings(NamedTuple):
    """The rotary settings of a model.

    Attributes:
        theta: the base of the angles.
        scaling: settings as :mod:`glinfer.ops.rotary` reads them; empty without scaling.
        share: the share of a head that is rotated.
        local_theta: the base in layers with a window; 0 if it is the same.
    """

    theta: float
    scaling: dict[str, Any]
    share: float = 1.0
    local_theta: float = 0.0


def rope_settings(settings: Settings, positions: int, head_dim: int, family: Family) -> RopeSettings:
    """Read the rotary settings; layers with a window have their own if the family's form has a theta for these.

    Args:
        settings: the whole configuration.
        positions: its ``max_position_embeddings``.
        head_dim: the elements of a head; 0 if unknown.
        family: the family, which has a Hugging Face record.

    Raises:
        FormatError: the type is unknown, or one of its settings is missing, invalid or not supported.
    """
    form = family.in_huggingface
    if form.local_theta:
        return _by_kind(settings, positions, head_dim, family)
    name = "rope_scaling" if settings.values.get("rope_scaling") else "rope_parameters"
    values = settings.values.get(name)
    if values is None:
        values = dict(form.usual_scaling) or None
    if values is not None and not isinstance(values, dict):
        raise settings.refused(name, "settings such as {'rope_type': 'linear', 'factor': 2.0}")
    scaling = Settings(values or {}, f"{settings.label}: {name}")
    nested = [key for key, value in scaling.values.items() if isinstance(value, dict)]
    if nested:
        raise FormatError(
            f"{scaling.label}: found settings of its own for {quoted(nested[0])}; expected the same settings for "
            "every layer, as others are not supported"
        )
    holder = scaling if "rope_theta" in scaling.values else settings
    return _of_one_kind(scaling, settings, positions, head_dim, holder.number("rope_theta", family.rope_theta), family)


def _of_one_kind(
    scaling: Settings, settings: Settings, positions: int, head_dim: int, theta: float, family: Family
) -> RopeSettings:
    """The settings of one layer type."""
    form = family.in_huggingface
    share = _share(scaling, settings, head_dim, form.rotary_share) if form.partial_rotary else 1.0
    if not form.partial_rotary and scaling.given(_SHARE) and scaling.values[_SHARE] != 1:
        raise scaling.refused(_SHARE, "1, as this family rotates whole heads")
    kind = scaling.values.get("rope_type", scaling.values.get("type", "default"))
    if form.partial_rotary and kind in _OLD_LONGROPE:
        kind = "longrope"
    if not isinstance(kind, str) or kind not in _TYPES:
        raise FormatError(
            f"{scaling.label}: rope_type is {quoted(kind)}, which is not supported; expected one of {', '.join(_TYPES)}"
        )
    if family.scaled_queries and scaling.values.get(QUERY_BETA) and kind != "yarn":
        raise scaling.refused("rope_type", f"yarn, as {QUERY_BETA} is given")
    if kind == "default":
        return RopeSettings(theta, {}, share)
    found = _scaling(kind, scaling, settings, positions, int(head_dim * share))
    if not family.scaled_queries:
        found.pop(QUERY_BETA, None)
    return RopeSettings(theta, found, share)


def _share(scaling: Settings, settings: Settings, head_dim: int, usual: float) -> float:
    """The share of a head that is rotated; older files have it outside the scaling settings."""
    share = (scaling if scaling.given(_SHARE) else settings).number(_SHARE, usual)
    if share > 1 or int(head_dim * share) % 2 or (head_dim and not int(head_dim * share)):
        raise settings.refused(_SHARE, f"at most 1, for an even number of the {head_dim} elements of a head")
    return share


def _by_kind(settings: Settings, positions: int, head_dim: int, family: Family) -> RopeSettings:
    """The settings of a file that has them by layer type, or has a separate theta for windows."""
    listed: dict[str, dict[str, Any]] = {FULL: {}, SLIDING: {}}
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
    holder = full if "rope_theta" in full.values else settings
    rope = _of_one_kind(full, settings, positions, head_dim, holder.number("rope_theta", family.rope_theta), family)
    if sliding.values.get("rope_type", "default") != "default":
        raise sliding.refused("rope_type", "default, as scaled angles of layers with a window are not supported")
    if "rope_theta" in sliding.values:
        local = sliding.number("rope_theta")
    else:
        local = settings.number("rope_local_base_freq", family.in_huggingface.local_theta)
    return rope._replace(local_theta=local)


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
            found[name] = _factors(scaling, name, head_dim)
    if kind in _WITH_ORIGINAL:
        # Some families have it outside the scaling settings, which takes precedence.
        holder = settings if _ORIGINAL in settings.values else scaling
        found[_ORIGINAL] = holder.whole(_ORIGINAL, positions)
    if kind in _WITH_POSITIONS:
        found[_POSITIONS] = positions
    if kind == "yarn" and "truncate" in scaling.values:
        found["truncate"] = bool(scaling.values["truncate"])
    return found


def check_scaling(config: ModelConfig, label: str) -> None:
    """Refuse RoPE scaling with numbers out of range, from any format.

    Raises:
        FormatError: a number is absurdly small or large; or ``longrope``, which divides by the logarithm of the
            original context, has one of a single position.
    """
    scaling = dict(config.rope_scaling)
    least = 2 if scaling.get("rope_type", scaling.get("type")) == "longrope" else 1
    for name, value in scaling.items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and number != 0 and not _MIN_NUMBER <= number <= _MAX_NUMBER:
                raise FormatError(
                    f"{label}: {quoted(name)} of the rope scaling is {quoted(number)}; "
                    f"expected {_MIN_NUMBER:g} to {_MAX_NUMBER:g}"
                )
    original = scaling.get(_ORIGINAL) or config.max_position_embeddings
    if isinstance(original, (int, float)) and original < least:
        raise FormatError(f"{label}: {_ORIGINAL} is {original}; expected {least} or more for longrope")


def _factors(scaling: Settings, name: str, head_dim: int) -> list[float]:
    values = scaling.values.get(name)
    count = head_dim // 2
    if not isinstance(values, list) or (count and len(values) != count):
        found = f"a list of {len(values)}" if isinstance(values, list) else quoted(values)
        raise FormatError(f"{scaling.label}: {name} is {found}; expected {count} numbers above 0, one a pair")
    numbers = Settings({f"{name}[{index}]": value for index, value in enumerate(values)}, scaling.label)
    return [numbers.number(each) for each in numbers.values]
