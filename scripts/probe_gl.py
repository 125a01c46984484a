"""Find which parts of OpenGL ES this machine lacks: try to load the libraries and open the drivers.

Uses only the standard library, because setup.sh runs it before anything is installed. Prints the missing parts
in a few words. Exit status: 0 nothing is missing; 3 a graphics card's driver opens, only
Mesa's software driver does not; 4 glinfer could not run.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

EGL_PLATFORM_DEVICE_EXT = 0x313F
EGL_EXTENSIONS = 0x3055
MAX_DEVICES = 64
LIBRARIES = ("libEGL.so.1", "libGLESv2.so.2")


def missing_libraries() -> list[str]:
    """Names of the shared libraries that the dynamic loader cannot load."""
    missing = []
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append(name)
    return missing


def working_drivers() -> set[str]:
    """Which kinds of EGL device open a display: ``software`` (Mesa's), ``gpu``, both or none.

    As soon as the software driver opens the search ends: waking every graphics card takes seconds.
    """
    egl = ctypes.CDLL("libEGL.so.1")
    egl.eglGetProcAddress.restype = ctypes.c_void_p

    def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
        address = egl.eglGetProcAddress(name.encode())
        return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None

    pointer, integer = ctypes.c_void_p, ctypes.c_int
    query_devices = function("eglQueryDevicesEXT", ctypes.c_uint, integer, pointer, pointer)
    device_string = function("eglQueryDeviceStringEXT", ctypes.c_char_p, pointer, integer)
    get_display = function("eglGetPlatformDisplayEXT", pointer, ctypes.c_uint, pointer, pointer)
    initialize = function("eglInitialize", ctypes.c_uint, pointer, pointer, pointer)
    if not (query_devices and device_string and get_display and initialize):
        return set()

    devices, count = (pointer * MAX_DEVICES)(), integer(0)
    if not query_devices(MAX_DEVICES, devices, ctypes.byref(count)):
        return set()
    kinds = [
        (b"EGL_MESA_device_software" in (device_string(device, EGL_EXTENSIONS) or b""), device)
        for device in devices[: count.value]
    ]
    for is_software, device in sorted(kinds, reverse=True):
        display = get_display(EGL_PLATFORM_DEVICE_EXT, device, None)
        if display and initialize(display, None, None):
            return {"software"} if is_software else {"gpu"}
    return set()


def main() -> int:
    """Print what is missing and return the exit status."""
    missing = missing_libraries()
    works = set() if "libEGL.so.1" in missing else working_drivers()
    if "software" not in works:
        missing.append("Mesa's software driver (swrast, llvmpipe)")
    if not missing:
        return 0
    print(", ".join(missing))
    return 3 if "gpu" in works and len(missing) == 1 else 4


if __name__ == "__main__":
    sys.exit(main())
