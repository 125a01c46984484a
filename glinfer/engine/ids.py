"""Checks of token ids and counts from callers, before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import InputError


def check_tokens(what: str, ids: Sequence[int], config: ModelConfig, *, first: int = 0) -> list[int]:
    """Check ids against a model's vocabulary and return a plain list; ``first`` is the place of the first one.

    Raises:
        InputError: an id is not a whole number, or outside the vocabulary.
    """
    checked = whole_numbers(what, ids)
    for place, token in enumerate(checked, start=first):
        if not 0 <= token < config.vocab_size:
            raise InputError(
                f"token {place} of {what} is {token}; this vocabulary has ids 0 to {config.vocab_size - 1}"
            )
    return checked


def whole_numbers(what: str, values: Sequence[int]) -> list[int]:
    """Return a sequence of whole numbers as a plain list.

    Raises:
        InputError: it is something else.
    """
    # Bytes and booleans pass for whole numbers in Python, and are surely a mistake here.
    if isinstance(values, (bytes, bytearray)):
        raise InputError(f"{what} is {type(values).__name__}; expected text (a str) or token ids")
    numbers = []
    try:
        for value in values:
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            numbers.append(operator.index(value))
    except TypeError:
        raise InputError(f"{what} is no sequence of whole numbers; expected token ids") from None
    return numbers


def whole_number(what: str, value: int) -> int:
    """Check a count.

    Raises:
        InputError: it is not a whole number of at least 0.
    """
    try:
        number = -1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise InputError(f"the number {what} is {value!r}; expected a whole number of at least 0")
    return number


def check_ids(ids: Sequence[int], config: ModelConfig) -> list[int]:
    """Check ids that a model of this shape shall run, and return a plain list.

    Raises:
        InputError: there are none, more than the context holds, or one that is not a whole number of the vocabulary.
    """
    checked = whole_numbers("the prompt", ids)
    if not checked:
        raise InputError("the prompt is empty; expected at least one token")
    context = config.max_position_embeddings
    if len(checked) > context:
        raise InputError(f"the prompt has {len(checked)} tokens; this model's context holds {context}")
    return check_tokens("the prompt", checked, config)


def check_stop_ids(stop_ids: Sequence[int], config: ModelConfig) -> list[int]:
    """Check ids that end a sequence, and return a plain list.

    Raises:
        InputError: one is not a whole number, or outside the vocabulary.
    """
    checked = whole_numbers("stop_ids", stop_ids)
    for token in checked:
        if not 0 <= token < config.vocab_size:
            raise InputError(f"stop id {token} can never come; this vocabulary has ids 0 to {config.vocab_size - 1}")
    return checked


def check_max_tokens(value: object) -> int:
    """Check the limit for generated tokens.

    Raises:
        InputError: it is not a whole number of at least 1.
    """
    try:
        # operator.index takes NumPy's whole numbers as well, and no float.
        number = 0 if isinstance(value, (bool, np.bool_)) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"max_tokens is {value!r}; expected a whole number of at least 1")
    return number
