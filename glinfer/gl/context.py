"""Opens devices: headless OpenGL contexts for moderngl, with their limits and the objects they own."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from ctypes import c_uint32
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Protocol, cast

import glcontext
import moderngl

from glinfer.closing import Closing
from glinfer.errors import ContextError, GLError
from glinfer.gl import egl, faults
from glinfer.gl.awake import keep_awake
from glinfer.gl.raw import (
    GL_ALIASED_POINT_SIZE_RANGE,
    GL_MAX_COLOR_ATTACHMENTS,
    GL_MAX_DRAW_BUFFERS,
    GL_MAX_TEXTURE_IMAGE_UNITS,
    GL_MAX_TEXTURE_SIZE,
    GL_MAX_UNIFORM_BLOCK_SIZE,
    RawGL,
)
from glinfer.gl.sentinel import MOST, Sentinel

# Errors that moderngl's start-up leaves pending on ES, where it enables desktop-only state (seamless cube maps,
# primitive restart) and asks for desktop-only values (draw buffer, anisotropy). Nothing else may be pending.
_MODERNGL_STARTUP_ERRORS = {"GL_INVALID_ENUM", "GL_INVALID_OPERATION"}
_FLOAT_TARGETS = "GL_EXT_color_buffer_float"
_FLOAT_BLENDING = "GL_EXT_float_blend"
BARRIERS = {"GL_ARB_texture_barrier": "glTextureBarrier", "GL_NV_texture_barrier": "glTextureBarrierNV"}
_API_NAMES = ("es", "desktop")
_MAX_INDEX_DIGITS = 9

WHOLE_LIMITS = {
    GL_MAX_TEXTURE_SIZE: "max_texture_size",
    GL_MAX_DRAW_BUFFERS: "max_draw_buffers",
    GL_MAX_COLOR_ATTACHMENTS: "max_draw_buffers",
    GL_MAX_TEXTURE_IMAGE_UNITS: "max_texture_units",
    GL_MAX_UNIFORM_BLOCK_SIZE: "max_uniform_block_bytes",
}
"""Fields of :class:`Limits` by the numbers that OpenGL reports; the lesser one counts."""


@dataclass(frozen=True)
class Limits:
    """The limits of a renderer, in texels and counts; plans are validated and laid out against them.

    Without ``float_targets`` (GL_EXT_color_buffer_float) float textures are textures of integers, see
    :mod:`glinfer.gl.integer_targets`.
    """

    max_texture_size: int
    max_draw_buffers: int
    max_texture_units: int
    max_uniform_block_bytes: int
    max_point_size: float
    float_targets: bool = True

    @classmethod
    def webgl2_minimum(cls) -> Limits:
        """The limits that WebGL 2.0 guarantees everywhere; every plan must run within them."""
        return cls(2048, 4, 16, 16384, 1.0, float_targets=False)

    def within(self, other: Limits) -> Limits:
        """The smaller of both, number by number."""
        theirs = asdict(other)
        return Limits(**{name: min(value, theirs[name]) for name, value in asdict(self).items()})

    @classmethod
    def of(cls, raw: RawGL, *, float_targets: bool) -> Limits:
        """Ask the current context, which can render to floats or not."""
        found = dict.fromkeys(WHOLE_LIMITS.values(), sys.maxsize)
        for number, name in WHOLE_LIMITS.items():
            found[name] = min(found[name], raw.integer(number))
        return cls(**found, max_point_size=raw.largest(GL_ALIASED_POINT_SIZE_RANGE), float_targets=float_targets)


class NativeContext(Protocol):
    """The protocol of moderngl's context objects: glcontext's contexts and EglContext."""

    def load(self, name: str) -> int:
        """Address of a GL function."""

    def __enter__(self) -> Any:
        """Make current."""

    def __exit__(self, *args: object) -> None:
        """Undo ``__enter__``, if the backend does that."""

    def release(self) -> None:
        """Destroy."""


class GLObject:
    """An object of OpenGL that a device owns until it is released.

    Attributes:
        kind: its kind, in :meth:`Device.live_objects`.
        device: its device.
        gl: the object itself; None before it is made and after its release.
    """

    kind: str
    device: Device
    gl: Any = None

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        """Make the object in the block: it is owned before it exists, for interrupts, and released if that fails."""
        self.device.activate()
        self.device.adopt(self)
        try:
            yield
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the object; harmless when repeated."""
        if self.gl is not None:
            if not self.device.can_release():
                return
            self._delete()
            self.gl = None
        self.device.disown(self)

    def _delete(self) -> None:
        self.gl.release()


