"""What families with the scan of Mamba-2 (Dao and Gu 2024) share in reading their files."""

import math
from collections.abc import Mapping
from typing import Any

from glinfer.errors import FormatError
from glinfer.families.gguf import other_layers
from glinfer.families.huggingface import Fields
from glinfer.families.layer import DELTA, FULL, LONGEST_CONVOLUTION
from glinfer.families.settings import Keys, Settings, quoted

_SIZES = (
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_conv_kernel_dim",
)
USUAL = {
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "conv_bias": True,
}
"""Sizes that most families have in shapes given as options."""
KINDS = {"attention": FULL, FULL: FULL, "mamba": DELTA, DELTA: DELTA}
"""The kinds of layers by their names in files."""
_LIMIT, _NO_LIMITS = "time_step_limit", ([0, math.inf], [0, {"__float__": "Infinity"}])


def scan_sizes(settings: Settings, names: tuple[str, ...], usual: Mapping[str, int]) -> Fields:
    """The sizes of a scan: heads, their elements, the state's, groups and the positions of the convolution.

    The last of ``names`` says whether the convolution has biases, true by default. ``usual`` has the sizes of a file
    that leaves them out, by field.
    """
    if settings.given(_LIMIT) and settings.value(_LIMIT) not in _NO_LIMITS:
        raise settings.refused(_LIMIT, "[0, Infinity], as limits of steps are not supported")
    most = {names[4]: {"most": LONGEST_CONVOLUTION}}
    found: Fields = {
        field: settings.integer(name, usual[field], **most.get(name, {}))
        for field, name in zip(_SIZES, names[:5], strict=True)
    }
    groups = found["linear_num_key_heads"]
    return {**found, "linear_norm_groups": groups, "conv_bias": settings.flag(names[5], default=True)}


def kinds_of(settings: Settings, name: str, layers: int, known: dict[str, str], usual: list[str]) -> list[str]:
    """The kind of each layer, listed under ``name`` in a file."""
    found: Any = settings.value(name) if settings.given(name) else usual
    if not isinstance(found, list) or len(found) != layers:
        raise settings.refused(name, f"a list of {layers} names, one a layer")
    for kind in found:
        if not isinstance(kind, str) or kind not in known:
            raise FormatError(
                f"{settings.where(name)} has {quoted(kind)}, which is not supported; expected {', '.join(known)}"
            )
    return [known[kind] for kind in found]


def scan_metadata(keys: Keys, fields: Fields) -> Fields:
    """The layers with a scan in a GGUF file, those without key-value heads, and its sizes."""
    found = other_layers(keys, fields, DELTA, 0)
    return {**found, **sizes_of_metadata(keys)} if "layer_types" in found else found


def sizes_of_metadata(keys: Keys) -> Fields:
    """The sizes of a scan in a GGUF file."""
    return {**rule_metadata(keys), "linear_norm_groups": keys.integer("ssm.group_count"), "conv_bias": True}


def rule_metadata(keys: Keys) -> Fields:
    """The sizes of a delta rule or of a scan in a GGUF file."""
    groups, heads, inner = (keys.integer(f"ssm.{each}") for each in ("group_count", "time_step_rank", "inner_size"))
    if heads % groups:
        raise keys.refused("ssm.time_step_rank", f"a multiple of the {groups} of ssm.group_count")
    if inner % heads:
        raise keys.refused("ssm.inner_size", f"a multiple of the {heads} heads of ssm.time_step_rank")
    return {
        "linear_num_key_heads": groups,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": keys.integer("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": keys.integer("ssm.conv_kernel"),
    }
