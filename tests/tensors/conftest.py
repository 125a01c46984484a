"""A second device for tests of tensors: the least that there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from glinfer.tensors.device import Device


@pytest.fixture
def small() -> Iterator[Device]:
    """What WebGL2 guarantees and no more, textures of at most 64 texels a side, read by texelFetch."""
    from glinfer.gl.context import Limits
    from glinfer.tensors.device import Device

    with Device(limits=dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=64)) as opened:
        opened.kernels = dataclasses.replace(opened.kernels, lookup_texture=False)
        yield opened
