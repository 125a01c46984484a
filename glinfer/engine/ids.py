"""Checks of token ids and counts from callers, before anything runs."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.text.images import ImageToken

Ids = Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]]
"""Token ids of a caller."""


def check_tokens(
    what: str, ids: Iterable[SupportsIndex], config: ModelConfig, *, first: int = 0, images: bool = False
) -> list[int]:
    """Check ids of a model, with ``images`` also rows of its images; returns a list. ``first`` is the first index.

    Raises InputError for values that are not integers or outside the vocabulary.
    """
    checked = integers(what, ids)
    if {*map(type, checked)} <= {int} and 0 <= min(checked, default=0) <= max(checked, default=0) < config.vocab_size:
        return checked
    for index, token in enumerate(checked, start=first):
        if images and isinstance(token, ImageToken) and token.square.reader.width == config.hidden_size:
            continue
        if isinstance(token, ImageToken):
            raise InputError(f"token {index} of {what} is a part of an image; expected ids of this model's vocabulary")
        if not 0 <= token < config.vocab_size:
            raise InputError(
                f"token {index} of {what} is {token}; this vocabulary has ids 0 to {config.vocab_size - 1}"
            )
    return checked


def integers(what: str, values: Iterable[SupportsIndex], other: str = "") -> list[int]:
    """A sequence of integers as a plain list; an InputError names the first of another type, and ``other``."""
    if isinstance(values, list) and {*map(type, values)} <= {int}:
        return values[:]
    # Python accepts bytes and booleans as integers, and iterates dicts and sets; here all are mistakes.
    found, numbers = f"{type(values).__name__} for {what}", list[int]()
    if isinstance(values, (bytes, bytearray)):
        raise InputError(f"found {found}; expected text (a str) or token ids")
    try:
        if isinstance(values, (Mapping, set, frozenset)):
            raise TypeError
        for index, value in enumerate(values):
            found = f"{type(value).__name__} at index {index} of {what}"
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            numbers.append(value if isinstance(value, ImageToken) else operator.index(value))
    except TypeError:
        raise InputError(f"found {found}; expected a sequence of integers (token ids){other}") from None
    return numbers


def list_of_texts(texts: object) -> list[Any]:
    """Several texts in their order; InputError for one text, and for values that have no order or are not iterable."""
    if isinstance(texts, (str, bytes, Mapping, set, frozenset)) or not isinstance(texts, Iterable):
        raise InputError(f"the texts are {type(texts).__name__}; expected a list of them")
    return list(texts)


def index_of(value: object) -> int:
    """An integer of at least 0, or -1 for any other value."""
    try:
        # operator.index also accepts NumPy's integers, but no float.
        return -1 if isinstance(value, (bool, np.bool_)) else max(-1, operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        return -1


def real_number(value: object) -> float:
    """A number as a float; NaN for anything else, and for numbers beyond all floats."""
    try:
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        return float(value) if number else math.nan  # type: ignore[arg-type]
    except OverflowError:
        return math.nan


def check_within(name: str, value: object, most: int, of: str = "") -> int:
    """An integer from 1 to ``most``, else an InputError; ``of`` says what that is."""
    if not 1 <= (number := index_of(value)) <= most:
        raise InputError(f"{name} is {value!r}; expected 1 to {most}{of}")
    return number


def integer(what: str, value: SupportsIndex, other: str = "") -> int:
    """A count of at least 0, else an InputError, which adds the ``other`` values allowed."""
    if (number := index_of(value)) < 0:
        raise InputError(f"the number {what} is {value!r}; expected an integer of at least 0{other}")
    return number


def check_keep(keep: SupportsIndex, context: int, prompt: int | None = None) -> int:
    """The first tokens that a full context keeps, -1 for a whole prompt; InputError if no other token would fit."""
    other = "" if prompt is None else ", or -1 for the whole prompt"
    number = prompt if prompt is not None and keep == -1 else integer("of tokens to keep", keep, other)
    if number >= context:
        raise InputError(f"keep is {number} tokens; the context holds {context}; expected fewer")
    return number


def room_made(ids: Sequence[int], before: Sequence[int], keep: int, context: int) -> slice:
    """The tokens of ``ids`` that a full context drops: the oldest half of those not kept, at least one.

    It keeps the first ``keep``, and those that the tokenizer puts ``before`` every text if ``ids`` begin with them.
    """
    before = before[: context - 1]
    stay = max(keep, len(before)) if ids[: len(before)] == before else keep
    return slice(stay, stay + (context - stay + 1) // 2)


def check_ids(ids: Iterable[SupportsIndex], config: ModelConfig) -> list[int]:
    """The ids of a prompt as a plain list; InputError for an empty or too long prompt, or unknown ids."""
    checked = integers("the prompt", ids, ", or one text (a str)")
    if not checked:
        raise InputError("the prompt is empty; expected at least one token")
    context = config.max_position_embeddings
    if len(checked) > context:
        raise InputError(f"the prompt has {len(checked)} tokens; this model's context holds {context}; shorten it")
    if isinstance(checked[-1], ImageToken):
        raise InputError("the prompt ends with an image; expected text after it")
    return check_tokens("the prompt", checked, config, images=True)


def check_count(name: str, value: object) -> int:
    """An integer of at least 1, such as a limit for generated tokens, else an InputError."""
    if (number := index_of(value)) < 1:
        raise InputError(f"{name} is {value!r}; expected an integer of at least 1")
    return number


def check_callback(name: str, value: object) -> None:
    """Refuse a value that is neither None nor a function with an InputError."""
    if value is not None and not callable(value):
        raise InputError(f"{name} is {type(value).__name__}; expected a function")
