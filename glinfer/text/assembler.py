"""Text from a stream of token bytes: whole characters without stop strings, each as soon as it is certain."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from glinfer.errors import InputError


class TextAssembler:
    """Collects the bytes of generated tokens and hands out text as soon as it is certain.

    Two things are held back until later bytes (or :meth:`finish`) decide: an incomplete UTF-8 character,
    and a tail that may begin a stop string. Bad bytes become U+FFFD, exactly as in
    ``bytes.decode("utf-8", errors="replace")``.

    The joined pieces are the decoded text, cut before the earliest stop string. If several stop strings start
    there, ``stop_string`` is the longest. The result depends only on the bytes, not on how they were split:
    with the stop strings ``"a"`` and ``"ab"``, an ``"a"`` is held back until the next character decides.

    Attributes:
        stop_string: the stop string that ended the text, or None.

    Raises:
        InputError: ``stop`` is neither a non-empty string nor a sequence of them.
    """

    def __init__(self, stop: str | Sequence[str] = ()) -> None:
        """Start with no text; ``stop`` is one stop string or a sequence of them."""
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
        self.stop_string: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; everything after it is ignored."""
        return self.stop_string is not None

    def push(self, data: bytes) -> str:
        """Add one token's bytes and return the text that is now certain, often ""."""
        if self._finished:
            raise InputError("this text is finished; make a new TextAssembler for the next one")
        if self.stopped:
            return ""
        return self._release(self._decoder.decode(data), final=False)

    def finish(self) -> str:
        """End the text and return the rest that was held back, with an incomplete character as U+FFFD.

        A second call returns "".
        """
        done = self._finished or self.stopped
        self._finished = True
        return "" if done else self._release(self._decoder.decode(b"", final=True), final=True)

    def _release(self, text: str, *, final: bool) -> str:
        """Add decoded text to the held text, and return the part that later text cannot change."""
        held = self._held + text
        found = min((at for at in map(held.find, self._stop) if at >= 0), default=len(held))
        open_at = len(held) if final else self._open_tail(held)
        if open_at <= found:
            # A longer or earlier stop string may still complete.
            self._held = held[open_at:]
            return held[:open_at]
        self._held = ""
        self.stop_string = next(s for s in self._stop if held.startswith(s, found))  # longest first
        return held[:found]

    def _open_tail(self, held: str) -> int:
        """The start of the longest tail that is a proper beginning of a stop string; the end if there is none."""
        for start in range(max(0, len(held) - self._longest + 1), len(held)):
            tail = held[start:]
            if any(len(s) > len(tail) and s.startswith(tail) for s in self._stop):
                return start
        return len(held)
