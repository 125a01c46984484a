"""Opening, sharing and closing contexts, and what a machine without OpenGL says."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import glcontext
import moderngl
import numpy as np
import pytest
from own_process import ran
from tiers import tiered

from glinfer.errors import ContextError, GLError, GlinferError, InputError
from glinfer.gl import awake, egl
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program
from glinfer.gl.raw import RawGL
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture

pytestmark = pytest.mark.gl

LAYOUT = Layout.of((3, 5), "r32f", 64)
EGL_CONTEXT_CLIENT_TYPE, EGL_OPENGL_ES_API, EGL_OPENGL_API = 0x3097, 0x30A0, 0x30A2


@pytest.fixture
def desktop() -> Iterator[Device]:
    with open_device(api="desktop") as opened:
        yield opened


def matrix(start: int) -> np.ndarray[Any, Any]:
    return np.arange(start, start + 15, dtype=np.float32).reshape(3, 5)


def texture(device: Device, start: int) -> Texture:
    return Texture(device, LAYOUT, f"t{start}", matrix(start))


def copy(source: Texture, target: Texture) -> np.ndarray[Any, Any]:
    """Draw a copy of ``source`` into ``target`` and read it back."""
    program = Program(source.device, "copy", {"COLS": 5}, ["x"])
    draw = Draw("copy", program, target.framebuffer, (source,))
    assert replay(source.device, [draw], {}) == 1
    program.release()
    return target.read()


# What opens


def test_it_is_really_opengl_es(device: Device) -> None:
    assert device.api == "es"
    assert device.version.startswith("OpenGL ES 3.")
    assert device.description == f"{device.version} · {device.renderer}"
    native = device._native
    assert isinstance(native, egl.EglContext)
    query, kind = ctypes.CDLL("libEGL.so.1").eglQueryContext, ctypes.c_int32()
    query.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
    assert query(native._display, native._context, EGL_CONTEXT_CLIENT_TYPE, ctypes.byref(kind)) == 1
    assert kind.value == EGL_OPENGL_ES_API


@pytest.mark.desktop
def test_desktop_opens_when_its_library_is_there(monkeypatch: pytest.MonkeyPatch, desktop: Device) -> None:
    monkeypatch.setenv("DISPLAY", ":64000")
    open_device(0, api="desktop").close()  # which needs no display
    assert desktop.api == "desktop"
    assert not desktop.version.startswith("OpenGL ES")
    assert desktop.description.startswith("OpenGL ")
    source, target = texture(desktop, 7), Texture(desktop, LAYOUT, "target")
    assert np.array_equal(copy(source, target), matrix(7))


def test_limits_are_at_least_what_webgl2_guarantees(device: Device) -> None:
    found, least = dataclasses.asdict(device.driver_limits), dataclasses.asdict(Limits.webgl2_minimum())
    assert {name: value for name, value in found.items() if value < least[name]} == {}
    assert device.limits == device.driver_limits


def test_limits_can_be_forced_down_and_not_up() -> None:
    with open_device(limits=Limits(64, 10**6, 16, 10**9, 0.5)) as device:
        driver = device.driver_limits
        assert device.limits.max_texture_size == 64
        assert device.limits.max_texture_units == 16
        assert device.limits.max_point_size == 0.5
        assert device.limits.max_draw_buffers == driver.max_draw_buffers
        assert device.limits.max_uniform_block_bytes == driver.max_uniform_block_bytes


def test_an_egl_without_device_lists_still_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    real = egl._Egl.extension

    def without(self: Any, name: str, *types: Any) -> Any:
        return None if name in ("eglQueryDevicesEXT", "eglQueryDeviceStringEXT") else real(self, name, *types)

    monkeypatch.setattr(egl._Egl, "extension", without)
    assert egl.list_devices() == [egl.EglDevice(0, None, "")]
    with open_device() as device:
        assert np.array_equal(texture(device, 1).read(), matrix(1))


# What is refused


def test_a_device_that_is_no_number_or_out_of_range_is_refused() -> None:
    choices: list[Any] = ["nonsense", "-1", "1.5", "0x0", "²", " 0", "auto ", "9" * 5000, "0\n", -1, 1.0, "\x00"]
    for choice in choices:
        with pytest.raises(ContextError, match=r"^unknown device .*; expected a number .* or 'auto'$"):
            open_device(choice)
    for choice in (64, "64", "999999999"):
        with pytest.raises(ContextError, match=rf"^there is no EGL device {choice}; this machine has [0-9]+, numbered"):
            open_device(choice)


def test_the_environment_chooses_what_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLINFER_DEVICE", "64")
    with pytest.raises(ContextError, match=r"no EGL device 64"):
        open_device()
    with open_device(0) as device:
        assert device.api == "es"
    monkeypatch.setenv("GLINFER_DEVICE", "")
    open_device().close()
    monkeypatch.setenv("GLINFER_DEVICE", "some day")
    with pytest.raises(ContextError, match=r"unknown device 'some day'"):
        open_device()
    monkeypatch.setenv("GLINFER_GL", "vulkan")
    with pytest.raises(ContextError, match=r"^unknown OpenGL flavour 'vulkan'; expected one of es, desktop$"):
        open_device("auto")
    with open_device(0, api="es") as device:
        assert device.api == "es"


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_desktop_elsewhere_is_opened_by_the_systems_own_means(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    asked: list[dict[str, Any]] = []

    def own_means(**settings: Any) -> Any:
        asked.append(settings)
        raise Exception("not on this machine")  # glcontext raises nothing more special

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(glcontext, "default_backend", lambda: own_means)
    with pytest.raises(ContextError, match=r"^no desktop OpenGL 3\.3 context opens \(not on this machine\)"):
        open_device(api="desktop")
    assert asked == [{"glversion": 330, "mode": "standalone"}]


@pytest.mark.desktop
def test_a_desktop_device_out_of_range_is_refused(desktop: Device) -> None:
    with pytest.raises(ContextError, match=r"^no desktop OpenGL 3.3 context opens") as caught:
        open_device(63, api="desktop")
    assert "\n" not in str(caught.value)


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every native context opened from here on; ``released`` tells which were let go."""
    opened: list[Any] = []

    class Watched(egl.EglContext):
        def __init__(self, device: egl.EglDevice) -> None:
            super().__init__(device)
            self.released = False
            opened.append(self)

        def release(self) -> None:
            super().release()
            self.released = True

    monkeypatch.setattr(egl, "EglContext", Watched)
    return opened


