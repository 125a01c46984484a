"""Regions of one texture: bits that stay theirs, overlaps that are refused, and the barriers that draws need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glinfer.errors import PlanError
from glinfer.gl.context import Device, open_device
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.readback import Readback
from glinfer.gl.region import Barriers, Region, check_feedback
from glinfer.gl.texture import Texture

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
LAYOUT = BlockLayout.of((3, 200), 2048, tiles=2, pitch=16)
AT = (8, 12)
WIDTH, HEIGHT = 64, 40


@pytest.fixture
def whole(device: Device) -> Texture:
    made = Texture(device, RowLayout.of((HEIGHT, 4 * WIDTH), "rgba32f", 2048), "whole")
    made.fill(7.0)
    return made


@pytest.fixture
def region(whole: Texture) -> Region:
    return Region(whole, LAYOUT, "region", AT)


def numbers(seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((LAYOUT.rows, LAYOUT.cols)).astype(np.float32)


def texels(whole: Texture) -> Array:
    return whole.framebuffer.read(0, WIDTH, HEIGHT)


def beside(whole: Texture) -> Array:
    """All texels but the region's."""
    outside = np.ones((HEIGHT, WIDTH), dtype=bool)
    x, y = AT
    outside[y : y + LAYOUT.height, x : x + LAYOUT.width] = False
    found: Array = texels(whole)[outside]
    return found


def test_it_holds_a_matrix_as_a_texture_of_its_own_does(device: Device, whole: Texture, region: Region) -> None:
    own, matrix = Texture(device, LAYOUT, "own"), numbers()
    for each in (own, region):
        each.upload(matrix)
    np.testing.assert_array_equal(region.read(), own.read())
    np.testing.assert_array_equal(region.read(2, 70), matrix[:2, :70])
    np.testing.assert_array_equal(region.read_rows(1, 2), matrix[1:])
    np.testing.assert_array_equal(region.read_lines(4, 3), own.read_lines(4, 3))
    readback = Readback(region, 2)
    readback.start()
    np.testing.assert_array_equal(readback.read(), matrix[:2])
    readback.release()
    assert (beside(whole) == 7.0).all()
    other = numbers(2)
    own.upload(other)
    region.copy_from(own)
    np.testing.assert_array_equal(region.read(), other)
    own.fill(0.0)
    own.copy_from(region)
    np.testing.assert_array_equal(own.read(), other)
    for value in (np.nan, -2.5):
        region.fill(value)
        np.testing.assert_array_equal(region.read(), np.full_like(other, value))
    assert (beside(whole) == 7.0).all()
    assert region.framebuffer.gl is whole.framebuffer.gl, "one framebuffer"


def test_rows_are_copied_from_place_to_place(device: Device, whole: Texture) -> None:
    layout = BlockLayout.by_block((16, 100), 2048)
    region, own = Region(whole, layout, "region", (0, 20)), Texture(device, layout, "own")
    matrix = np.random.default_rng(3).standard_normal((16, 100)).astype(np.float32)
    own.upload(matrix)
    region.fill(0.0)
    region.copy_rows(own, 2, 5, 4)
    np.testing.assert_array_equal(region.read_rows(5, 4), matrix[2:6])
    assert not region.read_rows(9, 7).any()
    own.copy_rows(region, 5, 0, 4)
    np.testing.assert_array_equal(own.read_rows(0, 4), matrix[2:6])


def test_it_is_no_object_of_opengl(device: Device, whole: Texture) -> None:
    whole.framebuffer.read(0, 1, 1)
    before = device.live_objects()
    region = Region(whole, LAYOUT, "region", AT)
    region.upload(numbers())
    region.read()
    assert device.live_objects() == before
    region.release()
    region.release()
    with pytest.raises(PlanError, match=r"^texture region was released"):
        region.read()
    assert texels(whole).any(), "the texture stays"


def test_what_does_not_fit_is_refused(whole: Texture) -> None:
    right, halves = WIDTH - LAYOUT.width + 1, BlockLayout.of((3, 200), 2048, format_name="rgba16f")
    for at in ((right, 0), (0, HEIGHT), (-4, 0)):
        with pytest.raises(PlanError, match=r"^region r is 32×\d+ texels from \(.*\) on; whole has 64×40$"):
            Region(whole, LAYOUT, "r", at)
    with pytest.raises(PlanError, match=r"^region r is rgba16f; whole is rgba32f$"):
        Region(whole, halves, "r", (0, 0))
    whole.release()
    with pytest.raises(PlanError, match=r"^texture whole was released"):
        Region(whole, LAYOUT, "r", (0, 0))


SMALL = BlockLayout.of((1, 64), 2048)
"""One block, four texels a side."""


def test_a_draw_must_not_sample_its_target(device: Device, whole: Texture) -> None:
    target = Region(whole, SMALL, "target", (8, 8))
    for x in (4, 8, 12):
        for y in (4, 8, 12):
            check_feedback("d", [target], [Region(whole, SMALL, "s", (x, y))] if (x, y) != (8, 8) else [])
    other = Texture(device, SMALL, "other")
    check_feedback("d", [target, other], [])
    check_feedback("d", [other], [target, whole])
    for sampled in (whole, target, *(Region(whole, SMALL, "s", at) for at in ((5, 5), (11, 11), (5, 11), (11, 5)))):
        with pytest.raises(PlanError, match=rf"^draw d samples {sampled.name}, which has texels of its target target$"):
            check_feedback("d", [target], [other, sampled])
    with pytest.raises(PlanError, match=r"^draw d samples other, which has texels of its target other$"):
        check_feedback("d", [target, other], [other])


def test_barriers_stand_where_texels_change_hands(device: Device, whole: Texture) -> None:
    a, b, c = (Region(whole, SMALL, name, (8 * place, 0)) for place, name in enumerate("abc"))
    own, barriers = Texture(device, SMALL, "own"), Barriers()
    assert not barriers.before([a], [own]), "nothing was drawn before"
    assert not barriers.before([own], [a]), "another framebuffer"
    assert barriers.before([a], [own]), "another draw may still be reading it"
    assert barriers.before([b], [a]), "what was just written"
    assert not barriers.before([c], [a]), "settled by the barrier before"
    assert barriers.before([a], [own])
    assert not barriers.before([a], []), "drawn over in order"
    assert barriers.before([b], [a, c])


def test_only_a_driver_that_says_so_has_a_barrier(device: Device) -> None:
    assert (device.texture_barrier is not None) == ("GL_NV_texture_barrier" in device.extensions)


@pytest.mark.desktop
def test_desktop_opengl_has_one() -> None:
    with open_device(api="desktop") as device:
        barrier = device.texture_barrier
        if barrier is None:
            pytest.skip("this driver has no texture barrier")
        barrier()
        device.check("a barrier")
