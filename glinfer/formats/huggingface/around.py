"""Global and local attention layers, from ModernBERT's settings."""

from __future__ import annotations

from typing import Any

from glinfer.config import FULL, SLIDING, one_side
from glinfer.formats.json_files import Settings

_EVERY, _TOKENS = 3, 128
_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def listed_kinds(settings: Settings, layers: int, other: str) -> list[str] | None:
    """The kind of each layer in ``layer_types``, full attention or the ``other`` one; None if the file lists none.

    Raises:
        FormatError: the setting is something else.
    """
    kinds = settings.values.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (FULL, other) for kind in kinds):
        raise settings.refused("layer_types", f"{layers} names, each {FULL} or {other}")
    return kinds


def around_fields(settings: Settings, layers: int) -> dict[str, Any]:
    """The layer types, the window of local layers (one side, with the token itself), and the bases of angles.

    Raises:
        FormatError: a setting is invalid, or asks for scaled angles.
    """
    kinds = listed_kinds(settings, layers, SLIDING)
    if kinds is None:
        every = settings.whole("global_attn_every_n_layers", _EVERY)
        kinds = [SLIDING if layer % every else FULL for layer in range(layers)]
    thetas = {kind: _theta(settings, kind) for kind in _THETAS}
    return {
        "layer_types": tuple(kinds),
        "sliding_window": one_side(settings.whole("local_attention", _TOKENS, least=2)),
        "rope_theta": thetas[FULL],
        "rope_scaling": (),
        "rope_local_base_freq": thetas[SLIDING],
    }


def _theta(settings: Settings, kind: str) -> float:
    """The base of the angles of one layer type, from older or newer files."""
    name, usual = _THETAS[kind]
    found = settings.values.get("rope_parameters")
    own = found.get(kind) if isinstance(found, dict) else None
    if own is None:
        return settings.number(name, usual) if settings.given(name) else usual
    if not isinstance(own, dict) or own.get("rope_type", "default") != "default":
        raise settings.refused("rope_parameters", f"angles of {kind} that are not scaled")
    return Settings(own, f"{settings.label}: rope_parameters of {kind}").number("rope_theta", usual)
