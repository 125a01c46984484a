"""Devices that all tests of this folder share, and one for tests of what a device owns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from glinfer.tensors.device import Device


def tidied(device: Device) -> Iterator[Device]:
    """Lend a device to one test: check for OpenGL errors afterwards, and release the tensors that it left."""
    settings = device.kernels, device.blends_floats
    yield device
    assert not device.context.raw.pending_errors()
    device.kernels, device.blends_floats = settings
    device.ops = type(device.ops)(device)  # rope keeps tables of angles
    for storage in list(device._storages):
        storage.release()
    assert device.memory().tensors == 0


@pytest.fixture(scope="session")
def usual_device() -> Iterator[Device]:
    """A device with the renderer's own limits; its programs are kept from test to test."""
    from glinfer.tensors.device import Device

    with Device() as opened:
        yield opened


@pytest.fixture(scope="session")
def least_device() -> Iterator[Device]:
    """WebGL2's guaranteed limits, textures of at most 64 texels a side, read by texelFetch."""
    from glinfer.gl.context import Limits
    from glinfer.tensors.device import Device

    with Device(limits=dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=64)) as opened:
        opened.kernels = dataclasses.replace(opened.kernels, lookup_texture=False)
        yield opened


@pytest.fixture
def dev(usual_device: Device) -> Iterator[Device]:
    """The shared device."""
    yield from tidied(usual_device)


@pytest.fixture
def small(least_device: Device) -> Iterator[Device]:
    """The shared device with the least limits: no more than 16384 elements in one texture."""
    yield from tidied(least_device)


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers in each test."""
    return np.random.default_rng(7)


@pytest.fixture
def own() -> Iterator[Device]:
    """A device of the test's own, audited for what it leaves in the driver."""
    from glinfer.tensors.device import Device

    with Device() as opened:
        yield opened
