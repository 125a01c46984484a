"""The cache of tuned kernels: what is kept comes back, and nothing that is not surely right does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.gl.context import Device, Limits
from glinfer.kernels.options import KernelOptions
from glinfer.program import tuning
from glinfer.program.tuning import (
    Tuned,
    TuningKey,
    default_for,
    kernels_file,
    kernels_for,
    load_tuned,
    runs_on,
    save_kernels,
)

KEY = TuningKey("llvmpipe (LLVM 15.0.6, 256 bits)", "OpenGL ES 3.2 Mesa 22.3.6", "width=512,weights=q8")
KERNELS = KernelOptions(tiles=16, cover="quads", quad=False, unroll=8, part_steps=4)
TUNED = Tuned(KERNELS, 2.5, 3.0)
CONFIG = ModelConfig.from_options("")
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LP_NUM_THREADS", raising=False)
    monkeypatch.setattr(tuning, "exact_derivatives", lambda device: True)
    return tmp_path / "cache"


def device(
    renderer: str = "llvmpipe (LLVM 15.0.6, 256 bits)",
    version: str = "OpenGL ES 3.2 Mesa 22.3.6",
    point: float = 255.0,
    api: str = "es",
    blends: bool = True,
    barrier: Callable[[], None] | None = None,
) -> Device:
    limits = dataclasses.replace(Limits.webgl2_minimum(), max_point_size=point)
    named: dict[str, Any] = {"renderer": renderer, "version": version, "limits": limits, "api": api}
    return cast(Device, SimpleNamespace(**named, blends_floats=blends, texture_barrier=barrier))


def test_what_was_kept_comes_back(cache: Path) -> None:
    assert load_tuned(KEY) is None
    path = save_kernels(KEY, TUNED)
    assert path is not None
    assert path.parent == cache / "kernels"
    assert path.name.startswith("llvmpipe-llvm-15-0-6-256-bits-q8-")
    assert load_tuned(KEY) == TUNED
    better = dataclasses.replace(TUNED, kernels=KernelOptions())
    save_kernels(KEY, better)
    assert load_tuned(KEY) == better
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_another_key_finds_nothing() -> None:
    save_kernels(KEY, TUNED)
    for field in ("renderer", "driver", "shape"):
        other = dataclasses.replace(KEY, **{field: "something else"})
        assert load_tuned(other) is None, field
        save_kernels(other, dataclasses.replace(TUNED, kernels=KernelOptions()))
        assert load_tuned(KEY) == TUNED


def edit(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda values: {**values, **changes}


def edit_kernels(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda values: {**values, "kernels": {**values["kernels"], **changes}}


FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another version": edit(version=0),
    "another shape": edit(shape="width=513"),
    "no kernels": edit(kernels=None),
    "an unknown field": edit_kernels(speed=9),
    "a field less": lambda values: {**values, "kernels": {"tiles": 4}},
    "a number as text": edit_kernels(tiles="4"),
    "a fraction": edit_kernels(unroll=1.5),
    "truth as a number": edit_kernels(quad=1),
    "an enormous number": edit_kernels(unroll=10**30),
    "an unknown cover": edit_kernels(cover="carpet"),
    "no tiles": edit_kernels(tiles=0),
    "no time": edit(milliseconds=None),
    "a list": lambda values: [values],
}


def test_a_file_about_anything_else_and_a_damaged_one_are_absent() -> None:
    path = save_kernels(KEY, TUNED)
    assert path is not None
    kept = json.loads(path.read_text("utf-8"))
    contents = {fault: json.dumps(change(kept)).encode() for fault, change in FAULTS.items()}
    damaged = (b"", b"\0" * 100, b"{", b"\xff\xfe", b"[" * 60000, b'{"version": 1}' + b" " * 70000, b"9" * 5000)
    for fault, content in [*contents.items(), *((content[:20], content) for content in damaged)]:
        path.write_bytes(content)
        assert load_tuned(KEY) is None, fault
    save_kernels(KEY, TUNED)
    assert load_tuned(KEY) == TUNED, "it is replaced"


def test_a_folder_of_that_name_is_absent_and_said_when_it_is_in_the_way(cache: Path) -> None:
    (cache / "kernels" / KEY.file_name).mkdir(parents=True)
    assert load_tuned(KEY) is None
    with pytest.raises(FormatError, match="found a directory"):
        save_kernels(KEY, TUNED)


def test_a_folder_that_cannot_be_made(monkeypatch: Patch) -> None:
    monkeypatch.setenv("GLINFER_CACHE", "/dev/null")
    assert load_tuned(KEY) is None
    with pytest.raises(
        InputError, match="/dev/null/kernels: cannot write to this folder: Not a directory; set GLINFER_"
    ):
        save_kernels(KEY, TUNED)


def test_the_folder_follows_the_environment(monkeypatch: Patch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("GLINFER_CACHE", "/own")
    assert kernels_file(KEY) == Path("/own/kernels") / KEY.file_name
    monkeypatch.delenv("GLINFER_CACHE")
    assert kernels_file(KEY) == Path("/elsewhere/glinfer/kernels") / KEY.file_name
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert kernels_file(KEY) == Path("/home/someone/.cache/glinfer/kernels") / KEY.file_name


def test_without_a_folder_nothing_is_kept_or_read(monkeypatch: Patch) -> None:
    """A user turned it off, or has no home."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    save_kernels(KEY, TUNED)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    for turn_off in (lambda: monkeypatch.setenv("GLINFER_CACHE", ""), lambda: monkeypatch.delenv("GLINFER_CACHE")):
        turn_off()
        assert save_kernels(KEY, TUNED) is None
        assert load_tuned(KEY) is None


