"""Do textures hold exactly what was put in them: any bits, any shape, any layout, in parts and whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glinfer.errors import PlanError
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import FORMATS, Layout, TexelLayout
from glinfer.gl.raw import (
    GL_IMPLEMENTATION_COLOR_READ_FORMAT,
    GL_IMPLEMENTATION_COLOR_READ_TYPE,
    GL_RED,
    GL_RED_INTEGER,
    GL_RGBA,
    GL_RGBA_INTEGER,
)
from glinfer.gl.state import GLState
from glinfer.gl.texture import Framebuffer, Texture

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]

# Signalling and quiet NaNs of both signs with payloads, infinities, zeros, denormals, extremes; as integers,
# the ends of the range and alternating bits.
HARD_BITS = np.array(
    [
        *(0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7FFFFFFF, 0x7F800001, 0xFF800001, 0xFFABCDEF, 0x7F800000, 0xFF800000),
        *(0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x00400000, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000),
        *(0x7F7FFFFF, 0xFF7FFFFF, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA, 0x3F800000, 0x3EAAAAAB, 0xF149F2CA),
    ],
    dtype=np.uint32,
)
EDGES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 13, 31, 61, 127])
SHAPES = st.tuples(EDGES, EDGES)
BIGGEST = st.sampled_from([5, 7, 16, 61, 2048])
FORMAT_NAMES = st.sampled_from(["r32f", "r32i"])

in_one_device = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)


def bits(shape: tuple[int, int], seed: int) -> Array:
    """Random 32-bit patterns, a third of them hard ones."""
    random = np.random.default_rng(seed)
    patterns = random.integers(0, 2**32, shape, dtype=np.uint32)
    return np.where(random.random(shape) < 1 / 3, random.choice(HARD_BITS, shape), patterns).astype(np.uint32)


def as_format(patterns: Array, layout: Layout) -> Array:
    return patterns.view(np.dtype(layout.format.dtype))


def layout_of(shape: tuple[int, int], format_name: str, biggest: int) -> Layout:
    """The layout, with ``biggest`` raised just enough for the matrix to fit."""
    return Layout.of(shape, format_name, max(biggest, int(np.ceil(np.sqrt(shape[0] * shape[1])))))


@pytest.fixture(params=["single channel", "RGBA"])
def readback(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to read back: as the driver offers it, and as on a driver that offers nothing but RGBA."""
    formats: set[int] = set()
    ask, read = device.raw.integer, device.raw.read_pixels

    def offer_nothing(name: int) -> int:
        if name in (GL_IMPLEMENTATION_COLOR_READ_FORMAT, GL_IMPLEMENTATION_COLOR_READ_TYPE):
            return 0
        return ask(name)

    def watch(*arguments: Any) -> None:
        formats.add(arguments[4])
        read(*arguments)

    if request.param == "RGBA":
        monkeypatch.setattr(device.raw, "integer", offer_nothing)
    monkeypatch.setattr(device.raw, "read_pixels", watch)
    yield request.param
    expected = {GL_RGBA, GL_RGBA_INTEGER} if request.param == "RGBA" else {GL_RED, GL_RED_INTEGER}
    if request.param != "RGBA" and formats & {GL_RGBA, GL_RGBA_INTEGER}:
        pytest.skip(f"{device.renderer} offers RGBA alone, which the other case covers")
    assert formats == expected


@in_one_device
@given(SHAPES, BIGGEST, st.integers(0, 2**32))
def test_every_bit_survives(device: Device, readback: str, shape: tuple[int, int], biggest: int, seed: int) -> None:
    for format_name in ("r32f", "r32i"):
        layout = layout_of(shape, format_name, biggest)
        matrix = as_format(bits(shape, seed), layout)
        created = Texture(device, layout, "created", layout.pack(matrix))
        uploaded = Texture(device, layout, "uploaded")
        uploaded.upload(matrix)
        for texture in (created, uploaded):
            assert same_bits(texture.read(), matrix)
            texture.release()


@in_one_device
@given(SHAPES, BIGGEST, FORMAT_NAMES, st.data())
def test_writing_and_reading_parts_is_like_writing_and_reading_an_array(
    device: Device, shape: tuple[int, int], biggest: int, format_name: str, data: st.DataObject
) -> None:
    layout = layout_of(shape, format_name, biggest)
    model = as_format(bits(shape, 0), layout)
    texture = Texture(device, layout, "t", layout.pack(model))
    for seed in range(1, 4):
        rows = data.draw(st.integers(1, shape[0]), "rows written")
        part = as_format(bits((rows, shape[1]), seed), layout)
        texture.upload(part)
        model[:rows] = part
        rows = data.draw(st.integers(1, shape[0]), "rows read")
        cols = data.draw(st.integers(1, shape[1]), "columns read")
        assert same_bits(texture.read(rows, cols), model[:rows, :cols])
    assert same_bits(texture.read(), model)
    texture.release()


@pytest.mark.parametrize(
    ("make", "biggest"),
    [(np.asfortranarray, 64), (lambda a: a[::-1, ::-1], 9), (lambda a: np.repeat(a, 2, 1)[:, ::2], 9)],
)
def test_arrays_in_any_memory_order_are_stored_right(device: Device, make: Any, biggest: int) -> None:
    layout = Layout.of((7, 11), "r32f", biggest)
    matrix = make(np.arange(77, dtype=np.float32).reshape(7, 11))
    assert not matrix.flags.c_contiguous
    matrix.flags.writeable = False
    texture = Texture(device, layout, "t", layout.pack(matrix))
    assert same_bits(texture.read(), matrix)
    texture.fill(0.0)
    texture.upload(matrix)
    assert same_bits(texture.read(), matrix)