def test_a_renderer_without_float_targets_has_integer_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moderngl.Context, "extensions", {"GL_EXT_nothing"})
    with open_device(0) as device:
        assert not device.driver_limits.float_targets
        assert texture(device, 1).gl.dtype == "u4"


def test_floats_blend_where_an_extension_or_desktop_opengl_says_so(device: Device) -> None:
    assert device.blends_floats is ("GL_EXT_float_blend" in device.extensions)
    device.extensions = frozenset({"GL_EXT_float_blend"})
    assert device.blends_floats
    device.extensions = frozenset()
    assert not device.blends_floats
    device.api = "desktop"
    assert device.blends_floats


@pytest.mark.parametrize("error", [moderngl.Error("cannot map the functions"), ValueError("got version 200")])
def test_a_driver_that_moderngl_refuses_is_refused_and_let_go(
    monkeypatch: pytest.MonkeyPatch, contexts: list[Any], error: Exception
) -> None:
    def refuse(**_: Any) -> Any:
        raise error

    monkeypatch.setattr(moderngl, "create_context", refuse)
    with pytest.raises(ContextError, match=rf"the driver lacks OpenGL ES 3.0 .*{error}"):
        open_device(0)
    low = r"leaves 7 MB; raise it \(ulimit -v\)"
    for left, advice in ((None, "apt-get install"), (9**10, "apt-get install"), (7_000_000, low)):
        monkeypatch.setattr(egl, "address_space_left", lambda found=left: found)
        with pytest.raises(ContextError, match=rf"^no EGL device can run glinfer .*{advice}") as caught:
            open_device("auto")
        assert "\n" not in str(caught.value)
    assert contexts
    assert all(context.released for context in contexts)


