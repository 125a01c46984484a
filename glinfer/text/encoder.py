"""Token ids of texts and text pairs, for embedding models and rerankers."""

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
    """A text's token ids, and the type of each token: 0, or 1 in the second text of a pair."""

    ids: list[int]
    types: list[int]


class TextEncoder:
    """Encodes many texts at once, truncated to a length, with the tokenizer's special tokens around them.

    Truncation is that of transformers: it removes tokens at the end, and from the longer text of a pair first.
    """

    def __init__(self, tokenizer: Tokenizer, most: int, *, lower: bool = False) -> None:
        """Encode to at most ``most`` tokens, special ones included; ``lower`` makes texts lower case first.

        Raises:
            InputError: the tokenizer is a BPE1 one, or its special tokens around a pair leave no room for text.
        """
        self._library, self._lower = tokenizers.Tokenizer.from_str(tokenizer.library_json()), lower
        self._tokenizer = tokenizer
        self._most = most
        around = self._library.num_special_tokens_to_add(is_pair=True)
        if most <= around:
            raise InputError(
                f"texts are limited to {most} tokens, but the tokenizer puts {around} around a pair; raise the limit"
            )
        self._library.enable_truncation(most, strategy="longest_first")
        self._library.no_padding()

    def texts(self, texts: Sequence[str]) -> list[EncodedText]:
        """The tokens of each text."""
        return self._encoded([self._checked(text, index) for index, text in enumerate(texts)])

    def pairs(self, first: str, others: Sequence[str]) -> list[EncodedText]:
        """The tokens of the pairs of a first text and each of the others."""
        first = self._checked(first, 0)
        return self._encoded([(first, self._checked(text, index)) for index, text in enumerate(others)])

    def framed(self, form: str, first: str, others: Sequence[str]) -> list[EncodedText]:
        """The tokens of a prompt form, with ``first`` as its {query} and each of the others as its {text}.

        Only the text at {text} is truncated, and no special tokens are added.
        """
        first = self._checked(first, 0)
        before, behind = (part.replace("{query}", first) for part in form.split("{text}", 1))
        starts = [f"{before}{self._checked(text, index)}" for index, text in enumerate(others)]
        with library_errors("the tokenizer cannot encode these texts", InputError):
            start, end, *whole = (
                each.ids for each in self._uncut.encode_batch([before, behind, *starts], add_special_tokens=False)
            )
        room = self._most - len(end)
        if len(start) >= room:
            raise InputError(
                f"the query and the prompt around it have {len(start) + len(end)} tokens; expected fewer than "
                f"{self._most}, to leave room for a text"
            )
        return [EncodedText(ids, [0] * len(ids)) for ids in (each[:room] + end for each in whole)]

    @cached_property
    def _uncut(self) -> tokenizers.Tokenizer:
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        library.no_truncation()
        return library

    def length(self, text: str) -> int:
        """The number of tokens of a text alone, with the special tokens before it but not those after it."""
        with library_errors("the tokenizer cannot encode this text", InputError):
            whole = self._library.encode(text)
        marks = whole.special_tokens_mask
        behind = next((index for index, mark in enumerate(reversed(marks)) if not mark), 0)
        return len(marks) - behind

    def _checked(self, text: str, index: int) -> str:
        """Check that a text has a UTF-8 form, and shorten one that is far longer than the limit."""
        text = encodable(text, f"text {index}")
        text = text.lower() if self._lower else text
        return self._tokenizer.beginning(text, self._most)[0] if len(text) > _LONG_TEXT else text

    def _encoded(self, inputs: Sequence[str | tuple[str, str]]) -> list[EncodedText]:
        with library_errors("the tokenizer cannot encode these texts", InputError):
            found = self._library.encode_batch(list(inputs))
        return [EncodedText(each.ids, each.type_ids) for each in found]