class Device(Closing):
    """An open OpenGL context and the owner of every object made in it.

    Use :func:`open_device`. A device belongs to the thread and to the process that opened it.

    Attributes:
        gl: the moderngl context.
        raw: the GL functions that moderngl lacks.
        api: ``"es"`` or ``"desktop"``.
        limits: the limits for plans: the driver's, or lower ones that the caller set.
        driver_limits: the driver's own limits.
        draws_issued: draw calls issued since the device was opened.
        in_main_memory: whether its textures are in main memory, as with software renderers.
        sentinels: those of draws of the last runs, until results are read back; by draw.
        rate: rows × texels of weights in a second, once :mod:`glinfer.engine.pace` has measured it.
        most_vertices: limit for the vertices of one draw call; None for no limit.
        uploads_overtake: whether an upload may overwrite texels before earlier draws have read them.
        texture_barrier: lets later draws sample texels that earlier draws wrote to the texture they render to
            (GL_NV_texture_barrier, OpenGL 4.5); None if the driver lacks it.
    """

    def __init__(self, native: NativeContext, api: str, limits: Limits | None = None) -> None:
        """Hand ``native``, which is current, to moderngl, and check it for the functions that glinfer needs."""
        self._native = native
        self._owned: dict[int, GLObject] = {}
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._closed = self._closing = False
        self._lost: tuple[str, str] | None = None  # the action, and the kind of reset
        self._awake: BinaryIO | None = None
        self.sentinels: dict[tuple[int, str], Sentinel] = {}
        self.api = api
        self.draws_issued = 0
        self.rate: float | None = None
        self._fence: int | None = None  # after the last run in the queue
        require, version = (300, "ES 3.0") if api == "es" else (330, "3.3")
        try:
            self.gl: Any = moderngl.create_context(require=require, context=cast(Any, native))
        except Exception as error:  # moderngl.Error for missing functions, ValueError for a version too old
            raise ContextError(f"the driver lacks OpenGL {version} ({error}); choose another device") from None
        self.raw = RawGL(native.load)
        unexpected = set(self.raw.pending_errors()) - _MODERNGL_STARTUP_ERRORS
        if unexpected:
            raise GLError(f"opening the context left {', '.join(sorted(unexpected))} pending")
        info = self.gl.info
        self.renderer = str(info["GL_RENDERER"])
        self.vendor = str(info["GL_VENDOR"])
        self.version = str(info["GL_VERSION"])
        self.extensions: frozenset[str] = frozenset(self.gl.extensions)
        self.raw.pending_errors()  # GL_INVALID_ENUM: moderngl's info asks for desktop-only values
        self.in_main_memory = faults.in_main_memory(self.renderer)
        self.most_vertices = faults.most_vertices(self.renderer)
        self.uploads_overtake = faults.uploads_overtake(self.renderer, self.version)
        ask = self.raw.of_extension(faults.RESET_STATUS[api], self.extensions, c_uint32)
        self._reset_status: Callable[[], int] = ask or (lambda: 0)
        self.texture_barrier: Callable[[], None] | None = self.raw.of_extension(BARRIERS, self.extensions, None)
        self.driver_limits = Limits.of(self.raw, float_targets=api == "desktop" or _FLOAT_TARGETS in self.extensions)
        self.limits = self.driver_limits if limits is None else limits.within(self.driver_limits)
        if api == "desktop":
            self.gl.enable(moderngl.PROGRAM_POINT_SIZE)  # which OpenGL ES has always on
        self.check("reading the limits")
        faults.guard_forks()
        if "llvmpipe" in self.renderer:
            self._awake = keep_awake()

    @property
    def description(self) -> str:
        """Version and renderer in one line, such as ``OpenGL ES 3.2 Mesa 22.3.6 · llvmpipe (…)``."""
        version = self.version if self.version.startswith("OpenGL") else f"OpenGL {self.version}"
        return f"{version} · {self.renderer}"

    @property
    def blends_floats(self) -> bool:
        """Whether blending may add to textures of 32-bit floats."""
        return self.limits.float_targets and (self.api == "desktop" or _FLOAT_BLENDING in self.extensions)

    def activate(self) -> None:
        """Make the context current; every entry point calls this before it calls GL.

        Raises:
            ContextError: the device is closed, its context was lost, or this is not the thread or not the process that
                opened it.
        """
        self.require_usable()
        try:
            self._native.__enter__()
        except faults.ContextLostError:
            self._lost = doing, kind = "making the context current", "unknown"
            raise faults.lost(doing, kind, self.renderer, ()) from None

    def flush(self) -> None:
        """Start the issued commands without waiting for them; raises as :meth:`activate` does."""
        self.activate()
        self.raw.flush()

    def limit_queue(self) -> None:
        """Wait for what was issued before the last call, so that no more than two of the caller's runs are pending.

        NVIDIA's driver resets a context with more than about 10 s of work pending. Software renderers do not.
        """
        if self.in_main_memory:
            return
        last, self._fence = self._fence, self.raw.fence()
        if last is not None:
            self.raw.wait_for(last)

    def require_usable(self) -> None:
        """Refuse a device that cannot be used as :meth:`activate` does, without making it current."""
        if self.closed and not self._closing:
            raise self._refusal()
        if threading.get_ident() != self._thread:
            raise ContextError(
                "an OpenGL context belongs to the thread that opened it; load the model in the thread that uses it, "
                "or use glinfer.ThreadedModel"
            )

    def _refusal(self) -> ContextError:
        if os.getpid() != self._process:
            return faults.forked(self._process)
        if self._lost is not None:
            return faults.lost_before(*self._lost)
        return ContextError("this device was closed; open or load again")

    def can_release(self) -> bool:
        """Make the context current if single objects can be released now; returns whether they can.

        A closed or lost device has no objects left, and a forked process owns none.
        """
        if self.closed and not self._closing:
            return False
        self.activate()
        return True

    def check(self, doing: str, *, nbytes: int = 0, thorough: bool = False, grave_only: bool = False) -> None:
        """Raise the driver's pending error, if there is one.

        Args:
            doing: the action, for the message.
            nbytes: texture memory that the action needed.
            thorough: query the reset status even if no error is pending; after a reset, results read back are invalid.
            grave_only: report only a lost context and a lack of memory; the caller explains other errors.

        Raises:
            ContextLostError: the context was lost; the device can only be closed.
            GLError: any other error.
        """
        errors = self.raw.pending_errors()
        if not errors and not thorough and not grave_only:
            return
        status = self._reset_status()
        if status or faults.CONTEXT_LOST in errors:
            kind = faults.RESETS.get(status, "unknown")
            self._lost = doing, kind
            raise faults.lost(doing, kind, self.renderer, errors)
        scarce = faults.OUT_OF_MEMORY in errors
        if scarce or (errors and not grave_only):
            advice = f"{faults.no_room(nbytes)}: " if scarce else ""
            raise GLError(f"{doing}: {advice}{self.renderer} reported {', '.join(errors)}")

    def take_sentinels(self) -> list[Sentinel]:
        """The sentinels of the last runs, to read back now; each is taken once."""
        found = [*self.sentinels.values()][-MOST:]
        self.sentinels.clear()
        return found

    def adopt(self, item: GLObject) -> None:
        """Own a GL object until it is released or the device closes."""
        self._owned[id(item)] = item

    def disown(self, item: GLObject) -> None:
        """Forget an object that was just released."""
        self._owned.pop(id(item), None)

    def live_objects(self) -> Counter[str]:
        """Number of living objects of each kind."""
        return Counter(item.kind for item in self._owned.values())

    def owned(self, kind: str) -> list[Any]:
        """The living objects of one kind."""
        return [item for item in self._owned.values() if item.kind == kind]

    @property
    def closed(self) -> bool:
        """Whether the device is unusable: it was closed, its context was lost, or this is a forked process."""
        return self._closed or self._lost is not None or os.getpid() != self._process

    def close(self) -> None:
        """Release every object still owned, then the context; harmless when repeated, and in a forked process.

        Errors of a lost context are ignored, because the loss was reported before.

        Raises:
            ContextError: this is not the thread that opened the device.
            GLError: an error was pending.
        """
        if self._closed or os.getpid() != self._process:
            return
        self._closing = True
        try:
            with contextlib.suppress(faults.ContextLostError):
                self.activate()
            lost = self._lost is not None
            forgiving = contextlib.suppress(*([Exception] if lost else []))
            for item in reversed(list(self._owned.values())):
                with forgiving:
                    item.release()
            if self._fence is not None:
                self.raw.delete_fence(self._fence)
            errors = self.raw.pending_errors()
        finally:
            self._closing = False
        self._closed = True
        if self._awake is not None:
            self._awake.close()
        with forgiving:
            self.gl.release()
        with forgiving:
            self._native.release()
        if errors and not lost and faults.CONTEXT_LOST not in errors:
            raise GLError(f"closing the device: {self.renderer} reported {', '.join(errors)}")

    def _require_open(self) -> None:
        self.require_usable()


