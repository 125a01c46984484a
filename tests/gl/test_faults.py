"""When OpenGL breaks: memory that runs out, contexts that are lost, forks, interrupts, and drivers that refuse.

Whatever happens is told in one line, nothing is left behind (the audit sees to that), and what can go on goes on.
"""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import moderngl
import numpy as np
import pytest
from broken_driver import GUILTY, INNOCENT, LOST, NO_NAME, PURGED, REFUSED, UNKNOWN, UNSUPPORTED, BrokenDriver, mended
from interrupts import files_of, heeds_ctrl_c, interrupted_everywhere
from own_process import ran
from tiers import tiered

import glinfer
from glinfer.errors import ContextError, GLError, GlinferError, InputError, PlanError
from glinfer.gl import egl, faults, memory
from glinfer.gl import program as program_module
from glinfer.gl import replay as replay_module
from glinfer.gl.context import BARRIERS, Device, open_device
from glinfer.gl.faults import ContextLostError
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program
from glinfer.gl.raw import RawGL
from glinfer.gl.replay import Draw, DrawCall, replay
from glinfer.gl.texture import Framebuffer, Texture
from glinfer.kernels.spec import RunValue
from glinfer.program.plan import PlanBuilder
from glinfer.program.session import Session, check_textures_fit

__all__ = ["heeds_ctrl_c"]

pytestmark = pytest.mark.gl

LAYOUT = Layout.of((3, 5), "r32f", 64)
MATRIX = np.arange(15, dtype=np.float32).reshape(3, 5)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> BrokenDriver:
    return BrokenDriver(monkeypatch)


@pytest.fixture
def device(driver: BrokenDriver) -> Iterator[Device]:
    """A device over the driver that breaks; before the audit looks at it the driver works again."""
    with open_device(api="es") as opened:
        mended(driver, opened)
        yield opened


def one_line(error: BaseException) -> str:
    assert isinstance(error, GlinferError)
    return str(error)


def texture(device: Device, name: str = "t") -> Texture:
    return Texture(device, LAYOUT, name, MATRIX)


# Memory that runs out


@pytest.mark.parametrize("how", [REFUSED, NO_NAME])
def test_a_texture_without_memory_says_its_size_and_what_to_do(driver: BrokenDriver, device: Device, how: str) -> None:
    layout = Layout.of((1000, 1000), "r32f", 2048)
    driver.fail_at(1, how)
    with pytest.raises(GLError) as caught:
        Texture(device, layout, "lm_head.weight")
    said = one_line(caught.value)
    assert said.startswith("creating texture lm_head.weight (1000×1000 r32f): found no memory for 4.0 MB; ")
    assert "--context" in said
    assert said.endswith("reported GL_OUT_OF_MEMORY" if how == REFUSED else ": cannot create texture")
    assert not device.live_objects()
    assert np.array_equal(texture(device).read(), MATRIX), "the device goes on"


NO_MEMORY = "creating the framebuffer of t: found no memory for 60 bytes; "


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (REFUSED, rf"{NO_MEMORY}.* reported GL_OUT_OF_MEMORY"),
        (NO_NAME, rf"{NO_MEMORY}.*: cannot create framebuffer"),
        (UNSUPPORTED, r".* cannot render to t: the framebuffer is not complete .*; choose another device .*"),
    ],
)
def test_a_framebuffer_that_is_refused_leaves_nothing(
    driver: BrokenDriver, device: Device, how: str, said: str
) -> None:
    held = texture(device)
    other = texture(device, "other").framebuffer
    for _ in range(3):  # moderngl leaves the name of an incomplete framebuffer behind
        driver.fail_at(1, how)
        with pytest.raises(GlinferError, match=rf"^{said}$") as caught:
            held.read()
        assert isinstance(caught.value, PlanError if how == UNSUPPORTED else GLError)
        assert dict(device.live_objects()) == {"texture": 2, "framebuffer": 1}
    assert np.array_equal(held.read(), MATRIX)
    assert np.array_equal(other.read(0, 5, 3), MATRIX), "no other framebuffer was deleted"


