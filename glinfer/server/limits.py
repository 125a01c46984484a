"""The limits of requests to the server, in one place; docs/server.md has the same table.

A body of a few million bytes can be millions of values, whose parsing lets no other thread run: they are counted first.
It can also be wrong in many places, and each complaint takes pydantic some hundred bytes and microseconds: lists end at
their first wrong element, and objects of too many fields are refused before their fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


@dataclass(frozen=True)
class RequestLimits:
    """The most that one request may have.

    Attributes:
        body_bytes: bytes of its body.
        body_values: values in its body, which are counted before it is parsed.
        body_depth: lists and objects within each other.
        call_values: values in the arguments of one call.
        messages: messages of a chat, or items of an input.
        prompts: prompts or texts in a list.
        choices: answers to each prompt (``n``).
        sequences: prompts times answers.
        stop_strings: strings in ``stop``.
        stop_characters: characters of each of them.
        logprobs: likeliest tokens that are named beside a chosen one.
        tools: tools of a chat, and calls in one message.
        bias_entries: tokens in ``logit_bias``.
        score_tokens: tokens of all texts to be scored.
        embed_texts: texts to be embedded, or ranked.
        embed_tokens: tokens of all of them.
        tokenize_bytes: bytes of a text for /tokenize.
        detokenize_tokens: token ids for /detokenize.
        model_characters: characters of the name of a model.
    """

    body_bytes: int = 8 << 20
    body_values: int = 300_000
    body_depth: int = 128
    call_values: int = 1 << 16
    messages: int = 2048
    prompts: int = 128
    choices: int = 32
    sequences: int = 128
    stop_strings: int = 16
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
"""Default limit for sequences of a model that wait for a place."""
EMBED_REQUESTS = 32
"""Requests at once of a model that embeds texts, which run one after the other; more have to wait."""
MAX_FIELDS = 100
"""Fields of an object; none has half as many."""
T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first wrong element is the only complaint about it."""


def _check_few(value: Any, most: int, noun: str) -> Any:
    if isinstance(value, dict) and len(value) > most:
        raise ValueError(f"expected at most {most} {noun}, found {len(value)}")
    return value


def few(most: int, noun: str) -> BeforeValidator:
    """Refuses an object of more than ``most`` fields, called ``noun``, before it looks at them."""
    return BeforeValidator(lambda value: _check_few(value, most, noun))


class Strict(BaseModel):
    """A body without unknown fields, whose values are of the very type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        return _check_few(value, MAX_FIELDS, "fields")


@dataclass(frozen=True)
class ConnectionLimits:
    """What a server bears of its clients' connections.

    Attributes:
        connections: connections at once; no more than half of the files that the process may open. Where there are
            more, one of the address that has most ends.
        header_seconds: from the beginning of a connection, or from the last answer, to the end of a request's header.
        body_seconds: from there to the end of its body.
        unread_seconds: how long a client may leave an answer unread.
    """

    connections: int = 1024
    header_seconds: float = 20
    body_seconds: float = 60
    unread_seconds: float = 60

    def fitted(self) -> ConnectionLimits:
        """The same, with no more connections than the process can open."""
        return replace(self, connections=min(self.connections, max_open_files() // 2))


def share(free: int, shared: int) -> int:
    """The places that one client may have of those that no other one has: of the ``shared`` ones among them half.

    However many a client takes, so, the next one finds some.
    """
    return free - min(free, shared) // 2


def max_open_files() -> int:
    """How many files this process may have open at once."""
    try:
        import resource
    except ImportError:  # Windows has no such limit for sockets
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
