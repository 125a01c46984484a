"""A test of a renderer's arithmetic against recorded numbers, before a model depends on it.

Some drivers compute integers or uniforms with 16 bits, shift wrongly, or drop draws, without an error. The test is a
small draw and its readback, a few times, once in a process for each renderer. web/glinfer/self_test.js runs the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import GLError
from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import FORMATS, Layout
from glinfer.gl.program import Program, shader_root
from glinfer.gl.replay import Draw, DrawCall, replay
from glinfer.gl.texture import Framebuffer, Texture

RECORD = "self_test.json"
"""In the shader folder: the numbers given to shaders/self_test.frag, and each test with its results.

``tolerance`` is the largest relative error; a test without it is exact.
"""
BLENDING, TARGETS = "adding by blending", "a second target"
_ROUNDS = 4
_passed: set[str] = set()


@cache
def record() -> dict[str, Any]:
    """The contents of :data:`RECORD`."""
    values: dict[str, Any] = json.loads((shader_root() / RECORD).read_text("utf-8"))
    return values


def self_test(device: Device) -> dict[str, str]:
    """Run the tests; returns the failed ones by name, with the numbers found and expected."""
    recorded = record()
    tests, count = recorded["tests"], len(recorded["tests"])
    held: list[Texture | Framebuffer | Program] = []

    def texture(name: str, form: str, width: int, texels: npt.NDArray[Any] | None = None) -> Texture:
        held.append(
            made := Texture(device, Layout(1, width, width, 1, FORMATS[form]), f"the self-test's {name}", texels)
        )
        return made

    expected = np.array([test["expected"] for test in tests])
    allowed = np.array([[test.get("tolerance", 0.0)] for test in tests]) * np.abs(expected)
    failed: dict[str, str] = {}

    def compare(found: npt.NDArray[Any], wanted: npt.NDArray[Any], within: npt.NDArray[Any], name: str = "") -> None:
        for number in np.flatnonzero(~(np.abs(found.astype(np.float64) - wanted) <= within).all(axis=1)):
            failed[name or tests[number]["name"]] = f"found {_words(found[number])}; expected {_words(wanted[number])}"

    try:
        given = [np.array([recorded["given"]], np.float32), np.array([recorded["words"]], np.uint32)]
        inputs = [
            texture(name, form, each.shape[1], each) for name, form, each in zip("xw", _INPUTS, given, strict=True)
        ]
        targets = Framebuffer(device, [texture("target", "rgba32f", count) for _ in range(2)])
        held.append(targets)
        program = Program(device, "self_test", {}, ["x", "words"], formats=(_INPUTS, ("rgba32f",) * 2))
        held.append(program)
        program.set("word", recorded["word"])
        program.set("number", recorded["number"])
        for adds in [False] * _ROUNDS + [True] * device.blends_floats:
            targets.fill(1.0 if adds else np.nan)
            replay(device, [Draw("self-test", program, targets, tuple(inputs), DrawCall(adds=adds))], {})
            first, second = (targets.read(target, count, 1)[0] for target in range(2))
            if adds:
                compare(first[-1:], expected[-1:] + 1.0, np.array(1e-6), BLENDING)
                continue
            compare(first, expected, allowed)
            compare(second.view(np.int32), first[:, ::-1].view(np.int32), np.array(0), TARGETS)
    finally:
        for each in reversed(held):
            each.release()
    return failed


_INPUTS = ("rgba32f", "rgba32ui")


def settle_targets(device: Device) -> dict[str, str]:
    """Run the self-test; integer targets replace float targets that fail, if the device has no objects yet.

    Returns the failed tests, as :func:`self_test`; none if integer targets pass.
    """
    failed = self_test(device)
    if failed and device.limits.float_targets and not device.live_objects():
        limits = device.limits
        device.limits = replace(limits, float_targets=False)
        if not self_test(device):
            return {}
        device.limits = limits
    return failed


def check_arithmetic(device: Device) -> None:
    """Run :func:`settle_targets` unless this renderer passed in this process; GLError if a test failed."""
    key = f"{device.description}, float targets {device.limits.float_targets}"
    if key in _passed:
        return
    floats = device.limits.float_targets
    if failed := settle_targets(device):
        raise GLError(failure(device.renderer, failed))
    if device.limits.float_targets == floats:
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
