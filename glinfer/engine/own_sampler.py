"""Choose tokens with a caller's function, from a whole row of logits."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from glinfer.engine.sampler import History, Sampler
from glinfer.errors import InputError
from glinfer.formats.files import words_of

SamplerFunction = Callable[[npt.NDArray[np.float32], list[int]], SupportsIndex]
"""(logits [vocab], ids of the sequence so far) → the id of the next token. Both are copies."""


class OwnSampler(Sampler):
    """Calls a function for every token; its exceptions propagate."""

    def __init__(self, function: SamplerFunction, options: Mapping[str, Any]) -> None:
        """Use ``function``; all sampling ``options`` must be None.

        Raises:
            InputError: the function is not callable, or an option is not None.
        """
        if not callable(function):
            raise InputError(f"sampler is {type(function).__name__}; expected a function (logits, ids) -> id")
        for name, value in options.items():
            if value is not None:
                raise InputError(f"found both sampler and {name}; leave out {name}, or apply it in your function")
        super().__init__()
        self._function = function

    def sample(self, logits: npt.ArrayLike, history: History = ()) -> int:
        """The token that the function chooses.

        Raises:
            InputError: the function returns no token id, or a token whose logit is -inf.
        """
        row = np.array(logits, dtype=np.float32)
        chosen = self._function(row.copy(), list(history))
        try:
            token = -1 if isinstance(chosen, (bool, np.bool_)) else operator.index(chosen)
        except TypeError:
            token = -1
        if not 0 <= token < row.size:
            found = words_of(repr(chosen), 60)
            raise InputError(f"your sampler returned {found}; expected a token id from 0 to {row.size - 1}")
        if np.isneginf(row[token]):
            raise InputError(f"your sampler returned token {token}, whose logit is -inf; expected an allowed token")
        self.advance()
        return token