def test_a_device_gets_its_own_kernels_or_the_default() -> None:
    here = device()
    default = kernels_for(here, CONFIG, "q8")
    assert default == default_for(here) != KERNELS
    save_kernels(TuningKey.of(here, CONFIG, "q8"), TUNED)
    assert kernels_for(here, CONFIG, "q8") == KERNELS
    assert kernels_for(here, CONFIG, "f32") == default
    assert kernels_for(here, ModelConfig.from_options("dim=256"), "q8") == default
    assert kernels_for(device(version="OpenGL ES 3.2 Mesa 23"), CONFIG, "q8") == default
    assert kernels_for(device(renderer="llvmpipe (LLVM 16)"), CONFIG, "q8") == default


def test_another_number_of_llvmpipes_threads_is_another_key(monkeypatch: Patch) -> None:
    for renderer, differ in (("llvmpipe", True), ("Radeon", False)):
        monkeypatch.setenv("LP_NUM_THREADS", "1")
        one = TuningKey.of(device(renderer), CONFIG, "q8")
        monkeypatch.setenv("LP_NUM_THREADS", "2")
        assert (TuningKey.of(device(renderer), CONFIG, "q8") != one) == differ


def test_kernels_that_a_device_cannot_run_are_not_used() -> None:
    small_points, no_blending, no_barrier = device(point=1.0), device(blends=False), device()
    points = dataclasses.replace(KERNELS, cover="points", part_steps=0)
    one_state = dataclasses.replace(KERNELS, one_state=True)
    assert runs_on(device(barrier=lambda: None), one_state)
    for here, wrong in ((small_points, points), (no_blending, KERNELS), (no_barrier, one_state)):
        assert not runs_on(here, wrong)
        save_kernels(TuningKey.of(here, CONFIG, "q8"), Tuned(wrong, 1.0, 2.0))
        assert kernels_for(here, CONFIG, "q8") == default_for(here)
        assert runs_on(here, default_for(here))


def test_the_default_runs_everywhere() -> None:
    for renderer in ("llvmpipe", "NVIDIA H100", "ANGLE (Apple)"):
        for blends in (False, True):
            for point in (1.0, 255.0):
                here = device(renderer, point=point, blends=blends)
                assert runs_on(here, default_for(here)), (renderer, blends, point)


def test_activations_share_a_texture_by_default_on_gpus_with_barriers() -> None:
    for renderer in ("llvmpipe", "NVIDIA H100"):
        able, unable = device(renderer, barrier=lambda: None), device(renderer)
        assert default_for(able).one_state == (renderer != "llvmpipe")
        assert default_for(unable) == dataclasses.replace(default_for(able), one_state=False), "all else is kept"


def test_fragments_share_nothing_where_derivatives_are_not_exact(monkeypatch: Patch) -> None:
    assert default_for(device()).quad, "or this test shows nothing"
    monkeypatch.setattr(tuning, "exact_derivatives", lambda device: False)
    assert not default_for(device()).quad
