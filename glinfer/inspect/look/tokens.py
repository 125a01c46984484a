"""Tokens as people can tell them apart: what cannot be seen gets a sign of its own."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from glinfer.text.tokenizer import Tokenizer

NOTHING = "∅"
"""The label of no token at all."""
_SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "\\r"}


@dataclass(frozen=True)
class LookToken:
    """A token at its place: its id, its text as far as it is text by itself, and its label."""

    position: int
    id: int
    text: str | None
    label: str


def visible(piece: bytes) -> str:
    """A token's bytes so that each can be seen, such as ``␣the`` and ``↵``.

    Characters that do not print are written as their numbers, ``⟨1B⟩``, bytes that are no whole character of UTF-8 as
    ``\\xe2``.
    """
    text = piece.decode("utf-8", errors="backslashreplace")
    if text and unicodedata.combining(text[0]):
        text = f"◌{text}"
    return "".join(_SIGNS.get(char, char if char.isprintable() else f"⟨{ord(char):X}⟩") for char in text)


def token_label(token: int, tokenizer: Tokenizer | None) -> str:
    """What a token is called in pictures: what it spells; ``17`` without a tokenizer, ``#17`` where it has no bytes."""
    return str(token) if tokenizer is None else visible(tokenizer.token_bytes(token)) or f"#{token}"


def look_tokens(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[LookToken]:
    """The tokens of a text in order."""
    return [
        LookToken(
            place,
            token,
            None if tokenizer is None else tokenizer.token_bytes(token).decode("utf-8", errors="replace"),
            token_label(token, tokenizer),
        )
        for place, token in enumerate(ids)
    ]
