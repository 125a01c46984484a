"""The constraint of one text: a mask of the tokens that its structure allows next, and the tokens that it forces."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from glinfer.errors import StructureError

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words = npt.NDArray[np.uint32]
_WORD_BITS = 32


class DeadEnd(Exception):  # noqa: N818 (it is caught where texts end, and no error)
    """The structure allows no token, and the text is not complete."""


class Constraint:
    """The state of one text: call :meth:`mask` or :meth:`forced` before each token, and :meth:`push` after it.

    The library has its own end-of-text token, after the vocabulary; in the masks the stop ids replace it.

    Attributes:
        ended: whether a stop id was pushed.
    """

    def __init__(self, matcher: LLMatcher, vocab: int, stop_ids: Collection[int] = ()) -> None:
        """Start with an empty text.

        Args:
            matcher: llguidance's matcher at the beginning of the text, not shared.
            vocab: number of the model's tokens, without the library's end-of-text token.
            stop_ids: tokens that end the text where the structure allows an end.
        """
        self._matcher, self._vocab, self._stop_ids = matcher, vocab, frozenset(stop_ids)
        self.ended = self._may_end = False
        # Whole texels of 128 bits, as in the table of allowed tokens, with room for the end-of-text token.
        self._words = np.zeros(-(-(vocab + 1) // 128) * 4, dtype=np.uint32)
        self._used = (vocab + 1 + _WORD_BITS - 1) // _WORD_BITS
        self._row = self._words[: -(-vocab // 128) * 4]

    @property
    def done(self) -> bool:
        """Whether the text has ended."""
        return self.ended or bool(self._matcher.is_stopped())

    @property
    def complete(self) -> bool:
        """Whether the text so far matches the whole structure."""
        return self.ended or (not self._matcher.is_error() and bool(self._matcher.is_accepting()))

    def mask(self) -> Words:
        """One bit for each token that may come next: a row of the table of :mod:`glinfer.kernels.fused.allowed`.

        The next call overwrites the array.

        Raises:
            DeadEnd: no token may come next.
            StructureError: the structure is too complex here.
        """
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, 4 * self._used)
        self._check()
        end, bit = divmod(self._vocab, _WORD_BITS)
        self._may_end = bool(int(self._words[end]) >> bit & 1)
        self._words[end] &= np.uint32((1 << bit) - 1)
        for token in self._stop_ids if self._may_end else ():
            self._words[token // _WORD_BITS] |= np.uint32(1 << token % _WORD_BITS)
        if not self._row.any():
            raise DeadEnd
        return self._row

    def forced(self, most: int) -> list[int]:
        """Push the tokens that must come next, at most ``most``, and return them; often none."""
        if most < 1 or self.done:
            return []
        found = list(self._matcher.compute_ff_tokens())[:most]
        self._check()
        for index, token in enumerate(found):
            if token >= self._vocab:
                return self._taken(found[:index])
        return self._taken(found)

    def push(self, token: int) -> None:
        """Append a token that the last mask allows. A stop id may also be part of the text."""
        if self._may_end and token in self._stop_ids:
            self.ended = True
        else:
            self._taken([token])

    def _taken(self, tokens: list[int]) -> list[int]:
        if tokens and not self._matcher.consume_tokens(tokens):
            self._check()
            raise StructureError(f"the structure does not allow token {tokens[0]} here")
        return tokens

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        found = " ".join(str(self._matcher.get_error()).replace("<non-verbose/>", "").split())
        if found.startswith("NoExtension"):
            raise DeadEnd
        raise StructureError(f"the structure cannot continue: {found}; make it simpler")
