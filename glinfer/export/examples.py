"""Example prompts of a model for pages."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from glinfer.formats import bundled_models, find_model

CHAT_EXAMPLES = ("What can you help me with?", "Tell me a short story about a fox.", "Why is the sky blue?")
TEXT_EXAMPLES = ("Once upon a time", "The city was quiet that night, and", "The best way to learn is")


def examples_for(path: str | PathLike[str], *, chats: bool) -> list[str]:
    """Choose example prompts: those of a bundled model's card, or general ones for chats or plain texts.

    Args:
        path: the model's file or directory, or the name of a bundled model.
        chats: whether the model replies to messages.
    """
    found = Path(find_model(path))
    return list(
        next(
            (model.examples for model in bundled_models() if model.path == found),
            CHAT_EXAMPLES if chats else TEXT_EXAMPLES,
        )
    )