def open_device(device: str | int | None = None, *, api: str | None = None, limits: Limits | None = None) -> Device:
    """Open a headless context.

    Args:
        device: an index into :func:`glinfer.gl.egl.list_devices`, or ``"auto"`` (hardware first, then
            software). Default: the environment variable GLINFER_DEVICE, else ``"auto"``.
        api: ``"es"`` for a true OpenGL ES 3.0 context through EGL, ``"desktop"`` for desktop core 3.3
            through glcontext. Default: $GLINFER_API, else ``"es"``.
        limits: lower limits to use instead of the renderer's.

    Raises:
        ContextError: no usable context opened; the message lists the attempts and the packages to install.
    """
    api = api or os.environ.get("GLINFER_API") or os.environ.get("GLINFER_GL") or "es"  # the older name
    if api not in _API_NAMES:
        raise ContextError(f"unknown OpenGL flavour {api!r}; expected one of {', '.join(_API_NAMES)}")
    if limits is not None and not isinstance(limits, Limits):
        raise ContextError(
            f"limits is {limits!r}; expected None or glinfer.gl.context.Limits, such as Limits.webgl2_minimum()"
        )
    faults.note_start()
    choice = str(os.environ.get("GLINFER_DEVICE", "auto") if device is None else device) or "auto"
    if choice != "auto" and not (choice.isdecimal() and len(choice) <= _MAX_INDEX_DIGITS):
        raise ContextError(f"unknown device {choice!r}; expected a number from 'glinfer info --device list' or 'auto'")
    if api == "desktop":
        return _open_desktop(0 if choice == "auto" else int(choice), limits)
    if choice != "auto":
        return hand_over(egl.EglContext(egl.device_at(int(choice))), "es", limits)
    failures = []
    for candidate in sorted(egl.list_devices(), key=lambda found: found.is_software):
        try:
            return hand_over(egl.EglContext(candidate), "es", limits)
        except (ContextError, GLError) as error:
            failures.append(f"device {candidate.index}: {error}")
    raise ContextError(f"no EGL device can run glinfer ({'; '.join(failures)}); {egl.remedy()}")


def _open_desktop(index: int, limits: Limits | None) -> Device:
    settings: dict[str, Any] = {"glversion": 330, "mode": "standalone"}
    try:
        if sys.platform.startswith("linux"):  # EGL selects a device without a display server; GLX does not
            settings.update(device_index=index, libgl="libGL.so.1", libegl="libEGL.so.1")
            native = glcontext.get_backend_by_name("egl")(**settings)
        else:
            native = glcontext.default_backend()(**settings)
    except Exception as error:  # glcontext raises bare Exception
        raise ContextError(
            f"no desktop OpenGL 3.3 context opens ({error}); on Debian and Ubuntu it needs libgl1 next to libegl1"
        ) from None
    return hand_over(native, "desktop", limits)


def hand_over(native: NativeContext, api: str, limits: Limits | None) -> Device:
    """A device over a native context, which is released if none opens."""
    try:
        return Device(native, api, limits)
    except BaseException:
        native.release()
        raise
