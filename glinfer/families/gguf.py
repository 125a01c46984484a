"""A family's form in GGUF files, and what several families share in reading their metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from glinfer.families.huggingface import Fields
from glinfer.families.layer import FULL, LONGEST_PERIOD, SLIDING, every, shortest_pattern
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.settings import Keys, is_integer

WINDOW = "attention.sliding_window"
"""The key of the window."""
SHARED_WIDTH = "expert_shared_feed_forward_length"
"""The key of the width of an expert that all tokens share."""
SIGMOID = 2
"""The ``expert_gating_func`` of experts that are weighted by sigmoids."""


def windows(keys: Keys, fields: Fields, period: int = 0, usual: int = 0, local_theta: float = 0.0) -> Fields:
    """A window in all layers; or with a ``period`` in those that the file lists, by default all but every n-th.

    Args:
        keys: the metadata.
        fields: those read before.
        period: the period of a file that has none.
        usual: the window of a file that has none; 0 for no window.
        local_theta: the base of angles of layers with a window, if they have their own.

    Raises:
        FormatError: a key is invalid.
    """
    given, layers = keys.value(WINDOW), fields["num_hidden_layers"]
    window = keys.integer(WINDOW) if given else 0 if given is not None else usual
    if not period:
        return {"sliding_window": window}
    key = f"{WINDOW}_pattern"
    found = keys.listed(key)
    if not isinstance(found, list):
        pattern = every(keys.integer(key, period, most=LONGEST_PERIOD), layers, SLIDING, FULL)
    elif len(found) == layers and all(isinstance(each, bool) for each in found):
        pattern = shortest_pattern([SLIDING if each else FULL for each in found])
    else:
        raise keys.refused(key, f"{layers} times true or false, or one integer")
    if SLIDING not in pattern or not window:
        return {}
    local = keys.number("rope.freq_base_swa", local_theta) if local_theta else 0.0
    return {"sliding_window": window, "layer_types": pattern, "rope_local_base_freq": local}


def other_layers(keys: Keys, fields: Fields, kind: str, usual: int) -> Fields:
    """The layers of another ``kind`` than attention, which have no key-value heads; without such layers, windows.

    ``usual`` is the number of heads in each layer of a file that has none.
    """
    name, layers = "attention.head_count_kv", fields["num_hidden_layers"]
    found = keys.listed(name)
    found = found if isinstance(found, list) else [usual if found is None else found] * layers
    counts = {each for each in found if is_integer(each, 1)}
    if len(found) != layers or len(counts) > 1 or any(each not in (0, *counts) for each in found):
        raise keys.refused(name, f"{layers} numbers, 0 or the same one")
    heads = {"num_key_value_heads": max(counts, default=fields["num_attention_heads"])}
    if 0 not in found:
        return {**windows(keys, fields), **heads}
    return {**heads, "layer_types": shortest_pattern([FULL if each else kind for each in found])}


def scores_by_width(fields: Fields, layers: int) -> Fields:
    """The scale of scores of the one model, with ``layers`` layers, that takes it from its width over its heads."""
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    return {"attention_multiplier": (width // heads) ** -0.5} if fields["num_hidden_layers"] == layers else {}


@dataclass(frozen=True)
class Gguf:
    """The architecture of a family in GGUF files; if families share one, files are read as the first of them, or
    as the one whose ``marked_by`` they have.

    Attributes:
        architecture: ``general.architecture``.
        head: whether llama.cpp loads only files with a matrix of the head (``own``), or without one (``tied``).
        pairs_together: whether rotary positions rotate adjacent elements in the rows of queries and keys.
        slowed_pairs: whether ``rope_freqs.weight`` may slow each pair down too; with ``pairs_together`` it always may.
        attention_bias: whether its attention may have biases.
        partial_rotary: whether heads may be rotated in part; then a file may have a tensor of angle factors for short
            texts and one for long ones.
        names: the names of tensors in the file.
        scalars: the key and the default of fields of :class:`glinfer.config.ModelConfig` that scale or bound something.
        inverted: the fields among these of which a file has the reciprocal.
        inner_key: the key of the inner width of an MLP, or of each expert's.
        shared_key: the key of the width of an MLP that all tokens use without a weight.
        marked_by: a key that the files of this family have, and those of other families of the architecture lack.
        marks: the values of that key that count; empty for all but 0.
        sections: the rotary pairs for time, row and column of an image in published models, if a file lists
            these; in text all three are equal.
        listed: the roles of numbers, one a layer, that a file has as lists in its metadata, by the role's name.
        constants: further such lists, of one number for all layers.
        keys_in_turn: whether value heads of a delta rule cycle through the key heads; otherwise value heads that share
            a key head are adjacent.
        attending: the family as which its models are written if all layers have attention; empty for none.
        proportional: whether ``rope_freqs.weight`` says which pairs are rotary: their factor is 1, that of others huge.
        classifier: the pooling before a classifier, and the activation after the first of two matrices.
        unused: a regular expression for tensors that are ignored.
        more: reads windows, and what only this family has; its fields replace those read before.
        further: the keys of a :class:`glinfer.config.ModelConfig` that only this family has, or has in another form.
    """

    architecture: str
    head: Literal["either", "own", "tied"] = "either"
    pairs_together: bool = False
    slowed_pairs: bool = False
    attention_bias: bool = True
    partial_rotary: bool = False
    names: Names = GGUF_NAMES
    scalars: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    inverted: tuple[str, ...] = ()
    inner_key: str = "feed_forward_length"
    shared_key: str = SHARED_WIDTH
    marked_by: str = ""
    marks: tuple[int, ...] = ()
    sections: tuple[int, ...] = ()
    listed: tuple[str, ...] = ()
    constants: Mapping[str, float] = field(default_factory=dict)
    keys_in_turn: bool = True
    attending: str = ""
    proportional: bool = False
    classifier: tuple[str, str] = ("cls", "tanh")
    unused: str = "(?!)"
    more: Callable[[Keys, Fields], Fields] = windows
    further: Callable[[Any], Mapping[str, Any]] = lambda config: {}

    @property
    def has_factors(self) -> bool:
        """Whether a file may have ``rope_freqs.weight``."""
        return self.pairs_together or self.slowed_pairs
