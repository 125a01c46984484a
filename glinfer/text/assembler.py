"""Text from a stream of token bytes: whole characters without stop strings, each as soon as it is certain."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from glinfer.errors import InputError


class TextAssembler:
    """Collects the bytes of generated tokens and hands out text as soon as it is certain.

    Two things are held back until later bytes (or :meth:`finish`) settle them: a UTF-8 character of which
    only a part has come, and a tail which might be the start of a stop string. Bad bytes become U+FFFD,
    exactly as in ``bytes.decode("utf-8", errors="replace")``.

    All pieces joined are the decoded text cut just before the stop string that starts earliest; of those
    that start at the same place, the longest is reported in ``stop_string``. The result depends on the
    bytes alone, never on how they were split: with the stop strings ``"a"`` and ``"ab"``, an ``"a"`` stops
    nothing until the next character shows which of the two it is.

    Raises:
        InputError: ``stop`` is neither a non-empty string nor a sequence of them.
    """

    def __init__(self, stop: str | Sequence[str] = ()) -> None:
        """Start with no text; ``stop`` is the string that ends it, or several."""
        stop = (stop,) if isinstance(stop, str) else stop
        if isinstance(stop, bytes) or not isinstance(stop, Sequence):
            raise InputError(f"stop is {type(stop).__name__}; expected a string, or a list of strings")
        for index, text in enumerate(stop):
            if not isinstance(text, str):
                raise InputError(f"stop string {index} is {type(text).__name__}; expected a string")
            if not text:
                raise InputError(f"stop string {index} is empty and would stop everything; leave it out")
        self._stop = tuple(sorted(set(stop), key=len, reverse=True))
        self._longest = len(self._stop[0]) if self._stop else 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._finished = False
        self._stop_string: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been found; everything after it is ignored."""
        return self._stop_string is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stop_string

    def push(self, data: bytes) -> str:
        """Add one token's bytes; returns the new text that can be shown now, often "".

        Raises:
            InputError: :meth:`finish` was called before.
        """
        if self._finished:
            raise InputError("this text is finished; make a new TextAssembler for the next one")
        if self.stopped:
            return ""
        return self._release(self._decoder.decode(data), final=False)

    def finish(self) -> str:
        """End the text; returns what was still held back, an incomplete character as U+FFFD.

        A second call returns "".
        """
        done = self._finished or self.stopped
        self._finished = True
        return "" if done else self._release(self._decoder.decode(b"", final=True), final=True)

    def _release(self, text: str, *, final: bool) -> str:
        """Add decoded text to the held rest, and return all of it that no later text can change."""
        held = self._held + text
        found = min((at for at in map(held.find, self._stop) if at >= 0), default=len(held))
        open_at = len(held) if final else self._open_tail(held)
        if open_at <= found:
            # The longer or earlier stop string that may still come decides, so wait for it.
            self._held = held[open_at:]
            return held[:open_at]
        self._held = ""
        self._stop_string = next(s for s in self._stop if held.startswith(s, found))  # longest first
        return held[:found]

    def _open_tail(self, held: str) -> int:
        """The start of the longest tail that is a proper beginning of a stop string; the end if there is none."""
        for start in range(max(0, len(held) - self._longest + 1), len(held)):
            tail = held[start:]
            if any(len(s) > len(tail) and s.startswith(tail) for s in self._stop):
                return start
        return len(held)