@tiered("how", [REFUSED, NO_NAME, UNSUPPORTED])
def test_kernels_on_tensors_survive_every_allocation_that_fails(driver: BrokenDriver, how: str) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((5, 40), (40, 12))]

    def work(dev: glinfer.Device) -> np.ndarray[Any, Any]:
        x, w = map(dev.tensor, arrays)
        with x, w, dev.ops.matmul(x, w) as y, dev.ops.softmax(y) as z:
            return z.numpy()

    with glinfer.Device() as dev:
        mended(driver, dev.context)
        expected, failures = work(dev), 0
        kept = dict(dev.context.live_objects())
        while True:
            driver.fail_at(failures + 1, how)
            try:
                found = work(dev)
            except GlinferError as error:
                failures += 1
                assert driver.failed
                one_line(error)
                error.__traceback__ = None  # which holds what was made so far
                driver.mend()
                dev.collect()
                assert dict(dev.context.live_objects()) == kept
            else:
                break
        assert not driver.failed
        assert failures >= (3 if how == UNSUPPORTED else 5)
        assert np.array_equal(found, expected)


# Memory that is known to be too little


MEMINFO = "MemTotal:  24683660 kB\nMemFree:  1 kB\nMemAvailable:    2000000 kB\nSwapFree:   500000 kB\n"


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The files in which a system says what it has left: 2.56 GB, in no control group."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    return tmp_path