def test_a_limit_on_address_space_is_refused_before_a_driver_can_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is opened later finds the driver already in the process."""
    monkeypatch.setattr(egl, "address_space_left", lambda: 700_000_000)
    with pytest.raises(ContextError, match=r"^no driver can start: .* leaves 700 MB; raise it \(ulimit -v\)\Z"):
        egl._Egl()
    open_device("auto").close()


def test_a_driver_without_a_needed_function_is_refused() -> None:
    with pytest.raises(ContextError, match=r"the OpenGL driver has no gl[A-Z]"):
        RawGL(lambda name: 0)
    native = egl.EglContext(egl.list_devices()[0])
    try:
        with pytest.raises(ContextError, match=r"the OpenGL driver has no glClearBufferiv;"):
            RawGL(lambda name: 0 if name == "glClearBufferiv" else native.load(name))
    finally:
        native.release()


def test_errors_left_by_the_opening_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = moderngl.create_context

    def careless(**options: Any) -> Any:
        context = real(**options)
        context.texture((4, 4), 1, b"\x00" * 16)
        fill = ctypes.CFUNCTYPE(None, *[ctypes.c_int32] * 4)(options["context"].load("glViewport"))
        fill(0, 0, -1, -1)
        return context

    monkeypatch.setattr(moderngl, "create_context", careless)
    with pytest.raises(GLError, match=r"opening the context left GL_INVALID_VALUE pending"):
        open_device(0)


# Use after the end, and in the wrong place


def test_a_released_texture_refuses_use(device: Device) -> None:
    held = texture(device, 0)
    held.release()
    held.release()
    for use in (held.read, lambda: held.upload(matrix(0)), lambda: held.fill(1.0)):
        with pytest.raises(GlinferError, match=r"^texture t0 was released"):
            use()
    assert not device.live_objects()


def test_another_thread_is_refused_and_harmless(device: Device) -> None:
    held, refusals = texture(device, 5), []

    def intrude() -> None:
        for use in (device.activate, held.read, held.release, device.close):
            try:
                use()
            except ContextError as error:
                refusals.append(str(error))

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert len(refusals) == 4
    assert all("belongs to the thread that opened it" in text and "\n" not in text for text in refusals)
    assert not device.closed
    assert np.array_equal(held.read(), matrix(5))


def test_a_released_context_refuses_to_become_current() -> None:
    native = egl.EglContext(egl.list_devices()[0])
    native.release()
    native.release()
    with pytest.raises(ContextError, match=r"released"):
        native.__enter__()


# Several devices in one process


@pytest.mark.parametrize("second", ["es", pytest.param("desktop", marks=pytest.mark.desktop)])
def test_interleaved_devices_do_not_touch_each_other(device: Device, second: str, request: Any) -> None:
    other = request.getfixturevalue("desktop") if second == "desktop" else open_device()
    with other:
        pairs = [(each, texture(each, 10 * n), Texture(each, LAYOUT, "out")) for n, each in enumerate([device, other])]
        assert pairs[0][1].gl.glo == pairs[1][1].gl.glo, "the names must clash, or nothing is proved"
        for _, source, target in pairs * 2:
            assert np.array_equal(copy(source, target), source.read())
        pairs[0][1].upload(matrix(50))
        assert np.array_equal(pairs[1][1].read(), matrix(10))
        assert np.array_equal(pairs[0][1].read(), matrix(50))


@pytest.mark.parametrize("releases", [False, True])
def test_another_library_may_bind_another_api(device: Device, releases: bool) -> None:
    library, held = ctypes.CDLL("libEGL.so.1"), texture(device, 3)
    if releases:
        assert library.eglReleaseThread() == 1
    assert library.eglBindAPI(EGL_OPENGL_API) == 1
    assert np.array_equal(copy(held, Texture(device, LAYOUT, "out")), matrix(3))
    assert library.eglQueryAPI() == (EGL_OPENGL_ES_API if releases else EGL_OPENGL_API)


# Errors of the driver


def test_closing_with_an_error_pending_tells_and_still_closes() -> None:
    device = open_device()
    texture(device, 0)
    device.raw.read_buffer(0x1234)
    with pytest.raises(GLError, match=r"^closing the device: .* reported GL_INVALID_ENUM$"):
        device.close()
    assert device.closed
    assert not device.live_objects()


def test_a_driver_that_never_stops_reporting_does_not_hang(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.raw, "_get_error", lambda: 0x0507)
    with pytest.raises(GLError, match=r"reported GL_CONTEXT_LOST"):
        device.check("waiting")
    monkeypatch.setattr(device.raw, "_get_error", iter([0x0BAD, 0]).__next__)
    assert device.raw.pending_errors() == ["GL error 0x0BAD"]
    monkeypatch.undo()


# A machine without OpenGL, in a process of its own

OPEN = """
from glinfer.errors import ContextError
from glinfer.gl.context import open_device
try:
    open_device(api={api!r})
