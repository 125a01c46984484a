"""Counts and times of a generated text."""

from __future__ import annotations

from dataclasses import dataclass

from glinfer.errors import StructureError, counted


@dataclass
class GenerationStats:
    """Counts and times of a stream.

    ``finish_reason`` is None while the stream runs, then ``stop`` (a stop id or stop string), ``length``
    (max_tokens reached), ``context`` (the context of a chat was full earlier), ``closed`` (also by an
    interrupt), ``cancelled``, or ``error`` (an exception).

    ``tokens`` includes a stop id, which was computed; ``surplus`` counts tokens computed past the end. ``draws`` and
    ``seconds`` are those of decoding, ``prompt_draws`` and ``prompt_seconds`` those of prefill. Seconds do not include
    the caller's time between tokens. ``draws_saved`` counts draws skipped because prefill, ``logits`` or ``probs``
    already computed them. ``dropped`` counts the oldest tokens dropped by a full context, and ``reused_tokens`` the
    prompt tokens that a scheduler had in a cache. ``drafted`` and ``accepted`` count the drafts of speculative
    decoding and the right ones; ``draws`` includes those of a draft model.

    For a text with a structure, ``forced`` counts the tokens that the structure forced, and ``complete`` is whether
    the text so far matches the structure (None without one). ``finish_reason`` is ``stop`` for a complete text, and
    ``length`` if it could not be completed (``max_tokens``, or no allowed token).
    """

    prompt_tokens: int
    tokens: int = 0
    draws: int = 0
    seconds: float = 0.0
    finish_reason: str | None = None
    prompt_draws: int = 0
    prompt_seconds: float = 0.0
    surplus: int = 0
    dropped: int = 0
    draws_saved: int = 0
    reused_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    complete: bool | None = None

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that were right; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of decoding; 0 before the first."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def draws_per_token(self) -> float:
        """Draw calls for each computed token, including ``draws_saved``."""
        computed = self.tokens + self.surplus
        return (self.draws + self.draws_saved) / computed if computed else 0.0


def require_complete(stats: GenerationStats, text: str | None = None, which: str = "") -> None:
    """Refuse a text that ended before it matched its structure: a StructureError has ``which`` and the ``text``."""
    if stats.complete is False and stats.finish_reason in ("length", "context"):
        raise StructureError(
            f"{which}the text ends after {counted(stats.tokens, 'token')} and does not match the requested structure; "
            "allow more tokens (--max-tokens; in Python max_tokens), or take incomplete text (--partial; in Python "
            "incomplete='partial')",
            text,
        )
