"""The base class of what is closed at the end of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Closing(ABC):
    """Something to close, or to use in a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; harmless when repeated."""

    def _require_open(self) -> None:  # noqa: B027
        """Refuse what was closed with a ContextError that says what to do; what holds nothing refuses nothing."""

    def __enter__(self) -> Self:
        """Use as a context manager: closed at the end of the block.

        Raises:
            ContextError: it was closed before.
        """
        self._require_open()
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
