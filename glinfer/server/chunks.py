"""The chunks of a streamed chat or completion, with the counts that its ``stream_options`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glinfer.server.generation import Choice, Usage
from glinfer.server.protocol import StreamOptions
from glinfer.server.streaming import DONE, event_bytes
from glinfer.server.worker import Update


class Chunks:
    """Writes the chunks of one answer; all have the same head."""

    def __init__(self, head: dict[str, Any], usage: Usage, options: StreamOptions | None) -> None:
        """Count in ``usage``, which has the prompt's tokens already."""
        self._head, self._usage = head, usage
        self._running = bool(options and options.continuous_usage_stats)
        self._shown = self._running or bool(options and options.include_usage)

    def count(self, update: Update) -> None:
        """Count the tokens of an update, for chunks that have counts while the answer runs."""
        self._usage.completion += len(update.ids)

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """A chunk of one choice."""
        data = {**self._head, "choices": [choice]}
        if self._shown:
            data["usage"] = self._usage.body() if self._running else None
        return event_bytes(data)

    def end(self, answers: Sequence[Choice], *, each: int) -> list[bytes]:
        """The last events: the counts, if they are asked for, and ``[DONE]``."""
        self._usage.count(answers, each=each)
        last = [event_bytes({**self._head, "choices": [], "usage": self._usage.body()})] if self._shown else []
        return [*last, event_bytes(DONE)]
