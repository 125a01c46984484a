"""What the structure of one text allows next: bits of tokens, and tokens that it forces."""

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
    """The state of one text: :meth:`mask` or :meth:`forced` before each token, :meth:`push` behind it.

    The end of the text is a token of the library's own, behind the vocabulary; in the masks the stop ids stand for it.

    Attributes:
        ended: whether a stop id was pushed.
    """

    def __init__(self, matcher: LLMatcher, vocab: int, stop_ids: Collection[int] = ()) -> None:
        """Start with an empty text.

        Args:
            matcher: of llguidance, at the beginning of the text, and nobody else's.
            vocab: tokens of the model; the library knows one more, which ends the text.
            stop_ids: tokens that end the text where the structure allows an end.
        """
        self._matcher, self._vocab, self._stop_ids = matcher, vocab, frozenset(stop_ids)
        self.ended = False
        # Whole texels of 128 bits, as the table of allowed tokens has, with room for the end.
        self._words = np.zeros(-(-(vocab + 1) // 128) * 4, dtype=np.uint32)
        self._used = (vocab + 1 + _WORD_BITS - 1) // _WORD_BITS
        self._row = self._words[: -(-vocab // 128) * 4]

    @property
    def done(self) -> bool:
        """Whether nothing can follow."""
        return self.ended or bool(self._matcher.is_stopped())

    @property
    def complete(self) -> bool:
        """Whether the text so far has the structure."""
        return self.ended or (not self._matcher.is_error() and bool(self._matcher.is_accepting()))

    def mask(self) -> Words:
        """The bits of the tokens that may come next, a row of the table of :mod:`glinfer.ops.fused.allowed`.

        The array is written over by the next call.

        Raises:
            DeadEnd: there is none.
            StructureError: the structure is too complex at this place.
        """
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, 4 * self._used)
        self._check()
        end, bit = divmod(self._vocab, _WORD_BITS)
        may_end = int(self._words[end]) >> bit & 1
        self._words[end] &= np.uint32((1 << bit) - 1)
        for token in self._stop_ids if may_end else ():
            self._words[token // _WORD_BITS] |= np.uint32(1 << token % _WORD_BITS)
        if not self._row.any():
            raise DeadEnd
        return self._row

    def forced(self, most: int) -> list[int]:
        """Take the tokens that must come next, at most ``most``; often none.

        Raises:
            StructureError: the structure is too complex at this place.
        """
        if most < 1 or self.done:
            return []
        found = list(self._matcher.compute_ff_tokens())[:most]
        self._check()
        for place, token in enumerate(found):
            if token >= self._vocab:
                return self._taken(found[:place])
        return self._taken(found)

    def push(self, token: int) -> None:
        """Take a token of the last mask.

        Raises:
            StructureError: it was not allowed, or the structure is too complex at this place.
        """
        if token in self._stop_ids:
            self.ended = True
        else:
            self._taken([token])

    def _taken(self, tokens: list[int]) -> list[int]:
        if tokens and not self._matcher.consume_tokens(tokens):
            self._check()
            raise StructureError(f"token {tokens[0]} is not allowed at this place of the structure")
        return tokens

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        found = " ".join(str(self._matcher.get_error()).replace("<non-verbose/>", "").split())
        if found.startswith("NoExtension"):
            raise DeadEnd
        raise StructureError(f"the structure cannot go on: {found}; make it simpler")
