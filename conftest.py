"""What every test gets: the goldens' models, small ones, and an audit of OpenGL around tests that open a device.

Tests that open one are marked ``gl``, which the audit checks. No OpenGL library is imported for the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from goldens import ModelWriter, write_gab_model
from hypothesis import settings
from tiers import choose_tiers

from glinfer.errors import ContextError
from glinfer.gl.egl import list_devices

if TYPE_CHECKING:
    from glinfer.gl.context import Device
    from glinfer.tensors.device import Device as TensorDevice

NAMES_ASKED = range(1, 1025)
DRIVER_KINDS = ("Texture", "Framebuffer", "Renderbuffer", "Buffer", "Sampler", "VertexArray", "Program", "Shader")
COMPILED = ("Program", "Shader")

# Times vary too much on a busy machine to be judged, and a run that fails should fail again; to search with
# new examples: HYPOTHESIS_PROFILE=explore.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# llvmpipe and triton, which transformers imports where PyTorch is for CUDA, each bring an LLVM of their own, and
# triton's breaks down where it comes second.
if importlib.util.find_spec("triton") is not None:
    importlib.import_module("triton")

# Bits are those of Mesa's software renderer, so that a machine with a GPU runs the tests there too if it has both.
with contextlib.suppress(ContextError):
    software = [str(each.index) for each in list_devices() if each.is_software]
    if 0 < len(software) < len(list_devices()):
        os.environ.setdefault("GLINFER_DEVICE", software[0])

# What was tuned or chosen on this machine before must not decide what a test runs.
os.environ["GLINFER_CACHE"] = ""
# No test reaches the internet; those of models on a hub have a hub of their own.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def usual_width() -> Iterator[None]:
    """Nor how wide the terminal is, which the summary of the tests heeds again."""
    width = os.environ.pop("COLUMNS", None)
    yield
    if width is not None:
        os.environ["COLUMNS"] = width


@pytest.fixture(scope="session", autouse=True)
def no_lines_of_progress() -> Iterator[None]:
    """Nor how slow the machine is: commands print a line every half minute where there is no terminal."""
    from glinfer.cli import common

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "_LINE_SECONDS", float("inf"))
        yield


@pytest.fixture(autouse=True, scope="module")
def unwritten_textures() -> Iterator[None]:
    """Fill new textures with NaN instead of llvmpipe's zeros: OpenGL ES leaves open what unwritten ones hold."""
    if "glinfer.gl.texture" not in sys.modules:
        yield
        return
    from glinfer.gl.texture import Texture

    make = Texture.__init__

    def init(self: Texture, device: Device, layout: Any, name: str, texels: Any = None) -> None:
        make(self, device, layout, name, np.full(layout.nbytes, 0xFF, np.uint8) if texels is None else texels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Texture, "__init__", init)
        yield


@pytest.fixture
def chunk_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a model's first prompt as a chunk too, however short; the plan and its shaders are otherwise put off."""
    from glinfer.engine import prefill

    monkeypatch.setattr(prefill, "MAX_SINGLE_TOKENS_BEFORE", 0)


@pytest.fixture(scope="module")
def no_processes() -> Iterator[None]:
    """Templates are rendered and structures compiled in this process, which takes a hundredth of the time."""
    from worker_here import answered_here

    from glinfer.structured import compiler
    from glinfer.text import templates

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "answer_of", answered_here)
        patch.setattr(compiler, "answer_of", answered_here)
        yield


