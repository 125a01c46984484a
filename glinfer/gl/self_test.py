"""A test of a renderer's arithmetic against recorded numbers, before a model depends on it.

Some drivers compute integers or uniforms with 16 bits, shift wrongly, or drop draws, without an error. The test is a
small draw and its readback, a few times, once in a process for each renderer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import GLError
from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import FORMATS, Layout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture

_GIVEN = np.random.default_rng(7).uniform(-3, 3, (16, 4)).astype(np.float32)
_GIVEN[2] = 2748, 1.5, 4.25, 0.625
_WORD = 0x9E3779B9
_ROUNDS = 4


@dataclass(frozen=True)
class SelfTest:
    """One test: what it computes, the four numbers to expect, and the largest relative error."""

    name: str
    expected: tuple[float, float, float, float]
    tolerance: float = 0.0


def _tests() -> tuple[SelfTest, ...]:
    a, b, c = _GIVEN[:3].astype(np.float64)
    size, word = int(c[0]), _WORD

    def of(name: str, *expected: float, tolerance: float = 0.0) -> SelfTest:
        x, y, z, w = map(float, expected)
        return SelfTest(name, (x, y, z, w), tolerance)

    halves = np.array([size << 20 & 0xFFFFFFFF | 0x37FF], np.uint32).view(np.float16)
    one = float(np.uint32((size << 20 & 0xFFFFFFFF) | 0x3F000000).view(np.float32))
    powers = np.exp(a - a.max())
    return (
        of("arithmetic", a[0] + b[0], a[1] * b[1], a[2] / b[2], a[3] * b[3] + c[3], tolerance=1e-5),
        of("uniforms of 32 bits", *word.to_bytes(4, "big")),
        of("products of 32-bit integers", *(word * 0x85EBCA6B & 0xFFFFFFFF).to_bytes(4, "big")),
        of("shifts", word >> 13 & 0x7FF, (word << 7 & 0xFFFFFFFF) >> 20, size >> 4, (word >> 24) - 256),
        of("signed integers", -(size * 70000 // 7), -size >> 2, (-size | 5) + 3, -(size // 7)),
        of("bits of floats", *_GIVEN[0, 2].tobytes()[::-1]),
        of("floats and half floats from bits", one, *halves, a[3]),
        of("exp", np.exp(20 * c[2]), np.exp(c[1]), np.exp(-c[1]), np.exp(-9), tolerance=1e-4),
        of("log", *np.log(np.abs([a[0], b[0], size, 1e-30 * size])), tolerance=1e-4),
        of("sqrt", size**0.5, abs(a[0]) ** 0.5, 0.0, size**-0.5, tolerance=1e-4),
        of("a product", *(_GIVEN.astype(np.float64) * _GIVEN[::-1]).sum(axis=0), tolerance=1e-4),
        of("a softmax", *powers / powers.sum(), tolerance=1e-4),
        of("a readback", *a),
    )


TESTS = _tests()
"""The tests, in the order of shaders/self_test.frag."""
_passed: set[str] = set()


def self_test(device: Device) -> dict[str, str]:
    """Run the tests; returns the failed ones by name, with the numbers found and expected."""
    given = Texture(device, Layout(1, 16, 16, 1, FORMATS["rgba32f"]), "the self-test's numbers", _GIVEN[None])
    target = Texture(device, Layout(1, len(TESTS), len(TESTS), 1, FORMATS["rgba32f"]), "the self-test")
    program = None
    try:
        program = Program(device, "self_test", {}, ["x"])
        program.set("word", _WORD)
        draw = Draw("self-test", program, target.framebuffer, (given,))
        rounds = []
        for _ in range(_ROUNDS):
            target.fill(np.nan)
            replay(device, [draw], {})
            rounds.append(target.framebuffer.read(0, len(TESTS), 1)[0].astype(np.float64))
    finally:
        for each in (program, target, given):
            if each is not None:
                each.release()
    failed = {}
    for texels in rounds:
        for test, found in zip(TESTS, texels, strict=True):
            expected = np.array(test.expected)
            if not (np.abs(found - expected) <= test.tolerance * np.abs(expected)).all():
                failed[test.name] = f"found {_words(found)}; expected {_words(expected)}"
    return failed


def check_arithmetic(device: Device) -> None:
    """Run the self-test unless this renderer passed it in this process.

    Raises:
        GLError: a test failed.
    """
    key = f"{device.description}, float targets {device.limits.float_targets}"
    if key in _passed:
        return
    if failed := self_test(device):
        raise GLError(failure(device.renderer, failed))
    _passed.add(key)


def failure(renderer: str, failed: Mapping[str, str]) -> str:
    """The error of a renderer that failed tests."""
    name, why = next(iter(failed.items()))
    return (
        f"{renderer} computes wrong numbers in the test of {name}: {why}; "
        "choose another device (glinfer info --device list)"
    )


def _words(numbers: npt.NDArray[Any]) -> str:
    return ", ".join(f"{number:.7g}" for number in numbers)
