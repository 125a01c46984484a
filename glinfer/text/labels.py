"""Labels of tokens in pictures and tables, with every character visible."""

from __future__ import annotations

import unicodedata

from glinfer.terminal import sign
from glinfer.text.images import IMAGE, ImageToken
from glinfer.text.tokenizer import Tokenizer

NO_TOKEN = "∅"
"""Label for the absence of a token."""
_SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "\\r"}


def visible(piece: bytes) -> str:
    """Spell a token's bytes with a sign for each invisible character, such as ``␣the`` and ``↵``.

    Unprintable characters become their code points, ``⟨1B⟩``; bytes that are not UTF-8 become ``\\xe2``.
    """
    text = piece.decode("utf-8", errors="backslashreplace")
    if text and unicodedata.combining(text[0]):
        text = f"◌{text}"
    return "".join(_SIGNS.get(char, char if char.isprintable() else sign(char)) for char in text)


def token_label(token: int, tokenizer: Tokenizer | None) -> str:
    """Label a token by its text; ``17`` without a tokenizer, ``#17`` if the token has no bytes, ``[image]``."""
    if isinstance(token, ImageToken):
        return IMAGE
    return str(token) if tokenizer is None else visible(tokenizer.token_bytes(token)) or f"#{token}"


def shortened(text: str, longest: int) -> str:
    """Cut a text to ``longest`` characters, including an ellipsis at its end."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