@pytest.fixture
def known_ceiling(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``glinfer bench`` takes these peak rates for the renderer's, and measures none."""
    from glinfer.inspect.ceiling import CeilingReport, FetchRate

    fetches = tuple(FetchRate(name, 1 << 24, "texture", 1e9) for name in ("rgba32ui", "rgba32f", "rgba16f"))
    ceiling = CeilingReport("renderer", fetches, 2e9, 10.0, 5.0, 20.0)
    # glinfer.cli has a command of this name
    monkeypatch.setattr(importlib.import_module("glinfer.cli.bench"), "measure_ceilings", lambda *_, **__: ceiling)
    return ceiling


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Every sequence of ids that a stream begins with."""
    from glinfer.engine.model import Model

    seen: list[list[int]] = []
    stream = Model.stream

    def spy(self: Model, prompt: Any, **options: Any) -> Any:
        seen.append(list(prompt))
        return stream(self, prompt, **options)

    monkeypatch.setattr(Model, "stream", spy)
    return seen


@pytest.fixture(scope="session")
def golden_model(tmp_path_factory: pytest.TempPathFactory) -> ModelWriter:
    """The file of one of goldens.GAB_MODELS by its name, written when first asked for."""
    folder = tmp_path_factory.mktemp("goldens")

    @cache
    def written(name: str) -> Path:
        return write_gab_model(name, folder / f"{name}.gab")

    return written


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory, golden_model: ModelWriter) -> Path:
    """A cache directory in which the demo finds its 101 MB model: Gab's full shape, seed 2."""
    home = tmp_path_factory.mktemp("cache")
    folder = home / "glinfer" / "demo"
    folder.mkdir(parents=True)
    (folder / "random.gab").hardlink_to(golden_model("full"))
    return home


@pytest.fixture(scope="session")
def full_file(cache_home: Path) -> Path:
    """The full-size model of the goldens, where the demo finds it."""
    return cache_home / "glinfer" / "demo" / "random.gab"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``small.gab`` (2 blocks, 4 heads, 300 tokens, context 64) with its tokenizer ``small.bpe`` beside it."""
    from scripted_models import SMALL, random_file

    from glinfer.engine.random_model import demo_tokenizer
    from glinfer.formats import write_bpe

    path = random_file(tmp_path_factory.mktemp("small") / "small.gab", SMALL)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with no tokenizer anywhere near."""
    from scripted_models import SMALL, random_file

    return random_file(tmp_path_factory.mktemp("bare") / "bare.gab", SMALL)


@lru_cache(maxsize=1)
def desktop_problem() -> str:
    """Why desktop OpenGL cannot be opened here; empty when it can."""
    from glinfer.errors import ContextError
    from glinfer.gl.context import open_device

    try:
        open_device(api="desktop").close()
    except ContextError as error:
        return str(error)
    return ""


def pytest_configure(config: pytest.Config) -> None:
    choose_tiers(config.getoption("markexpr"))
    if config.getoption("numprocesses", None):
        # Workers inherit one thread each: waiting threads of OpenBLAS and OpenMP keep the other workers' cores busy.
        for threads, count in (("LP_NUM_THREADS", "0"), ("OMP_NUM_THREADS", "1")):
            os.environ.setdefault(threads, count)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("desktop") is not None and (problem := desktop_problem()):
        pytest.skip(f"no desktop OpenGL here: {problem}")


def left_in_driver(device: Device) -> dict[str, list[int]]:
    """The names of the objects that the driver still knows in this device's context, by kind."""
    device._native.__enter__()  # activate() refuses a device in the middle of closing
    left = {}
    for kind in DRIVER_KINDS:
        is_one = ctypes.CFUNCTYPE(ctypes.c_ubyte, ctypes.c_uint32)(device._native.load(f"glIs{kind}"))
        if names := [name for name in NAMES_ASKED if is_one(name)]:
            left[kind] = names
    return left


class Audit:
    """Watches every device that one test opens, and collects what is wrong with it."""

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.complaints: list[str] = []
        self.failed_compiles: Counter[int] = Counter()

    def watch(self, device: Device) -> None:
        """Look at ``device`` at the last moment of its life: everything released, the context still there."""
        self.devices.append(device)
        destroy = device.gl.release

        def look_and_destroy() -> None:
            self.look(device)
            destroy()

        device.gl.release = look_and_destroy

    def look(self, device: Device) -> None:
        """Complain about objects that glinfer or the driver still has, and about pending errors."""
        label = f"device {self.devices.index(device)}"
        if owned := device.live_objects():
            self.complaints.append(f"{label}: glinfer did not release {dict(owned)}")
        left = left_in_driver(device)
        # moderngl itself keeps the program and the vertex shader of each compilation that fails.
        failed = self.failed_compiles[id(device.gl)]
        if all(len(left.get(kind, ())) <= failed for kind in COMPILED):
            left = {kind: names for kind, names in left.items() if kind not in COMPILED}
        if left:
            self.complaints.append(f"{label}: the driver still has {left}")
        if pending := device.raw.pending_errors():
            self.complaints.append(f"{label}: {', '.join(pending)} pending")

    def finish(self) -> None:
        """Complain about devices that were never closed, and close them."""
        for number, device in enumerate(self.devices):
            if not device.closed:
                self.complaints.append(f"device {number}: never closed")
                with contextlib.suppress(Exception):
                    device.activate()
                    if pending := device.raw.pending_errors():
                        self.complaints.append(f"device {number}: {', '.join(pending)} pending")
                    device.close()


@pytest.fixture(autouse=True)
def gl_audit(request: pytest.FixtureRequest) -> Iterator[Audit | None]:
    """Fail a test that leaves an OpenGL object, error or context behind, or opens a device without the mark ``gl``."""
    marked = request.node.get_closest_marker("gl") is not None
    if not marked and "glinfer.gl.context" not in sys.modules:
        yield None
        return
    import moderngl

    from glinfer.gl.context import Device

    audit = Audit()
    open_device, compile_program = Device.__init__, moderngl.Context.program

    def init(device: Device, *args: Any, **options: Any) -> None:
        open_device(device, *args, **options)
        audit.watch(device)

    def program(context: Any, *args: Any, **options: Any) -> Any:
        try:
            return compile_program(context, *args, **options)
        except moderngl.Error:
            audit.failed_compiles[id(context)] += 1
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Device, "__init__", init)
        patch.setattr(moderngl.Context, "program", program)
        yield audit
        audit.finish()
    if audit.devices and not marked:
        audit.complaints.append("a device was opened by a test that is not marked gl")
    assert not audit.complaints, "; ".join(audit.complaints)


@pytest.fixture(autouse=True)
def one_line_each() -> Iterator[None]:
    """Fail a test in which an error or a warning of glinfer has a message of several lines."""
    from glinfer.errors import GlinferError, GlinferWarning

    several: list[str] = []

    def note(error: Exception, *given: object) -> None:
        Exception.__init__(error, *given)
        several.extend(text for text in map(str, given) if "\n" in text)

    with pytest.MonkeyPatch.context() as patch:
        for kind in (GlinferError, GlinferWarning):
            patch.setattr(kind, "__init__", note, raising=False)
        yield
    assert not several, f"a message has several lines: {several}"


@pytest.fixture
def device() -> Iterator[Device]:
    """An open OpenGL ES device, closed after the test."""
    from glinfer.gl.context import open_device

    with open_device(api="es") as opened:
        yield opened


@pytest.fixture
def dev() -> Iterator[TensorDevice]:
    """A device for tensors."""
    from glinfer.tensors.device import Device

    with Device() as opened:
        yield opened
