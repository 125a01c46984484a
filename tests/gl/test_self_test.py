"""The self-test of a renderer's arithmetic, on this machine's renderers and on pretended ones."""

from __future__ import annotations

import numpy as np
import pytest

import glinfer
from glinfer.errors import ContextError, GLError
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.pretend import open_pretended
from glinfer.gl.self_test import TESTS, self_test

pytestmark = pytest.mark.gl


def test_this_machine_passes(device: Device) -> None:
    assert self_test(device) == {}


@pytest.mark.desktop
def test_desktop_opengl_passes() -> None:
    with open_device(api="desktop") as device:
        assert self_test(device) == {}


def test_a_device_without_extensions_passes_and_writes_the_same() -> None:
    with open_pretended("webgl2") as device:
        assert (device.limits, device.extensions) == (Limits.webgl2_minimum(), frozenset())
        assert not device.driver_limits.float_targets
        assert not device.blends_floats
        assert self_test(device) == {}
        with glinfer.load("shakespeare", device=device) as model, glinfer.load("shakespeare") as usual:
            assert np.array_equal(model.logits([5, 3]), usual.logits([5, 3]))


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("short", {"uniforms of 32 bits", "products of 32-bit integers", "shifts"}),
        ("zeros", {test.name for test in TESTS}),
        ("drops", {test.name for test in TESTS}),
    ],
)
def test_faults_are_found_when_a_model_is_loaded(name: str, failed: set[str]) -> None:
    with open_pretended(name) as device:
        assert set(self_test(device)) == failed
        with pytest.raises(
            GLError, match=rf"pretending {name} computes wrong numbers in the test of .*; choose another"
        ):
            glinfer.load("shakespeare", device=device)


def test_pretended_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(ContextError, match=r"^there is no pretended device 'x'; expected one of webgl2, short, "):
        open_pretended("x")
    with pytest.raises(ContextError, match=r"^there is no EGL device 64; "):
        open_pretended("webgl2", 64)
