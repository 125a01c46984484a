"""An OpenGL ES 3.0 context without a window, through EGL.

glcontext's own ``egl`` backend always binds desktop OpenGL, so glinfer asks EGL itself: enumerate the
devices, open a display on one of them, bind the ES API, and make a surfaceless context current.
Sources: the EGL 1.5 specification and the extensions EGL_EXT_device_enumeration, EGL_EXT_platform_device,
EGL_MESA_platform_surfaceless, EGL_KHR_surfaceless_context and EGL_EXT_create_context_robustness.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from glinfer.errors import ContextError
from glinfer.gl.faults import ContextLostError
from glinfer.gl.memory import address_space_left

_DRIVER_BYTES = 720_000_000
"""Address space below which Mesa's software renderer and NumPy's OpenBLAS abort or crash, even with a small model."""

_EGL_NONE = 0x3038
_EGL_SURFACE_TYPE = 0x3033
_EGL_RENDERABLE_TYPE = 0x3040
_EGL_OPENGL_ES3_BIT = 0x0040
_EGL_EXTENSIONS = 0x3055
_EGL_OPENGL_ES_API = 0x30A0
_EGL_CONTEXT_MAJOR_VERSION = 0x3098
_EGL_CONTEXT_MINOR_VERSION = 0x30FB
_EGL_PLATFORM_DEVICE = 0x313F
_EGL_PLATFORM_SURFACELESS = 0x31DD
_EGL_CONTEXT_LOST = 0x300E
_MAX_DEVICES = 64
_ROBUSTNESS = "EGL_EXT_create_context_robustness"
# Robust access: reads beyond a texture give zeros, and a reset loses the context and is reported.
_ROBUST = (0x30BF, 1, 0x3138, 0x31BF)


@dataclass(frozen=True)
class EglDevice:
    """One entry of EGL's device list; ``handle`` is None for the display of an EGL without device lists."""

    index: int
    handle: int | None
    extensions: str

    @property
    def is_software(self) -> bool:
        """Whether the driver itself marks this device as a software rasteriser."""
        return "EGL_MESA_device_software" in self.extensions.split()


def lack_of_address_space() -> str:
    """The advice to raise a limit under which the driver would end the process; empty without such a limit."""
    left = address_space_left()
    if left is None or left >= _DRIVER_BYTES:
        return ""
    return (
        f"a driver needs about {_DRIVER_BYTES // 10**6} MB of address space, and the limit of this process leaves "
        f"{max(0, left) // 10**6} MB; raise it (ulimit -v)"
    )


def remedy() -> str:
    """The advice where no driver starts: raise the limit of this process's memory, or install a driver."""
    install = "install it with: sudo apt-get update && sudo apt-get install -y libegl1 libgles2 libgl1-mesa-dri"
    return lack_of_address_space() or install


