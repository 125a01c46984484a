"""Reading back without waiting, and copying rows of caches from place to place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glinfer.errors import PlanError
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, copied_rectangles
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.readback import Readback
from glinfer.gl.texture import Texture
from qa.objects import driver_objects

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]


def numbers(rows: int, cols: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


class TestReadback:
    @pytest.mark.parametrize("rows", [1, 32])
    def test_what_was_there_when_it_was_asked_for(self, device: Device, rows: int) -> None:
        texture = Texture(device, BlockLayout.by_block((32, BLOCK_FLOATS), 64), "t")
        first, second = Readback(texture, rows), Readback(texture, rows)
        one, other = numbers(32, BLOCK_FLOATS), numbers(32, BLOCK_FLOATS, 2)
        texture.upload(one)
        first.start()
        texture.upload(other)
        second.start()
        texture.fill(0.0)
        assert np.array_equal(first.read(), one[:rows])
        assert np.array_equal(second.read(), other[:rows])
        assert np.array_equal(first.read(), one[:rows]), "it stays until the next start"
        first.start()
        assert not first.read().any()
        assert not texture.read().any(), "other readbacks go on as before"
        for each in (first, second, texture):
            each.release()

    def test_it_belongs_to_the_device(self, device: Device) -> None:
        texture = Texture(device, BlockLayout.by_block((4, BLOCK_FLOATS), 64), "t")
        before, ours = driver_objects(device), device.live_objects()
        readback = Readback(texture, 4)
        assert device.live_objects() - ours == {"buffer": 1}
        assert driver_objects(device)["buffer"] == before["buffer"] + 1
        readback.release()
        readback.release()
        assert driver_objects(device) == before
        texture.release()

    def test_other_texels_are_refused(self, device: Device) -> None:
        texture = Texture(device, Layout.of((3, 3), "r32f", 64), "t")
        with pytest.raises(PlanError, match="t is r32f; expected rgba32f"):
            Readback(texture, 1)
        texture.release()


@pytest.mark.parametrize(
    ("edge", "source", "target", "rows"),
    [(2048, 0, 64, 64), (2048, 40, 90, 37), (256, 64, 0, 23), (256, 9, 9, 0), (128, 40, 90, 37), (128, 127, 5, 1)],
)
def test_rows_are_copied_and_nothing_else(device: Device, edge: int, source: int, target: int, rows: int) -> None:
    """By way of a texture for one sequence, as caches are; what is kept aside stays."""
    cols = 5 * BLOCK_FLOATS
    cache = Texture(device, BlockLayout.by_block((128, cols), edge, aside=2, every=64), "cache")
    between = Texture(device, BlockLayout.by_block((64, 3 * BLOCK_FLOATS), edge), "between")
    assert cache.layout.in_one_line == (edge == 2048)  # type: ignore[union-attr]
    expected = numbers(128, cols)
    cache.upload(expected)
    expected = cache.read()
    between.copy_rows(cache, source, 0, rows)
    cache.copy_rows(between, 0, target, rows)
    expected[target : target + rows, : 3 * BLOCK_FLOATS] = expected[source : source + rows, : 3 * BLOCK_FLOATS]
    assert np.array_equal(cache.read(), expected)
    cache.release()
    between.release()


def test_rows_that_are_not_there() -> None:
    cache = BlockLayout.by_block((64, 128), 2048)
    for rows, first in ((65, 0), (2, 63), (-1, 0)):
        with pytest.raises(PlanError, match=f"cannot copy {rows} slots of 2 blocks from slot {first} to slot 0"):
            copied_rectangles(cache, cache, first, 0, rows)
    with pytest.raises(PlanError, match="cannot copy slots of this layout; expected one made by by_block"):
        copied_rectangles(cache, BlockLayout.of((64, 128), 2048), 0, 0, 1)
