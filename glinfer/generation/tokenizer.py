"""Text to tokens and back, with Gab's byte-level BPE held by Hugging Face's ``tokenizers``."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import tokenizers
from tokenizers.models import BPE

from glinfer.errors import InputError
from glinfer.formats.bpe import BpeModel, read_bpe
from glinfer.formats.files import AnyPath

_CONTROL = re.compile(rb"<\|[a-z_]+\|>")


class Tokenizer:
    """A byte-level BPE without a pre-tokeniser: merges apply in file order over the whole text.

    Control tokens are the vocabulary's entries of the form ``<|name|>``, such as ``<|user|>``. They are
    ordinary merges, so plain text can spell them; ``encode(text, allow_special=False)`` is for text that must
    not.

    Args:
        model: merges and vocabulary, as :func:`glinfer.formats.bpe.read_bpe` gives them.

    Attributes:
        control_tokens: id of every control token by its text.
    """

    def __init__(self, model: BpeModel) -> None:
        """Build the two tokenizers, with and without the merges that make control tokens."""
        self._pieces = model.vocabulary
        self.control_tokens: Mapping[str, int] = MappingProxyType(
            {piece.decode(): token for token, piece in enumerate(self._pieces) if _CONTROL.fullmatch(piece)}
        )
        plain = [merge for merge in model.merges if not _CONTROL.search(self._pieces[merge[2]])]
        self._full = _library_tokenizer(self._pieces, model.merges)
        self._plain = _library_tokenizer(self._pieces, plain)

    @classmethod
    def from_file(cls, path: AnyPath) -> Tokenizer:
        """The tokenizer in a BPE1 file.

        Raises:
            FormatError: as :func:`glinfer.formats.bpe.read_bpe`.
        """
        return cls(read_bpe(path))

    @property
    def vocab_size(self) -> int:
        """How many tokens there are; ids are 0 to ``vocab_size - 1``."""
        return len(self._pieces)

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Token ids of ``text``; :meth:`decode` gives exactly ``text`` back.

        Without ``allow_special`` no id is a control token's, nor of a longer token with one in it: text that
        spells one is made of ordinary pieces.

        Raises:
            InputError: the text has half a surrogate pair, which UTF-8 cannot express.
        """
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"the text has half a surrogate pair (U+{ord(text[error.start]):04X}) at character "
                f"{error.start}; expected valid Unicode; take it out or replace it"
            ) from None
        library = self._full if allow_special else self._plain
        return library.encode(data.decode("latin-1"), add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``: their bytes read as UTF-8, with U+FFFD for what is none.

        Raises:
            InputError: an id is not a whole number from 0 to ``vocab_size - 1``.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, which by themselves need not be whole UTF-8 characters.

        Raises:
            InputError: ``token`` is not a whole number from 0 to ``vocab_size - 1``.
        """
        try:
            index = operator.index(token)
        except TypeError:
            raise InputError(f"a token is a {type(token).__name__}; expected a whole number") from None
        if not 0 <= index < len(self._pieces):
            raise InputError(
                f"token {index} is outside the vocabulary; expected 0 to {len(self._pieces) - 1}; "
                "the tokens may be another tokenizer's"
            )
        return self._pieces[index]

    def special_id(self, text: str) -> int | None:
        """The id of the control token spelled ``text``, such as ``<|user|>``, or None if there is none."""
        return self.control_tokens.get(text)


def _library_tokenizer(pieces: tuple[bytes, ...], merges: Iterable[tuple[int, int, int]]) -> tokenizers.Tokenizer:
    """The library's tokenizer over these merges, for text with one character (U+0000–U+00FF) for each byte.

    The library merges the earliest listed pair first, leftmost first; as no merge uses a piece made later,
    that is the same as applying the merges one after the other over the whole text. Without a pre-tokeniser a
    "word" is a whole text, which hardly comes twice: the library's cache of words is switched off.
    """
    names = [piece.decode("latin-1") for piece in pieces]
    vocabulary = {name: token for token, name in enumerate(names)}
    pairs = [(names[left], names[right]) for left, right, _ in merges]
    return tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=pairs, cache_capacity=0))
