"""Compile one structure in a separate process, since it may take any time and memory, or crash.

:mod:`glinfer.structured.compiler` runs this script; see :func:`glinfer.text.own_process.answer_of`. It imports nothing
of glinfer, to start quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def answer(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the library's error about a request's grammar, or an empty text."""
    from llguidance import LLMatcher

    is_error, messages = LLMatcher.validate_grammar_with_warnings(request["grammar"])
    return {"error": messages[0] if is_error else ""}