def written(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_least_of_all_that_bounds_memory_counts(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.available_bytes() == 2_500_000 * 1024
    groups = system / "groups"
    (system / "proc" / "self" / "cgroup").write_text("0::/box/inner\n9:cpu,memory:/old\n")
    written(groups / "box" / "inner", memory__max="max\n", memory__current="5\n")
    assert memory.available_bytes() == 2_500_000 * 1024
    written(groups / "box", memory__max="1000000000\n", memory__current="600000000\n")
    assert memory.available_bytes() == 400_000_000
    written(groups / "box", memory__stat="anon 9\ninactive_file 100\nactive_file 20\n")
    assert memory.available_bytes() == 400_000_120
    # Version 1, in a container that sees its own group as the root.
    written(groups / "memory", memory__limit_in_bytes="300000000\n", memory__usage_in_bytes="100000000\n")
    assert memory.available_bytes() == 200_000_000
    written(groups / "memory", memory__stat="inactive_file 1\ntotal_inactive_file 7\ntotal_active_file 0\n")
    assert memory.available_bytes() == 200_000_007
    written(groups / "memory", memory__usage_in_bytes="400000000\n")
    assert memory.available_bytes() == 0
    monkeypatch.setattr(memory, "_of_the_groups", lambda: iter(()))
    import resource

    (system / "proc" / "self" / "status").write_text("Name:\tpython\nVmSize:\t 1000 kB\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5_000_000, -1))
    assert memory.available_bytes() == 5_000_000 - 1_024_000


def test_the_environment_goes_before_what_the_system_says(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("64", 64 * 10**9), ("0.5", 5 * 10**8), ("0", 0), ("", 2_500_000 * 1024)):
        monkeypatch.setenv("GLINFER_MEMORY", text)
        assert memory.available_bytes() == expected
    for text in ("much", "-1", "nan", "inf", "64 GB"):
        monkeypatch.setenv("GLINFER_MEMORY", text)
        with pytest.raises(InputError, match=rf"^GLINFER_MEMORY is '{text}'; expected gigabytes, such as 64"):
            memory.available_bytes()


def test_a_system_that_says_nothing_bounds_nothing(system: Path) -> None:
    (system / "proc" / "meminfo").unlink()
    assert memory.available_bytes() is None
    memory.check_room(1 << 60, "it takes 1 EB", "buy more")


def test_what_does_not_fit_the_memory_is_refused_in_one_line(system: Path) -> None:
    memory.check_room(2_500_000 * 1024, "it takes 2.6 GB", "take less")
    with pytest.raises(PlanError) as caught:
        memory.check_room(2_500_000 * 1024 + 1, "it takes 2.6 GB", "take less")
    assert (
        one_line(caught.value)
        == "it takes 2.6 GB of memory, and 2.6 GB are free here; take less (GLINFER_MEMORY overrides this)"
    )
    (system / "proc" / "meminfo").write_text(MEMINFO.replace("2000000", "0").replace("500000", "0"))
    memory.check_room(memory.MIN_CHECKED_BYTES - 1, "it takes little", "take less")


def large_plan(count: int) -> Any:
    """A plan of caches that take a gigabyte each."""
    builder = PlanBuilder("large", 1, [RunValue("rows", 1, 1)])
    for number in range(count):
        builder.laid_out(f"cache.{number}", "cache", Layout.of((16384, 16384), "r32f", 16384))
    return builder.build()


def test_a_plan_beyond_memory_is_told_before_a_texture_is_made(
    device: Device, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not device.in_main_memory:
        pytest.skip("this GPU has memory of its own, and says itself when it has no more")
    made: list[object] = []
    monkeypatch.setattr(device, "adopt", made.append)
    with pytest.raises(PlanError) as caught:
        Session(large_plan(3), {}, device)
    assert one_line(caught.value).startswith("plan large takes 3.2 GB (cache 3.2 GB) of memory, and 2.6 GB are free")
    check_textures_fit(large_plan(3), device, lent=["cache.1"])
    check_textures_fit(large_plan(2), device)
    device.in_main_memory = False
    check_textures_fit(large_plan(3), device)
    assert not made


def test_software_renderers_are_known_by_name() -> None:
    swiftshader = "ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero)), SwiftShader driver)"
    for renderer in ("llvmpipe (LLVM 15.0.6, 256 bits)", "softpipe", swiftshader):
        assert faults.in_main_memory(renderer)
    for renderer in ("NVIDIA H100 80GB HBM3/PCIe/SSE2", "Mesa Intel(R) UHD Graphics 620 (KBL GT2)"):
        assert not faults.in_main_memory(renderer)


LAVAPIPE = "zink Vulkan 1.4(llvmpipe (LLVM 19.1.7, 256 bits) (MESA_LLVMPIPE))"


def test_drivers_whose_uploads_overtake_draws_are_known() -> None:
    for version in ("OpenGL ES 3.2 Mesa 25.0.7-2+deb13u1", "4.5 (Core Profile) Mesa 23.1.0"):
        assert faults.uploads_overtake(LAVAPIPE, version)
        assert not faults.uploads_overtake("llvmpipe (LLVM 19.1.7, 256 bits)", version)
    for version in ("OpenGL ES 3.2 Mesa 22.3.6", "OpenGL ES 3.2 Mesa 26.0.3-1ubuntu1"):
        assert not faults.uploads_overtake(LAVAPIPE, version)


@pytest.mark.parametrize("overtake", [True, False])
def test_an_upload_that_may_overtake_waits_for_the_draws_before_it(
    device: Device, monkeypatch: pytest.MonkeyPatch, overtake: bool
) -> None:
    order: list[str] = []
    texture, write = Texture(device, LAYOUT, "table"), moderngl.Texture.write

    def writing(*given: Any, **named: Any) -> None:
        order.append("write")
        write(*given, **named)

    monkeypatch.setattr(device, "uploads_overtake", overtake)
    monkeypatch.setattr(device.raw, "finish", lambda: order.append("finish"))
    monkeypatch.setattr(moderngl.Texture, "write", writing)
    texture.upload(MATRIX)
    assert order == (["finish", "write"] if overtake else ["write"])
    assert np.array_equal(texture.read(), MATRIX)


# Contexts that are lost

GO_ON = r"load the model again: a new session continues with session\.prefill\(old_session\.ids\)"


def uses_of(device: Device, held: Texture) -> list[Callable[[], object]]:
    return [
        device.activate,
        held.read,
        lambda: held.upload(MATRIX),
        lambda: held.fill(0.0),
        lambda: texture(device),
        lambda: Program(device, "copy", {"COLS": 5}, ["x"]),
        lambda: replay(device, [], {}),
    ]


def test_a_closed_device_has_let_go_of_everything_and_refuses_use(device: Device) -> None:
    held, program = texture(device), Program(device, "copy", {"COLS": 5}, ["x"])
    held.read()
    assert dict(device.live_objects()) == {"texture": 1, "framebuffer": 1, "program": 1}
    device.close()  # what the driver still has then is judged by the audit
    assert device.closed
    assert not device.live_objects()
    assert held.gl is program.gl is None
    for use in (*uses_of(device, held), lambda: held.framebuffer):
        with pytest.raises(ContextError, match=r"^this device was closed; open or load again$"):
            use()
    for item in (held, program, device):  # closing again is no error
        getattr(item, "release", device.close)()


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [(GUILTY, LOST, "guilty"), (INNOCENT, 0, "innocent"), (UNKNOWN, LOST, "unknown"), (PURGED, 0, "unknown")],
)
def test_a_lost_context_is_found_by_the_next_readback(
    driver: BrokenDriver, device: Device, status: int, error: int, kind: str
) -> None:
    held, program = texture(device), Program(device, "copy", {"COLS": 5}, ["x"])
    assert np.array_equal(held.read(), MATRIX)
    driver.lose(status, error)
    prefix = "reading t back: .* reported GL_CONTEXT_LOST: " if error else "reading t back: "
    with pytest.raises(ContextLostError, match=rf"^{prefix}the graphics context was lost \({kind} reset\); {GO_ON}$"):
        held.read()
    assert device.closed
    for use in uses_of(device, held):
        with pytest.raises(
            ContextError, match=rf"^the graphics context was lost \({kind} reset\) while reading t back; {GO_ON}$"
        ):
            use()
    held.release()
    program.release()
    device.close()
    device.close()


def test_a_loss_that_is_found_by_closing_is_kept_quiet_and_others_go_on(driver: BrokenDriver) -> None:
    device = mended(driver, open_device(api="es"))
    texture(device).read()
    with open_device(api="es") as other:
        theirs = texture(other)
        driver.lose(GUILTY)
        device.close()
        assert device.closed
        driver.mend()
        assert np.array_equal(theirs.read(), MATRIX)


def test_an_allocation_that_fails_in_a_lost_context_tells_of_the_loss(driver: BrokenDriver, device: Device) -> None:
    driver.fail_at(1, NO_NAME)
    driver.lose(0)
    with pytest.raises(ContextLostError, match=r"^creating texture t .*\(unknown reset\)"):
        texture(device)


ACTIONS: dict[str, Callable[[Texture], object]] = {
    "uploading t": lambda held: held.upload(MATRIX),
    "reading t back": lambda held: held.read(),
    "clearing t": lambda held: held.fill(0.0),
    "replaying the plan": lambda held: replay(held.device, [], {}),
    r"creating texture u \(5×3 r32f\)": lambda held: texture(held.device, "u"),
    "compiling copy": lambda held: Program(held.device, "copy", {"COLS": 5}, ["x"]),
    "creating the framebuffer of t": lambda held: Framebuffer(held.device, [held]),
}


@pytest.mark.parametrize("doing", ACTIONS)
def test_every_check_tells_of_errors_of_the_driver_and_of_a_loss(driver: BrokenDriver, doing: str) -> None:
    with mended(driver, open_device(api="es")) as device:
        held = texture(device)
        held.read()
        before = device.live_objects()
        said = {0x0500: r".* reported GL_INVALID_ENUM", 0x0505: r"found no memory.*; .* reported GL_OUT_OF_MEMORY"}
        for error, words in said.items():
            driver.pending.append(error)
            with pytest.raises(GLError, match=rf"^{doing}: {words}$"):
                ACTIONS[doing](held)
            assert device.raw.pending_errors() == []
            assert device.live_objects() == before, "the failed object is still owned"
        held.upload(MATRIX)
        assert np.array_equal(held.read(), MATRIX)
        driver.lose(GUILTY, LOST)
        with pytest.raises(ContextLostError, match=rf"^{doing}: .*\(guilty reset\)"):
            ACTIONS[doing](held)


def test_a_context_that_egl_calls_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    device, failing = open_device(api="es"), [False]
    held, library = texture(device), egl._egl()
    make_current, get_error = library.make_current, library.get_error

    def refusing(display: Any, draw: Any, read: Any, context: Any) -> int:
        return 0 if failing[0] and context is not None else make_current(display, draw, read, context)

    monkeypatch.setattr(library, "current_context", lambda: None)  # as another library leaves it
    monkeypatch.setattr(library, "make_current", refusing)
    monkeypatch.setattr(library, "get_error", lambda: 0x300E if failing[0] else get_error())
    failing[0] = True
    with pytest.raises(ContextLostError, match=r"^making the context current: the graphics context was lost"):
        held.read()
    with pytest.raises(ContextError, match=r"^the graphics context was lost \(unknown reset\) while making the"):
        held.read()
    monkeypatch.setattr(device, "gl", types.SimpleNamespace(release=lambda: None))  # nothing for the audit to see
    device.close()
    failing[0] = False
    monkeypatch.setattr(library, "get_error", lambda: 0x3006)
    with open_device(api="es") as other:
        failing[0] = True
        with pytest.raises(ContextError, match=r"^eglMakeCurrent failed \(EGL error 0x3006\)$") as caught:
            other.activate()
        assert not isinstance(caught.value, ContextLostError)
        failing[0] = False


def test_a_context_is_made_to_tell_of_resets_where_that_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    library, asked, refused = egl._egl(), [], [False]
    create = library.create_context

    def creating(display: Any, config: Any, share: Any, attributes: Any) -> Any:
        asked.append(list(attributes))
        return None if refused[0] and len(attributes) > 5 else create(display, config, share, attributes)

    monkeypatch.setattr(library, "create_context", creating)
    version, robust = [0x3098, 3, 0x30FB, 0], [0x30BF, 1, 0x3138, 0x31BF]
    monkeypatch.setattr(library, "query_string", lambda *_: b"EGL_A EGL_EXT_create_context_robustness")
    open_device(api="es").close()
    assert asked == [[*version, *robust, 0x3038]]
    refused[0] = True
    open_device(api="es").close()
    assert asked[1:] == [[*version, *robust, 0x3038], [*version, 0x3038]]
    for said in (b"EGL_A EGL_EXT_create_context_robustness_2", None):
        asked.clear()
        monkeypatch.setattr(library, "query_string", lambda *_, said=said: said)
        open_device(api="es").close()
        assert asked == [[*version, 0x3038]]


def test_functions_of_extensions_are_asked_for_by_the_name_that_the_driver_has() -> None:
    raw, asked, missing = RawGL.__new__(RawGL), list[str](), set[str]()

    def function(name: str, result: object, *, waits: bool) -> Callable[[], object]:
        asked.append(name)
        if name in missing:
            raise ContextError(f"the OpenGL driver has no {name}")
        return lambda: name

    raw.function = function

    def found(names: dict[str, str], *extensions: str) -> object:
        ask = raw.of_extension(names, extensions, None)
        return ask and ask()

    es, desktop = faults.RESET_STATUS["es"], faults.RESET_STATUS["desktop"]
    assert found(es, "GL_KHR_robustness", "GL_EXT_robustness") == "glGetGraphicsResetStatusKHR"
    assert found(es, "GL_EXT_robustness") == "glGetGraphicsResetStatusEXT"
    assert found(desktop, "GL_ARB_robustness") == "glGetGraphicsResetStatusARB"
    assert found(desktop, "GL_KHR_robustness") == "glGetGraphicsResetStatus"
    assert found(BARRIERS, "GL_NV_texture_barrier") == "glTextureBarrierNV"
    assert found(BARRIERS, "GL_ARB_texture_barrier", "GL_NV_texture_barrier") == "glTextureBarrier"
    asked.clear()
    assert found(es, "GL_ARB_robustness") is found(BARRIERS, "GL_EXT_texture_view") is None
    assert not asked, "loaders return an address for any name"
    missing.add("glTextureBarrier")
    assert found(BARRIERS, "GL_ARB_texture_barrier", "GL_NV_texture_barrier") == "glTextureBarrierNV"
    assert found(BARRIERS, "GL_ARB_texture_barrier") is None


# Interrupts


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_an_interrupt_anywhere_in_a_replay_leaves_the_next_one_right(device: Device) -> None:
    """Uniforms keep their values and blending may be on: neither may be other than glinfer remembers."""
    held, target, other = texture(device), Texture(device, LAYOUT, "sum"), Texture(device, LAYOUT, "copy")
    program = Program(device, "copy", {"COLS": 5}, ["x"])

    def draws() -> list[Draw]:
        plain = Draw("a", program, target.framebuffer, (held,))
        adding = dataclasses.replace(plain, name="b", call=DrawCall(adds=True))
        return [plain, adding, dataclasses.replace(plain, name="c", framebuffer=other.framebuffer)]

    def after(where: str) -> None:
        replay(device, draws()[:1], {})
        replay(device, draws(), {})
        assert np.array_equal(target.read(), 2 * MATRIX), where
        assert np.array_equal(other.read(), MATRIX), where

    files = files_of(replay_module, program_module)
    assert interrupted_everywhere(lambda: replay(device, draws(), {}), after, (), files) > 60


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_a_uniform_is_what_was_set_last_wherever_an_interrupt_came(device: Device) -> None:
    mixed = Texture(device, Layout.of((1, 2), "r32f", 64), "mixed", np.ones((1, 2), np.float32))
    program = Program(device, "concat_head", {"DIM": 6, "HEAD_DIM": 2, "FIRST": 1}, ["mixed"])
    target = Texture(device, Layout.of((1, 6), "r32f", 64), "y")
    draw = Draw("d", program, target.framebuffer, (mixed,), DrawCall((("head", 1),)))

    def after(where: str) -> None:
        replay(device, [draw], {})
        assert target.read().tolist() == [[0, 0, 1, 1, 0, 0]], where

    after("before")
    assert interrupted_everywhere(lambda: program.set("head", 2), after, (), files_of(program_module)) >= 5


# Forks

FORKED = """
import os, sys
import numpy as np
import glinfer
from glinfer.errors import ContextError
from glinfer.gl.context import open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.texture import Texture

if os.fork() == 0:
    open_device().close()
    sys.exit()
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, "nothing was opened before this fork"
device, dev = open_device(), glinfer.Device()
held = Texture(device, Layout.of((1, 4), "r32f", 64), "t", np.arange(4, dtype=np.float32)[None])
held.read()
x = dev.tensor(np.arange(8, dtype=np.float32))
y = dev.ops.silu(x)
expected = y.numpy()
child = os.fork()
if child == 0:
    for use in (held.read, device.activate, lambda: dev.ops.silu(x), y.numpy, lambda: open_device(), glinfer.Device):
        try:
            print("used", use())
        except ContextError as error:
            print(error)
    assert device.closed and dev.context.closed
    y.release()
    held.release()
    dev.close()
    device.close()
    del x, y, dev, held, device
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert np.array_equal(held.read(), [[0, 1, 2, 3]]) and np.array_equal(y.numpy(), expected)
assert np.array_equal(dev.ops.silu(x).numpy(), expected)
dev.close()
device.close()
print("parent done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_is_told_and_harms_nothing() -> None:
    *said, last = ran(FORKED)
    assert last == "parent done"
    assert len(said) == 6
    for line in said[:4]:
        assert line.startswith("this device was opened in process ")
        assert "multiprocessing's 'spawn'" in line
    for line in said[4:]:
        assert line.startswith("this process was forked from process ")
        assert "multiprocessing's 'spawn'" in line


def test_exit_handlers_of_drivers_do_not_run_in_forked_processes() -> None:
    """NVIDIA's take away what the parent has, Mesa's wait for threads; here a handler kills whoever runs it."""
    source = (
        "import atexit, ctypes, os, sys\nfrom glinfer.gl import faults\nlibrary = ctypes.CDLL(None)\n"
        "library.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]\n"
        "library.on_exit(ctypes.cast(library.abort, ctypes.c_void_p), None)\n"
        "for guarded in (False, True, True):\n"
        "    if guarded:\n        faults.guard_forks()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        atexit.register(print, 'Python has its say')\n        sys.exit(7)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "os._exit(0)\n"
    )
    assert ran(source) == ["Python has its say", "-6", *["Python has its say", "7"] * 2]


def test_forks_are_guarded_once_a_device_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded: list[bool] = []
    monkeypatch.setattr(faults, "guard_forks", lambda: guarded.append(True))
    open_device(api="es").close()
    assert guarded == [True]


def test_leaving_python_with_everything_open_is_silent() -> None:
    source = (
        "import glinfer\nfrom glinfer.gl.context import open_device\n"
        "dev, device = glinfer.Device(), open_device()\nx = dev.ops.silu(dev.tensor([1.0]))\nprint(x.numpy().shape)\n"
    )
    assert ran(source) == ["(1,)"]
