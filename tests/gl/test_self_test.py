"""The self-test of a renderer's arithmetic, on this machine's renderers and on pretended ones."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import numpy as np
import pytest
from own_process import finished

import glinfer
from glinfer.errors import ContextError, GLError, NumbersError
from glinfer.gl.context import Limits
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.pretend import PRETENCES, open_pretended
from glinfer.gl.self_test import record, self_test
from glinfer.gl.texture import Texture
from glinfer.inspect.info import renderer_report

pytestmark = pytest.mark.gl


WORD, NUMBER, HUGE = 0x9E3779B9, 0.1, 1e30


def computed() -> dict[str, Any]:
    """The contents of shaders/self_test.json, in float64."""
    given = np.random.default_rng(7).uniform(-3, 3, (16, 4)).astype(np.float32)
    given[2] = 2748, 1.5, 4.25, 0.625
    a, b, c = given[:3].astype(np.float64)
    size, word = int(c[0]), WORD
    halves = np.array([size << 20 & 0xFFFFFFFF | 0x37FF], np.uint32).view(np.float16)
    one = np.uint32((size << 20 & 0xFFFFFFFF) | 0x3F000000).view(np.float32)
    powers = np.exp(a - a.max())
    tests: list[dict[str, Any]] = []

    def of(name: str, *expected: float, **tolerance: float) -> None:
        tests.append({"name": name, "expected": [float(each) for each in expected], **tolerance})

    of("arithmetic", a[0] + b[0], a[1] * b[1], a[2] / b[2], a[3] * b[3] + c[3], tolerance=1e-5)
    of("uniforms of 32 bits", *word.to_bytes(4, "big"))
    of("uniforms of floats", *np.float32(NUMBER).tobytes()[::-1])
    of("words of textures", *word.to_bytes(4, "big"))
    of("products of 32-bit integers", *(word * 0x85EBCA6B & 0xFFFFFFFF).to_bytes(4, "big"))
    of("shifts", word >> 13 & 0x7FF, (word << 7 & 0xFFFFFFFF) >> 20, size >> 4, (word >> 24) - 256)
    of("signed integers", -(size * 70000 // 7), -size >> 2, (-size | 5) + 3, -(size // 7))
    of("bits of floats", *given[0, 2].tobytes()[::-1])
    of("floats and half floats from bits", one, *halves, a[3])
    of("exp", np.exp(20 * c[2]), np.exp(c[1]), np.exp(-c[1]), np.exp(-9), tolerance=1e-4)
    of("log", *np.log(np.abs([a[0], b[0], size, 1e-30 * size])), tolerance=1e-4)
    of("sqrt", size**0.5, abs(a[0]) ** 0.5, 0.0, size**-0.5, tolerance=1e-4)
    of("a product", *(given.astype(np.float64) * given[::-1]).sum(axis=0), tolerance=1e-4)
    of("a softmax", *powers / powers.sum(), tolerance=1e-4)
    of("infinity and NaN", 0, 1, 2, 0)
    of("a readback", *a)
    words = [word, int(np.float32(HUGE).view(np.uint32)), 0, 0]
    return {"word": word, "number": NUMBER, "words": [words], "given": given.astype(float).tolist(), "tests": tests}


def test_the_recorded_numbers_are_right() -> None:
    expected = computed()
    assert {name: record()[name] for name in ("word", "number", "words", "given")} == {
        name: expected[name] for name in ("word", "number", "words", "given")
    }
    for found, wanted in zip(record()["tests"], expected["tests"], strict=True):
        assert found == {**wanted, "expected": pytest.approx(wanted["expected"], rel=1e-14, abs=0)}


DESKTOP = """
import glinfer
from glinfer.gl.context import open_device
with open_device(api="desktop") as device, glinfer.load("shakespeare", device=device) as model:
    print(device.version, model.generate([5, 3], max_tokens=8, temperature=0), sep="\\n")
"""


@pytest.mark.desktop
@pytest.mark.parametrize("version", ["3.3", "4.1"])
def test_core_contexts_of_desktop_opengl_compute_the_same(version: str) -> None:
    """Mesa's oldest and macOS's newest; contexts of Mesa have its newest version otherwise."""
    glsl = f"{version.replace('.', '')}0"
    environment = {"MESA_GL_VERSION_OVERRIDE": version, "MESA_GLSL_VERSION_OVERRIDE": glsl}
    found = finished([sys.executable, "-c", DESKTOP], env={**os.environ, **environment}).stdout.splitlines()
    with glinfer.load("shakespeare") as usual:
        expected = str(usual.generate([5, 3], max_tokens=8, temperature=0))
    assert (found[0].split(" Mesa")[0], found[1]) == (f"{version} (Core Profile)", expected)


def test_a_device_without_extensions_passes_and_writes_the_same() -> None:
    with open_pretended("webgl2") as device:
        assert (device.limits, device.extensions) == (Limits.webgl2_minimum(), frozenset())
        assert not device.driver_limits.float_targets
        assert not device.blends_floats
        assert self_test(device) == {}
        with glinfer.load("shakespeare", device=device) as model, glinfer.load("shakespeare") as usual:
            assert np.array_equal(model.logits([5, 3]), usual.logits([5, 3]))


AVOIDED = ("half-texels", "rounded", "unblended")


@pytest.mark.parametrize("name", [name for name in PRETENCES if name not in ("webgl2", "slow", *AVOIDED)])
def test_lies_of_a_driver_are_noticed_before_there_is_text(name: str) -> None:
    with open_pretended(name) as device, pytest.raises((GLError, NumbersError)) as raised:
        glinfer.load("shakespeare", device=device).generate([5, 3], max_tokens=8, temperature=0)
    assert re.search(
        r"computes wrong numbers in the test of .*; choose another|dropped it without|broken: ", str(raised.value)
    )


@pytest.mark.parametrize("name", AVOIDED)
def test_float_targets_that_fail_are_replaced_by_integer_targets(name: str) -> None:
    with open_pretended(name) as device, glinfer.load("shakespeare") as usual:
        assert set(self_test(device)) != set()
        assert renderer_report(device).can_run
        device.limits = device.driver_limits
        with glinfer.load("shakespeare", device=device) as model:
            assert not device.limits.float_targets
            assert np.array_equal(model.logits([5, 3]), usual.logits([5, 3]))
        texture = Texture(device, Layout.of((1, 1), "r32f", 64), "another")
        device.limits = device.driver_limits
        with pytest.raises(GLError, match="computes wrong numbers in the test of"):  # textures of floats are in use
            glinfer.load("shakespeare", device=device)
        texture.release()


@pytest.mark.parametrize(("name", "failed"), [("short", "uniforms of 32 bits"), ("fetches", "a product")])
def test_the_failed_test_is_named(name: str, failed: str) -> None:
    with open_pretended(name) as device:
        assert set(self_test(device)) == {failed}


def test_pretended_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(ContextError, match=r"^there is no pretended device 'x'; expected one of webgl2, slow, "):
        open_pretended("x")
    with pytest.raises(ContextError, match=r"^there is no EGL device 64; "):
        open_pretended("webgl2", 64)
