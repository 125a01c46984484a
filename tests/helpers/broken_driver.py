"""A driver that breaks where a test wants it to: it stands between OpenGL and all that is opened while it is there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int32, c_uint32, c_void_p
from typing import Any

import pytest

from glinfer.gl import egl
from glinfer.gl.context import Device

NO_NAME, REFUSED, UNSUPPORTED = "no name", "out of memory", "unsupported"
"""How an allocation fails: it gets no name, or no memory; or a framebuffer is no combination for the driver."""
GUILTY, INNOCENT, UNKNOWN, PURGED = 0x8253, 0x8254, 0x8255, 0x92BB
LOST = 0x0507
_OUT_OF_MEMORY, _UNSUPPORTED = 0x0505, 0x8CDD
_NAMES = [c_int32, c_void_p]
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "glGetError": (c_uint32, []),
    "glGenTextures": (None, _NAMES),
    "glGenFramebuffers": (None, _NAMES),
    "glTexImage2D": (None, [c_uint32, *[c_int32] * 5, c_uint32, c_uint32, c_void_p]),
    "glCheckFramebufferStatus": (c_uint32, [c_uint32]),
    "glGetGraphicsResetStatusKHR": (c_uint32, []),
    "glReadPixels": (None, [*[c_int32] * 4, c_uint32, c_uint32, c_void_p]),
}


class BrokenDriver:
    """Every function works until it is told otherwise.

    Attributes:
        allocations: how many textures and framebuffers were asked for since :meth:`fail_at`.
        failed: whether an allocation has failed since then.
        pending: errors that OpenGL reports next.
        reads: how many readbacks there were since the driver was mended.
        after_read: called after each with (address, format, (width, height)).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mend()
        self._kept: list[Any] = []
        load = egl.EglContext.load

        def wrapped(context: egl.EglContext, name: str) -> int:
            address = load(context, name)
            return self._wrap(name, address) if address and name in _SIGNATURES else address

        monkeypatch.setattr(egl.EglContext, "load", wrapped)

    def mend(self) -> None:
        """From now on everything works."""
        self._at, self._how = 0, REFUSED
        self.allocations, self.failed = 0, False
        self.pending: list[int] = []
        self._status, self._error, self._told = 0, 0, False
        self.reads = 0
        self.after_read: Callable[[int, int, tuple[int, int]], object] | None = None

    def fail_at(self, allocation: int, how: str = REFUSED) -> None:
        """Fail the n-th allocation from here on, from 1, and none after it; 0 for none, to count them."""
        self.mend()
        self._at, self._how = allocation, how

    def lose(self, status: int, error: int = LOST) -> None:
        """Be reset: tell the status when asked, and the error (0 for none) after every command."""
        self._status, self._error, self._told = status, error, False

    def _counted(self) -> bool:
        """Whether this allocation fails."""
        self.allocations += 1
        if self.allocations != self._at:
            return False
        self.failed = True
        return True

    def _wrap(self, name: str, address: int) -> int:
        result, arguments = _SIGNATURES[name]
        kind = CFUNCTYPE(result, *arguments)
        real, instead = kind(address), getattr(self, f"_{name}")
        made = kind(lambda *given: instead(real, *given))
        self._kept.append((real, made))  # for as long as a context may call it
        return int(ctypes.cast(made, c_void_p).value or 0)

    def _glGetError(self, real: Any) -> int:  # noqa: N802
        if self.pending:
            return self.pending.pop(0)
        if self._error:
            self._told = not self._told  # once after each command
            return self._error if self._told else 0
        return int(real())

    def _glGetGraphicsResetStatusKHR(self, real: Any) -> int:  # noqa: N802
        return self._status or int(real())

    def _generate(self, real: Any, count: int, names: int) -> None:
        if self._how == NO_NAME and self._counted():
            (c_uint32 * count).from_address(names)[:] = [0] * count
        else:
            real(count, names)

    _glGenTextures = _glGenFramebuffers = _generate  # noqa: N815

    def _glTexImage2D(self, real: Any, *given: Any) -> None:  # noqa: N802
        if self._how == REFUSED and self._counted():
            self.pending.append(_OUT_OF_MEMORY)
        else:
            real(*given)

    def _glCheckFramebufferStatus(self, real: Any, target: int) -> int:  # noqa: N802
        if self._how in (REFUSED, UNSUPPORTED) and self._counted():
            if self._how == REFUSED:
                self.pending.append(_OUT_OF_MEMORY)
            return _UNSUPPORTED
        return int(real(target))

    def _glReadPixels(self, real: Any, *given: Any) -> None:  # noqa: N802
        real(*given)
        self.reads += 1
        if self.after_read is not None:
            self.after_read(given[6], given[4], (given[2], given[3]))


def mended(driver: BrokenDriver, device: Device) -> Device:
    """Mend the driver at the last moment of a device's life, when all that glinfer does is done."""
    destroy = device.gl.release

    def mend_and_destroy() -> None:
        driver.mend()
        destroy()

    device.gl.release = mend_and_destroy
    return device
