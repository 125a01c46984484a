"""Bands of long draws: a part of the lines of a target at a time, so that other work may run between two of them."""

from __future__ import annotations

from collections.abc import Hashable

_LONGEST = 0.05
"""Seconds of a band."""
_WHOLE_QUADS = 16
"""Lines of a band are a multiple, so that no quad of fragments is cut."""


class Bands:
    """Cuts long draws into bands of lines of about 50 ms, by the time that earlier bands took."""

    def __init__(self) -> None:
        """Know no draw."""
        self._seconds: dict[Hashable, float] = {}

    def lines(self, kind: Hashable, left: int) -> int:
        """Lines of the next band of a draw of this kind, of which ``left`` are left; few if none was measured."""
        seconds = self._seconds.get(kind)
        allowed = left // 16 if seconds is None else int(min(left, _LONGEST / seconds))
        return min(left, max(_WHOLE_QUADS, allowed // _WHOLE_QUADS * _WHOLE_QUADS))

    def measure(self, kind: Hashable, lines: int, seconds: float) -> None:
        """Note that a band of ``lines`` lines took ``seconds``."""
        self._seconds[kind] = max(seconds, 1e-9) / lines