except ContextError as error:
    print(error)
"""


NO_LIBRARY, OTHER_LIBRARY = b"no library at all\n", Path(moderngl.mgl.__file__).read_bytes()
VENDORS, LIBRARIES = "__EGL_VENDOR_LIBRARY_FILENAMES", "LD_LIBRARY_PATH"
ES_PACKAGES = "apt-get install -y libegl1 libgles2 libgl1-mesa-dri"


@tiered(
    ("api", "files", "variable", "words", "packages"),
    [
        ("es", {}, VENDORS, "EGL finds no device", ES_PACKAGES),
        ("es", {"libEGL.so.1": NO_LIBRARY}, LIBRARIES, "libEGL.so.1 cannot be loaded", ES_PACKAGES),
        ("es", {"libEGL.so.1": OTHER_LIBRARY}, LIBRARIES, "libEGL.so.1 is not an EGL library", ES_PACKAGES),
        (
            "desktop",
            {"libEGL.so.1": NO_LIBRARY, "libGL.so.1": NO_LIBRARY},
            LIBRARIES,
            "no desktop OpenGL 3.3 context opens",
            "libgl1",
        ),
        ("es", {"vendor.json": b"{}"}, VENDORS, "EGL finds no device", ES_PACKAGES),
    ],
    keep=4,
)
def test_without_a_driver_one_line_names_the_packages(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    api: str,
    files: dict[str, bytes],
    variable: str,
    words: str,
    packages: str,
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv(variable, str(tmp_path / "vendor.json" if variable == VENDORS else tmp_path))
    for name in ("GLINFER_DEVICE", "GLINFER_GL"):
        monkeypatch.delenv(name, raising=False)
    (said,) = ran(OPEN.format(api=api))
    assert words in said
    assert packages in said


@pytest.mark.parametrize(("value", "complaint"), [("x", "expected 1"), ("1", "cannot be written")])
def test_a_request_to_keep_cores_awake_that_cannot_be_met_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, complaint: str
) -> None:
    monkeypatch.setenv(awake.VARIABLE, value)
    monkeypatch.setattr(awake, "_FILE", tmp_path / "nowhere" / "cpu_dma_latency")
    with pytest.raises(InputError, match=complaint):
        awake.keep_awake()


def test_cores_are_kept_awake_while_a_device_is_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    request = tmp_path / "cpu_dma_latency"
    monkeypatch.setenv(awake.VARIABLE, "1")
    monkeypatch.setattr(awake, "_FILE", request)
    with open_device(api="es") as device:
        software = "llvmpipe" in device.renderer
        assert request.exists() == software
    if software:
        assert request.read_bytes() == bytes(4)