# How it is sampled


@pytest.mark.parametrize("api", ["es", pytest.param("desktop", marks=pytest.mark.desktop)])
def test_every_texture_is_nearest_and_clamped(api: str) -> None:
    with open_device(api=api) as device:
        for format_name in ("r32f", "r32i"):
            layout = Layout.of((3, 5), format_name, 64)
            full = Texture(device, layout, "full", np.zeros((3, 5), dtype=layout.format.dtype))
            full.read()
            for texture in (Texture(device, layout, "empty"), full):
                texture.gl.use(0)
                found = GLState(device).unit(0).parameters
                filters = {found.pop("min filter"), found.pop("mag filter")}
                assert (filters, set(found.values())) == ({"GL_NEAREST"}, {"GL_CLAMP_TO_EDGE"})
        device.check("asking for parameters")


# Clears


@pytest.mark.parametrize("biggest", [64, 9])
def test_fill_sets_every_element(device: Device, biggest: int) -> None:
    texture = Texture(device, Layout.of((7, 11), "r32f", biggest), "t")
    texture.upload(np.ones((7, 11), dtype=np.float32))
    for value in (0.0, -0.0, -1e30, np.inf, -np.inf, np.nan, 3.4028235e38, 1.17549435e-38):
        texture.fill(value)
        found, expected = texture.read(), np.full((7, 11), value, dtype=np.float32)
        assert np.isnan(found).all() if np.isnan(value) else same_bits(found, expected)
    whole = Texture(device, Layout.of((7, 11), "r32i", biggest), "i")
    for number in (1, -1, 2**31 - 1, -(2**31)):
        whole.fill(number)
        assert (whole.read() == number).all()


# Refusals


def refused(message: str) -> Any:
    """Expect a PlanError of one line that begins so."""
    return pytest.raises(PlanError, match=rf"\A{message}[^\n]*\Z")


def test_a_texture_above_the_limit_is_refused_before_it_is_made() -> None:
    with open_device(limits=Limits(8, 4, 16, 16384, 1.0)) as device:
        Texture(device, Layout.of((8, 8), "r32f", 8), "fits").release()
        for width, height in ((9, 1), (1, 9), (100_000_000, 1)):
            layout = Layout(height, width, width, height, FORMATS["r32f"])
            with refused(f"texture w needs {width}×{height} texels; .* allows 8 a side"):
                Texture(device, layout, "w")
        assert not device.live_objects()


def test_texels_of_another_size_are_refused(device: Device) -> None:
    with refused(r"creating texture w \(5×3 r32f\): data size mismatch"):
        Texture(device, Layout.of((3, 5), "r32f", 64), "w", np.zeros((3, 4), dtype=np.float32))
    assert not device.live_objects()


@pytest.mark.parametrize("biggest", [64, 4])
def test_what_does_not_fit_is_refused_and_changes_nothing(device: Device, biggest: int) -> None:
    texture = Texture(device, Layout.of((3, 5), "r32f", biggest), "t")
    texture.fill(7.0)
    for matrix in (np.zeros((4, 5), np.float32), np.zeros(5, np.float32), np.zeros((3, 5)), np.zeros((3, 5), ">f4")):
        with refused("t: found an array "):
            texture.upload(matrix)
    for part in ((4, 5), (3, 6), (0, 5), (3, -1), (10**9, 10**9)):
        with refused(f"t: found a part of {part[0]}×{part[1]} elements; expected 1×1 to 3×5"):
            texture.read(*part)
    assert (texture.read() == 7.0).all()


def test_targets_of_different_sizes_are_refused(device: Device) -> None:
    textures = [Texture(device, Layout.of(shape, "r32f", 64), name) for name, shape in (("a", (3, 5)), ("b", (3, 6)))]
    with refused("one framebuffer cannot hold textures of different sizes: a, b"):
        Framebuffer(device, textures)
    assert dict(device.live_objects()) == {"texture": 2}


@pytest.mark.parametrize(
    "layout",
    [
        Layout.of((23, 7), "r32f", 2048),
        Layout.of((23, 7), "r32f", 16),  # wrapped
        FlatLayout.of((23, 7), "rgba32f", 2048),
        FlatLayout.of((23, 700), "rgba32f", 2048),
        BlockLayout.of((23, 70), 2048, tiles=2),
        BlockLayout.by_block((23, 70), 2048),
        BlockLayout.by_block((23, 170), 2048, aside=1, every=1),
        RowLayout.of((23, 7), "rgba32f", 8),
    ],
    ids=["plain", "wrapped", "flat", "flat in lines", "tiles", "by block", "aside", "stacks"],
)
def test_bits_survive_in_every_layout_and_rows_are_read_alone_from_anywhere(
    device: Device, layout: TexelLayout
) -> None:
    matrix = bits((layout.rows, layout.cols), 4).view(np.float32)
    texture = Texture(device, layout, "x", layout.pack(matrix))
    assert same_bits(texture.read(), matrix)
    assert same_bits(texture.read(5, 3), matrix[:5, :3])
    for first, rows in ((0, 1), (0, 23), (22, 1), (5, 11), (13, 2)):
        assert same_bits(texture.read_rows(first, rows), matrix[first : first + rows])
    for first, rows in ((-1, 2), (22, 2), (0, 0), (23, 1)):
        with pytest.raises(PlanError, match="it has 23"):
            texture.read_rows(first, rows)
    texture.release()
