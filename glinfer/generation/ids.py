"""Token ids as callers give them: any sequence of whole numbers, checked before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import InputError


def check_tokens(what: str, ids: Sequence[int], config: ModelConfig, *, first: int = 0) -> list[int]:
    """Ids as a plain list, all of them in a model's vocabulary; ``first`` is the place of the first one.

    Raises:
        InputError: an id is no whole number, or outside the vocabulary.
    """
    checked = whole_numbers(what, ids)
    for place, token in enumerate(checked, start=first):
        if not 0 <= token < config.vocab_size:
            raise InputError(
                f"token {place} of {what} is {token}; this vocabulary has ids 0 to {config.vocab_size - 1}"
            )
    return checked


def whole_numbers(what: str, values: Sequence[int]) -> list[int]:
    """A sequence of whole numbers as a plain list.

    Raises:
        InputError: it is none.
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
    """A number of something.

    Raises:
        InputError: it is no whole number of at least 0.
    """
    try:
        number = -1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise InputError(f"the number {what} is {value!r}; expected a whole number of at least 0")
    return number
