"""The scaling of rotary angles in ``config.json``: theta, and the settings of one type.

Older files have ``rope_theta`` and ``rope_scaling``, files of transformers 5 have both in ``rope_parameters``. What
goes before what, and where a type takes the context of the training from, is as in modeling_rope_utils.py there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from glinfer.config import FULL, SLIDING, ModelConfig
from glinfer.errors import FormatError
from glinfer.families.record import HuggingFace
from glinfer.formats.json_files import Settings, quoted

_SHARE = "partial_rotary_factor"
_OLD_LONGROPE = ("su", "yarn")  # as the first files of Phi-3 call it
_ORIGINAL = "original_max_position_embeddings"
_POSITIONS = "max_position_embeddings"
# Of each type: the numbers that it needs, and those that it may have.
_NUMBERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": (("factor",), ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")),
    "longrope": ((), ("factor", "attention_factor")),
}
_TYPES = ("default", *_NUMBERS)
_WITH_ORIGINAL = ("llama3", "yarn", "longrope")
_WITH_POSITIONS = ("dynamic", "yarn", "longrope")
_MIN_NUMBER, _MAX_NUMBER = 1e-9, 1e9  # of every number: beyond, angles are no numbers any more
_MAY_BE_0 = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # which is as if they were left out


class RopeSettings(NamedTuple):
    """The settings of angles.

    Attributes:
        theta: their base.
        scaling: as :mod:`glinfer.ops.rotary` reads it; none without scaling.
        share: of a head that turns.
        local_theta: the base in layers with a window; 0 where it is the same.
    """

    theta: float
    scaling: dict[str, Any]
    share: float = 1.0
    local_theta: float = 0.0


def rope_settings(
    settings: Settings, positions: int, head_dim: int, usual_theta: float, form: HuggingFace
) -> RopeSettings:
    """The settings of angles; those of layers with a window are apart where the form has a theta for these.

    Args:
        settings: a whole configuration.
        positions: its ``max_position_embeddings``.
        head_dim: elements of a head; 0 where that is not known.
        usual_theta: theta of a file that leaves it out.
        form: what the family's files may have.

    Raises:
        FormatError: there is no such type, one of its settings is missing or not what it should be, or it asks for
            maths that is not done here.
    """
    if form.local_theta:
        return _by_kind(settings, positions, head_dim, usual_theta, form)
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
    return _of_one_kind(scaling, settings, positions, head_dim, holder.number("rope_theta", usual_theta), form)


def _of_one_kind(
    scaling: Settings, settings: Settings, positions: int, head_dim: int, theta: float, form: HuggingFace
) -> RopeSettings:
    """The settings of one kind of layers."""
    share = _share(scaling, settings, head_dim, form.rotary_share) if form.partial_rotary else 1.0
    if not form.partial_rotary and scaling.given(_SHARE) and scaling.values[_SHARE] != 1:
        raise scaling.refused(_SHARE, "1, as heads of this family do not turn in part")
    kind = scaling.values.get("rope_type", scaling.values.get("type", "default"))
    if form.partial_rotary and kind in _OLD_LONGROPE:
        kind = "longrope"
    if not isinstance(kind, str) or kind not in _TYPES:
        raise FormatError(
            f"{scaling.label}: rope_type is {quoted(kind)}, which is not supported; expected one of {', '.join(_TYPES)}"
        )
    if kind == "default":
        return RopeSettings(theta, {}, share)
    return RopeSettings(theta, _scaling(kind, scaling, settings, positions, int(head_dim * share)), share)


def _share(scaling: Settings, settings: Settings, head_dim: int, usual: float) -> float:
    """The share of a head that turns, which older files have beside the scaling."""
    share = (scaling if scaling.given(_SHARE) else settings).number(_SHARE, usual)
    if share > 1 or int(head_dim * share) % 2 or (head_dim and not int(head_dim * share)):
        raise settings.refused(_SHARE, f"a share of at most 1 of a head of {head_dim} that is an even number")
    return share


def _by_kind(settings: Settings, positions: int, head_dim: int, usual_theta: float, form: HuggingFace) -> RopeSettings:
    """The settings of a file that has them by the kind of attention, or theta of windows beside the other one."""
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
    rope = _of_one_kind(full, settings, positions, head_dim, holder.number("rope_theta", usual_theta), form)
    if sliding.values.get("rope_type", "default") != "default":
        raise sliding.refused("rope_type", "default, as scaled angles of layers with a window are not supported")
    if "rope_theta" in sliding.values:
        local = sliding.number("rope_theta")
    else:
        local = settings.number("rope_local_base_freq", form.local_theta)
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
        # Some families have it beside the scaling: that goes first.
        holder = settings if _ORIGINAL in settings.values else scaling
        found[_ORIGINAL] = holder.whole(_ORIGINAL, positions)
    if kind in _WITH_POSITIONS:
        found[_POSITIONS] = positions
    if kind == "yarn" and "truncate" in scaling.values:
        found["truncate"] = bool(scaling.values["truncate"])
    return found


def check_scaling(config: ModelConfig, label: str) -> None:
    """Refuse scaling with numbers out of range, from any format.

    Raises:
        FormatError: a number is absurdly small or large; or ``longrope`` has an original context of one position, by
            the logarithm of which it divides.
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