class _Egl:
    """libEGL, loaded once, with the argument types that ctypes needs."""

    def __init__(self) -> None:
        if lack := lack_of_address_space():
            raise ContextError(f"no driver can start: {lack}")
        try:
            library = ctypes.CDLL("libEGL.so.1")
        except OSError as error:
            raise ContextError(f"libEGL.so.1 cannot be loaded ({error}); {remedy()}") from None

        def core(name: str, result: Any, *arguments: Any) -> Any:
            try:
                function = getattr(library, name)
            except AttributeError:
                raise ContextError(f"libEGL.so.1 is not an EGL library: it has no {name}; {remedy()}") from None
            function.restype, function.argtypes = result, list(arguments)
            return function

        self.get_proc_address = core("eglGetProcAddress", c_void_p, c_char_p)
        self.get_error = core("eglGetError", c_int32)
        self.get_display = core("eglGetDisplay", c_void_p, c_void_p)
        self.initialize = core("eglInitialize", c_uint32, c_void_p, c_void_p, c_void_p)
        self.bind_api = core("eglBindAPI", c_uint32, c_uint32)
        self.choose_config = core("eglChooseConfig", c_uint32, c_void_p, c_void_p, c_void_p, c_int32, POINTER(c_int32))
        self.create_context = core("eglCreateContext", c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
        self.destroy_context = core("eglDestroyContext", c_uint32, c_void_p, c_void_p)
        self.query_string = core("eglQueryString", c_char_p, c_void_p, c_int32)
        self.make_current = core("eglMakeCurrent", c_uint32, c_void_p, c_void_p, c_void_p, c_void_p)
        self.current_context = ctypes.PYFUNCTYPE(c_void_p)(("eglGetCurrentContext", library))
        # A process has one display per device. Terminating it would destroy the context of every other
        # model on the device, so displays stay initialised until the process ends.
        self.displays: dict[int | None, int] = {}

    def extension(self, name: str, result: Any, *arguments: Any) -> Any:
        address = self.get_proc_address(name.encode())
        return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None

    def display(self, device: EglDevice) -> int:
        if device.handle in self.displays:
            return self.displays[device.handle]
        get_platform_display = self.extension("eglGetPlatformDisplayEXT", c_void_p, c_uint32, c_void_p, c_void_p)
        display = None
        if get_platform_display is not None and device.handle is not None:
            display = get_platform_display(_EGL_PLATFORM_DEVICE, device.handle, None)
        elif device.handle is None:
            if get_platform_display is not None:
                display = get_platform_display(_EGL_PLATFORM_SURFACELESS, None, None)
            display = display or self.get_display(None)
        if not display or not self.initialize(display, None, None):
            raise ContextError(f"EGL device {device.index} provides no display (EGL error {self._error()})")
        self.displays[device.handle] = display
        return int(display)

    def _error(self) -> str:
        return f"0x{self.get_error():04X}"

    def es3_context(self, display: int) -> int:
        self.bind_api(_EGL_OPENGL_ES_API)
        wanted = (c_int32 * 5)(_EGL_SURFACE_TYPE, 0, _EGL_RENDERABLE_TYPE, _EGL_OPENGL_ES3_BIT, _EGL_NONE)
        config, count = c_void_p(), c_int32()
        self.choose_config(display, wanted, byref(config), 1, byref(count))
        if count.value < 1:
            raise ContextError("the EGL display offers no configuration for OpenGL ES 3")
        version = _EGL_CONTEXT_MAJOR_VERSION, 3, _EGL_CONTEXT_MINOR_VERSION, 0
        offered = (self.query_string(display, _EGL_EXTENSIONS) or b"").decode().split()
        for more in ((_ROBUST,) if _ROBUSTNESS in offered else ()) + ((),):
            attributes = (*version, *more, _EGL_NONE)
            context = self.create_context(display, config, None, (c_int32 * len(attributes))(*attributes))
            if context:
                return int(context)
        raise ContextError(f"EGL refused an OpenGL ES 3.0 context (EGL error {self._error()})")

    def activate(self, display: int, context: int | None) -> None:
        if context is not None and self.current_context() == context:
            return  # making it current again would cost a GPU's driver as much as half a draw
        # The bound API is per thread, and another library in the process may have changed it.
        self.bind_api(_EGL_OPENGL_ES_API)
        if not self.make_current(display, None, None, context):
            error = self.get_error()
            kind = ContextLostError if error == _EGL_CONTEXT_LOST else ContextError
            raise kind(f"eglMakeCurrent failed (EGL error 0x{error:04X})")


@lru_cache(maxsize=1)
def _egl() -> _Egl:
    return _Egl()


def extension(name: str, result: Any, *arguments: Any) -> Any:
    """An extension's function with its ctypes types; None if EGL lacks it."""
    return _egl().extension(name, result, *arguments)


def list_devices() -> list[EglDevice]:
    """The EGL devices of this machine, in EGL's order.

    Raises:
        ContextError: libEGL is missing, or EGL finds no driver (Mesa is not installed).
    """
    egl = _egl()
    query_devices = egl.extension("eglQueryDevicesEXT", c_uint32, c_int32, c_void_p, POINTER(c_int32))
    if query_devices is None:  # EGL without device lists still has its default display
        return [EglDevice(0, None, "")]
    handles, count = (c_void_p * _MAX_DEVICES)(), c_int32()
    if not query_devices(_MAX_DEVICES, handles, byref(count)) or count.value == 0:
        raise ContextError(f"EGL finds no device: no graphics driver is installed; {remedy()}")
    query = egl.extension("eglQueryDeviceStringEXT", c_char_p, c_void_p, c_int32)
    devices = []
    for index in range(count.value):
        text = query(handles[index], _EGL_EXTENSIONS) if query is not None else b""
        devices.append(EglDevice(index, handles[index], (text or b"").decode()))
    return devices


def device_at(index: int) -> EglDevice:
    """The EGL device with this number; ContextError if there is none."""
    devices = list_devices()
    if index >= len(devices):
        raise ContextError(f"there is no EGL device {index}; this machine has {len(devices)}, numbered from 0")
    return devices[index]


class EglContext:
    """An OpenGL ES 3.0 context for ``moderngl.create_context(context=…)``."""

    def __init__(self, device: EglDevice) -> None:
        """Create the context on ``device`` and make it current.

        Raises:
            ContextError: the device gives no display, no ES 3 configuration or no context.
        """
        self._egl = _egl()
        self._display = self._egl.display(device)
        self._context: int | None = self._egl.es3_context(self._display)
        self.__enter__()

    def load(self, name: str) -> int:
        """The address of one GL function, 0 when the driver has none."""
        return int(self._egl.get_proc_address(name.encode()) or 0)

    def __enter__(self) -> EglContext:
        """Make this context the current one of the calling thread."""
        if self._context is None:
            raise ContextError("this OpenGL context was released")
        self._egl.activate(self._display, self._context)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the context current: glinfer always activates before it calls GL."""

    def release(self) -> None:
        """Destroy the context; calling it twice is harmless."""
        if self._context is not None:
            context, self._context = self._context, None
            self._egl.activate(self._display, None)
            self._egl.destroy_context(self._display, context)
