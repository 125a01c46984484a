"""Base class of objects with ``close()`` that work in a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Closing(ABC):
    """An object to close, or to use in a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that it owns; calling it again does nothing."""

    def _require_open(self) -> None:  # noqa: B027
        """Raise a ContextError if the object was closed; the base class never does."""

    def __enter__(self) -> Self:
        """Return the object, which closes at the end of the block; ContextError if it was closed before."""
        try:
            self._require_open()
        except KeyboardInterrupt:  # the block, which would close it, has not begun
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
