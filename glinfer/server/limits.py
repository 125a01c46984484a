"""The limits of requests to the server; docs/server.md has the same table.

Pydantic takes some hundred bytes and microseconds for each error in a body. So checking a list stops at its first
error, and objects with too many fields are refused before their fields are checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from glinfer.errors import InputError


@dataclass(frozen=True)
class RequestLimits:
    """The limits of one request.

    Attributes:
        body_values: values in its body, counted before it is parsed.
        body_depth: nested lists and objects.
        call_values: values in the arguments of one call.
        messages: messages of a chat, or items of an input.
        prompts: prompts or texts in a list.
        choices: answers to each prompt (``n``).
        sequences: prompts times answers.
        logprobs: likeliest tokens listed for each chosen one.
        tools: tools of a chat, and calls in one message.
        score_tokens, embed_tokens: total tokens of the texts.
        embed_texts: texts to embed or rank.
    """

    body_bytes: int = 8 << 20
    body_values: int = 300_000
    body_depth: int = 128
    call_values: int = 1 << 16
    messages: int = 2048
    prompts: int = 128
    choices: int = 32
    sequences: int = 128
    stop_strings: int = 32
    stop_characters: int = 1000
    logprobs: int = 20
    tools: int = 128
    bias_entries: int = 1024
    score_tokens: int = 1 << 16
    embed_texts: int = 2048
    embed_tokens: int = 1 << 18
    tokenize_bytes: int = 1 << 20
    detokenize_tokens: int = 1 << 18
    model_characters: int = 200


LIMITS = RequestLimits()
MAX_WAITING = 256
"""Default limit of a model's waiting sequences."""
EMBED_REQUESTS = 32
"""Concurrent requests to an embedding model, which run one after another; further requests wait."""
MIN_OPEN_FILES = 64
"""The least limit of open files: with fewer, accepting a connection would fail."""
MAX_FIELDS = 100
"""Limit of an object's fields; no valid object has half as many."""
T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True)]
"""A list whose check stops at its first error."""


def _check_few(value: Any, most: int, noun: str) -> Any:
    if isinstance(value, dict) and len(value) > most:
        raise ValueError(f"expected at most {most} {noun}, found {len(value)}")
    return value


def few(most: int, noun: str) -> BeforeValidator:
    """Refuse an object with more than ``most`` fields before they are checked; ``noun`` names them in errors."""
    return BeforeValidator(lambda value: _check_few(value, most, noun))


class Strict(BaseModel):
    """A part of a body without unknown fields except ``ignored`` ones, whose values have exact types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        value = _check_few(value, MAX_FIELDS, "fields")
        if cls.ignored and isinstance(value, dict):
            return {name: each for name, each in value.items() if name not in cls.ignored}
        return value


@dataclass(frozen=True)
class ConnectionLimits:
    """Connection limits.

    Attributes:
        connections: open connections, at most half of the files that the process may open. Beyond this limit, a
            connection of the address with the most connections is ended.
        header_seconds: from the beginning of a connection, or from the last answer, to the end of a request's header.
        body_seconds: from the end of the header to the end of the body.
        unread_seconds: how long a client may leave an answer unread.
    """

    connections: int = 1024
    header_seconds: float = 20
    body_seconds: float = 60
    unread_seconds: float = 60

    def fitted(self) -> ConnectionLimits:
        """These limits, with at most as many connections as the process can open; InputError if those are too few."""
        if (files := max_open_files()) < MIN_OPEN_FILES:
            raise InputError(
                f"this process may open {files} files; expected at least {MIN_OPEN_FILES}; raise the limit (ulimit -n)"
            )
        return replace(self, connections=min(self.connections, files // 2))


def share(free: int, shared: int) -> int:
    """The slots that one client may take of the ``free`` ones, so that the next client always finds some.

    Of the last ``shared`` slots it may take only half.
    """
    return free - min(free, shared) // 2


def max_open_files() -> int:
    """The number of files that this process may have open."""
    try:
        import resource
    except ImportError:  # Windows does not limit sockets
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
