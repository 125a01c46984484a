"""Texts, and pairs of texts, as the token ids that a model which embeds them takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import tokenizers

from glinfer.errors import InputError
from glinfer.text.tokenizer import Tokenizer, encodable
from glinfer.text.tokenizers.huggingface import library_errors

_LONG_TEXT = 1 << 16  # characters


class EncodedText(NamedTuple):
    """A text's token ids, and the type of each token: 1 in the second text of a pair."""

    ids: list[int]
    types: list[int]


class TextEncoder:
    """Encodes many texts at once, cut to a length, with the special tokens that the tokenizer puts around them.

    Texts longer than that lose tokens at their end, and of a pair the longer text first, as transformers cuts them.
    """

    def __init__(self, tokenizer: Tokenizer, most: int, *, lower: bool = False) -> None:
        """Encode to at most ``most`` tokens, special ones included; ``lower`` makes texts lower case first.

        Raises:
            InputError: the tokenizer is Gab's own, which has no such form, or puts more than that around a text.
        """
        self._library, self._lower = tokenizers.Tokenizer.from_str(tokenizer.library_json()), lower
        self._tokenizer = tokenizer
        self._most = most
        around = self._library.num_special_tokens_to_add(is_pair=True)
        if most <= around:
            raise InputError(
                f"texts of {most} tokens were asked for; the tokenizer puts {around} around a pair; take more"
            )
        self._library.enable_truncation(most, strategy="longest_first")
        self._library.no_padding()

    def texts(self, texts: Sequence[str]) -> list[EncodedText]:
        """The tokens of each text."""
        return self._encoded([self._checked(text, place) for place, text in enumerate(texts)])

    def pairs(self, first: str, others: Sequence[str]) -> list[EncodedText]:
        """The tokens of a text with each of the others behind it."""
        first = self._checked(first, 0)
        return self._encoded([(first, self._checked(text, place)) for place, text in enumerate(others)])

    def framed(self, form: str, first: str, others: Sequence[str]) -> list[EncodedText]:
        """The tokens of a form with a text at its {query} and each of the others at its {text}.

        Nothing but the text at {text} is cut, and nothing is put around the whole.

        Raises:
            InputError: the form leaves no room for a text.
        """
        first = self._checked(first, 0)
        before, behind = (part.replace("{query}", first) for part in form.split("{text}", 1))
        starts = [f"{before}{self._checked(text, place)}" for place, text in enumerate(others)]
        with library_errors("the tokenizer cannot encode these texts", InputError):
            start, end, *whole = (
                each.ids for each in self._uncut.encode_batch([before, behind, *starts], add_special_tokens=False)
            )
        room = self._most - len(end)
        if len(start) >= room:
            raise InputError(
                f"the query and what stands around it have {len(start) + len(end)} tokens; expected fewer than "
                f"{self._most}, so that there is room for a text"
            )
        return [EncodedText(ids, [0] * len(ids)) for ids in (each[:room] + end for each in whole)]

    @cached_property
    def _uncut(self) -> tokenizers.Tokenizer:
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        library.no_truncation()
        return library

    def length(self, text: str) -> int:
        """The number of tokens that a text has by itself, with those before it and without those behind it."""
        with library_errors("the tokenizer cannot encode this text", InputError):
            whole = self._library.encode(text)
        marks = whole.special_tokens_mask
        behind = next((place for place, mark in enumerate(reversed(marks)) if not mark), 0)
        return len(marks) - behind

    def _checked(self, text: str, place: int) -> str:
        """Return a text if UTF-8 can express it; of one that is far too long what is not cut off."""
        text = encodable(text, f"text {place}")
        text = text.lower() if self._lower else text
        return self._tokenizer.beginning(text, self._most)[0] if len(text) > _LONG_TEXT else text

    def _encoded(self, inputs: Sequence[str | tuple[str, str]]) -> list[EncodedText]:
        with library_errors("the tokenizer cannot encode these texts", InputError):
            found = self._library.encode_batch(list(inputs))
        return [EncodedText(each.ids, each.type_ids) for each in found]
